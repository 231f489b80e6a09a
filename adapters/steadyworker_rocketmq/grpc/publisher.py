"""
The publisher of one queue's messages, through a proxy.

A delayed message waits in the topic `<queue>-later`, because a proxy refuses a delay in a topic for other messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError

from steadyworker.adapter import OutgoingMessage, Settings, Target, check_size
from steadyworker.errors import (
    BrokerUnavailable,
    ConfigError,
    NotPublished,
    PublishFailed,
    TargetFull,
    TargetMissing,
)
from steadyworker.network.preparation import Preparation
from steadyworker_rocketmq.errors import (
    ProxyError,
    is_busy,
    is_lacking_right,
    is_missing_topic,
    is_refused_handle,
    refusal_of,
    unavailable,
)
from steadyworker_rocketmq.grpc.client import Sender
from steadyworker_rocketmq.grpc.senders import Senders
from steadyworker_rocketmq.messages import HEADERS_BYTES, WireMessage, carried_wire, wire_of
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.topology import PreparedTopics
from steadyworker_rocketmq.url import RocketmqUrl

LONGEST_DELAY = 86_400.0 - 3600
"""
The longest delay in seconds; a longer one is several in turn.

It is an hour below the limit of a proxy (`maxDelayTimeMills`), because the proxy's clock may be behind ours.
"""

_KNOWN_WITHIN, _KNOWN_EVERY = 30.0, 0.5
"""
The seconds for which a proxy can report an existing topic as missing, and those between two tries.

A proxy remembers for 20 s that a topic was missing (tried with 5.4.0).
"""


class GrpcPublisher:
    """
    The publisher of one queue's messages; every method may be called from any thread.

    Args:
        url: Returns the current URL.
        place: The proxies' name in errors.
        names: The names of topics and groups.
        preparation: Makes topics and groups.
        settings: The operator's settings.
    """

    def __init__(
        self,
        url: Callable[[], RocketmqUrl],
        place: str,
        names: QueueNames,
        preparation: Preparation[PreparedTopics],
        settings: Settings,
    ) -> None:
        self._place = place
        self._names = names
        self._preparation = preparation
        self._settings = settings
        self._senders = Senders(lambda: Sender(url()))
        self._pause = threading.Event()

    def publish(self, message: OutgoingMessage) -> None:
        """
        Return when the broker has confirmed the message.

        Raises:
            TargetMissing: There is no such topic.
            TargetFull: The broker accepts no messages now.
            MessageRefused: The message is above a limit of the broker or the proxy, or has an illegal property.
            PublishFailed: The result is unknown.
            ValueError: A new message is over the limits.
        """
        if message.first:
            check_size("a body", len(message.body), self._settings.max_body)
            check_size("headers (with their names)", wire_of(message).size(), HEADERS_BYTES)
        wire = carried_wire(message)
        if message.to is Target.LATER and message.delay > 0:
            self.send_later(wire, self._settings.clock.wall() + message.delay)
        else:
            self.send(self._names.dead if message.to is Target.DEAD else self._names.work, wire)

    def send_later(self, wire: WireMessage, due: float) -> None:
        """Send a message that becomes work at this time (seconds since 1970); raises as `send` does."""
        first = min(due, self._settings.clock.wall() + LONGEST_DELAY)
        self.send(self._names.later, wire.delayed(due), first)

    def send(self, topic: str, wire: WireMessage, due: float = 0.0) -> None:
        """Send a message to this topic; raises TargetMissing, TargetFull or PublishFailed."""
        try:
            self._preparation.prepared()
            sender = self._senders.opened()
        except (BrokerUnavailable, ConfigError) as error:
            raise NotPublished(str(error)) from error
        deadline = self._settings.clock.monotonic() + _KNOWN_WITHIN
        while True:
            try:
                return sender.send(topic, wire, due)
            except ProxyError as error:
                if not is_missing_topic(error) or not self._made or self._settings.clock.monotonic() > deadline:
                    raise self._failed(sender, topic, error) from error
            self._pause.wait(_KNOWN_EVERY)

    def route(self, topic: str) -> None:
        """Ask a proxy for the topic; raises ProxyError, or BrokerUnavailable after `close`."""
        sender = self._senders.opened()
        try:
            sender.route(topic)
        except ProxyError as error:
            if not is_missing_topic(error):
                self._senders.replace(sender, error)
            raise

    def reach(self, topic: str) -> None:
        """Make topics and groups if need be, and ask a proxy for this topic; raises an error if none replies."""
        self._preparation.prepared()
        try:
            self.route(topic)
        except ProxyError as error:
            if is_missing_topic(error):
                self._preparation.forget()
            raise

    def close(self, within: float) -> None:
        """Close the connection, and wait for at most `within` seconds; later calls fail."""
        self._pause.set()
        self._senders.close(within)

    @property
    def _made(self) -> bool:
        """Whether this process has made the topics, or found them at the name server."""
        prepared = self._preparation.known
        return prepared is not None and prepared.made and not self._pause.is_set()

    def _failed(self, sender: Sender, topic: str, error: ProxyError) -> PublishFailed:
        place = self._place
        if is_missing_topic(error):
            self._preparation.forget()
            return TargetMissing(
                f"Expected the topic {topic!r} at {place}, got none: mqadmin updateTopic -t {topic}, or name the name "
                "server with ?namesrv= so that the worker makes it."
            )
        if is_busy(error):
            return TargetFull(
                f"Expected the topic {topic!r} to accept a message, got a refusal ({error}): see the broker's log; "
                "its disk may be full, or it has too many requests."
            )
        if (refusal := refusal_of(error, topic)) is not None:
            return refusal
        if is_refused_handle(error):
            return NotPublished(
                f"Expected the topic {topic!r} to accept a message, got: {error}: see the broker's log."
            )
        if not is_lacking_right(error):
            self._senders.replace(sender, error)
        cancelled = isinstance(error.__cause__, CancelledError)  # by another call, which closed the sender
        cause = unavailable((cancelled and sender.failure) or error, place)
        if error.unsent or is_lacking_right(error):
            return NotPublished(str(cause))
        return PublishFailed(f"{cause} The topic {topic!r} may have the message all the same.")
