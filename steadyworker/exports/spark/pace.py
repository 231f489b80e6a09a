"""
The speed of an export, its remaining time, and whether it is stuck: arithmetic over Spark's counters.

::

    reading ──first row on its way to the sort──→ sorting ──first part──→ writing ──last part──→ done
      the number of rows is unknown                 rows so far, over the     rows in parts, out of
                                                    share of tasks done       the sorted rows

The remaining time is known from *sorting* on: the rest of the sort, and then the writing.
The time for writing is estimated by the ratio of writing to sorting in earlier exports of this host.
A speed is measured over a window that ends at the last progress, not now: a long task does not mean a low speed.

A slow task and a hung task look the same until the slow task ends.
So Spark works in small tasks.
An export is stuck if it makes no progress for a time much longer than its slowest task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

_WINDOW = 60.0  # seconds of a speed's window, or the later half of the phase if that half is shorter (a JVM warms up)
_FEWEST = 16  # the window has at least so many counts, even if these counts take longer than the window's seconds
_STARTED = 3  # counts after which the time before the first count is ignored, because a stage begins slowly
_TRIED = 0.3  # when this share of the rows is written, only the speed of writing counts
_SLOWER = 5.0  # the factor of the slowest ended task's time; until so long a time has passed, a task is slow, not stuck
_LONGEST = 5  # the factor of the least limit; for so long after its last progress, a job is not stuck if tasks compute
_LATE = 5.0  # seconds between two polls; after a longer pause, this process itself stood still
_MINUTES, _HOURS = 90.0, 5400.0  # seconds from which the remaining time is shown in minutes, or in hours
_LEARNT = 2.0  # least seconds in each phase; a shorter export does not change the ratio


@dataclass(slots=True)
class Ratio:
    """The seconds of writing per second of sorting in the exports of one host; the first value is a guess."""

    value: float = 2.5

    def learn(self, sorting: float, writing: float) -> None:
        """Adjust the ratio to an ended export, which took these seconds to sort and to write its rows."""
        if min(sorting, writing) >= _LEARNT:
            self.value = (self.value + writing / sorting) / 2


@dataclass(slots=True)
class _SparkPhase:
    """The growth of one count over time."""

    began: float
    started: bool = False
    seen: deque[tuple[float, float]] = field(default_factory=deque)

    def saw(self, now: float, count: float) -> None:
        if not self.seen:
            self.seen.append((self.began, 0))
        if count > self.seen[-1][1]:
            self.seen.append((now, count))
        if not self.started and len(self.seen) > _STARTED:
            self.started = True
            self.seen.popleft()
        window = min(_WINDOW, (now - self.began) / 2)
        while len(self.seen) > _FEWEST and self.seen[1][0] < now - window:
            self.seen.popleft()

    @property
    def count(self) -> float:
        return self.seen[-1][1] if self.seen else 0

    @property
    def last(self) -> float:
        """The monotonic time at which the count last grew."""
        return self.seen[-1][0] if self.seen else self.began

    @property
    def window(self) -> tuple[float, float]:
        """The growth of the count in the window, and the window's length in seconds."""
        (then, before), (last, count) = self.seen[0], self.seen[-1]
        return count - before, last - then


