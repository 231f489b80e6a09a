"""
The three clocks and their uses; no other module reads a clock.

| clock | use |
|---|---|
| `monotonic` | waits, `time_limit`, `stall_limit`: this clock stops while the machine is suspended, so a suspend uses up no limit |
| `boottime` | leases, and the trust in them: this clock also counts a suspend, during which other hosts go on |
| `wall` | times for people, and the age of old rows; this clock never decides which process runs a job |
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Three clocks, each read in seconds."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that stops while the machine is suspended."""
        ...

    def boottime(self) -> float:
        """Return the seconds since boot, including the time of a suspend."""
        ...

    def wall(self) -> float:
        """Return seconds since 1970 in UTC; this clock may jump."""
        ...


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """
    The clocks of this machine: CLOCK_MONOTONIC, CLOCK_BOOTTIME and CLOCK_REALTIME.

    Without CLOCK_BOOTTIME (macOS, for development) `boottime` is the monotonic clock, so it stops during a suspend.
    The methods are the C functions themselves, because a worker process reads a clock dozens of times for each job.
    """

    monotonic = staticmethod(time.monotonic)
    boottime = staticmethod(time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME))
    wall = staticmethod(time.time)


@dataclass(frozen=True, slots=True)
class Times:
    """
    The durations of the ledger's rules, in seconds; the worker process sets them at its start, and no option of `run` changes them.

    Attributes:
        lease: The duration of a claim.
        renew: The time between two renewals of a lease.
        call_timeout: The limit for one ledger call.
        trust_for: The time for which a run may commit, from the *start* of the last successful renewal.
        margin: The time after the end of a lease in which another worker process takes the job over only if the owner is proven dead.
        defer_delay: The delay with which the runner sends a message again, if another run has the message's job.
        adopt_window: The time after a reconnect in which the prefetch includes the slots of runs without a valid delivery.
            In this time the broker can deliver the message of that run again, even if the Worker has only one slot.
        cancel_grace: The time that a cancelled run gets to end by itself.
        cancel_poll: The time between two reads of the cancel marks of the jobs that run here.
        orphan_poll: The time between two searches for orphans: jobs whose message does not come again.
        orphan_after: The least time without a message after which a job is an orphan; `runner.orphans` can need a longer time.
        orphan_reserve: The time after which an orphan gets the next free slot of a queue that is never empty.
    """

    lease: float = 60.0
    renew: float = 15.0
    call_timeout: float = 10.0
    trust_for: float = 50.0
    margin: float = 30.0
    defer_delay: float = 30.0
    adopt_window: float = 10.0
    cancel_grace: float = 10.0
    cancel_poll: float = 2.0
    orphan_poll: float = 30.0
    orphan_after: float = 0.0
    orphan_reserve: float = 3600.0

    def __post_init__(self) -> None:
        if not self.renew < self.trust_for < self.lease:
            msg = f"Expected renew < trust_for < lease, got {self.renew}, {self.trust_for}, {self.lease}: shorten renew or trust_for, or lengthen lease."
            raise ValueError(msg)

    def scaled(self, by: float) -> Times:
        """Return the same durations, `by` times shorter; for tests."""
        return Times(**{each.name: getattr(self, each.name) / by for each in fields(self)})
