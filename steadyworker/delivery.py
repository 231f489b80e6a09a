"""What a broker hands over, and what is handed to a broker; nothing of any client library's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

Headers = Mapping[str, str]


class Redelivered(Enum):
    """Whether the broker says that it handed this message over before."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Delivery:
    """
    One hand-over of a message by a broker.

    Valid only in the epoch (the connection, the channel, the consumer) that made it.
    `id` tells one delivery of an epoch from another; it is the broker's own (a tag, a receipt handle).
    `message_id` is the broker's stable id of the message, the same in each redelivery, or None where it has none.
    `size` is the body's length in bytes, by default that of `body`; a body over the limit is handed over whole, for its
    dead letter is all that is left of it.
    """

    epoch: int
    id: str
    queue: str
    body: bytes
    headers: Headers = field(default_factory=dict)
    message_id: str | None = None
    redelivered: Redelivered = Redelivered.UNKNOWN
    sent_at: float | None = None
    size: int = -1

    def __post_init__(self) -> None:
        if self.size < 0:
            object.__setattr__(self, "size", len(self.body))


class Target(Enum):
    """Where a copy goes."""

    WORK = "work"
    LATER = "later"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """
    A message to publish: to the work queue, to the work queue after `delay` seconds, or to the dead-letter queue.

    `message_id` becomes the broker's stable id of the message, where the broker lets a sender set one.
    `first` says that a sender publishes it: it is held to the size limits.
    A copy of a message that the broker has taken before is never refused.
    """

    to: Target
    body: bytes
    headers: Headers
    delay: float = 0.0
    message_id: str | None = None
    first: bool = False


class Settle(Enum):
    """The two things that can be said of a delivery."""

    ACK = "ack"
    RELEASE = "release"


class Settled(Enum):
    """How much is known of a settlement: `known` was confirmed by the broker, `written` was handed to the network."""

    SENT = "sent"
    CONFIRMED = "confirmed"


# The headers that SteadyWorker reads and writes; everything else in a message is the user's and is passed through.
KEY = "sw-job-key"
ROUND = "sw-round"
HOP = "sw-hop"
ATTEMPTS = "sw-attempts"
CRASHES = "sw-crashes"
LOSSES = "sw-losses"
FIRST_FAILED_AT = "sw-first-failed-at"
REASON = "sw-reason"
OWN_HEADERS = (KEY, ROUND, HOP, ATTEMPTS, CRASHES, LOSSES, FIRST_FAILED_AT, REASON)

# What a dead letter carries beside them, for people; a replay leaves them out.
ERROR_CLASS = "sw-error-class"
ERROR_TEXT = "sw-error"
WORKER = "sw-worker"
UID = "sw-uid"
DEAD_HEADERS = (ERROR_CLASS, ERROR_TEXT, WORKER, UID)
