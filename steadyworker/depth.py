"""What waits in a queue, as numbers that a broker reports; `steadyworker.adapter` exports the class to authors of adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class Depth:
    """
    The numbers of a queue's messages and consumers at one moment, as far as the broker reports them.

    A queue that does not exist has 0 messages and 0 consumers.
    If a number's name is in `why`, the broker does not report this number to this client, and the number is None.
    `next_due` is also None if no message is delayed, and `oldest_age` if no message is ready; the name is then not in `why`.
    The numbers can be some seconds old, and need not be of the same moment.

    Attributes:
        ready: The messages that the broker can deliver now, and that no consumer holds.
        delayed: The messages that are due later, such as copies for a retry.
        next_due: The time at which the first delayed message is due, in seconds since 1970.
        unacked: The messages that consumers hold.
        dead: The messages in the dead-letter queue, including those that a reader holds.
        consumers: The number that `Adapter.consumers` returns.
        oldest_age: The seconds since the oldest ready message was sent or became due.
        why: For each number that the broker does not report, the reason: a clause for people, with the remedy if there is one.
    """

    ready: int | None = None
    delayed: int | None = None
    next_due: float | None = None
    unacked: int | None = None
    dead: int | None = None
    consumers: int | None = None
    oldest_age: float | None = None
    why: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def unknown(cls, why: str) -> Depth:
        """Return a depth without numbers; every number has this reason."""
        return cls(why={each.name: why for each in fields(cls) if each.name != "why"})
