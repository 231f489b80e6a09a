"""
How a run ends (Outcome) and what follows for its message (Settlement): two closed sets of frozen values.

`retry.decide` is the only way from the first to the second, and `settle.py` the only place that carries the second out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Done:
    """The handler returned."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The job's own fault: an exception, the time limit, a stall; counts an attempt."""

    reason: str
    error_class: str = ""
    delay: float | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """The job can never succeed: a dead letter, now."""

    reason: str
    error_class: str = ""


@dataclass(frozen=True, slots=True)
class Snoozed:
    """Not yet; counts nothing."""

    delay: float


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Ended by us (a deploy, a shutdown, a ledger outage); free."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """The job's process died while its worker process lived; `cause` is a signal's name, an exit code, a limit."""

    cause: str


Outcome = Done | Failed | Rejected | Snoozed | Interrupted | Crashed


@dataclass(frozen=True, slots=True)
class Ack:
    """The message is finished with."""


@dataclass(frozen=True, slots=True)
class Later:
    """A copy comes after `delay` seconds, one hop further."""

    delay: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A copy goes to the dead-letter queue, with why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """The message goes back to the broker as it is; the checkpoint stays in the ledger."""


Settlement = Ack | Later | DeadLetter | Release


SNOOZED = "snoozed for "
"""How the reason of a snoozed job begins."""

CANCELLED = "cancelled: "
"""How the reason of a cancelled job begins."""


class JobState(StrEnum):
    """
    Where a job is in its life, as users see it.

    | state | meaning |
    |---|---|
    | `running` | a worker process runs it |
    | `interrupted` | a deploy ended its run, or it is cancelled before it came; it waits for its message |
    | `retrying` | a run failed; the job comes again after a delay |
    | `scheduled` | a handler raised `Snooze`; the job comes again after that delay |
    | `done` | the handler returned |
    | `cancelled` | `Client.cancel` ended it; its message is in the dead-letter queue |
    | `dead` | it failed for good; its message is in the dead-letter queue |
    """

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    RETRYING = "retrying"
    SCHEDULED = "scheduled"
    DONE = "done"
    CANCELLED = "cancelled"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Counters:
    """
    The four counters of a job, never mixed, and when it first failed (wall clock, for people).

    attempts: the job's fault. crashes: its process died, its worker lived. losses: both vanished. interruptions: ours.
    """

    attempts: int = 0
    crashes: int = 0
    losses: int = 0
    interruptions: int = 0
    first_failed_at: float | None = None
