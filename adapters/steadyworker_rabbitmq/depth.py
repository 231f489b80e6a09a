"""
Counts the messages of a Worker's queues.

Passive declares count the ready messages and the consumers of a queue, and these counts are exact.
RabbitMQ 4.3 counts a queue only for a user with a right on it, whichever right; older versions need no right (seen on 4.3.6, 4.0.5).
But if the leader of a quorum queue does not respond within 250 ms, RabbitMQ reports 0 messages and 0 consumers.
Only the management API reports that a queue has lost its majority or its leader; then `depth` raises an error (seen on 3.10.8, 4.3.6).
Without this API, 0 messages and 0 consumers of the work queue are unknown numbers, and so is each 0 of the other queues.
If the work queue's count is not 0, the other queues' counts are taken as they are.
Only the management API counts un-acked messages, and its counts are some seconds old.
One `depth` sends a passive declare for the work queue, the dead-letter queue and each retry queue: 13 with the default delays.
It sends one query to the management API, and a second query while a reader holds dead letters.
RabbitMQ has no browse: `basic.get` is a delivery, and counts towards a delivery limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event

from pika.channel import Channel
from pika.frame import Method

from steadyworker.adapter import Clock, Depth
from steadyworker.errors import BrokerUnavailable
from steadyworker_rabbitmq.checks.management import ManagementApi, ReportedMessages, Unanswered
from steadyworker_rabbitmq.checks.queue_state import UNREACHABLE
from steadyworker_rabbitmq.connection import RabbitmqConnection
from steadyworker_rabbitmq.errors import QueueUnavailable, channel_id, closed_channel, is_missing, is_refusal
from steadyworker_rabbitmq.topology import Topology

AGAIN_AFTER = 300.0
"""
Seconds until the next query after a query to the management API failed, and until the next count of a queue that was refused.

A port that drops packets delays each query by two seconds, and the broker logs each refusal.
"""

_REFUSED = 403

_ONLY_API = "only the management API reports this number"
_NO_API = f"{_ONLY_API}, and --broker names none: remove ?management=off from it, and log in with a password"
_NO_STATISTICS = (
    f"{_ONLY_API}, and it has no statistics of this queue: wait ten seconds for those of a new queue, "
    "or remove management_agent.disable_metrics_collector from rabbitmq.conf"
)
_NO_LEADER = "RabbitMQ also reports 0 messages and 0 consumers for a quorum queue without a leader"
_NO_DUE_TIME = "RabbitMQ does not report when a message in a retry queue is due"
_NO_AGE = "RabbitMQ does not report the age of a message in a quorum queue"
_NO_TIMESTAMP = "the sender of the first message has set no timestamp"


@dataclass(frozen=True, slots=True)
class QueueCount:
    """The number of a queue's ready messages, and of its consumers, and whether the queue exists."""

    ready: int
    consumers: int
    exists: bool = True


_ZERO = QueueCount(0, 0)
"""The count of an empty queue, and of a queue without a leader."""

_MISSING = QueueCount(0, 0, exists=False)


Counts = Mapping[str, QueueCount | BrokerUnavailable]
"""The count of each queue, by its name, or the reason why the broker does not count this queue; a missing queue counts 0."""


def count_queues(link: RabbitmqConnection, names: Sequence[str], abandoned: Event, answer: Future[Counts]) -> None:
    """
    Count these queues over a new channel, into `answer`; only for the I/O thread.

    A broker can need a minute for a queue that it cannot reach.
    Once `abandoned` is set, the function sends no further request.
    """
    if (connection := link.connection) is None:
        raise BrokerUnavailable(
            f"Expected a connection to RabbitMQ at {link.place}, got none: wait until the adapter has reconnected."
        )
    counts: dict[str, QueueCount | BrokerUnavailable] = {}
    left = deque(names)

    def open_channel() -> None:
        connection.channel(on_open_callback=ask).add_on_close_callback(closed)

    def ask(channel: Channel) -> None:
        if not left or abandoned.is_set():
            answer.set_result(counts)
            channel.close()
        else:
            counted: Callable[[Method], None] = lambda frame: count(channel, frame)  # noqa: E731 - mypy needs its type
            channel.queue_declare(left[0], passive=True, callback=counted)

    def count(channel: Channel, frame: Method) -> None:
        counts[left.popleft()] = QueueCount(frame.method.message_count, frame.method.consumer_count)
        ask(channel)

    def closed(_: Channel, reason: Exception) -> None:
        if answer.done():
            return
        name = left.popleft()
        counts[name] = refused_count(name, reason)
        if not is_refusal(reason):  # the connection has ended, so no other queue can be counted
            answer.set_result({**counts, **dict.fromkeys(left, counts[name])})
        elif left and not abandoned.is_set():
            open_channel()
        else:
            answer.set_result(counts)

    open_channel()


class CountRefused(BrokerUnavailable):
    """A queue that the broker does not count for this user."""


def refused_count(name: str, reason: BaseException) -> QueueCount | BrokerUnavailable:
    """Return the count that a closed channel means: 0 for a missing queue, otherwise the error."""
    if is_missing(reason):
        return _MISSING
    if getattr(reason, "reply_code", 0) == _REFUSED:
        return CountRefused(
            f"Expected a count of queue {name!r}, got ACCESS_REFUSED: grant the right to read it with rabbitmqctl set_permissions.",
            id=channel_id(reason),
        )
    return BrokerUnavailable(f"Expected queue {name!r}, got: {closed_channel(reason)}.", id=channel_id(reason))


