"""The base of both drivers' publishers: limits, topics, and errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from steadyworker.adapter import OutgoingMessage, Settings, Target, check_size
from steadyworker.errors import PublishFailed, TargetFull, TargetMissing
from steadyworker.network.preparation import Preparation
from steadyworker_rocketmq.errors import is_busy, is_missing_topic, refusal_of
from steadyworker_rocketmq.messages import HEADERS_BYTES, WireMessage, carried_wire, wire_of
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.topology import PreparedTopics


class RocketmqPublisher(ABC):
    """
    The publisher of one queue's messages; every method may be called from any thread.

    Args:
        names: The names of topics and groups.
        preparation: Makes topics and groups.
        settings: The operator's settings.
    """

    _how_to_make: ClassVar[str]
    """How a missing topic is made, beside `mqadmin`."""

    def __init__(self, names: QueueNames, preparation: Preparation[PreparedTopics], settings: Settings) -> None:
        self._names = names
        self._preparation = preparation
        self._settings = settings

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
        self.check(message)
        wire = carried_wire(message)
        if message.to is Target.LATER and message.delay > 0:
            self._delay(wire, message.delay)
        else:
            self.send(self._names.dead if message.to is Target.DEAD else self._names.work, wire)

    def check(self, message: OutgoingMessage) -> None:
        """Check as `ChecksMessages.check_message` does."""
        if message.first:
            check_size("a body", len(message.body), self._settings.max_body)
            check_size("headers (with their names)", wire_of(message).size(), HEADERS_BYTES)

    @abstractmethod
    def send(self, topic: str, wire: WireMessage) -> None:
        """Send a message to this topic; raises TargetMissing, TargetFull, MessageRefused or PublishFailed."""

    @abstractmethod
    def _delay(self, wire: WireMessage, delay: float) -> None:
        """Send a message that becomes work after `delay` seconds; raises the errors of `send`."""

    @abstractmethod
    def close(self, within: float) -> None:
        """Close the connections, and wait for at most `within` seconds. Later calls fail."""

    def _refusal(self, topic: str, place: str, error: Exception) -> PublishFailed | None:
        """Return the error if a topic or a broker does not accept the message; None for every other error."""
        if is_missing_topic(error):
            self._preparation.forget()
            return TargetMissing(
                f"Expected the topic {topic!r} at {place}, got none: mqadmin updateTopic -t {topic}, or {self._how_to_make}."
            )
        if is_busy(error):
            return TargetFull(
                f"Expected the topic {topic!r} to accept a message, got a refusal ({error}): see the broker's log; "
                "its disk may be full, or it has too many requests."
            )
        return refusal_of(error, topic)
