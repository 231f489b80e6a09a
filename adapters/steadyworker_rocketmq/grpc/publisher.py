"""
The publisher of one queue's messages, through a proxy.

A delayed message waits in the topic `<queue>-later`, which has the type DELAY.
The work topic has the type NORMAL, and a proxy refuses a delayed message in such a topic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError

from typing_extensions import override

from steadyworker.adapter import Settings
from steadyworker.errors import BrokerUnavailable, ConfigError, NotPublished, PublishFailed
from steadyworker.network.preparation import Preparation
from steadyworker_rocketmq.errors import ProxyError, is_lacking_right, is_missing_topic, is_refused_handle, unavailable
from steadyworker_rocketmq.grpc.client import Sender
from steadyworker_rocketmq.grpc.senders import Senders
from steadyworker_rocketmq.messages import WireMessage
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.publisher import RocketmqPublisher
from steadyworker_rocketmq.topology import PreparedTopics
from steadyworker_rocketmq.url import RocketmqUrl

LONGEST_DELAY = 86_400.0 - 3600
"""
The longest delay in seconds. A longer delay consists of several delays, one after the other.

The value is an hour below the limit of a proxy (`maxDelayTimeMills`), because the proxy's clock may be behind this host's clock.
"""

_KNOWN_WITHIN, _KNOWN_EVERY = 30.0, 0.5
"""
Seconds for which a proxy can report an existing topic as missing, and seconds between two tries.

A proxy remembers for 20 s that a topic was missing (tried with 5.4.0).
"""


class GrpcPublisher(RocketmqPublisher):
    """The publisher that sends to a proxy; `url` returns the current URL, and `place` is the proxies' name in errors."""

    _how_to_make = "name the name server with ?namesrv= so that the worker makes it"

    def __init__(
        self,
        url: Callable[[], RocketmqUrl],
        place: str,
        names: QueueNames,
        preparation: Preparation[PreparedTopics],
        settings: Settings,
    ) -> None:
        super().__init__(names, preparation, settings)
        self._place = place
        self._senders = Senders(lambda: Sender(url()))
        self._pause = threading.Event()

    @override
    def _delay(self, wire: WireMessage, delay: float) -> None:
        self.send_later(wire, self._settings.clock.wall() + delay)

    def send_later(self, wire: WireMessage, due: float) -> None:
        """Send a message that becomes work at the time `due` (seconds since 1970); raises the errors of `send`."""
        first = min(due, self._settings.clock.wall() + LONGEST_DELAY)
        self.send(self._names.later, wire.delayed(due), first)

    @override
    def send(self, topic: str, wire: WireMessage, due: float = 0.0) -> None:
        """Send a message to this topic, to be delivered at the time `due` (seconds since 1970); raises the errors of the base."""
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
        """Make topics and groups if necessary, and ask a proxy for this topic; raises an error if no proxy replies."""
        self._preparation.prepared()
        try:
            self.route(topic)
        except ProxyError as error:
            if is_missing_topic(error):
                self._preparation.forget()
            raise

    @override
    def close(self, within: float) -> None:
        self._pause.set()
        self._senders.close(within)

    @property
    def _made(self) -> bool:
        """Whether this process has made the topics, or found them at the name server."""
        prepared = self._preparation.known
        return prepared is not None and prepared.made and not self._pause.is_set()

    def _failed(self, sender: Sender, topic: str, error: ProxyError) -> PublishFailed:
        if (refusal := self._refusal(topic, self._place, error)) is not None:
            return refusal
        if is_refused_handle(error):
            return NotPublished(
                f"Expected the topic {topic!r} to accept a message, got: {error}: see the broker's log."
            )
        if not is_lacking_right(error):
            self._senders.replace(sender, error)
        cancelled = isinstance(error.__cause__, CancelledError)  # Another call failed, and closed the sender.
        cause = unavailable((cancelled and sender.failure) or error, self._place)
        if error.unsent or is_lacking_right(error):
            return NotPublished(str(cause))
        return PublishFailed(f"{cause} The topic {topic!r} may have the message all the same.")
