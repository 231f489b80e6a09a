"""
The only module that reads a clock, and which clock is for what.

| clock | for |
|---|---|
| `monotonic` | waits, `time_limit`, `stall_limit`: a suspended laptop is not the job's fault |
| `boottime` | trust and lease arithmetic: runs on through a suspend, as the rest of the world does |
| `wall` | to tell people, and to keep old rows by; never to decide who runs a job |
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Protocol


class Clock(Protocol):
    """Three readings in seconds."""

    def monotonic(self) -> float:
        """Seconds that stand still while the machine sleeps."""
        ...

    def boottime(self) -> float:
        """Seconds since boot, sleep included."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 in UTC; may jump."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC."""
        return time.monotonic()

    def boottime(self) -> float:
        """CLOCK_BOOTTIME; where there is none (macOS, for development) the monotonic clock, which counts sleep there."""
        return time.clock_gettime(_BOOTTIME) if _BOOTTIME is not None else time.monotonic()

    def wall(self) -> float:
        """CLOCK_REALTIME."""
        return time.time()


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


@dataclass(frozen=True, slots=True)
class Times:
    """
    The clocks of the ledger, in seconds: one value given at assembly, and no option of `run`.

    Attributes:
        lease: How long a claim lasts.
        renew: How often it is renewed.
        call_timeout: How long one ledger call may take.
        trust_for: How long after the *start* of the last renewal that landed a run may commit.
        margin: How long after its end a lease may be taken over.
        defer_delay: The delay of a copy that follows another's run.
        adopt_window: How long after a reconnect a run adrift offers its credit, so that its own job can come home.
        cancel_grace: How long a run that was cancelled may take to end by itself.
    """

    lease: float = 60.0
    renew: float = 15.0
    call_timeout: float = 10.0
    trust_for: float = 50.0
    margin: float = 30.0
    defer_delay: float = 30.0
    adopt_window: float = 10.0
    cancel_grace: float = 10.0

    def __post_init__(self) -> None:
        if not self.renew < self.trust_for < self.lease:
            msg = f"Expected renew < trust < lease, got {self.renew}, {self.trust_for}, {self.lease}: a lease must outlive its trust."
            raise ValueError(msg)

    def scaled(self, by: float) -> Times:
        """The same proportions, `by` times faster; for tests."""
        return Times(**{each.name: getattr(self, each.name) / by for each in fields(self)})
