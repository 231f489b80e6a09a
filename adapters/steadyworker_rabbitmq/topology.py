"""
Which queues a Worker needs, what they are called, and which of them a copy goes to: a plan, made without a broker.

| queue | for | filled by |
|---|---|---|
| `exports` | the jobs | senders, and each retry queue when a delay is over |
| `exports.later.30000ms`, one per level of `delays` | copies that wait so long | a worker that tries again, or follows |
| `exports.dead` | dead letters, ours and the broker's | a worker that gives a message up |

All are quorum queues, all are reached through the default exchange, and there is nothing else to bind or to grow stale.
A retry queue is a delay because nobody consumes it: its `x-message-ttl` ends, and it dead-letters to the work queue.
A delay of a message's own would not do: messages expire at the head only, so that a long one holds up the short ones behind it.
The way back must not lose the copy either: `at-least-once` keeps it until the work queue has confirmed it, and needs
`reject-publish` (otherwise the broker silently falls back to at-most-once).

One ladder for the whole virtual host, copies finding home by their routing key, would be fewer queues, and was tried first.
But a queue that dead-letters at least once has 32 copies on their way at most: with 40 of them for one work queue that had
been deleted, the copies of every other work queue on that level stood still (0 of 5 came back within 25 s on 3.10.8 and on
4.3.6; with 31, all 5 in 2.0 s), and one that is full does the same.
A ladder of its own costs a work queue eleven queues of some 110 kB each, 0.35 s once, and 0.03 s at each start after that.

A quorum queue of 4.3 can delay by itself (`x-delayed-retry-type`, `-min`, `-max`), and where that is set the ladder is used all the same.
Tried on 4.3.6, a `basic.nack` delays by the queue's `-min`, always, and a `basic.reject` by that times the delivery count, which
the delivery limit counts too: no job has a delay of its own.
What comes back is the message itself: its hop and its counters could not rise, and the ledger would answer it as one that the job has left behind.
And it is not sure: a connection that is lost before the broker has read the nack hands the message over at once (`returned`: 0.02 s
instead of 3), or later than asked (`all`), and delays are lower bounds.
Nobody sees it either: the queue's count of messages is 0 meanwhile.
It delays no copy: nobody gives back what lies in a retry queue.
It does delay what is given back, at a shutdown too, and what a lost connection held; `check` says for how long.

Other `delays` make other retry queues; those of before empty themselves by and by, and may then be deleted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from steadyworker.adapter import OutgoingMessage, QueueSpec, Settings, Target
from steadyworker.errors import ConfigError
from steadyworker.names import NameRule

Version = tuple[int, ...]
Role = Literal["work", "retry", "dead"]
Arguments = Mapping[str, str | int]

NAME_BYTES = 255
"""An AMQP 0-9-1 short string."""

SHORTEST_LEVEL, LONGEST_LEVEL = 0.001, 4_294_967.0
"""Seconds: `x-message-ttl` counts in ms, up to 2³²-1."""

# What the broker takes and we do not: a line end is stripped on the way, so that the answer never matches the question
# and a client waits for ever; control characters and outer blanks come from files and environments, never from intent.
QUEUE = NameRule(
    "queue name (no control characters, no blanks at its ends)",
    pattern=r"(?!\s)[^\x00-\x1f\x7f-\x9f\u2028\u2029]+(?<!\s)",
    max_bytes=NAME_BYTES,
    reserved_prefixes=("amq.",),
)

_NO_LIMIT = -1

KEEPS_PLACE = 2**31 - 1
"""On 3.x, without any limit, what a reader gives back goes to the end; dead letters are to be read oldest first."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One queue, as we would make it: durable, and with these arguments."""

    name: str
    role: Role
    arguments: Arguments


class Topology:
    """
    The plan for one Worker's queues.

    Attributes:
        work: The work queue.
        dead: The dead-letter queue.
        levels: The delays that the retry queues make, in seconds, ascending.
        longest: The longest of them; a longer delay repeats it.
        mode: "declare" makes what is missing, "verify" only looks, "trust" does not even look.
        time_limit: The Worker's, in seconds; None for no limit.

    Raises:
        ConfigError: A name, or a delay, that RabbitMQ does not take.
    """

    def __init__(self, spec: QueueSpec, settings: Settings) -> None:
        self.work = spec.queue
        self.dead = spec.dead_letter_queue
        self.levels = tuple(sorted(float(level) for level in settings.delays))
        self.longest = self.levels[-1]
        self.mode = settings.topology
        self.time_limit = spec.time_limit
        if not SHORTEST_LEVEL <= self.levels[0] <= self.longest <= LONGEST_LEVEL:
            got = f"{self.levels[0]:g} to {self.longest:g} s"
            expected = f"{SHORTEST_LEVEL:g} to {LONGEST_LEVEL:.0f} s"
            raise ConfigError(f"Expected delays of {expected}, got {got}: set --delays.")
        made = [self.work, *map(self.retry_queue, self.levels)]
        if self.dead in made:
            raise ConfigError(
                f"Expected a dead-letter queue that is neither the work queue nor a retry queue of it, got {self.dead!r}: name another."
            )
        for name in (*made, self.dead):
            if (problem := QUEUE.problem(name)) is not None:
                raise ConfigError(problem)

    def retry_queue(self, level: float) -> str:
        """The queue that holds copies for this level of the ladder."""
        return f"{self.work}.later.{round(level * 1000)}ms"

    def route(self, message: OutgoingMessage) -> tuple[str, str]:
        """The exchange and the routing key of a copy; a delay is rounded up to a level, and one over the longest is cut to it."""
        match message.to:
            case Target.WORK:
                return "", self.work
            case Target.DEAD:
                return "", self.dead
            case Target.LATER:
                above = bisect_left(self.levels, message.delay)
                return "", self.retry_queue(self.levels[min(above, len(self.levels) - 1)])

    def queues(self, version: Version) -> tuple[Wanted, ...]:
        """Every queue, those first that others dead-letter to, with the arguments that this version of the broker takes."""
        # 4.0 gives a message up after 20 hand-overs unless told otherwise; 3.x takes -1 for a limit that the first return exceeds.
        unlimited: Arguments = {"x-delivery-limit": _NO_LIMIT} if version >= (4,) else {}
        return (
            Wanted(self.dead, "dead", {"x-queue-type": "quorum", **(unlimited or {"x-delivery-limit": KEEPS_PLACE})}),
            Wanted(self.work, "work", {**_forwarding(self.dead), **unlimited}),
            *(
                Wanted(
                    self.retry_queue(level), "retry", {**_forwarding(self.work), "x-message-ttl": round(level * 1000)}
                )
                for level in self.levels
            ),
        )


def _forwarding(target: str) -> Arguments:
    """A quorum queue that never loses what it dead-letters."""
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": target,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
