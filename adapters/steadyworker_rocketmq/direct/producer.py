"""
Producers that send to the brokers without a proxy.

Each thread uses its own connection while it sends, so a broker that is slow for one sender delays no other sender.
A broker has stored a message when it replies `SEND_OK`. After any other result, the message can be lost, or come twice.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from steadyworker.adapter import Clock
from steadyworker.errors import BrokerUnavailable
from steadyworker_rocketmq.direct.member import NoTopicError
from steadyworker_rocketmq.errors import refused_message
from steadyworker_rocketmq.messages import KEYS, TAGS, WireMessage
from steadyworker_rocketmq.names import is_system_property
from steadyworker_rocketmq.remoting import Remoting, RemotingError, TopicQueue
from steadyworker_rocketmq.topology import remoting_of
from steadyworker_rocketmq.url import RocketmqUrl

Result = TypeVar("Result")

_ROUTE_EVERY = 30.0
"""Seconds after which a producer asks a name server again for the queues of a topic."""

# RocketMQ's ResponseCode.
_SYSTEM_ERROR, _NO_TOPIC = 1, 17
NOT_SAFE = {
    10: "the broker's disk did not confirm it in time (FLUSH_DISK_TIMEOUT)",
    11: "the broker has no replica (SLAVE_NOT_AVAILABLE)",
    12: "the broker's replica did not confirm it in time (FLUSH_SLAVE_TIMEOUT)",
}
"""The results after which a broker has stored a message, but can lose it."""


class Producer:
    """
    A producer with connections of its own; for one thread at a time.

    Args:
        remoting: The client of the brokers, which no other object uses.
        clock: The clock.
    """

    def __init__(self, remoting: Remoting, clock: Clock) -> None:
        self.remoting = remoting
        self._clock = clock
        self._routes: dict[str, tuple[float, list[TopicQueue]]] = {}

    def send(self, topic: str, put: Callable[[Remoting, TopicQueue], Result], turn: int) -> Result:
        """
        Send a message with `put`, and return the result of `put` when a broker has stored the message.

        If a broker certainly does not have the message, send it to another broker.

        Args:
            topic: The topic.
            put: Sends the message to one queue.
            turn: The number of this message. It determines the queue, so that all queues take turns.

        Raises:
            NoTopicError: There is no such topic.
            RemotingError: The broker refused the message, or does not confirm that the message is safe.
            OSError: It is unknown whether a broker has the message.
            Silent: It is unknown whether a broker has the message.
        """
        queues = self._queues(topic)
        last: Exception | None = None
        tried = set()
        for queue in (queues[(turn + number) % len(queues)] for number in range(len(queues))):
            if queue.broker in tried:
                continue
            try:
                return put(self.remoting, queue)
            except Exception as error:
                if not is_certainly_unsent(error):
                    raise
                # Another broker may accept the message. If no broker accepts the message, raise an error whose cause can end.
                if last is None or refused_message(last) is not None:
                    last = error
                tried.add(queue.broker)
        assert last is not None
        raise last

    def close(self) -> None:
        """Close the connections."""
        self.remoting.close()

    def _queues(self, topic: str) -> list[TopicQueue]:
        asked_at, queues = self._routes.get(topic, (0.0, []))
        now = self._clock.monotonic()
        if not queues or now - asked_at > _ROUTE_EVERY:
            read, written = self.remoting.route(topic), self.remoting.route(topic, writable=True)
            if read is None or written is None:
                raise NoTopicError(f"no topic {topic!r}", _NO_TOPIC)
            # An operator forbids to write to a broker that is to be removed. In a queue that is not read, a message would wait without end.
            queues = [queue for queue in written if queue in read] or written
            if not queues:
                raise RemotingError(f"no queue of {topic!r} may be written to now", 0)
            # Two messages in a row go to two brokers.
            queues.sort(key=lambda queue: (queue.number, queue.broker.name))
            self._routes[topic] = (now, queues)
        return queues


class Producers:
    """
    The producers of one process; every method may be called from any thread.

    Args:
        url: Returns the current URL.
        clock: The clock.
    """

    def __init__(self, url: Callable[[], RocketmqUrl], clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[Producer] = []
        self._turns = itertools.count(
            secrets.randbelow(1 << 16)
        )  # Otherwise the first queue would get the most messages.
        self._stopped = False

    def send(self, topic: str, put: Callable[[Remoting, TopicQueue], Result]) -> Result:
        """Send a message with `Producer.send`; raises BrokerUnavailable after `close`."""
        with self.lend() as producer:
            return producer.send(topic, put, next(self._turns))

    @contextmanager
    def lend(self) -> Iterator[Producer]:
        """Lend a producer to the calling thread. A producer whose call failed is not used again."""
        with self._lock:
            if self._stopped:
                raise BrokerUnavailable("Expected an open adapter, got one that was stopped: open another.")
            producer = self._idle.pop() if self._idle else None
        if producer is None:
            producer = Producer(remoting_of(self._url(), self._clock), self._clock)
        try:
            yield producer
        except BaseException:
            producer.close()
            raise
        with self._lock:
            if not self._stopped:
                self._idle.append(producer)
                return
        producer.close()

    def close(self) -> None:
        """Close the connections. Later calls fail."""
        with self._lock:
            self._stopped = True
            idle, self._idle = self._idle, []
        for producer in idle:
            producer.close()


def is_certainly_unsent(error: BaseException) -> bool:
    """Return whether the broker certainly does not have the message."""
    if isinstance(error, RemotingError):
        return error.code != _SYSTEM_ERROR and error.code not in NOT_SAFE
    return isinstance(error, ConnectionRefusedError | socket.gaierror)


def properties_of(wire: WireMessage, clock: Clock) -> dict[str, str]:
    """Return the properties of a new message, with id, tag and keys, in the form of RocketMQ's own clients."""
    properties = {name: text for name, text in wire.properties.items() if not is_system_property(name)}
    properties |= {"UNIQ_KEY": _new_id(clock), "WAIT": "true"}
    if wire.tag:
        properties[TAGS] = wire.tag
    if wire.keys:
        properties[KEYS] = " ".join(wire.keys)
    return properties


_HOST, _LOADER = secrets.token_bytes(4), secrets.token_bytes(4)
_COUNT = itertools.count(secrets.randbelow(1 << 16))
_MONTH = 31 * 86_400


def _new_id(clock: Clock) -> str:
    """Return an id for a message in the form of RocketMQ's own clients. RocketMQ's tools read the message's time from the id."""
    milliseconds = int(clock.wall() % _MONTH * 1000)
    process = os.getpid() & 0xFFFF
    raw = _HOST + process.to_bytes(2) + _LOADER + milliseconds.to_bytes(4) + (next(_COUNT) & 0xFFFF).to_bytes(2)
    return raw.hex().upper()
