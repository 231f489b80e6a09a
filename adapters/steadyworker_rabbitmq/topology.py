"""
The plan of a Worker's queues: their names and arguments, and the queue for each message. The plan needs no broker.

| queue | for | filled by |
|---|---|---|
| `exports` | jobs | senders, and each retry queue when a delay is over |
| `exports.later.30000ms`, one for each of `delays` | copies that wait for this delay | a worker that retries or defers a job |
| `exports.dead` | dead letters | a worker that gives a message up, and the broker |

All are quorum queues, and all get their messages through the default exchange, so no bindings are needed.
A retry queue has no consumer: each message waits until the queue's `x-message-ttl` is over.
The queue then dead-letters the message to the work queue.
A TTL for each message would not work.
Messages expire only at the head of a queue, so a long delay would block later short delays.
The way back to the work queue must not lose the copy either.
The strategy `at-least-once` keeps the copy until the work queue has confirmed it.
This strategy needs `x-overflow=reject-publish`; without this argument, the broker silently falls back to at-most-once.

**One set of retry queues for the whole virtual host** would need fewer queues, but tests showed that this design blocks copies.
The copies would return to their work queues by routing key.
But a queue with the strategy `at-least-once` dead-letters at most 32 copies at a time.
With 40 copies for one deleted work queue, the copies for all other work queues with the same delay were stuck.
On 3.10.8 and on 4.3.6, 5 copies for other queues waited; no copy came back within 25 s.
With 31 copies for the deleted queue, all 5 copies came back within 2.0 s.
A full work queue blocks the copies of other queues in the same way as a deleted queue.
Separate retry queues have a price: each work queue needs eleven more queues, of about 110 kB each.
These queues add 0.35 s to the first start, and 0.03 s to each later start.

**The delayed retry of 4.3 quorum queues** (`x-delayed-retry-type`, `-min`, `-max`) has no part in SteadyWorker's retries, even if a queue has it.
No job could choose its delay: on 4.3.6, a `basic.nack` always delays by the queue's `-min`.
A `basic.reject` delays by `-min` times the delivery count, and the delivery limit applies to the same count.
The broker redelivers the same message, so the message's hop and counters could not rise, and the ledger would record a stale duplicate.
SteadyWorker's delays are lower bounds, but the queue's delays can be shorter.
If the connection is lost before the broker has read the nack, the delay depends on the type.
A queue of type `returned` then delivers at once (after 0.02 s instead of 3 s).
A queue of type `all` then delivers later than requested.
A delayed message is also invisible: the queue's message count is 0 during the delay.
An operator can set the delayed retry on a queue.
The setting does not delay the copies in retry queues, because no consumer returns these copies.
The setting delays deliveries that a worker process releases, for example at a shutdown, and deliveries that are lost with a connection.
`check` reports the length of this delay.

After a change of `--delays`, the adapter creates other retry queues; the old queues become empty with time, and can then be deleted.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from steadyworker.adapter import OutgoingMessage, QueueSpec, Settings, Target
from steadyworker.errors import ConfigError
from steadyworker.names import QUEUE_NAME

Version = tuple[int, ...]
Role = Literal["work", "retry", "dead"]
Arguments = Mapping[str, str | int]

NAME_BYTES = 255
"""The longest name in bytes, which is the longest short string of AMQP 0-9-1."""

SHORTEST_LEVEL, LONGEST_LEVEL = 0.001, 4_294_967.0
"""The shortest and the longest delay level, in seconds; `x-message-ttl` is a number of milliseconds, up to 2³²-1."""

# The broker accepts more names than this rule.
# But the broker strips a line end from a name. Its reply then does not match the request, and the client waits without end.
QUEUE = replace(QUEUE_NAME, max_bytes=NAME_BYTES, reserved_prefixes=("amq.",))

_RETRY_QUEUE = re.compile(r"\.later\.\d+ms$")

_NO_LIMIT = -1

KEEPS_PLACE = 2**31 - 1
"""
A delivery limit that is never reached, for dead-letter queues on 3.x.

