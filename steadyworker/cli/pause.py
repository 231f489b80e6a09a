"""`steadyworker pause`: the workers of a queue receive no new message, until `steadyworker resume`."""

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
    "pause",
    epilog="""\b
Examples:
  steadyworker pause  exports:PaymentExports --reason "database moves until 14:00"
  steadyworker resume exports:PaymentExports""",
)
@queue_argument
@click.option("--reason", default="", metavar="R", help="The reason, for everybody who sees the pause.")
@client_settings
def command(options: Options, *, target: str, reason: str) -> None:
    """
    Pause a queue for all its workers, on every host, until `steadyworker resume`.

    Each worker process receives no new message of this queue after a few seconds, and keeps its connection.
    Jobs that run go on to their end. The pause stays in the ledger, so it also holds for workers that start later.
    """
    queue = job_queue(worker_or_queue(target), options)
    with Connections(options) as links:
        warn_unlogged(PauseActions(links, queue).pause(reason).unlogged)
    echo(f"{queue.name} is paused: its workers receive no new message. Jobs that run go on.")
