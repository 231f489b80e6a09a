"""
One channel of an AMQP connection, with its consumers, its deliveries, and the messages that pass.

A channel goes through these states:

    | state | begins with | next state |
    |---|---|---|
    | open | Channel.Open | closing |
    | closing | Channel.Close of either side | closed |
    | closed | Channel.CloseOk | open, as another `Channel` |

A side that closed a channel ignores everything on this channel except Channel.CloseOk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from steadyworker.diagnosis.tags import Tags
from steadyworker.diagnosis.tap import Side

PILE = 300
"""If at least so many deliveries wait, a consumer without a prefetch is flagged."""


DELIVERY_TIMEOUT = 1800.0
"""The seconds in which RabbitMQ's default configuration lets a consumer acknowledge a delivery."""

_TIMEOUT = "x-consumer-timeout"


class ChannelState(Enum):
    """The life of a channel."""

    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


@dataclass(slots=True)
class ChannelConsumer:
    """A consumer of a channel."""

    queue: str
    no_ack: bool
    prefetch: int
    timeout: float = DELIVERY_TIMEOUT


@dataclass(slots=True)
class PartialMessage:
    """An incomplete message: the number of bytes and frames of its body that have come so far."""

    left: int
    size: int = 0
    frames: int = 0


@dataclass(slots=True)
class Channel:
    """
    The state of a channel after the frames that were read.

    Attributes:
        sure: Whether all frames of the channel were read, so that tags can be judged.
        closed_by: The side that closed the channel; `closed_at` is the time.
        transacted: Whether the client selected transactions; after a rollback, it may acknowledge again.
        flagged: The flags that were raised for this life of the channel.
    """

    number: int
    state: ChannelState = ChannelState.OPEN
    sure: bool = True
    closed_by: Side | None = None
    closed_at: float = 0.0
    prefetch: int = 0
    prefetch_of_all: int = 0
    transacted: bool = False
    tags: Tags = field(default_factory=Tags)
    consumers: dict[str, ChannelConsumer] = field(default_factory=dict)
    asked: deque[ChannelConsumer] = field(default_factory=deque)
    gets: deque[bool] = field(default_factory=deque)
    messages: dict[Side, PartialMessage] = field(default_factory=dict)
    flagged: set[str] = field(default_factory=set)

    def consume(self, fields: Mapping[str, Any]) -> None:
        """Note a consumer that the client requests."""
        consumer = ChannelConsumer(fields.get("queue", ""), bool(fields.get("no_ack")), self.prefetch)
        timeout = (fields.get("arguments") or {}).get(_TIMEOUT)
        if isinstance(timeout, int):
            consumer.timeout = timeout / 1000
        if fields.get("nowait"):
            self.consumers[fields.get("consumer_tag", "")] = consumer
        else:
            self.asked.append(consumer)

    def consumes(self, tag: str) -> None:
        """Note that the broker accepted the oldest request for a consumer, and gave the consumer this tag."""
        if self.asked:
            self.consumers[tag] = self.asked.popleft()

    def delivered(self, t: float, tag: int, consumer: str) -> None:
        """Note a delivery to a consumer."""
        known = self.consumers.get(consumer)
        self.tags.delivered(tag, needs_ack=known is None or not known.no_ack, t=t)

    def end(self) -> None:
        """Note that the channel is closed, so all waiting messages go back to their queues."""
        self.state = ChannelState.CLOSED
        self.messages.clear()
        self.consumers.clear()
        self.tags.requeued()

    def got(self, t: float, tag: int) -> None:
        """Note a message that the client requested with Basic.Get."""
        no_ack = self.gets.popleft() if self.gets else False
        self.tags.delivered(tag, needs_ack=not no_ack, t=t)

    def pile(self) -> tuple[str, ChannelConsumer] | None:
        """Return a consumer without a prefetch if many deliveries wait, and no such consumer was reported before."""
        if self.tags.waiting < PILE or self.prefetch_of_all or "pile" in self.flagged:
            return None
        return next(
            ((tag, each) for tag, each in self.consumers.items() if not each.no_ack and not each.prefetch), None
        )

    def once(self, flag: str) -> bool:
        """Return whether this flag is the first of its kind in this life of the channel."""
        first = flag not in self.flagged
        self.flagged.add(flag)
        return first
