"""The messages that a broker delivers and receives, free of any client library's types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

Headers = Mapping[str, str]


class Redelivered(Enum):
    """The broker's mark that it delivered this message before."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Delivery:
    """
    One delivery of a message by a broker.

    It is valid only in the epoch (the life of the connection, channel or consumer) that it came in.
    `id` identifies a delivery within its epoch; it is the broker's own (a tag, a receipt handle).
    `message_id` is the broker's stable id of the message, the same in each redelivery, or None if the broker gives none.
    `size` is the body's length in bytes, by default that of `body`.
    A body over the limit is delivered whole, because its dead letter is the only copy that remains.
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
    """The destination of a message: the work queue, the work queue after a delay, or the dead-letter queue."""

    WORK = "work"
    LATER = "later"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """
    A message to publish: to the work queue, to the work queue after `delay` seconds, or to the dead-letter queue.

    `message_id` becomes the broker's stable id of the message, if the broker lets a sender set one.
    `first` marks a sender's new message, for which the size limits hold.
    A copy of a message that the broker accepted before is never refused.
    """

    to: Target
    body: bytes
    headers: Headers
    delay: float = 0.0
    message_id: str | None = None
    first: bool = False


class Settle(Enum):
    """The two ways to settle a delivery: acknowledge it, or release it to the queue."""

    ACK = "ack"
    RELEASE = "release"


class Settled(Enum):
    """The certainty of a settlement: the broker confirmed it (`CONFIRMED`), or it was only sent (`SENT`)."""

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
OWN_HEADERS = (KEY, ROUND, HOP, ATTEMPTS, CRASHES, LOSSES, FIRST_FAILED_AT, REASON)

# The additional headers of a dead letter, for people; a replay leaves them out.
ERROR_CLASS = "sw-error-class"
ERROR_TEXT = "sw-error"
WORKER = "sw-worker"
UID = "sw-uid"
DEAD_HEADERS = (ERROR_CLASS, ERROR_TEXT, WORKER, UID)

_LARGEST_NUMBER = 1_000_000
_DIGITS = 7
_LATEST = 1e11  # the year 5138: a larger number cannot be a time


def key_of(delivery: Delivery, key_header: str | None) -> str | None:
    """Return the key as its sender gave it: from `key_header`, else from `sw-job-key`, else the broker's stable message id."""
    headers = delivery.headers
    return (headers.get(key_header) if key_header else None) or headers.get(KEY) or delivery.message_id


def number_of(headers: Headers, name: str) -> int:
    """Return a counter from a header, 0 without one; raise ValueError for anything but 0 to 1,000,000."""
    text = headers.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS and int(text) <= _LARGEST_NUMBER):
        raise ValueError(f"{name}: expected a whole number from 0 to {_LARGEST_NUMBER}, got {text[:40]!r}")
    return int(text)


def moment_of(headers: Headers, name: str) -> float | None:
    """Return seconds since 1970 from a header, None without one; raise ValueError for anything else."""
    text = headers.get(name)
    if text is None:
        return None
    try:
        moment = float(text)
    except ValueError:
        moment = -1.0
    if not 0 <= moment < _LATEST:
        raise ValueError(f"{name}: expected seconds since 1970, got {text[:40]!r}")
    return moment
