"""The messages between a broker and a worker process, without any client library's types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

Headers = Mapping[str, str]


class Redelivered(Enum):
    """The broker's mark that shows whether the broker has delivered this message before."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Delivery:
    """
    One delivery of a message by a broker.

    A delivery is valid only in its own epoch (the life of one connection, channel or consumer).
    `id` is the broker's id of the delivery within its epoch (a tag, a receipt handle).
    `message_id` is the broker's stable id of the message, the same in each redelivery, or None if the broker gives none.
    `brokers_own` are the names of the headers that the broker added; their values can differ in a redelivery.
    `size` is the body's length in bytes; the default is the length of `body`.
    An adapter does not cut a body over the limit, because the message's dead letter is the only copy that remains.
    `origin` is the queue from which the broker itself moved a dead letter; None if the broker moved no letter, or names no queue.
    `encoding` is the sender's name for the body's encoding, such as `gzip`; None for plain text.
    SteadyWorker does not decode such a body.
    `unreadable` is the reason why the adapter cannot read the body; such a message becomes a dead letter with this reason.
    `unshown` is the reason why the content did not arrive, although the broker has it; such a delivery is never acknowledged.
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
    brokers_own: frozenset[str] = frozenset()
    origin: str | None = None
    encoding: str | None = None
    unreadable: str | None = None
    unshown: str | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            object.__setattr__(self, "size", len(self.body))


class Target(Enum):
    """The destination of a message: the work queue, the work queue after a delay, or the dead-letter queue."""

    WORK = "work"
    LATER = "later"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """
    A message to publish: to the work queue, to the work queue after `delay` seconds, or to the dead-letter queue.

    `message_id` becomes the broker's stable id of the message, if the broker lets a sender set this id.
    `first` marks a sender's new message; the size limits apply only to new messages.
    The adapter never refuses a copy of a message that the broker accepted before.
    """

    to: Target
    body: bytes
    headers: Headers
    delay: float = 0.0
    message_id: str | None = None
    first: bool = False


class Settle(Enum):
    """
    The ways to settle a delivery: acknowledge it, release it to the queue, or reject it.

    `REJECT` keeps the message unchanged.
    For an ordinary delivery, the broker moves the message to the Worker's dead-letter queue (`Capabilities.rejects`).
    For a delivery that is `unshown`, the broker moves the message to the broker's own dead letters.
    If the broker cannot move the message, no consumer receives the message while the epoch lasts and the prefetch is above 0.
    """

    ACK = "ack"
    RELEASE = "release"
    REJECT = "reject"


class Settled(Enum):
    """The certainty of a settlement: the broker confirmed the settlement (`CONFIRMED`), or the adapter only sent it (`SENT`)."""

    SENT = "sent"
    CONFIRMED = "confirmed"


# The headers that SteadyWorker reads and writes; all other headers are the user's and are passed through.
KEY = "sw-job-key"
ROUND = "sw-round"
HOP = "sw-hop"
ATTEMPTS = "sw-attempts"
CRASHES = "sw-crashes"
LOSSES = "sw-losses"
FIRST_FAILED_AT = "sw-first-failed-at"
REASON = "sw-reason"
QUEUE = "sw-queue"
"""The work queue of the job that the other headers describe; needed because work queues can share a dead-letter queue, and operators move messages."""

UID = "sw-uid"
"""The uid of the job's row; the header proves that a message belongs to the job, because no sender can guess the uid."""

OWN_HEADERS = (KEY, QUEUE, ROUND, HOP, UID, ATTEMPTS, CRASHES, LOSSES, FIRST_FAILED_AT, REASON)

# The additional headers of a dead letter, for people; a replay leaves them out.
ERROR_CLASS = "sw-error-class"
ERROR_TEXT = "sw-error"
WORKER = "sw-worker"
DEAD_HEADERS = (ERROR_CLASS, ERROR_TEXT, WORKER)
