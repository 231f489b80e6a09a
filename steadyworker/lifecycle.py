"""
The stages of a worker process and their legal changes, the stop signals, the stop budget, and the exit codes.

::

    running ⇄ quiet ──→ draining ──→ interrupting ──→ stopped
       └──────────────────↑

A worker process only enters later stages, with one exception: from `quiet` it can return to `running`.
A worker process can skip a stage: a second stop signal leads to `interrupting` at once.
`advance` ignores a request for an earlier stage.
So signals, budgets and failures can request stages in any order and any number of times.

The stop budget::

    stop_within: │←── draining ──→│ 13 s before the end: interrupting │ 3 s before the end: kill │ the end: stopped
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import IntEnum

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
PAUSE_SIGNALS = frozenset({signal.SIGUSR1, signal.SIGUSR2})
"""The signals that begin and end the quiet stage."""

EX_OK = 0
EX_UNAVAILABLE = 69
EX_SOFTWARE = 70
EX_TEMPFAIL = 75
EX_CONFIG = 78
EX_TERMINATED = 143

INTERRUPT_BEFORE_END = 13.0
KILL_BEFORE_END = 3.0
CLOSE_BEFORE_END = 1.5
"""
The times of interrupt, kill and close, in seconds before the budget's end.

At the time of the close, the worker process stops waiting, and closes its connections and the ledger.
"""

EXIT_TAKES = 2
"""The seconds from the end of the stop budget to the end of the process.

With the default budget, a whole stop takes 30 s, as in Kubernetes."""


class Stage(IntEnum):
    """The stage of a worker process, from running to stopped."""

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
    """Return the stage after a request for `to`: `to` if the change is legal, otherwise `now`."""
    return to if to in _LEGAL[now] else now


@dataclass(frozen=True, slots=True)
class Budget:
    """
    The time for a whole stop, by the monotonic clock, and the times of its stages.

    The budget begins with the first stop signal.
    """

    began: float
    within: float

    @property
    def end(self) -> float:
        """The time when everything must have ended."""
        return self.began + self.within

    def left(self, now: float) -> float:
        """Return the seconds until the end."""
        return max(0.0, self.end - now)

    def stage(self, now: float) -> tuple[Stage, bool]:
        """Return the stage at this time, and whether runs that still go on must be killed."""
        left = self.left(now)
        if left <= KILL_BEFORE_END:
            return Stage.INTERRUPTING, True
        return (Stage.INTERRUPTING if left <= INTERRUPT_BEFORE_END else Stage.DRAINING), False
