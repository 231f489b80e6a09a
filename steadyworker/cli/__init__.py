"""
The command line: one file per verb, each imported only when its verb is called, so that `--help` answers at once.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | understood, but it could not be done (a file that does not verify, a job that has ended already) |
| 64 | wrong usage |
| 65 | a payload or a file of them that makes no sense |
| 69 | the broker or the ledger was not there, or did not confirm |
| 70 | our own fault |
| 78 | a setting or a check |

`run` answers the exit codes of a worker process (its `--help` lists them).
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
from steadyworker.telemetry.redaction import redact

USAGE, DATA, UNAVAILABLE, INTERNAL, CONFIG = 64, 65, 69, 70, 78
"""The exit codes of sysexits.h that we use."""

_VERBS = {
    "run": "Run workers until they are told to stop.",
    "send": "Send one job, or a file of them.",
    "check": "Make the checks of `run`; show where each setting comes from.",
    "jobs": "List jobs, or watch them.",
    "cancel": "Cancel a job, wherever it is.",
    "dead": "List, show, replay or drop dead letters.",
    "verify": "Re-read exported files against their manifests.",
    "adapters": "List the brokers that can be used here.",
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
Jobs of seconds to many hours, one message each, that no dropped connection can lose or repeat.

\b
A first job, on the embedded broker (no server to install):
  steadyworker send  exports:PaymentExports '{"merchant": "m-17"}'
  steadyworker run   exports:PaymentExports
  steadyworker jobs  --watch

A Worker is named MODULE:CLASS, found from the working directory.
Every setting is an option (--stop-within), a variable (STEADYWORKER_STOP_WITHIN) or a line of
steadyworker.toml (stop_within), in this order; `steadyworker check` shows where each value came from.

\b
Shell completion (bash; zsh and fish likewise):
  eval "$(_STEADYWORKER_COMPLETE=bash_source steadyworker)"
"""


class _Verbs(click.Group):
    """A group whose verbs are imported when they are called, and whose errors are one line with their remedy."""

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
    """Say an error on standard error, without a traceback; answers what ends the command."""
    if isinstance(error, SteadyWorkerError):
        text, code = str(error), exit_code(error)
    else:
        remedy = "this is a fault of ours, or of the module that was named; `steadyworker --debug …` shows where."
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
    """What a command ends with when it ends with this error."""
    return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))


@click.command(
    cls=_Verbs, help=_HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="steadyworker", message="steadyworker %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def verbs(*, debug: bool) -> None:
    """Stand for the whole command line."""


def main() -> None:
    """Entry point of the `steadyworker` command."""
    verbs(prog_name="steadyworker")
