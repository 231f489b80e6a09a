"""
How fast an export goes, how long it will still take, and whether it stands still: arithmetic over what Spark's books show.

::

    reading ──first row on its way to the sort──→ sorting ──first part──→ writing ──last part──→ done
      nobody knows how many rows there are          rows so far, over the     rows in parts, out of
                                                    share of tasks done       those that were sorted

What is left is told from *sorting* on: the rest of it, then the writing, at the ratio that this host's earlier exports had.
Speeds are taken over a window that ends with the last evidence, never with now: a task that takes long is no news.

A slow batch and a hung one look alike while they last.
So work comes in small pieces, and an export stands still when nothing at all has moved for much longer than its slowest
piece took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

_WINDOW = 60.0  # seconds of evidence that a speed is taken over, or the later half of the phase while that is shorter:
_FEWEST = 16  # a JVM warms up; and as many pieces of it, if they take longer
_STARTED = 3  # pieces, after which the time until the first one no longer counts: a stage begins slowly, and only once
_TRIED = 0.3  # of the rows: so many are written before only their own speed counts
_SLOWER = 5.0  # times the slowest task that has ended: until then a task is slow, not stuck
_LATE = 5.0  # seconds between two looks: beyond them whoever looks stood still, too
_MINUTES, _HOURS = 90.0, 5400.0  # seconds from which on what is left is told in them
_LEARNT = 2.0  # seconds in either phase; a shorter export teaches nothing


@dataclass(slots=True)
class Ratio:
    """Seconds of writing per second of sorting, as the exports of one host have had it; at first a guess."""

    value: float = 2.5

    def learn(self, sorting: float, writing: float) -> None:
        """An export has ended that spent these seconds on the same rows."""
        if min(sorting, writing) >= _LEARNT:
            self.value = (self.value + writing / sorting) / 2


@dataclass(slots=True)
class _Phase:
    """One count that grows, and when."""

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
        """When it last grew."""
        return self.seen[-1][0] if self.seen else self.began

    @property
    def window(self) -> tuple[float, float]:
        """What was counted in the window, and the seconds that it took."""
        (then, before), (last, count) = self.seen[0], self.seen[-1]
        return count - before, last - then


class Pace:
    """
    One export's speed; of one submission, since another begins anew.

    Args:
        ratio: What the host's earlier exports have taught; it is taught by this one.
    """

    def __init__(self, ratio: Ratio) -> None:
        self._ratio = ratio
        self._stage, self._since, self._began, self._fresh = -1, 0.0, 0.0, True
        self._sorting: _Phase | None = None
        self._writing: _Phase | None = None
        self._rows = 0.0
        self._tasks = (0, 0)

    def sorting(self, now: float, stage: int, tasks: tuple[int, int], rows: int) -> None:
        """This stage has put so many rows on their way to a sort or a join, with (done, of) its tasks."""
        if stage != self._stage:
            # It began when the one before it ended, however late it was seen.
            self._stage, self._began = stage, now if self._stage < 0 else self._since
            self._fresh = True
        self._since = now
        if rows and tasks[0]:  # not so in the writing stage, which looks like a sort until its first part is there
            if self._fresh or self._sorting is None:
                self._sorting, self._fresh = _Phase(self._began), False
            self._sorting.saw(now, rows)
            self._tasks, self._rows = tasks, rows * tasks[1] / tasks[0]

    def writing(self, now: float, rows: int) -> None:
        """So many rows are in parts."""
        if self._writing is None:
            self._writing = _Phase(self._sorting.last if self._sorting else now)
        self._writing.saw(now, rows)

    def ended(self, now: float) -> None:
        """All parts are written."""
        if self._sorting is not None and self._writing is not None:
            self._ratio.learn(self._sorting.last - self._sorting.began, now - self._writing.began)

    @property
    def rate(self) -> float | None:
        """Rows a second, in the phase that it is in; None as long as there is no evidence."""
        phase = self._writing if self._writing and self._writing.count else self._sorting
        if phase is None or not phase.count:
            return None
        rows, seconds = phase.window
        return rows / seconds if seconds > 0 else None

    def left(self, now: float) -> float | None:
        """Seconds that are left; None while nobody knows how many rows there are."""
        if self._sorting is None or not self._sorting.count:
            return None
        # A row's share of the sort so far is what the first rows are expected to take to be written.
        guess = self._ratio.value * (self._sorting.last - self._sorting.began) / self._sorting.count
        if self._writing is None:
            done, of = self._tasks
            rows, seconds = self._sorting.window
            sorting = (self._rows * (of - done) / of) * seconds / rows
            return max(0.0, sorting + self._rows * guess - (now - self._sorting.last))
        tried = max(0.0, _TRIED * self._rows - self._writing.count)
        if tried and not guess:
            return None  # the sort was over before anybody saw it
        rows, seconds = self._writing.window if self._writing.seen else (0.0, 0.0)
        cost = (seconds + tried * guess) / (rows + tried) if rows + tried else 0.0
        return max(0.0, (self._rows - self._writing.count) * cost - (now - self._writing.last))


class Stillness:
    """
    Whether nothing moves any longer.

    Attributes:
        longest: Seconds of the longest stillness that has ended.

    Args:
        now: When it began.
        least: Seconds without movement that are always granted.
    """

    def __init__(self, now: float, least: float) -> None:
        self._since, self._least = now, least
        self._looked = now
        self._token: Hashable = None
        self.longest = 0.0

    def saw(self, now: float, token: Hashable) -> bool:
        """What there is to see now; answers whether it has moved.  Time in which nobody looked counts as a few seconds."""
        self._since += max(0.0, now - self._looked - _LATE)
        self._looked = now
        moved = token != self._token
        if moved:
            self.longest = max(self.longest, now - self._since)
            self._token, self._since = token, now
        return moved

    def rest(self, now: float) -> None:
        """Nothing can move: this time does not count."""
        self._since = now

    def seconds(self, now: float) -> float:
        """Since it last moved."""
        return now - self._since

    def limit(self, slowest: float) -> float:
        """Seconds without movement after which it is stuck; `slowest` is how long the slowest task took that has ended."""
        return max(self._least, _SLOWER * slowest)


def note(rows: int | None, rate: float | None, left: float | None) -> str:
    """What a progress bar is told, as far as it is known: `1,200,000 rows written, 84,000 rows/s, about 2 min left`."""
    told = [] if rows is None else [f"{rows:,} rows written"]
    if rate:
        told.append(f"{_rounded(rate):,} rows/s")
    if left is not None:
        told.append(f"about {_length(left)} left")
    return ", ".join(told)


def _rounded(value: float) -> int:
    """Two digits: more would only flicker."""
    whole = max(1, round(value))
    return round(whole, 2 - len(str(whole)))


def _length(seconds: float) -> str:
    if seconds < _MINUTES:
        return f"{max(1, round(seconds))} s"
    if seconds < _HOURS:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
