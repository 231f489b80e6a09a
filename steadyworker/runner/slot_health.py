"""
The health of slots: the reasons why a slot cannot begin a run, and the slot's pause before the next start.

A slot pauses for 1 s; after each further failure in a row, it pauses twice as long, at most 30 s.
The pause is 1 s again after the slot was ready for a while.
Failures of `setup` are also counted separately, because three in a row end the worker process.
The death of an idle child never ends the worker process.
"""

from __future__ import annotations

from steadyworker.clock import Clock
from steadyworker.slots.base import Unready
from steadyworker.slots.child_process import STEADY

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class SlotHealth:
    """
    The health of all slots of one runner; only the runner's thread changes it, but any thread may read `setup_failures`.

    Attributes:
        causes: The reason for each slot that cannot begin a run, by the slot's number.
    """

    def __init__(self, clock: Clock) -> None:
        self.causes: dict[int, str] = {}
        self._clock = clock
        self._setup_failures: dict[int, int] = {}
        self._pauses: dict[int, float] = {}
        self._ready_at: dict[int, float] = {}

    def ready(self, number: int) -> None:
        """Note that the slot's `setup` returned."""
        self.causes.pop(number, None)
        self._setup_failures.pop(number, None)
        self._ready_at[number] = self._clock.monotonic()

    def unready(self, event: Unready) -> float:
        """Note that the slot cannot begin a run, and return its pause in seconds."""
        number, now = event.slot, self._clock.monotonic()
        self.causes[number] = event.reason
        if not event.after_setup:
            self._setup_failures[number] = self._setup_failures.get(number, 0) + 1
        steady = now - self._ready_at.pop(number, now) >= STEADY
        pause = _FIRST_PAUSE
        if number in self._pauses and not steady:
            pause = min(2 * self._pauses[number], _LONGEST_PAUSE)
        self._pauses[number] = pause
        return pause

    @property
    def setup_failures(self) -> int:
        """The largest number of consecutive failures of `setup` in one slot."""
        return max(self._setup_failures.values(), default=0)
