"""
The stop signals, the one stop budget, and the exit codes.

::

    stop_within: │←── draining ──→│ 13 s before the end: cancelling │ 3 s before the end: kill │ the end: gone
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from steadyworker.lifecycle import Stage

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

EX_OK = 0
EX_UNAVAILABLE = 69
EX_SOFTWARE = 70
EX_TEMPFAIL = 75
EX_CONFIG = 78
EX_TERMINATED = 143

CANCEL_BEFORE_END = 13.0
KILL_BEFORE_END = 3.0
CLOSE_BEFORE_END = 1.5
"""Then nothing is waited for any longer: connections and the ledger are closed."""


@dataclass(frozen=True, slots=True)
class Budget:
    """When each stage of a stop begins, by the monotonic clock; it begins with the first stop signal and holds everything."""

    began: float
    within: float

    @property
    def end(self) -> float:
        """When everything must be gone."""
        return self.began + self.within

    def left(self, now: float) -> float:
        """Seconds until then."""
        return max(0.0, self.end - now)

    def stage(self, now: float) -> tuple[Stage, bool]:
        """The stage that the budget has reached, and whether what still runs is to be killed."""
        left = self.left(now)
        if left <= KILL_BEFORE_END:
            return Stage.CANCELLING, True
        return (Stage.CANCELLING if left <= CANCEL_BEFORE_END else Stage.DRAINING), False
