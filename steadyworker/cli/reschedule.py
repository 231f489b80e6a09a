"""`steadyworker reschedule`: sets a new time for jobs that wait for a retry."""

from __future__ import annotations

from collections.abc import Sequence

import click

from steadyworker.actions.jobs import JobActions
from steadyworker.actions.report import Handled
from steadyworker.backends.connections import Connections, job_queue
from steadyworker.cli.confirm import finish
from steadyworker.cli.settings import client_settings
from steadyworker.cli.streams import echo
from steadyworker.cli.targets import delay_option, keys_argument, queue_argument, worker_or_queue
from steadyworker.config.resolve import Options
from steadyworker.units import span


@click.command(
    "reschedule",
    epilog="""\b
Examples:
  steadyworker reschedule exports:PaymentExports export-m-17 --delay 2h
  steadyworker retry      exports:PaymentExports export-m-17          # now""",
)
@queue_argument
@keys_argument
@delay_option("From now until the job may run: 90s, 2h, 1d.", required=True)
@client_settings
@click.pass_context
def command(ctx: click.Context, options: Options, *, target: str, keys: Sequence[str], delay: float) -> None:
    """
    Set a new time for jobs that wait for a retry, sooner or later than the present one.

    The delay begins now, and is the least time: a broker with delay levels rounds it up.
    The message that the broker still delays then counts as a duplicate.
    The job continues in the same round, with its counters and its last checkpoint.
    A job that waits for no retry is refused with exit code 1.
    """
    if not keys:
        raise click.UsageError("Expected one KEY or more, got none: `steadyworker jobs` shows the keys.")
    queue = job_queue(worker_or_queue(target), options)

    def each(handled: Handled) -> None:
        key = handled.key
        text = (
            f"{key} {handled.problem}."
            if handled.problem
            else f"{key} ({handled.before}): due in {span(handled.due_in)}."
        )
        echo(text, err=bool(handled.problem))

    with Connections(options) as links:
        actions = JobActions(links, queue)
        report = finish(actions.reschedule(actions.ids(keys), delay, each), "job", "rescheduled")
    ctx.exit(int(len(report.changed) < len(report.handled)))
