"""
The publisher of one queue's messages, which sends to the brokers without a proxy.

A delayed message stays at the broker until the time of its delay level is over. Then it appears in the work topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from typing_extensions import override

from steadyworker.adapter import Settings
from steadyworker.errors import BrokerUnavailable, ConfigError, NotPublished, PublishFailed
from steadyworker.network.preparation import Preparation
from steadyworker_rocketmq.direct.producer import NOT_SAFE, Producers, is_certainly_unsent, properties_of
from steadyworker_rocketmq.errors import is_lacking_right, unavailable
from steadyworker_rocketmq.messages import WireMessage
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.publisher import RocketmqPublisher
from steadyworker_rocketmq.remoting import Remoting, RemotingError, TopicQueue
from steadyworker_rocketmq.topology import PreparedTopics
from steadyworker_rocketmq.url import RocketmqUrl


class DirectPublisher(RocketmqPublisher):
    """The publisher that sends to the brokers; `url` returns the current URL."""

    _how_to_make = "run with --topology declare, which makes it"

    def __init__(
        self,
        url: Callable[[], RocketmqUrl],
        names: QueueNames,
        preparation: Preparation[PreparedTopics],
        settings: Settings,
    ) -> None:
        super().__init__(names, preparation, settings)
        self._url = url
        self._producers = Producers(url, settings.clock)

    @override
    def _delay(self, wire: WireMessage, delay: float) -> None:
        self.send(self._names.work, wire, delay)

    @override
    def send(self, topic: str, wire: WireMessage, delay: float = 0.0) -> None:
        """Send a message to this topic, at the first delay level that is not below `delay`; raises the errors of the base."""
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

    @override
    def close(self, within: float) -> None:
        self._producers.close()

    def _failed(self, topic: str, error: Exception) -> PublishFailed:
        place = str(self._url())
        if (refusal := self._refusal(topic, place, error)) is not None:
            return refusal
        if isinstance(error, RemotingError) and (what := NOT_SAFE.get(error.code)):
            return PublishFailed(
                f"Expected a message to be safe in the topic {topic!r} at {place}, got: the broker stored it, but {what}: "
                "see the broker's log. The message can still be lost; if it is sent again, it can come twice."
            )
        if is_certainly_unsent(error) or is_lacking_right(error):
            return NotPublished(str(unavailable(error, place)))
        return PublishFailed(f"{unavailable(error, place)} The topic {topic!r} may have the message all the same.")


def level_of(delay: float, levels: Sequence[float]) -> int:
    """
    Return the number, from 1, of the shortest level that is not below `delay`.

    If there is no such level, return the number of the longest level. Without a delay, return 0.
    """
    if delay <= 0:
        return 0
    enough = [seconds for seconds in levels if seconds >= delay]
    return levels.index(min(enough) if enough else max(levels)) + 1
