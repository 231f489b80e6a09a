"""
A reader of the dead letters of one queue. Both drivers use this reader, because the reader asks the brokers themselves.

There are three topics: the Worker's own, and the two to which the broker itself moves messages (`%DLQ%` and the group).
A topic is a log. So the reader does not hold a dead letter ("letter" below), and cannot remove it.
`drop` therefore publishes a mark with the letter's place, and a reader leaves out each letter that has a mark.
The broker deletes letters and marks after its retention time, which is 72 h by default.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator

from steadyworker.adapter import Clock, Delivery, OutgoingMessage, QueueSpec, Redelivered
from steadyworker.errors import PublishFailed, Unsettled
from steadyworker_rocketmq.errors import translated
from steadyworker_rocketmq.messages import EXACT, WireMessage, delivery_of, wire_of_stored
from steadyworker_rocketmq.names import QueueNames, is_system_property
from steadyworker_rocketmq.remoting import READER, Remoting, RemotingError, TopicQueue
from steadyworker_rocketmq.stored import Stored

_DROPPED = "sw-dropped"
_MARK_BODY, _MARK = b"\0", json.dumps({"empty": True})
_QUEUES_WITHIN, _ASKED_EVERY = 5.0, 0.05
"""Seconds for which a reader waits for the brokers' queues, and seconds between two questions."""


class RocketmqDeadLetters:
    """
    The dead letters that one queue has when `begin` is called; for one thread.

    Args:
        remoting: The client of the brokers; the caller closes it.
        place: The brokers' name in errors.
        names: The names of topics and groups.
        spec: The queue.
        publish: Publishes a message.
        send: Sends a message to a topic; returns once the broker has it.
        clock: The clock.
    """

    def __init__(
        self,
        remoting: Remoting,
        place: str,
        names: QueueNames,
        spec: QueueSpec,
        publish: Callable[[OutgoingMessage], None],
        send: Callable[[str, WireMessage], None],
        clock: Clock,
    ) -> None:
        self._remoting = remoting
        self._place = place
        self._names = names
        self._spec = spec
        self._clock = clock
        self._send = send
        self._publish = publish

    def begin(self) -> None:
        """Ask the brokers which letters they have; raises BrokerUnavailable."""
        with translated(self._place):
            self._wait_for_queues()
            self._ends = {
                topic: [(queue, self._remoting.end(queue, topic)) for queue in self._remoting.route(topic) or []]
                for topic in letter_topics(self._names)
            }

    def __iter__(self) -> Iterator[Delivery]:
        """Yield each dead letter that has no mark, oldest first in each topic."""
        with translated(self._place):
            marks = {stored.properties[_DROPPED] for _, stored in self._all() if _is_mark(stored)}
            for id_, stored in self._all():
                if not _is_mark(stored) and id_ not in marks:
                    yield self._letter(id_, stored)

    def publish(self, message: OutgoingMessage) -> None:
        """Publish a message with the adapter's `publish`."""
        self._publish(message)

    def drop(self, delivery: Delivery) -> None:
        """Publish a mark for this letter; raises Unsettled if no broker has confirmed the mark."""
        mark = WireMessage(_MARK_BODY, {_DROPPED: delivery.id, EXACT: _MARK})
        try:
            self._send(self._names.dead, mark)
        except PublishFailed as error:
            raise Unsettled(f"Expected the broker to record that a dead letter was dropped, got: {error}") from error

    def _wait_for_queues(self) -> None:
        """
        Wait until the queues have every message that the brokers have confirmed.

        A broker first writes a message to its log. The broker adds the message to its queue a moment later, or much later under load.
        """
        deadline = self._clock.monotonic() + _QUEUES_WITHIN
        pause = threading.Event()
        for broker in self._remoting.brokers():
            while self._remoting.behind(broker) and self._clock.monotonic() < deadline:
                pause.wait(_ASKED_EVERY)

    def _all(self) -> Iterator[tuple[str, Stored]]:
        """Yield the messages that the topics had when the reader began, each with its place."""
        for topic, ends in self._ends.items():
            for queue, end in ends:
                for found in _pages(self._remoting, topic, queue, end):
                    yield from found

    def _letter(self, id_: str, stored: Stored) -> Delivery:
        wire = wire_of_stored(stored)
        return delivery_of(0, id_, self._spec.queue, wire, stored.id, Redelivered.UNKNOWN, stored.born_at)


def letter_topics(names: QueueNames) -> tuple[str, ...]:
    """Return the topics of a Worker's dead letters: the broker's topics, and the Worker's own topic."""
    return f"%DLQ%{names.group}", f"%DLQ%{names.later_group}", names.dead


def undropped(remoting: Remoting, topics: Iterable[str], pulls: int) -> int | None:
    """Return the number of letters in these topics that were not dropped; None if `pulls` pulls are not enough to read them."""
    letters: set[str] = set()
    marks: set[str] = set()
    for topic in topics:
        for queue in remoting.route(topic) or []:
            for found in _pages(remoting, topic, queue, remoting.end(queue, topic)):
                if not pulls:
                    return None
                pulls -= 1
                for id_, stored in found:
                    if _is_mark(stored):
                        marks.add(stored.properties[_DROPPED])
                    else:
                        letters.add(id_)
    return len(letters - marks)


def _pages(remoting: Remoting, topic: str, queue: TopicQueue, end: int) -> Iterator[list[tuple[str, Stored]]]:
    """Yield the messages of a queue up to an offset, each with its place; a step yields the messages of one pull."""
    offset = remoting.first(queue, topic)
    while offset < end:
        found, following = remoting.pull(queue, topic, READER, offset)
        yield [
            (f"{topic}/{queue.broker.name}/{queue.number}/{stored.offset}/{stored.id}", stored)
            for stored in found
            if stored.offset < end
        ]
        if following <= offset:
            text = f"the queue {queue.number} of {topic!r} to have messages up to {end}, got none from {offset} on"
            raise RemotingError(f"expected {text}: a replica may lack the newest", 0)
        offset = following


def _is_mark(stored: Stored) -> bool:
    """Return whether `drop` made this message. A sender's message with the same header is a letter."""
    own = {name for name in stored.properties if not is_system_property(name)}
    return own == {_DROPPED, EXACT} and stored.body == _MARK_BODY and stored.properties[EXACT] == _MARK
