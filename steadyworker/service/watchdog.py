"""
Which part of a worker process is stuck, from evidence: when each part last did a turn of its own work.

Nothing here sleeps or has a thread: whoever owns the process asks `verdict()` again and again, and acts on the answer
(`/livez`, `/readyz`, systemd's WATCHDOG=1).
A busy worker is alive, for its parts turn while the child computes; a broker that is down stops no part from turning.

When `verdict` itself is asked late, the whole process stood still (SIGSTOP, a suspended machine, no CPU), and old
evidence says nothing of any one part: each gets its limit again from that moment on.
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
    Something that must keep turning.

    Attributes:
        name: What the log line and the probes call it.
        last: When (monotonic) it last turned; None while it has no reason to turn.
        limit: Seconds without a turn after which it is stuck.
        vital: A stuck part makes the process unlive; otherwise only unready.
    """

    name: str
    last: Callable[[], float | None]
    limit: float
    vital: bool = True


@dataclass(frozen=True, slots=True)
class WatchdogReport:
    """
    What the evidence says now.

    `stuck` names the parts; `late` is by how many seconds the watchdog itself was asked late.
    """

    alive: bool
    ready: bool
    stuck: tuple[str, ...] = ()
    late: float = 0.0


class Watchdog:
    """
    Judges the parts; to be asked every `every` seconds, by one thread.

    A part that gets stuck, and one that turns again, is logged once, by its name.
    """

    def __init__(self, clock: Clock, deps: Sequence[Part], every: float = 1.0) -> None:
        self._clock = clock
        self._deps = tuple(deps)
        self._every = every
        self._log = logging.getLogger(__name__)
        self._asked = self._since = clock.monotonic()
        self._stuck: frozenset[str] = frozenset()

    def verdict(self) -> WatchdogReport:
        """Judge every part by its last turn."""
        now = self._clock.monotonic()
        late = max(0.0, now - self._asked - self._every)
        self._asked = now
        if late > _LATE_AFTER:
            self._since = now
            self._log.warning("watchdog_late", extra={"late_s": round(late, 1)})
        silent = {part.name: self._silent(part, now) for part in self._deps}
        stuck = [part for part in self._deps if silent[part.name] > part.limit]
        self._tell(stuck, silent)
        return WatchdogReport(
            alive=not any(part.vital for part in stuck),
            ready=not stuck,
            stuck=tuple(part.name for part in stuck),
            late=late,
        )

    def _silent(self, part: Part, now: float) -> float:
        last = part.last()
        return 0.0 if last is None else now - max(last, self._since)

    def _tell(self, stuck: Sequence[Part], silent: dict[str, float]) -> None:
        for part in stuck:
            if part.name not in self._stuck:
                said = {"part": part.name, "silent_s": round(silent[part.name], 1), "limit_s": part.limit}
                self._log.error("part_stuck", extra=said)
        names = frozenset(part.name for part in stuck)
        for name in sorted(self._stuck - names):
            self._log.warning("part_recovered", extra={"part": name})
        self._stuck = names
