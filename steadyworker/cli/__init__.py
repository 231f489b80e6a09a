"""
The command line: one file per verb, imported only when that verb is called, so that `--help` is fast.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a negative result (a file does not match its manifest, a job has already ended) |
| 64 | wrong usage |
| 65 | an invalid payload, or an invalid file of jobs |
| 69 | the broker or the ledger could not be reached, or did not confirm |
| 70 | an internal error |
| 78 | an invalid setting, or a failed check |

`run` returns the exit codes of a worker process; its `--help` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import click
from typing_extensions import override

from steadyworker.errors import (
    BadPayload,
    BrokerUnavailable,
    ConfigError,
    LedgerUnavailable,
    PublishFailed,
    SendError,
    SteadyWorkerError,
    Unsettled,
)
from steadyworker.system.leaving import leave
from steadyworker.system.streams import open_standard_streams
from steadyworker.telemetry.redaction import redact

USAGE, DATA, UNAVAILABLE, INTERNAL, CONFIG = 64, 65, 69, 70, 78
"""The exit codes of sysexits.h that we use."""

_VERBS = {
    "run": "Run Workers until a signal stops them.",
    "send": "Send one job, or a file of jobs.",
    "check": "Run the checks of `run`, and show where each setting comes from.",
    "jobs": "List or watch jobs.",
    "cancel": "Cancel a job that is running, waiting, or not yet received.",
    "dead": "List, show, replay or drop dead letters.",
    "verify": "Re-read exported files, and compare them with their manifests.",
    "adapters": "List the brokers that this installation supports.",
}

_EXIT_CODES: tuple[tuple[type[SteadyWorkerError], int], ...] = (
    (ConfigError, CONFIG),
    (BadPayload, DATA),
    (BrokerUnavailable, UNAVAILABLE),
    (LedgerUnavailable, UNAVAILABLE),
    (PublishFailed, UNAVAILABLE),
    (SendError, UNAVAILABLE),
    (Unsettled, UNAVAILABLE),
    (SteadyWorkerError, 1),
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
Each setting can be given in three places; the first one that has it wins:
  an option                     --stop-within 2h
  an environment variable       STEADYWORKER_STOP_WITHIN=2h
  a line of steadyworker.toml   stop_within = "2h"
`steadyworker check` shows where each value comes from.

\b
Shell completion (bash; zsh and fish work the same way):
  eval "$(_STEADYWORKER_COMPLETE=bash_source steadyworker)"
"""


class _Verbs(click.Group):
    """A command group that imports a verb when it is called, and prints an error with its remedy."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command: click.Command = import_module(f"steadyworker.cli.{cmd_name}").command
        return command

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))

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
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.params["debug"]:
                raise
            raise _said(error) from error


def _said(error: Exception) -> click.exceptions.Exit:
    """Print an error to standard error, without a traceback, and return the exception that ends the command."""
    if isinstance(error, SteadyWorkerError):
        text, code = str(error), exit_code(error)
    else:
        remedy = "This is an error in SteadyWorker or in the module that you named: `steadyworker --debug …` shows the traceback."
        text, code = f"{type(error).__name__}: {error}\n{remedy}", INTERNAL
    click.echo(f"{click.style('error:', fg='red', bold=True)} {redact(text)}", err=True)
    return click.exceptions.Exit(code)


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
    """Group all verbs."""


def main() -> None:
    """Entry point of the `steadyworker` command."""
    open_standard_streams()
    try:
        verbs(prog_name="steadyworker")
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else int(end.code is not None))