class Pace:
    """
    The speed of one submission of an export.

    Args:
        ratio: The ratio from the host's earlier exports, which this export adjusts at its end.
    """

    def __init__(self, ratio: Ratio) -> None:
        self._ratio = ratio
        self._stage, self._since, self._began, self._fresh = -1, 0.0, 0.0, True
        self._sorting: _SparkPhase | None = None
        self._writing: _SparkPhase | None = None
        self._rows = 0.0
        self._tasks = (0, 0)

    def sorting(self, now: float, stage: int, tasks: tuple[int, int], rows: int) -> None:
        """Record that a stage has sent `rows` rows to a sort or a join, and has ended `tasks` (done, total)."""
        if stage != self._stage:
            # The stage began at the end of the stage before it, even if the first poll of it was later.
            self._stage, self._began = stage, now if self._stage < 0 else self._since
            self._fresh = True
        self._since = now
        if rows and tasks[0]:  # `rows` is 0 in the writing stage, which looks like a sort until its first part exists
            if self._fresh or self._sorting is None:
                self._sorting, self._fresh = _SparkPhase(self._began), False
            self._sorting.saw(now, rows)
            self._tasks, self._rows = tasks, rows * tasks[1] / tasks[0]

    def writing(self, now: float, rows: int) -> None:
        """Record the number of rows in parts."""
        if self._writing is None:
            self._writing = _SparkPhase(self._sorting.last if self._sorting else now)
        self._writing.saw(now, rows)

    def ended(self, now: float) -> None:
        """Record that all parts are written, and adjust the ratio."""
        if self._sorting is not None and self._writing is not None:
            self._ratio.learn(self._sorting.last - self._sorting.began, now - self._writing.began)

    @property
    def rate(self) -> float | None:
        """The rows per second in the present phase, or None before the first count."""
        phase = self._writing if self._writing and self._writing.count else self._sorting
        if phase is None or not phase.count:
            return None
        rows, seconds = phase.window
        return rows / seconds if seconds > 0 else None

    def left(self, now: float) -> float | None:
        """Return the remaining seconds, or None while the number of rows is unknown."""
        if self._sorting is None or not self._sorting.count:
            return None
        # The expected seconds to write a row: the seconds to sort a row so far, times the ratio.
        guess = self._ratio.value * (self._sorting.last - self._sorting.began) / self._sorting.count
        if self._writing is None:
            done, of = self._tasks
            rows, seconds = self._sorting.window
            sorting = (self._rows * (of - done) / of) * seconds / rows
            return max(0.0, sorting + self._rows * guess - (now - self._sorting.last))
        tried = max(0.0, _TRIED * self._rows - self._writing.count)
        if tried and not guess:
            return None  # the sort ended before the first poll of it
        rows, seconds = self._writing.window if self._writing.seen else (0.0, 0.0)
        cost = (seconds + tried * guess) / (rows + tried) if rows + tried else 0.0
        return max(0.0, (self._rows - self._writing.count) * cost - (now - self._writing.last))


class Stillness:
    """
    The time without progress of one job; all times are monotonic.

    Attributes:
        longest: The longest pause so far, in seconds; a pause that still lasts does not count.

    Args:
        now: The time at which the job began.
        least: Seconds without progress before which the job is never stuck.
    """

    def __init__(self, now: float, least: float) -> None:
        self._since = self._moved = now
        self._least, self._checked = least, now
        self._token: Hashable = None
        self.longest = 0.0

    def saw(self, now: float, token: Hashable) -> bool:
        """
        Compare a token of the job's counters with the last token; return whether it has changed.

        If there was no poll for longer than 5 s, the time between the polls counts as 5 s.
        """
        paused = max(0.0, now - self._checked - _LATE)
        self._since, self._moved, self._checked = self._since + paused, self._moved + paused, now
        moved = token != self._token
        if moved:
            self.longest = max(self.longest, now - self._since)
            self._token, self._since, self._moved = token, now, now
        return moved

    def computes(self, now: float) -> None:
        """
        Count the time without progress from zero again, because tasks compute, and can be this job's tasks.

        This method does so only up to a limit, because the tasks can also be another job's tasks.
        """
        if now < self._moved + _LONGEST * self._least:
            self._since = now

    def rest(self, now: float) -> None:
        """Count the time without progress from zero again, because the job cannot make progress now."""
        self._since = self._moved = now

    def seconds(self, now: float) -> float:
        """Return the seconds since the last progress."""
        return now - self._since

    def limit(self, slowest: float) -> float:
        """Return the seconds without progress after which the job is stuck; `slowest` is the time of its slowest ended task."""
        return max(self._least, _SLOWER * slowest)


def note(rows: int | None, rate: float | None, left: float | None) -> str:
    """Return the known facts as a note for a progress bar: `1,200,000 rows written, 84,000 rows/s, about 2 min left`."""
    facts = [] if rows is None else [f"{rows:,} rows written"]
    if rate:
        facts.append(f"{_rounded(rate):,} rows/s")
    if left is not None:
        facts.append(f"about {_length(left)} left")
    return ", ".join(facts)


def _rounded(value: float) -> int:
    """Return the number rounded to two significant digits, because further digits would change at each poll."""
    whole = max(1, round(value))
    return round(whole, 2 - len(str(whole)))


def _length(seconds: float) -> str:
    if seconds < _MINUTES:
        return f"{max(1, round(seconds))} s"
    if seconds < _HOURS:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
