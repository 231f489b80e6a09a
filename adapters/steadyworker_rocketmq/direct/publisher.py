"""
The publisher of one queue's messages, straight to the brokers.

Each thread that sends has a connection of its own meanwhile, so a broker that is slow for one sender delays no other.
A broker has stored a message when it says so (`SEND_OK`); any other result means that the message can be lost, or comes twice.

A delayed message lies at the broker until its level ends, and then appears in the work topic.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from steadyworker.adapter import Clock, OutgoingMessage, Settings, Target, check_size
from steadyworker.errors import BrokerUnavailable, ConfigError, NotPublished, PublishFailed, TargetFull, TargetMissing
from steadyworker.network.preparation import Preparation
from steadyworker_rocketmq.direct.member import NoTopicError
from steadyworker_rocketmq.errors import unavailable
from steadyworker_rocketmq.messages import HEADERS_BYTES, KEYS, TAGS, Wire, fitted_wire, wire_of
from steadyworker_rocketmq.names import Names, is_system_property
from steadyworker_rocketmq.remoting import Queue, Remoting, RemotingError
from steadyworker_rocketmq.topology import Prepared, remoting_of
from steadyworker_rocketmq.url import BrokerUrl

_ROUTE_EVERY = 30.0
"""Seconds after which a producer asks a name server again for the queues of a topic."""

# RocketMQ's ResponseCode.
_SYSTEM_ERROR, _BUSY, _UNAVAILABLE, _NO_TOPIC = 1, 2, 14, 17
_NOT_SAFE = {
    10: "the broker's disk did not confirm it in time (FLUSH_DISK_TIMEOUT)",
    11: "the broker has no replica (SLAVE_NOT_AVAILABLE)",
    12: "the broker's replica did not confirm it in time (FLUSH_SLAVE_TIMEOUT)",
}
"""The results of messages that a broker has stored, and can lose."""


class Producer:
    """
    A producer with connections of its own; for one thread at a time.

    Args:
        remoting: The brokers; used by nothing else.
        clock: The clock.
    """

    def __init__(self, remoting: Remoting, clock: Clock) -> None:
        self._remoting = remoting
        self._clock = clock
        self._routes: dict[str, tuple[float, list[Queue]]] = {}

    def send(self, topic: str, wire: Wire, level: int, turn: int) -> None:
        """
        Return when a broker has stored the message.

        Args:
            topic: The topic.
            wire: The message.
            level: The number of the delay level from 1; 0 for none.
            turn: The number of this message, by which queues take turns.

        Raises:
            NoTopicError: There is no such topic.
            RemotingError: The broker refused the message, or does not say that it is safe.
            OSError: It is unknown whether a broker has the message.
            Silent: The same.
        """
        properties = {name: text for name, text in wire.properties.items() if not is_system_property(name)}
        properties |= {"UNIQ_KEY": _new_id(self._clock), "WAIT": "true"}
        if wire.tag:
            properties[TAGS] = wire.tag
        if wire.keys:
            properties[KEYS] = " ".join(wire.keys)
        if level:
            properties["DELAY"] = str(level)
        queues = self._queues(topic)
        last: Exception | None = None
        tried = set()
        for queue in (queues[(turn + number) % len(queues)] for number in range(len(queues))):
            if queue.broker in tried:
                continue
            try:
                self._remoting.send(queue, topic, wire.body, properties)
            except Exception as error:
                if not is_certainly_unsent(error):
                    raise
                last = error  # another broker may accept it
                tried.add(queue.broker)
            else:
                return
        assert last is not None
        raise last

    def close(self) -> None:
        """Close the connections."""
        self._remoting.close()

    def _queues(self, topic: str) -> list[Queue]:
        asked_at, queues = self._routes.get(topic, (0.0, []))
        now = self._clock.monotonic()
        if not queues or now - asked_at > _ROUTE_EVERY:
            # Two messages in a row go to two brokers.
            queues = sorted(self._remoting.route(topic) or [], key=lambda queue: (queue.number, queue.broker.name))
            if not queues:
                raise NoTopicError(f"no topic {topic!r}", _NO_TOPIC)
            self._routes[topic] = (now, queues)
        return queues


def is_missing(error: BaseException) -> bool:
    """Return whether the topic does not exist."""
    return isinstance(error, RemotingError) and error.code == _NO_TOPIC


def is_full(error: BaseException) -> bool:
    """Return whether the broker accepts no messages for now."""
    return isinstance(error, RemotingError) and error.code in (_BUSY, _UNAVAILABLE)


def is_certainly_unsent(error: BaseException) -> bool:
    """Return whether the broker cannot have the message."""
    if isinstance(error, RemotingError):
        return error.code != _SYSTEM_ERROR and error.code not in _NOT_SAFE
    return isinstance(error, ConnectionRefusedError | socket.gaierror)


class Publisher:
    """
    The publisher of one queue's messages; every method may be called from any thread.

    Args:
        url: Returns the current URL.
        names: The names of topics and groups.
        preparation: Makes topics and groups.
        settings: The operator's settings.
    """

    def __init__(
        self,
        url: Callable[[], BrokerUrl],
        names: Names,
        preparation: Preparation[Prepared],
        settings: Settings,
    ) -> None:
        self._url = url
        self._names = names
        self._preparation = preparation
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[Producer] = []
        self._turns = itertools.count(secrets.randbelow(1 << 16))  # else the first queue gets the most
        self._stopped = False

    def publish(self, message: OutgoingMessage) -> None:
        """
        Return when a broker has stored the message.

        Raises:
            TargetMissing: There is no such topic.
            TargetFull: The brokers accept no messages now.
            PublishFailed: The result is unknown.
            ValueError: A new message is over the limits.
        """
        if message.first:
            check_size("a body", len(message.body), self._settings.max_body)
            check_size("headers (with their names)", wire_of(message).size(), HEADERS_BYTES)
        delay = message.delay if message.to is Target.LATER else 0.0
        self.send(self._names.dead if message.to is Target.DEAD else self._names.work, fitted_wire(message), delay)

    def send(self, topic: str, wire: Wire, delay: float = 0.0) -> None:
        """Send a message to this topic, at the first delay level that is not below `delay`; raises as `publish` does."""
        try:
            self._preparation.prepared()
            level = self._level(delay)
            with self._producer() as producer:
                producer.send(topic, wire, level, next(self._turns))
        except (BrokerUnavailable, ConfigError) as error:
            raise NotPublished(str(error)) from error
        except PublishFailed:
            raise
        except Exception as error:
            raise self._failed(topic, error) from error

    def close(self) -> None:
        """Close the connections; later calls fail."""
        with self._lock:
            self._stopped = True
            idle, self._idle = self._idle, []
        for producer in idle:
            producer.close()

    def _level(self, delay: float) -> int:
        """Return the number of the level from 1; 0 without a delay, and the last level if none is as long."""
        levels = self._url().delay_levels
        return min(bisect_left(levels, delay) + 1, len(levels)) if delay > 0 else 0

    @contextmanager
    def _producer(self) -> Iterator[Producer]:
        """Lend a producer to the calling thread; one whose call failed is not used again."""
        with self._lock:
            if self._stopped:
                raise BrokerUnavailable("Expected an open adapter, got one that was stopped: open another.")
            producer = self._idle.pop() if self._idle else None
        if producer is None:
            producer = Producer(remoting_of(self._url(), self._settings.clock), self._settings.clock)
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

    def _failed(self, topic: str, error: Exception) -> PublishFailed:
        place = str(self._url())
        if is_missing(error):
            self._preparation.forget()
            return TargetMissing(
                f"Expected the topic {topic!r} at {place}, got none: mqadmin updateTopic -t {topic}, "
                "or run with --topology declare, which makes it."
            )
        if is_full(error):
            return TargetFull(
                f"Expected the topic {topic!r} to accept a message, got a refusal ({error}): see the broker's log; "
                "its disk may be full, or it has too many requests."
            )
        if isinstance(error, RemotingError) and (what := _NOT_SAFE.get(error.code)):
            return PublishFailed(
                f"Expected the topic {topic!r} at {place} to have a message safely, got: it is stored, but {what}: "
                "see the broker's log. The message can be lost, or come twice."
            )
        if is_certainly_unsent(error):
            return NotPublished(str(unavailable(error, place)))
        return PublishFailed(f"{unavailable(error, place)} The topic {topic!r} may have the message all the same.")


_HOST, _LOADER = secrets.token_bytes(4), secrets.token_bytes(4)
_COUNT = itertools.count(secrets.randbelow(1 << 16))
_MONTH = 31 * 86_400


def _new_id(clock: Clock) -> str:
    """Return an id for a message in the form of RocketMQ's own clients, whose tools read the time in it."""
    milliseconds = int(clock.wall() % _MONTH * 1000)
    process = os.getpid() & 0xFFFF
    raw = _HOST + process.to_bytes(2) + _LOADER + milliseconds.to_bytes(4) + (next(_COUNT) & 0xFFFF).to_bytes(2)
    return raw.hex().upper()
