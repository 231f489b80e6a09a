"""
Finds the stuck parts of a worker process by the time of each part's last turn.

The watchdog does not sleep, and has no thread of its own.
The main thread calls `check()` again and again, and `/livez`, `/readyz` and systemd's WATCHDOG=1 follow `stuck`.
The thread that answers the probes checks how old that result is (`monitor.py`), because the main thread can be stuck, too.
A busy worker process is not stuck, because its threads turn while a child computes.
While the broker is down, all parts still turn.

A late call of `check` means that the whole process stood still (SIGSTOP, a suspended machine, no CPU).
After a late call, an old turn proves nothing about a single part, so each part gets its full limit again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steadyworker.clock import Clock

_LATE_AFTER = 5.0


@dataclass(frozen=True, slots=True)
class Part:
    """
    A part of the process that must keep turning.

    Attributes:
        name: The part's name in the log and in the probes.
        last: A function that returns the monotonic time of the part's last turn, or None while the part need not turn.
        limit: Seconds without a turn after which the part is stuck.
    """

    name: str
    last: Callable[[], float | None]
    limit: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    The reasons why the process is not alive, and the reasons why it is not ready.

    `pauses` are the pauses of queues that the process obeys; they are no reasons, because a paused process is ready.
    A tuple is empty if there are no reasons, or no pauses.
    """

    unlive: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()
    pauses: tuple[str, ...] = ()


class Watchdog:
    """
    The check of all parts; one thread must call `check` every `every` seconds.

    `stuck` has the names of the parts that were stuck at the last check.
    The watchdog logs a part once when the part gets stuck, and once when the part turns again.
    """

    def __init__(self, clock: Clock, parts: Sequence[Part], every: float = 1.0) -> None:
        self._clock = clock
        self._parts = tuple(parts)
        self._every = every
        self._log = logging.getLogger(__name__)
        self._checked_at = self._since = clock.monotonic()
        self.stuck: tuple[str, ...] = ()

    def check(self) -> None:
        """Check the last turn of every part, set `stuck`, and then log the changes."""
        now = self._clock.monotonic()
        late = max(0.0, now - self._checked_at - self._every)
        self._checked_at = now
        if late > _LATE_AFTER:
            self._since = now
        silent = {part.name: self._silent(part, now) for part in self._parts}
        stuck = [part for part in self._parts if silent[part.name] > part.limit]
        before, self.stuck = self.stuck, tuple(part.name for part in stuck)
        if late > _LATE_AFTER:
            details = {"late_s": round(late, 1), "explain": "steadyworker.watchdog-late"}
            self._log.warning("watchdog_late", extra=details)
        for part in stuck:
            if part.name not in before:
                details = {"part": part.name, "silent_s": round(silent[part.name], 1), "limit_s": part.limit}
                self._log.error("part_stuck", extra={**details, "explain": "steadyworker.part-stuck"})
        for name in sorted(set(before) - set(self.stuck)):
            self._log.warning("part_recovered", extra={"part": name})

    def _silent(self, part: Part, now: float) -> float:
        last = part.last()
        return 0.0 if last is None else now - max(last, self._since)
