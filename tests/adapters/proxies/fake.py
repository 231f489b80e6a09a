"""
A broker and its proxies in this process, in the place of `grpc/client.py`, whose `GrpcSession` and `Sender` it offers.

It does what 5.4.0 and the client library do with handles, invisibilities, delays, limits and restarts.
A test can restart it, let a call fail, and set the broker's clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from steadyworker_rocketmq.errors import BAD_REQUEST, ProxyError
from steadyworker_rocketmq.grpc.client import Received
from steadyworker_rocketmq.messages import WireMessage
from steadyworker_rocketmq.names import is_system_property
from steadyworker_rocketmq.url import RocketmqUrl

LONGEST_POLL = 0.1
"""Seconds for which a poll waits; 5 s at a real proxy."""

HANDLE, LATE, INTERNAL, TOO_LARGE, NO_TOPIC = 40013, 40012, 50001, 43101, 40402


@dataclass(eq=False)
class Message:
    """A message of a topic, and what its consumer group knows of it."""

    id: str
    wire: WireMessage
    born_at: float
    visible_at: float
    handle: str = ""
    attempts: int = 0
    acked: bool = False


@dataclass
class FakeProxy:
    """
    The proxies and the broker.

    Attributes:
        up: False while every call fails, as without a network.
        early_for: Seconds for which a new session is not known.
        skew: Seconds by which the broker's clock is ahead.
        topics: The messages of each topic; `missing` topics do not exist.
        fail: Called at each call with its name and topic; it can raise.
        calls: The calls, each as name and topic.
        senders: The number of senders that were opened.
        closed: The number of sessions that were closed.
    """

    up: bool = True
    early_for: float = 0.0
    skew: float = 0.0
    topics: dict[str, list[Message]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    fail: Callable[[str, str], None] = lambda _name, _topic: None
    calls: list[tuple[str, str]] = field(default_factory=list)
    sessions: list[FakeSession] = field(default_factory=list)
    senders: int = 0
    closed: int = 0
    generation: int = 0
    lock: threading.Condition = field(default_factory=threading.Condition)
    count: int = 0

    def restart(self) -> None:
        """Restart the proxies: every session of before is unknown without end, and every handle stays valid."""
        with self.lock:
            self.generation += 1
            self.lock.notify_all()

    def called(self, name: str, topic: str) -> int:
        """Return how often this was called for this topic."""
        return self.calls.count((name, topic))

    def put(self, topic: str, wire: WireMessage, visible_at: float = 0.0) -> None:
        """Store a message, as another application's client does: without a proxy's limits."""
        with self.lock:
            self.count += 1
            message = Message(f"id-{self.count}", wire, time.time(), visible_at)
            self.topics.setdefault(topic, []).append(message)
            self.lock.notify_all()

    def waiting(self, topic: str) -> list[Message]:
        """Return the messages of a topic that are not acknowledged."""
        with self.lock:
            return [message for message in self.topics.get(topic, ()) if not message.acked]

    def called_by(self, name: str, topic: str) -> None:
        """Note a call; raise what a proxy that is away, or the test, raises."""
        self.calls.append((name, topic))
        if not self.up:
            raise ProxyError("failed to connect to all addresses", status="UNAVAILABLE")
        self.fail(name, topic)
        if topic in self.missing:
            raise ProxyError("No topic route info in name server for the topic", NO_TOPIC)

    # --- in the place of the classes of `grpc/client.py` --------------------------------------------------------------

    def session(self, _url: RocketmqUrl, group: str, topic: str) -> FakeSession:
        made = FakeSession(self, group, topic)
        self.sessions.append(made)
        return made

    def sender(self, _url: RocketmqUrl) -> FakeSender:
        self.senders += 1
        return FakeSender(self)


class FakeSession:
    """A member of a group; it is made without a proxy, too."""

    def __init__(self, proxy: FakeProxy, group: str, topic: str) -> None:
        self.group, self.topic = group, topic
        self.is_closed = False
        self._proxy = proxy
        self._generation = proxy.generation
        self._began = time.monotonic()

    def _call(self, name: str) -> None:
        self._proxy.called_by(name, self.topic)
        if self.is_closed:
            raise ProxyError("consumer is not running now.")
        what = "settings" if name == "receive" else "channel"
        if self._generation != self._proxy.generation or time.monotonic() - self._began < self._proxy.early_for:
            raise ProxyError(f'"{what}" is null', INTERNAL)

    def receive(self, most: int, invisible: int) -> list[Received]:
        proxy, end = self._proxy, time.monotonic() + LONGEST_POLL
        while True:
            self._call("receive")
            with proxy.lock:
                now = time.time() + proxy.skew
                found = [each for each in proxy.waiting(self.topic) if each.visible_at <= now][:most]
                if found or (left := end - time.monotonic()) <= 0:
                    return [self._received(message, now + invisible) for message in found]
                proxy.lock.wait(min(left, 0.02))

    def _received(self, message: Message, visible_at: float) -> Received:
        message.attempts += 1
        self._hide(message, visible_at)
        return Received(message.wire, message.id, message.attempts, message.born_at, message.handle, message)

    def _hide(self, message: Message, visible_at: float) -> None:
        self._proxy.count += 1
        message.handle, message.visible_at = f"handle-{self._proxy.count}", visible_at

    @contextmanager
    def _held(self, name: str, received: Received) -> Iterator[Message]:
        self._call(name)
        message: Message = received._message
        with self._proxy.lock:
            now = time.time() + self._proxy.skew
            if message.acked or message.handle != received.handle or message.visible_at < now:
                raise ProxyError("receipt handle is expired", HANDLE)
            yield message

    def renew(self, received: Received, invisible: int) -> None:
        assert 10 <= invisible <= 43_200
        with self._held("renew", received) as message:
            self._hide(message, time.time() + self._proxy.skew + invisible)
            received.handle = message.handle

    def forward(self, received: Received) -> None:
        with self._held("forward", received) as message:
            message.acked = True
            self._proxy.topics.setdefault(f"%DLQ%{self.group}", []).append(replace(message, acked=False))

    def ack(self, received: Received) -> None:
        with self._held("ack", received) as message:
            message.acked = True

    def close(self) -> None:
        self._proxy.closed += not self.is_closed
        self.is_closed = True


class FakeSender:
    """A producer; it is made without a proxy, too."""

    failure: ProxyError | None = None

    def __init__(self, proxy: FakeProxy) -> None:
        self._proxy = proxy

    def route(self, topic: str) -> frozenset[str]:
        self._proxy.called_by("route", topic)
        return frozenset()

    def send(self, topic: str, wire: WireMessage, due: float = 0.0) -> None:
        self._proxy.called_by("send", topic)
        check(wire)
        now = time.time() + self._proxy.skew
        if due - now > 86_400:
            raise ProxyError("the max delay time of message is too large, max is 86400000", LATE)
        self._proxy.put(topic, replace(wire), due)

    def close(self) -> None:
        with suppress(ProxyError):
            self._proxy.fail("close", "")


def check(wire: WireMessage) -> None:
    """Refuse what the client library or a proxy refuses."""
    texts = [*wire.properties, *wire.properties.values(), *wire.keys, *([] if wire.tag is None else [wire.tag])]
    if not wire.body or not all(text.strip() for text in texts):
        raise ProxyError("value should not be blank.", BAD_REQUEST)
    if any(map(is_system_property, wire.properties)) or not all(text.isprintable() for text in texts):
        raise ProxyError("property is not allowed", BAD_REQUEST)
    if len(wire.properties) > 128 or sum(len(text.encode()) for text in texts) > 16_384:
        raise ProxyError("the total size of user property is too large, max is 16384", TOO_LARGE)