class DepthReader:
    """
    The numbers of one Worker's queues, from counts and from the management API.

    After a failed query or a refused count, the reader reports the same reason for five minutes, and does not try again.
    """

    def __init__(self, topology: Topology, clock: Clock) -> None:
        self._topology = topology
        self._clock = clock
        self._failed: Unanswered | None = None
        self._failed_at = 0.0
        self._retry = tuple(map(topology.retry_queue, topology.levels))
        self._refused: dict[str, CountRefused] = {}
        self._refused_at = 0.0

    def queues(self) -> Sequence[str]:
        """Return the queues to count: the work queue, and each other queue that was not refused in the last five minutes."""
        if self._refused and self._clock.monotonic() - self._refused_at >= AGAIN_AFTER:
            self._refused = {}
        others = (self._topology.dead, *self._retry)
        return [self._topology.work, *(name for name in others if name not in self._refused)]

    def depth(self, counts: Counts, management: ManagementApi | None) -> Depth:
        """
        Return the numbers.

        Raises BrokerUnavailable if the broker does not count the work queue, or if the API reports that the broker cannot reach it.
        """
        work = counts[self._topology.work]
        refused = {name: count for name, count in counts.items() if isinstance(count, CountRefused)}
        if refused:
            self._refused, self._refused_at = {**self._refused, **refused}, self._clock.monotonic()
        counts = {**self._refused, **counts}
        if isinstance(work, BrokerUnavailable):
            raise work
        held = self._reported(self._topology.work, management)
        if isinstance(held, str) and work == _ZERO:
            return self._without_zeros(counts, held)
        why: dict[str, str] = {}
        delayed = self._delayed(counts, why)
        unacked: int | None = None
        if isinstance(held, str):
            why["unacked"] = held
        else:
            self._check_reachable(work, held)
            unacked = held.messages_unacknowledged
            if unacked is None:
                why["unacked"] = _NO_STATISTICS
        return Depth(
            ready=work.ready,
            delayed=delayed,
            unacked=unacked,
            dead=self._dead(counts, management, why),
            consumers=work.consumers,
            oldest_age=self._age(held, why) if work.ready else None,
            why=why,
        )

    def _without_zeros(self, counts: Counts, unreported: str) -> Depth:
        """Return the numbers if the work queue, and then perhaps other queues, can be without a leader: no 0 of an existing queue is one."""
        reason = f"{_NO_LEADER}, and {unreported}"
        why: dict[str, str] = dict.fromkeys(("ready", "unacked", "consumers", "oldest_age"), reason)
        delayed = self._delayed(counts, why)
        if delayed == 0 and _ZERO in (counts[name] for name in self._retry):
            delayed, why["delayed"], why["next_due"] = None, reason, reason
        dead = None
        if counts[self._topology.dead] == _ZERO:
            why["dead"] = reason
        else:
            dead = self._dead(counts, None, why)
        return Depth(delayed=delayed, dead=dead, why=why)

    def _check_reachable(self, work: QueueCount, reported: ReportedMessages) -> None:
        """Raise QueueUnavailable if the broker cannot reach the work queue, so that its count can be a wrong 0."""
        state = reported.state if reported.state in UNREACHABLE else None
        if state is None and reported.type == "quorum" and not reported.leader and work == _ZERO:
            state = "without a leader"  # 3.10 reports no state
        if state is not None:
            raise QueueUnavailable(
                f"Expected queue {self._topology.work!r} to be reachable, got: it is {state}; "
                "start the nodes that have the queue, or wait until they are back.",
                id="rabbitmq.queue-node-down",
            )

    def _delayed(self, counts: Counts, why: dict[str, str]) -> int | None:
        delayed = 0
        for name in self._retry:
            count = counts[name]
            if isinstance(count, BrokerUnavailable):
                why["delayed"] = why["next_due"] = _clause(str(count))
                return None
            delayed += count.ready
        if delayed:
            why["next_due"] = _NO_DUE_TIME
        return delayed

    def _dead(self, counts: Counts, management: ManagementApi | None, why: dict[str, str]) -> int | None:
        letters = counts[self._topology.dead]
        if isinstance(letters, BrokerUnavailable):
            why["dead"] = _clause(str(letters))
            return None
        if not letters.consumers:
            return letters.ready
        held = self._reported(self._topology.dead, management)
        if isinstance(held, str) or held.messages_unacknowledged is None:
            why["dead"] = f"a reader holds dead letters, and {held if isinstance(held, str) else _NO_STATISTICS}"
            return None
        return letters.ready + held.messages_unacknowledged

    def _age(self, held: ReportedMessages | str, why: dict[str, str]) -> float | None:
        match held:
            case str():
                why["oldest_age"] = held
            case ReportedMessages(messages_unacknowledged=None):
                why["oldest_age"] = _NO_STATISTICS
            case ReportedMessages(type="quorum"):
                why["oldest_age"] = _NO_AGE
            case ReportedMessages(head_message_timestamp=int(sent_at)):
                return max(0.0, self._clock.wall() - sent_at)
            case _:
                why["oldest_age"] = _NO_TIMESTAMP
        return None

    def _reported(self, name: str, management: ManagementApi | None) -> ReportedMessages | str:
        """Return the numbers of the management API, or the reason why there are none."""
        if management is None:
            return _NO_API
        if self._failed is not None and self._clock.monotonic() - self._failed_at < AGAIN_AFTER:
            return _unanswered(self._failed)
        try:
            found = management.messages(name)
        except Unanswered as error:
            self._failed, self._failed_at = error, self._clock.monotonic()
            return _unanswered(error)
        self._failed = None
        return ReportedMessages(messages_unacknowledged=0) if found is None else found  # a missing queue is empty


def _unanswered(error: Unanswered) -> str:
    return _clause(f"{_ONLY_API}, but {error}: {error.remedy}")


def _clause(sentence: str) -> str:
    return sentence.removesuffix(".")
