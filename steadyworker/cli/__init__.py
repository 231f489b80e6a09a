"""
The command line.

Each verb has its own file, which is imported only when the verb is called, so that `--help` is fast.
Other packages add verbs by their entry points (`other_verbs.py`).
`EXIT_CODES` is the table of all exit codes, and `steadyworker --help` prints it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click
from typing_extensions import override

from steadyworker.cli.group import Group, own_first
from steadyworker.cli.streams import OutputFailed, discard_output, prepare
from steadyworker.errors import (
    BadPayload,
    BrokerUnavailable,
    ConfigError,
    LedgerUnavailable,
    PublishFailed,
    SendError,
    SourceUnavailable,
    SteadyWorkerError,
    Unsettled,
)
from steadyworker.system.leaving import leave
from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import redact

NEGATIVE, USAGE, DATA, UNAVAILABLE, INTERNAL, OUTPUT, CONFIG, BROKEN_OFF = 1, 64, 65, 69, 70, 74, 78, 130

EXIT_CODES: tuple[tuple[int, str], ...] = (
    (0, "Done. For run: every job ended or was given back; --max-jobs or --idle-exit was reached."),
    (
        NEGATIVE,
        "A negative result: a file does not match its manifest, a job has already ended, a key has no dead letter. For queues: a limit is exceeded. For explain and trace: something was found.",
    ),
    (USAGE, "Wrong usage: an unknown command or option, or a missing argument."),
    (DATA, "An invalid payload, or an invalid file of jobs: nothing was sent."),
    (
        UNAVAILABLE,
        "Broker, ledger or --source unreachable, or no confirm; or another reader holds the dead letters. For queues: a number that a limit needs is unknown. For run: broker away for --give-up-after.",
    ),
    (INTERNAL, "An internal error. For run also: setup failed three times in a row."),
    (OUTPUT, "Standard output could not be written: a full disk, or a closed pipe."),
    (75, "Only run: --max-rss was reached."),
    (CONFIG, "An invalid setting, a failed check or a refused login: a restart would not help."),
    (BROKEN_OFF, "Ctrl-C, but not for run and trace, which then stop as after SIGTERM."),
    (143, "Only run: a job had to be killed, or a second signal came."),
)
"""All exit codes of all commands, with their meanings; the codes from 64 to 78 come from sysexits.h."""

_COMPLETION = "_STEADYWORKER_COMPLETE"
"""The variable with which a shell asks for a completion."""

_VERBS = {
    "run": "Run Workers until a signal stops them.",
    "exec": "Run a program for each message of a queue.",
    "send": "Send one job, or a file of jobs.",
    "check": "Run the checks of `run`, and show where each setting comes from.",
    "jobs": "List or watch jobs: what needs a person comes first.",
    "show": "Show the story of one job.",
    "queues": "List what waits in each queue, with exit codes for alerts.",
    "workers": "List the worker processes, and what each needs.",
    "find": "Find a job's record, and its message in the queue.",
    "retry": "Run waiting jobs now, from the ledger's copies of their messages.",
    "reschedule": "Let jobs that wait for a retry run at another time.",
    "cancel": "Cancel jobs that are running, waiting, or not yet received.",
    "dead": "List, show, replay or drop dead letters.",
    "pause": "Pause a queue: its workers receive no new message.",
    "resume": "End the pause of a queue.",
    "purge": "Delete the messages that wait in a queue.",
    "actions": "List what people have done.",
    "deploy": "Print files for systemd or Kubernetes, with a Worker's names and numbers.",
    "adapters": "List the brokers that this installation supports.",
}

_EXIT_CODES: tuple[tuple[type[SteadyWorkerError], int], ...] = (
    (ConfigError, CONFIG),
    (BadPayload, DATA),
    (BrokerUnavailable, UNAVAILABLE),
    (LedgerUnavailable, UNAVAILABLE),
    (PublishFailed, UNAVAILABLE),
    (SendError, UNAVAILABLE),
    (SourceUnavailable, UNAVAILABLE),
    (Unsettled, UNAVAILABLE),
    (SteadyWorkerError, NEGATIVE),
)

_HELP = """\
Run jobs of seconds to many hours, one message each.
A dropped connection neither loses a job nor starts it again.