Without a limit, 3.x puts a released message at the end of the queue, but a reader must get the oldest dead letter first.
"""


@dataclass(frozen=True, slots=True)
class PlannedQueue:
    """One durable queue of the plan, with its arguments."""

    name: str
    role: Role
    arguments: Arguments


class Topology:
    """
    The plan for one Worker's queues.

    Attributes:
        work: The work queue.
        dead: The dead-letter queue.
        levels: The delays of the retry queues, in seconds, ascending.
        longest: The longest delay in seconds; a message with a longer delay gets this delay.
        mode: "declare" creates missing queues, "verify" only checks the queues, "trust" checks nothing.
        time_limit: The Worker's time limit in seconds; None for no limit.
        max_body: The largest body in bytes that SteadyWorker sends.

    Raises:
        ConfigError: A name or a delay is invalid for RabbitMQ.
    """

    def __init__(self, spec: QueueSpec, settings: Settings) -> None:
        self.work = spec.queue
        self.dead = spec.dead_letter_queue
        self.levels = tuple(sorted(float(level) for level in settings.delays))
        self.longest = self.levels[-1]
        self.mode = settings.topology
        self.time_limit = spec.time_limit
        self.max_body = settings.max_body
        if not SHORTEST_LEVEL <= self.levels[0] <= self.longest <= LONGEST_LEVEL:
            got = f"{self.levels[0]:g} to {self.longest:g} s"
            expected = f"{SHORTEST_LEVEL:g} to {LONGEST_LEVEL:.0f} s"
            raise ConfigError(f"Expected delays of {expected}, got {got}: set --delays.", id="config.wrong-value")
        made = [self.work, *map(self.retry_queue, self.levels)]
        if self.dead in made:
            raise ConfigError(
                "Expected a dead-letter queue other than the work queue and its retry queues, "
                f"got {self.dead!r}: name another.",
                id="config.queue-name",
            )
        for name in (*made, self.dead):
            if (problem := QUEUE.problem(name)) is not None:
                raise ConfigError(problem, id="config.queue-name")

    def retry_queue(self, level: float) -> str:
        """Return the name of the retry queue for this delay level."""
        return f"{self.work}.later.{round(level * 1000)}ms"

    def route(self, message: OutgoingMessage) -> tuple[str, str]:
        """
        Return exchange and routing key for a message.

        A delay is rounded up to the next level; a delay above the longest level is cut to the longest level.
        """
        match message.to:
            case Target.WORK:
                return "", self.work
            case Target.DEAD:
                return "", self.dead
            case Target.LATER:
                above = bisect_left(self.levels, message.delay)
                return "", self.retry_queue(self.levels[min(above, len(self.levels) - 1)])

    def queues(self, version: Version) -> tuple[PlannedQueue, ...]:
        """Return every queue, with the arguments for this version of the broker; a queue's dead-letter target comes before the queue."""
        # From 4.0 on, -1 removes the default limit of 20 deliveries; on 3.x, -1 is a limit that the first return exceeds.
        unlimited: Arguments = {"x-delivery-limit": _NO_LIMIT} if version >= (4,) else {}
        return (
            PlannedQueue(
                self.dead, "dead", {"x-queue-type": "quorum", **(unlimited or {"x-delivery-limit": KEEPS_PLACE})}
            ),
            PlannedQueue(self.work, "work", {**_forwarding(self.dead), **unlimited}),
            *(
                PlannedQueue(
                    self.retry_queue(level), "retry", {**_forwarding(self.work), "x-message-ttl": round(level * 1000)}
                )
                for level in self.levels
            ),
        )


def work_queue_of(name: str) -> str:
    """Return the name of a retry queue's work queue; return any other name unchanged."""
    return _RETRY_QUEUE.sub("", name)


def _forwarding(target: str) -> Arguments:
    """Return the arguments of a quorum queue that never loses a message that it dead-letters."""
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": target,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
