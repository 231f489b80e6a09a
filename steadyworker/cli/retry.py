"""`steadyworker retry`: sends the message of an unfinished job again, from the ledger's copy."""

from __future__ import annotations

import shlex

import click

from steadyworker.backends.connections import Connections, job_queue
from steadyworker.cli.output import span
from steadyworker.cli.settings import client_settings
from steadyworker.cli.targets import key_argument, queue_argument, worker_or_queue
from steadyworker.config.resolve import Options
from steadyworker.errors import SteadyWorkerError
from steadyworker.ledger.base import Row, State
from steadyworker.ledger.rules import EARLY
from steadyworker.runner.planning import again
from steadyworker.text.plain_text import printable


@click.command(
    "retry",
    epilog="""\b
Examples:
  steadyworker jobs --overdue
  steadyworker retry exports:PaymentExports export-m-17
  steadyworker retry payment-exports export-m-17""",
)
@queue_argument
@key_argument
@client_settings
def command(options: Options, *, target: str, key: str) -> None:
    """
    Send the message of an unfinished job again, from the ledger's copy.

    This is for a job whose message is lost, and that no worker starts by itself: `steadyworker jobs --overdue` lists such jobs.
    The job continues in the same round, with its counters and its last checkpoint.
    If its first message comes after all, the job still runs once.
    If the job must not run, because another ledger has done it, cancel it first: then it only becomes a dead letter.
    A job that has ended, that runs, or whose retry is not due is refused with exit code 1.
    """
    queue = job_queue(worker_or_queue(target), options)
    with Connections(options) as links:
        ledger, job = links.ledger(), links.last_job(queue, key)
        row = ledger.read(job)
        got = "one of which the ledger has no record: send the job." if row is None else _problem(row)
        if row is None or got:
            raise SteadyWorkerError(f"Expected the key of an unfinished job of {queue.name}, got {key!r}, {got}")
        message = ledger.message(job)
        if message is None:
            raise SteadyWorkerError(
                f"Expected a job whose message the ledger has kept, got {key!r} without one: send the same message again, "
                f"with `steadyworker send {shlex.quote(queue.name)} … --key {shlex.quote(key)} --again`; the job continues from its last checkpoint."
            )
        links.adapter(queue).publish(again(row, message))
        ledger.deferred(job, 0.0)
    click.echo(f"{printable(key)} ({row.job_state}): its message is in {queue.name} again.")


def _problem(row: Row) -> str:
    """Return the reason and the remedy if this job needs no message now; otherwise return an empty text."""
    queue, key = shlex.quote(row.id.queue), shlex.quote(row.id.key)
    match row.state:
        case State.DONE:
            return f"which is done: `steadyworker send {queue} … --key {key} --again` runs it again."
        case State.DEAD:
            return f"which is {row.job_state}: `steadyworker dead replay {queue} {key}` runs it again."
        case State.RUNNING | State.MOVING if not row.lease_over:
            return f"which {row.worker or row.owner} runs now: wait for its end, or stop it with `steadyworker cancel {queue} {key}`."
        case State.MOVED if row.due_in > EARLY:
            return f"whose retry is due in {span(row.due_in)}: wait for it."
        case _:
            return ""
