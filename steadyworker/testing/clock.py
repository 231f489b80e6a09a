"""A clock that moves only when a test moves it."""

from __future__ import annotations


class FakeClock:
    """
    A `steadyworker.clock.Clock` whose three clocks a test moves.

    Args:
        wall: The wall clock's first reading, in seconds since 1970. The other two clocks start at 1,000 seconds.
    """

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._monotonic = 1_000.0
        self._boottime = 1_000.0
        self._wall = wall

    def monotonic(self) -> float:
        """Return the seconds of a clock that stops while the machine is suspended."""
        return self._monotonic

    def boottime(self) -> float:
        """Return the seconds since boot, including the time of a suspend."""
        return self._boottime

    def wall(self) -> float:
        """Return the seconds since 1970 in UTC."""
        return self._wall

    def advance(self, seconds: float) -> None:
        """Move all three clocks forward."""
        self._monotonic += seconds
        self.sleep(seconds)

    def sleep(self, seconds: float) -> None:
        """Move time forward as on a suspended machine: the monotonic clock does not move."""
        self._boottime += seconds
        self._wall += seconds

    def step_wall(self, seconds: float) -> None:
        """Move only the wall clock, as an operator can; a negative value moves this clock back."""
        self._wall += seconds
