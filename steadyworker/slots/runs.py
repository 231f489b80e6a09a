"""A run of one slot, with its limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from steadyworker.link import Task
from steadyworker.outcome import Outcome

NOTICE = 10.0
"""The seconds between the Interrupt of a run and the run's time limit; at the time limit, the slot kills the run."""

_SHARE = 0.8
"""The fraction of a short time limit that passes before Interrupt."""


class Due(Enum):
    """The action that a limit requires now."""

    WARN = "warn"
    TIME_LIMIT = "time-limit"
    STALLED = "stalled"


@dataclass(slots=True)
class Limits:
    """
    The limits of one run, in seconds.

    `began` (the start) and `moved` (the last sign of progress) are monotonic times.

    The warning comes 10 s before the time limit, or after 80 % of the limit if that is later.
    """

    began: float
    time_limit: float | None
    stall_limit: float | None
    moved: float = 0.0
    warned: bool = False

    def __post_init__(self) -> None:
        self.moved = self.began

    def due(self, now: float) -> Due | None:
        """Return the action that is due now, or None; return WARN only once."""
        if self.time_limit is not None:
            if now >= self.began + self.time_limit:
                return Due.TIME_LIMIT
            if not self.warned and now >= self._warning(self.time_limit):
                self.warned = True
                return Due.WARN
        if self.stall_limit is not None and now >= self.moved + self.stall_limit:
            return Due.STALLED
        return None

    def next(self) -> float:
        """Return the monotonic time of the next limit, at which the caller must call `due` again."""
        times = [float("inf")]
        if self.time_limit is not None:
            times.append(self.began + self.time_limit if self.warned else self._warning(self.time_limit))
        if self.stall_limit is not None:
            times.append(self.moved + self.stall_limit)
        return min(times)

    def _warning(self, limit: float) -> float:
        return self.began + max(limit - NOTICE, limit * _SHARE)


@dataclass(slots=True, eq=False)
class SlotRun:
    """
    One run, from `Slot.run` until the slot has sent its `Ended`.

    `forced_outcome` is the outcome that `kill` or a limit has set.
    `traceback` and `peak_memory` are those of `steadyworker.slots.base.Ended`.
    """

    task: Task
    limits: Limits
    forced_outcome: Outcome | None = None
    traceback: str = ""
    peak_memory: int | None = None
