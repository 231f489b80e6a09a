"""`steadyworker resume`: ends the pause of a queue."""

from __future__ import annotations

import click

from steadyworker.actions.queues import PauseActions
from steadyworker.backends.connections import Connections, job_queue
from steadyworker.cli.confirm import warn_unlogged
from steadyworker.cli.settings import client_settings
from steadyworker.cli.streams import echo
from steadyworker.cli.targets import queue_argument, worker_or_queue
from steadyworker.config.resolve import Options


@click.command(
    "resume",
    epilog="""\b
Example:
  steadyworker resume exports:PaymentExports""",
)
@queue_argument
@client_settings
@click.pass_context
def command(ctx: click.Context, options: Options, *, target: str) -> None:
    """
    End the pause of a queue: its workers receive messages again after a few seconds.

    Exit code 1 means that the queue was not paused.
    """
    queue = job_queue(worker_or_queue(target), options)
    with Connections(options) as links:
        resumed = PauseActions(links, queue).resume()
        warn_unlogged(resumed.unlogged)
    if not resumed.changed:
        echo(f"{queue.name} is not paused.", err=True)
        ctx.exit(1)
    echo(f"{queue.name} goes on: its workers receive messages again.")
