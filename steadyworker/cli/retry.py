"""`steadyworker retry`: runs waiting jobs now, from the ledger's copies of their messages."""

from __future__ import annotations

from collections.abc import Sequence

import click

from steadyworker.actions.jobs import JobActions
from steadyworker.actions.report import Handled
from steadyworker.backends.connections import Connections, job_queue
from steadyworker.cli.confirm import finish
from steadyworker.cli.settings import client_settings
from steadyworker.cli.streams import echo
from steadyworker.cli.targets import keys_argument, queue_argument, worker_or_queue
from steadyworker.config.resolve import Options


@click.command(
    "retry",
    epilog="""\b
Examples:
  steadyworker retry exports:PaymentExports export-m-17
  steadyworker jobs --overdue
  steadyworker retry payment-exports export-m-17 export-m-18""",
)
@queue_argument
@keys_argument
@client_settings
@click.pass_context
def command(ctx: click.Context, options: Options, *, target: str, keys: Sequence[str]) -> None:
    """
    Run waiting jobs now: send their messages again, from the ledger's copies.

    A job that waits for a retry does not wait longer. The message that the broker still delays then counts as a duplicate.
    A job whose message is lost gets its message again; `steadyworker jobs --overdue` lists the lost jobs that no worker starts by itself.
    If its first message comes after all, the job still runs once.

    The job continues in the same round, with its counters and its last checkpoint.
    If the job must not run, because another ledger has done it, cancel it first: then it only becomes a dead letter.
    A job that has ended or that runs is refused with exit code 1.
    """
    if not keys:
        raise click.UsageError("Expected one KEY or more, got none: `steadyworker jobs` shows the keys.")
    queue = job_queue(worker_or_queue(target), options)

    def each(handled: Handled) -> None:
        key = handled.key
        text = (
            f"{key} {handled.problem}."
            if handled.problem
            else f"{key} ({handled.before}) is due now: it runs with the next free slot."
        )
        echo(text, err=bool(handled.problem))

    with Connections(options) as links:
        actions = JobActions(links, queue)
        report = finish(actions.retry(actions.ids(keys), each), "job", "sent again")
    ctx.exit(int(len(report.changed) < len(report.handled)))
