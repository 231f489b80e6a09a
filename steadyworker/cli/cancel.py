"""`steadyworker cancel`: cancels a job that is running, waiting, or not yet received."""

from __future__ import annotations

import click

from steadyworker.cli.settings import client_settings
from steadyworker.cli.targets import key_argument, queue_argument, worker_or_queue
from steadyworker.client import Client
from steadyworker.config.resolve import Options
from steadyworker.ledger import retention
from steadyworker.outcome import JobState
from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import redact

KEPT = round(retention.CANCEL_MARK / retention.DAY)


@click.command(
    "cancel",
    epilog="""\b
Examples:
  steadyworker cancel exports:PaymentExports export-m-17 --reason "wrong month"
  steadyworker cancel payment-exports export-m-17""",
)
@queue_argument
@key_argument
@client_settings
@click.option(
    "--reason", default="by an operator", show_default=True, metavar="R", help="The reason, for the dead letter."
)
@click.pass_context
def command(ctx: click.Context, options: Options, *, target: str, key: str, reason: str) -> None:
    """
    Cancel a job that is running, waiting, or not yet received.

    A running job receives the cancellation within 2 s, and from now on can commit no export.
    A job that waits does not run when its message arrives.
    A key that the ledger does not know can be cancelled too, for messages that arrive within 14 days.
    Every cancelled job becomes a dead letter.
    To stop a job, cancel it; a purge of its queue does not stop it, because the ledger keeps its message.
    Exit code 1 means that the job had already ended, or that there is no such queue.
    Exit code 78 means that the queue's workers use another ledger, so that nothing was cancelled.
    """
    to = worker_or_queue(target)
    with Client.configured(options) as client:
        before = client.cancel(to, key, reason)
    key = printable(key)
    match before:
        case None:
            click.echo(
                f"{key} is not in the ledger {redact(options.ledger)} yet: the cancel is recorded there, and a message "
                f"with this key will not run if it arrives within {KEPT} days."
            )
        case JobState.CANCEL_WAITING:
            click.echo(f"{key} was cancelled before: a message with this key will not run.")
        case JobState.DONE | JobState.CANCELLED | JobState.DEAD:
            click.echo(f"{key} is already {before}: nothing was cancelled.", err=True)
            ctx.exit(1)
        case JobState.RUNNING:
            click.echo(f"{key} is running: it receives the cancellation within 2 s.")
        case _:
            click.echo(f"{key} is cancelled (it was {before}): it will not run again.")
