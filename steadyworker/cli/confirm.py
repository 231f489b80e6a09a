"""The question before an action on many jobs, and the report after an action."""

from __future__ import annotations

import sys

import click

from steadyworker.actions.report import ActionReport
from steadyworker.cli.streams import echo
from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import redact

yes_option = click.option("--yes", is_flag=True, help="Do not ask; a script needs this with a filter.")


def confirm(count: str, what: str, *, yes: bool) -> None:
    """
    Print what is about to change, and ask; return only after a yes.

    Raises click.UsageError without a terminal, because then no person can answer; click.exceptions.Exit after a no.
    """
    if yes:
        return
    count = printable(count)
    if not is_terminal():
        raise click.UsageError(
            f"Expected a yes before this command {what} {count}, got no terminal to ask on: add --yes. Nothing was changed."
        )
    if not click.confirm(f"This {what} {count}. Go on?", err=True):
        click.echo("Nothing was changed.", err=True)
        raise click.exceptions.Exit(1)


def is_terminal() -> bool:
    """Return whether a person at a terminal can answer a question."""
    return sys.stdin.isatty()


def finish(report: ActionReport, noun: str, done: str) -> ActionReport:
    """
    Print the number of handled jobs if an error ended the action; warn if the action is not logged; return the report.

    Raises the error of the report.
    """
    warn_unlogged(report.unlogged)
    if report.error is not None and report.chosen > 1:
        click.echo(
            f"{len(report.changed):,} of {report.chosen:,} {noun}s {done}; run the command again for the rest.",
            err=True,
        )
    return report.checked()


def warn_unlogged(cause: str) -> None:
    """Print a warning if an action was done, but is not in the log of actions."""
    if cause:
        echo(f"warning: This is done, but not in the log of actions: {redact(cause)}", err=True)