\b
A first job, on the embedded broker (no server to install):
  steadyworker send  exports:PaymentExports '{"merchant": "m-17"}'
  steadyworker run   exports:PaymentExports
  steadyworker jobs  --watch

MODULE:CLASS names a Worker; the module is imported from the working directory or the Python path.

\b
A setting can be given in three places; the first of these places that has it wins:
  an option                     --stop-within 2h
  an environment variable       STEADYWORKER_STOP_WITHIN=2h
  a line of steadyworker.toml   stop_within = "2h"
`steadyworker check` shows where each value comes from.

\b
Shell completion of commands, options, Workers, queues and keys
(bash; zsh and fish work the same way, without the first line):
  COMP_WORDBREAKS=${COMP_WORDBREAKS//:}
  eval "$(_STEADYWORKER_COMPLETE=bash_source steadyworker)"
"""


class _Verbs(Group):
    """A command group that imports a verb when the verb is called, and prints an error with its remedy."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        from steadyworker.cli.other_verbs import names

        return list(dict.fromkeys([*_VERBS, *names()]))

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            from steadyworker.cli.other_verbs import command_of

            found = command_of(cmd_name)
            return None if found is None else own_first(found)
        command: click.Command = import_module(f"steadyworker.cli.{cmd_name}").command
        return own_first(command)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from steadyworker.cli.other_verbs import lines_of_help

        with formatter.section("Commands"):
            formatter.write_dl(list({**_VERBS, **lines_of_help(), **_VERBS}.items()))

    @override
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES])

    @override
    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command, and end the process with the exit code of the command."""
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except click.Abort:
            code = BROKEN_OFF
        except OutputFailed as error:
            discard_output()
            code = OUTPUT
            if not error.by_reader:  # a reader such as `head` closes the pipe when the reader needs no more output
                _print_error(str(error))
        sys.exit(code)

    @override
    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        with _usage_is_64():
            return super().make_context(info_name, args, parent, **extra)

    @override
    def invoke(self, ctx: click.Context) -> object:
        try:
            with _usage_is_64():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, OutputFailed):
            raise
        except Exception as error:
            if ctx.params["debug"]:
                sys.excepthook(type(error), error, error.__traceback__)
            raise _reported(error) from error


def _reported(error: Exception) -> click.exceptions.Exit:
    """Print an error to standard error, without a traceback, and return the exception that ends the command."""
    if isinstance(error, SteadyWorkerError):
        text, code = str(error), exit_code(error)
    elif isinstance(error, FileNotFoundError) and error.filename is None:
        text, code = "Expected a working directory, got one that was deleted: change to another folder.", CONFIG
    elif isinstance(error, OSError) and error.filename is not None:
        text = f"Expected to use {error.filename}, got: {error.strerror}: correct the path, or let this user use it."
        code = CONFIG
    else:
        remedy = "This is an error in SteadyWorker or in the module that you named: `steadyworker --debug …` shows the traceback."
        text, code = f"{type(error).__name__}: {error}\n{remedy}", INTERNAL
    _print_error(redact(text))
    return click.exceptions.Exit(code)


def _print_error(text: str) -> None:
    shown = "\n".join(printable(line) for line in text.split("\n"))
    click.echo(f"{click.style('error:', fg='red', bold=True)} {shown}", err=True)


@contextmanager
def _usage_is_64() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        error.show()
        raise click.exceptions.Exit(USAGE) from error


def exit_code(error: SteadyWorkerError) -> int:
    """Return the exit code of a command that ends with this error."""
    return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))


@click.command(
    cls=_Verbs, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="steadyworker", message="steadyworker %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def verbs(*, debug: bool) -> None:
    """The group of all verbs."""


def main() -> None:
    """Entry point of the `steadyworker` command; a completion that fails offers nothing."""
    prepare()
    try:
        verbs(prog_name="steadyworker")
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else int(end.code is not None))
    except Exception:
        if _COMPLETION not in os.environ:
            raise
        leave(0)  # a traceback would be printed into the command line
