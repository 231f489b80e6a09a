"""Whether a job of Spark still moves, and the speed of the rows that are written to the file."""

from __future__ import annotations

from collections.abc import Hashable

_SLOWER = 5.0  # the factor of a job's longest pause so far; for so long, a pause can be a slow task
_COMPUTES = (
    10.0  # the factor of the limit; for so long after its last progress, a job is not stuck if its host computes
)
_BUSY = 0.1  # the share of one core that a host uses at least, if Spark computes
_LATE = 5.0  # seconds between two polls; after a longer pause, this process itself stood still
_MINUTES, _HOURS = 90.0, 5400.0  # seconds from which the remaining time is shown in minutes, or in hours


class Movement:
    """
    The progress of one job, and its time without progress; all times are monotonic.

    A slow task and a hung task look the same until the slow task ends.
    So a job is stuck if it has been still for longer than its limit, and for five times longer than its longest pause so far.
    Processor time is no progress, because it can belong to another job, but it puts off the limit.

    Args:
        now: The time at which the job began.
        limit: Seconds without progress before which the job is never stuck.
    """

    def __init__(self, now: float, limit: float) -> None:
        self._since = self._checked = self._computed_at = self._measured = now
        self._limit, self._longest, self._cpu = limit, 0.0, 0.0
        self._token: Hashable = None

    def saw(self, now: float, token: Hashable) -> bool:
        """
        Compare a token of the job's counters with the last token; return whether it has changed.

        If there was no poll for longer than 5 s, the time between the polls counts as 5 s.
        """
        self._since += max(0.0, now - self._checked - _LATE)
        self._checked = now
        moved = token != self._token
        if moved:
            self._longest = max(self._longest, now - self._since)
            self._token, self._since = token, now
        return moved

    def computed(self, now: float, cpu: float) -> None:
        """Record the seconds of processor time that the host and its processes have used."""
        if abs(cpu - self._cpu) >= _BUSY * (now - self._measured):  # the sum becomes smaller when a process ends
            self._computed_at = now
        self._measured, self._cpu = now, cpu

    def rest(self, now: float) -> None:
        """Count the time without progress from zero again, because the job cannot make progress now."""
        self._since = now

    def still(self, now: float) -> tuple[float, float] | None:
        """Return the seconds without progress and their limit if the job is stuck, otherwise None."""
        limit = max(self._limit, _SLOWER * self._longest)
        seconds = now - self._since
        computes = now - self._computed_at < limit and seconds < _COMPUTES * limit
        return None if seconds < limit or computes else (seconds, limit)


def note(rows: int, total: int, seconds: float) -> str:
    """Return the facts of a file after these seconds of writing: `1,200,000 rows written, 84,000 rows/s, about 2 min left`."""
    facts = [f"{rows:,} rows written"]
    if rows and seconds > 0:
        facts.append(f"{_rounded(rows / seconds):,} rows/s")
        facts.append(f"about {_length((total - rows) * seconds / rows)} left")
    return ", ".join(facts)


def _rounded(value: float) -> int:
    """Return the number rounded to two significant digits, because further digits would change at each call."""
    whole = max(1, round(value))
    return round(whole, 2 - len(str(whole)))


def _length(seconds: float) -> str:
    if seconds < _MINUTES:
        return f"{max(1, round(seconds))} s"
    if seconds < _HOURS:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
