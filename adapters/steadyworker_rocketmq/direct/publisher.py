"""
The publisher of one queue's messages, straight to the brokers.

A delayed message lies at the broker until its level ends, and then appears in the work topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from steadyworker_rocketmq.direct.producer import (
    NOT_SAFE,
    Producers,
    is_certainly_unsent,
    is_full,
    is_missing,
    properties_of,
)
from steadyworker_rocketmq.errors import is_lacking_right, refusal_of, unavailable
from steadyworker_rocketmq.messages import HEADERS_BYTES, WireMessage, carried_wire, wire_of
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.remoting import Remoting, RemotingError, TopicQueue
from steadyworker_rocketmq.topology import PreparedTopics
from steadyworker_rocketmq.url import RocketmqUrl


class DirectPublisher:
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
        url: Callable[[], RocketmqUrl],
        names: QueueNames,
        preparation: Preparation[PreparedTopics],
        settings: Settings,
    ) -> None:
        self._url = url
        self._names = names
        self._preparation = preparation
        self._settings = settings
        self._producers = Producers(url, settings.clock)

    def publish(self, message: OutgoingMessage) -> None:
        """
        Return when a broker has stored the message.

        Raises:
            TargetMissing: There is no such topic.
            TargetFull: The brokers accept no messages now.
            MessageRefused: The message is above a limit of each broker.
            PublishFailed: The result is unknown.
            ValueError: A new message is over the limits.
        """
        if message.first:
            check_size("a body", len(message.body), self._settings.max_body)
            check_size("headers (with their names)", wire_of(message).size(), HEADERS_BYTES)
        delay = message.delay if message.to is Target.LATER else 0.0
        self.send(self._names.dead if message.to is Target.DEAD else self._names.work, carried_wire(message), delay)

    def send(self, topic: str, wire: WireMessage, delay: float = 0.0) -> None:
        """Send a message to this topic, at the first delay level that is not below `delay`; raises as `publish` does."""
        try:
            level = level_of(delay, self._preparation.prepared().levels)
            properties = properties_of(wire, self._settings.clock) | ({"DELAY": str(level)} if level else {})

            def put(remoting: Remoting, queue: TopicQueue) -> None:
                remoting.send(queue, topic, wire.body, properties)

            self._producers.send(topic, put)
        except (BrokerUnavailable, ConfigError) as error:
            raise NotPublished(str(error)) from error
        except PublishFailed:
            raise
        except Exception as error:
            raise self._failed(topic, error) from error

    def close(self) -> None:
        """Close the connections; later calls fail."""
        self._producers.close()

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
        if isinstance(error, RemotingError) and (what := NOT_SAFE.get(error.code)):
            return PublishFailed(
                f"Expected a message to be safe in the topic {topic!r} at {place}, got: the broker stored it, but {what}: "
                "see the broker's log. The message can still be lost; if it is sent again, it can come twice."
            )
        if (refusal := refusal_of(error, topic)) is not None:
            return refusal
        if is_certainly_unsent(error) or is_lacking_right(error):
            return NotPublished(str(unavailable(error, place)))
        return PublishFailed(f"{unavailable(error, place)} The topic {topic!r} may have the message all the same.")


def level_of(delay: float, levels: Sequence[float]) -> int:
    """Return the number, from 1, of the shortest level that is not below `delay`, else of the longest; 0 without a delay."""
    if delay <= 0:
        return 0
    enough = [seconds for seconds in levels if seconds >= delay]
    return levels.index(min(enough) if enough else max(levels)) + 1
