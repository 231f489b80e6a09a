"""
The stages of a worker process and the legal ways between them; the stop signals, the one stop budget, and the exit codes.

::

    running ⇄ quiet ──→ draining ──→ cancelling ──→ stopped
       └────────────────────↑  ↑─────────┘ (a second signal skips ahead)

Stages only go forward, but for `quiet`, which is left again; `advance` to a stage that lies behind is ignored, so that
signals, budgets and failures may ask in any order and any number of times.

The stop budget::

    stop_within: │←── draining ──→│ 13 s before the end: cancelling │ 3 s before the end: kill │ the end: gone
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import IntEnum

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

EX_OK = 0
EX_UNAVAILABLE = 69
EX_SOFTWARE = 70
EX_TEMPFAIL = 75
EX_CONFIG = 78
EX_TERMINATED = 143

INTERRUPT_BEFORE_END = 13.0
KILL_BEFORE_END = 3.0
CLOSE_BEFORE_END = 1.5
"""Then nothing is waited for any longer: connections and the ledger are closed."""


class Stage(IntEnum):
    """How far a worker process is on its way out."""

    RUNNING = 0
    QUIET = 1
    DRAINING = 2
    INTERRUPTING = 3
    STOPPED = 4


_LEGAL: dict[Stage, frozenset[Stage]] = {
    Stage.RUNNING: frozenset({Stage.QUIET, Stage.DRAINING, Stage.INTERRUPTING, Stage.STOPPED}),
    Stage.QUIET: frozenset({Stage.RUNNING, Stage.DRAINING, Stage.INTERRUPTING, Stage.STOPPED}),
    Stage.DRAINING: frozenset({Stage.INTERRUPTING, Stage.STOPPED}),
    Stage.INTERRUPTING: frozenset({Stage.STOPPED}),
    Stage.STOPPED: frozenset(),
}


def advance(now: Stage, to: Stage) -> Stage:
    """The stage after asking for `to`: itself when the way is legal, else the stage that we are in."""
    return to if to in _LEGAL[now] else now


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
            return Stage.INTERRUPTING, True
        return (Stage.INTERRUPTING if left <= INTERRUPT_BEFORE_END else Stage.DRAINING), False
