"""A clock that stands still until it is told to move."""

from __future__ import annotations


class FakeClock:
    """
    All three readings of `steadyworker.clock.Clock`, moved by hand.

    Args:
        wall: The wall clock's first reading, in seconds since 1970; the other two begin at 1,000 seconds.
    """

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._monotonic = 1_000.0
        self._boottime = 1_000.0
        self._wall = wall

    def monotonic(self) -> float:
        """Seconds that stand still while the machine sleeps."""
        return self._monotonic

    def boottime(self) -> float:
        """Seconds since boot, sleep included."""
        return self._boottime

    def wall(self) -> float:
        """Seconds since 1970 in UTC."""
        return self._wall

    def advance(self, seconds: float) -> None:
        """Let time pass on all three."""
        self._monotonic += seconds
        self.sleep(seconds)

    def sleep(self, seconds: float) -> None:
        """Let time pass as a suspended machine does: the monotonic clock stands still."""
        self._boottime += seconds
        self._wall += seconds

    def step_wall(self, seconds: float) -> None:
        """Let somebody set the wall clock."""
        self._wall += seconds
