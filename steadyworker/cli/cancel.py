"""`steadyworker cancel`: cancels jobs that are running, waiting, or not yet received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from steadyworker.actions.jobs import JobActions, JobChoice
from steadyworker.actions.report import ActionReport, Handled
from steadyworker.backends.connections import Connections, job_queue
from steadyworker.cli.confirm import confirm, finish, yes_option
from steadyworker.cli.moment import moment
from steadyworker.cli.settings import client_settings
from steadyworker.cli.streams import echo
from steadyworker.cli.targets import keys_argument, queue_argument, worker_or_queue
from steadyworker.config.resolve import Options
from steadyworker.ledger import retention
from steadyworker.ledger.base import JobId
from steadyworker.outcome import JobState
from steadyworker.text.redaction import redact
from steadyworker.units import count_text

KEPT = round(retention.CANCEL_MARK / retention.DAY)
_STATES = [state.value for state in (JobState.RUNNING, JobState.INTERRUPTED, JobState.RETRYING, JobState.SCHEDULED)]


@click.command(
    "cancel",
    epilog="""\b
Examples:
  steadyworker cancel exports:PaymentExports export-m-17 --reason "wrong month"
  steadyworker cancel payment-exports export-m-17 export-m-18
  steadyworker cancel payment-exports --state retrying --grep "no such merchant"
  steadyworker cancel payment-exports export-m-17 --undo""",
)
@queue_argument
@keys_argument
@click.option(
    "--state", "states", multiple=True, type=click.Choice(_STATES), help="All jobs in this state; repeatable."
)
@click.option(
    "--since",
    callback=moment,
    metavar="WHEN",
    help="All jobs that were recorded or started since then: today, yesterday, 2h, 2026-01-31.",
)
@click.option("--grep", metavar="TEXT", help="All jobs with this text in key, note, reason or error.")
@click.option("--all", "every", is_flag=True, help="All unfinished jobs of the queue that the ledger knows.")
@click.option("--undo", is_flag=True, help="Remove the cancel again, if no worker can have read it.")
@click.option(
    "--reason", default="by an operator", show_default=True, metavar="R", help="The reason, for the dead letter."
)
@yes_option
@client_settings
@click.pass_context
def command(
    ctx: click.Context,
    options: Options,
    *,
    target: str,
    keys: Sequence[str],
    states: Sequence[str],
    since: float | None,
    grep: str | None,
    every: bool,
    undo: bool,
    reason: str,
    yes: bool,
) -> None:
    """
    Cancel jobs that are running, waiting, or not yet received.

    Name the jobs by KEYs, or select them: --state, --since and --grep narrow the selection, and --all selects every unfinished job.
    Before the command cancels a selection, it shows the number of jobs, and asks.

    A running job receives the cancel within 2 s, and can commit no further export.
    A job that waits does not run when its message arrives.
    A key that the ledger does not know can be cancelled too, for messages that arrive within 14 days.
    Every cancelled job becomes a dead letter.
    A purge of the queue does not stop a job, because the ledger keeps the job's message.

    --undo removes a cancel from jobs that wait. A running job may have received it already, so its cancel stays.
    Exit code 1 means that a job had already ended, that a cancel could not be undone, or that there is no such queue.
    Exit code 78 means that the queue's workers use another ledger, so that nothing was cancelled.
    """
    choice = JobChoice([JobState(state) for state in states], since, grep or "", marked=undo)
    chooses = bool(states or since is not None or grep or every)
    if bool(keys) == chooses:
        got = "both" if keys else "neither"
        raise click.UsageError(f"Expected KEYs, or --state, --since, --grep or --all, got {got}.")
    queue = job_queue(worker_or_queue(target), options)
    with Connections(options) as links:
        actions = JobActions(links, queue)
        ids = actions.ids(keys) if keys else _asked(actions, choice, queue.name, undo=undo, yes=yes)

        def each(handled: Handled) -> None:
            text = _undone(handled) if undo else _cancelled(handled, options.ledger)
            echo(text, err=bool(handled.problem))

        report = actions.undo(ids, each) if undo else actions.cancel(ids, reason, each)
        ctx.exit(_code(finish(report, "job", "changed")))


def _asked(actions: JobActions, choice: JobChoice, queue: str, *, undo: bool, yes: bool) -> list[JobId]:
    """Return the chosen jobs, after a yes."""
    rows = actions.chosen(choice)
    if rows:
        counts = ", ".join(
            f"{count:,} {state}" for state, count in sorted(Counter(row.job_state for row in rows).items())
        )
        what = "undoes the cancel of" if undo else "cancels"
        confirm(f"{count_text(len(rows), 'job')} of {queue} ({counts})", what, yes=yes)
    else:
        echo(f"No such jobs in {queue}.", err=True)
    return [row.id for row in rows]


def _code(report: ActionReport) -> int:
    return int(len(report.changed) < len(report.handled))


def _cancelled(handled: Handled, ledger: str) -> str:
    key = handled.key
    if handled.problem:
        return f"{key} {handled.problem}: nothing was cancelled."
    match handled.before:
        case None:
            return (
                f"{key} is not in the ledger {redact(ledger)} yet: the cancel is recorded there, and a message "
                f"with this key will not run if it arrives within {KEPT} days."
            )
        case JobState.CANCEL_WAITING:
            return f"{key} was cancelled before: a message with this key will not run."
        case JobState.RUNNING:
            return f"{key} is running: it receives the cancellation within 2 s."
        case state:
            return f"{key} is cancelled (it was {state}): it will not run again."


def _undone(handled: Handled) -> str:
    key = handled.key
    return (
        f"{key} {handled.problem}."
        if handled.problem
        else f"{key} is no longer cancelled: it runs when its message arrives."
    )
