"""
How each slot stands: why it takes no run, how often in a row that came about, and how long it rests before it begins again.

A slot rests for 1 s, twice as long each time in a row, and 30 s at most; one that stood for a while begins anew.
Falls in `setup` are counted by themselves: three in a row end the process, which a child that dies idle never does.
"""

from __future__ import annotations

from collections.abc import Mapping

from steadyworker.clock import Clock
from steadyworker.slots.base import Unready
from steadyworker.slots.child_state import STEADY

_FIRST_REST, _LONGEST_REST = 1.0, 30.0


class SlotHealth:
    """All slots of one runner, by their numbers; touched by the runner's thread, `setup_failures` read by any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._causes: dict[int, str] = {}
        self._setup_failures: dict[int, int] = {}
        self._rests: dict[int, float] = {}
        self._stood_at: dict[int, float] = {}

    def ready(self, number: int) -> None:
        """Its setup has returned; whether it lasts is yet to be seen."""
        self._causes.pop(number, None)
        self._setup_failures.pop(number, None)
        self._stood_at[number] = self._clock.monotonic()

    def unready(self, told: Unready) -> float:
        """It takes no run; answers how many seconds it rests."""
        number, now = told.slot, self._clock.monotonic()
        self._causes[number] = told.reason
        if not told.stood:
            self._setup_failures[number] = self._setup_failures.get(number, 0) + 1
        steady = now - self._stood_at.pop(number, now) >= STEADY
        rest = min(2 * self._rests[number], _LONGEST_REST) if number in self._rests and not steady else _FIRST_REST
        self._rests[number] = rest
        return rest

    @property
    def causes(self) -> Mapping[int, str]:
        """Why each slot that takes no run takes none."""
        return self._causes

    @property
    def setup_failures(self) -> int:
        """How often in a row `setup` failed, in the slot where it failed most."""
        return max(self._setup_failures.values(), default=0)
