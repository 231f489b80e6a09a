"""`steadyworker purge`: deletes the messages that wait in a queue."""

from __future__ import annotations

import click

from steadyworker.actions.queues import PauseActions
from steadyworker.backends.connections import Connections, job_queue
from steadyworker.cli.confirm import is_terminal, warn_unlogged
from steadyworker.cli.settings import client_settings
from steadyworker.cli.streams import echo
from steadyworker.cli.targets import queue_argument, worker_or_queue
from steadyworker.config.resolve import Options
from steadyworker.text.plain_text import printable
from steadyworker.units import count_text

_WARNING = """\
This deletes the messages that wait in {queue}, for good: their jobs never run.
Delayed messages, running jobs and dead letters stay. A job that a worker has
begun goes on from the ledger's copy; `steadyworker cancel` stops such jobs."""


@click.command(
    "purge",
    epilog="""\b
Examples:
  steadyworker purge exports:PaymentExports                           # asks for the queue's name
  steadyworker purge exports:PaymentExports --name payment-exports    # for a script""",
)
@queue_argument
@click.option("--name", metavar="QUEUE", help="The queue's name, in place of the question.")
@client_settings
@click.pass_context
def command(ctx: click.Context, options: Options, *, target: str, name: str | None) -> None:
    """
    Delete the messages that wait in a queue, after you have typed the queue's name.

    Their jobs never run, and no dead letter is made.
    Delayed messages, messages that a worker holds, and dead letters stay.
    A job that a worker has begun goes on from the ledger's copy of its message: cancel it to stop it.
    Only RabbitMQ and the embedded broker have this command; for another broker, use the broker's own console (exit code 1).
    """
    queue = job_queue(worker_or_queue(target), options)
    with Connections(options) as links:
        actions = PauseActions(links, queue)
        actions.check_purge()
        if name is None and not is_terminal():
            raise click.UsageError(
                f"Expected --name {queue.name}, because there is no terminal to ask on. Nothing was deleted."
            )
        if name is None:
            click.echo(_WARNING.format(queue=printable(queue.name)), err=True)
            name = click.prompt("Type the queue's name to go on", default="", show_default=False, err=True)
        if name != queue.name:
            echo(f"Expected the name {queue.name}, got {name!r}: nothing was deleted.", err=True)
            ctx.exit(1)
        purged = actions.purge()
        warn_unlogged(purged.unlogged)
    echo(f"{count_text(purged.count, 'message')} of {queue.name} deleted.")
