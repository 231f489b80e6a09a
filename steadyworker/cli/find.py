"""`steadyworker find`: prints where a job is: in the ledger, in the queue, or where the search stopped."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from steadyworker.backends.connections import Connections, job_queue
from steadyworker.cli.output import FAR, instant, json_line
from steadyworker.cli.settings import client_settings
from steadyworker.cli.streams import echo
from steadyworker.cli.targets import key_argument, queue_argument, worker_or_queue
from steadyworker.cli.unknown import check_known
from steadyworker.client import READ_AT_MOST, Client, JobStatus, QueueSearch
from steadyworker.config.resolve import Options
from steadyworker.errors import BrokerUnavailable, NoLedger
from steadyworker.outcome import JobState
from steadyworker.text.plain_text import printable
from steadyworker.text.redaction import redact
from steadyworker.units import count_text
from steadyworker.worker import Worker

_MOST = 1 << 31
_NOT_IN_LEDGER = (JobState.QUEUED, JobState.DELAYED, JobState.UNKNOWN)


@click.command(
    "find",
    epilog="""\b
Examples:
  steadyworker find exports:PaymentExports export-m-17
  steadyworker find payment-exports export-m-17 --limit 1000000""",
)
@queue_argument
@key_argument
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=READ_AT_MOST,
    show_default=True,
    metavar="N",
    help="Read at most N messages of the queue.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@client_settings
@click.pass_context
def command(ctx: click.Context, options: Options, *, target: str, key: str, limit: int, as_json: bool) -> None:
    """
    Find a job: its record in the ledger, and its message in the queue.

    The search reads the queue's messages in their order, and changes nothing.
    RabbitMQ cannot show a message without delivering it, so there the command prints only the ledger's record.
    ActiveMQ and RocketMQ do not show every message; the command then names what it has not read.
    A message that a worker process holds is in the ledger.
    Exit code 1 means that the command has found neither a record nor a message; the text names what it has not searched.
    It also means that neither the broker nor the ledger has this queue.
    """
    to = worker_or_queue(target)
    with Client.configured(options) as client:
        search = client.find(to, key, limit)
        status: JobStatus | None
        try:
            if search.found is None and not search.messages_read:
                _check(options, to)
            status, problem = client.status(to, key), ""
        except (BrokerUnavailable, NoLedger) as error:
            status, problem = None, redact(str(error))
    if status is not None and status.state in _NOT_IN_LEDGER:
        status, problem = None, "The ledger has no record of this key."
    if as_json:
        json_line(_record(key, status, search))
    else:
        echo(f"ledger: {problem or _recorded(status)}")
        echo(f"queue:  {_searched(search)}")
    ctx.exit(int(status is None and search.found is None))


def _check(options: Options, to: type[Worker[Any, Any]] | str) -> None:
    """Raise UnknownQueue or NoLedger as `check_known` does; the ledger's record can be found without the broker."""
    with Connections(options) as links, suppress(BrokerUnavailable):
        check_known(links, job_queue(to, options))


def _recorded(status: JobStatus | None) -> str:
    if status is None:
        return ""
    due = f", due at {_time(status.due_at)}" if status.due_at is not None else ""
    reason = f"; {redact(status.reason)}" if status.reason else ""
    return f"{status.state}{due}{reason}"


def _searched(search: QueueSearch) -> str:
    if search.found is None:
        stopped = printable(redact(search.stopped))
        if search.failed and not search.messages_read:
            return f"Not searched. {stopped}"
        read = count_text(search.messages_read, "message")
        if search.messages is not None:
            read = f"{search.messages_read:,} of {count_text(search.messages, 'message')}"
        return f"{read} read, and this key is not among them. {stopped}".rstrip()
    due, sent_at = search.found.due, instant(search.found.sent_at)
    waits = "ready" if due is None else f"delayed until {_time(due)}"
    sent = f", sent at {sent_at}" if sent_at else ""
    return f"message {search.messages_read:,} is this job's: {waits}{sent}."


def _time(due: float) -> str:
    return instant(due) or f"the {FAR}"


def _record(key: str, status: JobStatus | None, search: QueueSearch) -> dict[str, object]:
    found = search.found
    return {
        "key": key,
        "state": None if status is None else status.state,
        "found": found is not None,
        "position": None if found is None else search.messages_read,
        "due_at": None if found is None else found.due,
        "sent_at": None if found is None else found.sent_at,
        "read": search.messages_read,
        "messages": search.messages,
        "stopped": redact(search.stopped) or None,
    }
