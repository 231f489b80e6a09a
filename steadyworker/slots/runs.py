"""
The runs of one slot: a record for each run, and one table of them.

::

    Slot.run ──add──→ present ──ended = True──→ ended ──sent──→ not in the table
                         │                        │
              waits for a child or             its `Ended` is
              thread, or runs in it            still to be sent

At most one run of a slot is present.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from steadyworker.link import Task
from steadyworker.outcome import Outcome
from steadyworker.slots.limits import Limits


@dataclass(slots=True, eq=False)
class SlotRun:
    """
    One run, from `Slot.run` until the slot has sent its `Ended`.

    `ended` is true once the run's outcome is known.
    `forced_outcome` is the outcome that `kill` or a limit has set.
    """

    task: Task
    limits: Limits
    ended: bool = False
    forced_outcome: Outcome | None = None


RunOfSlot = TypeVar("RunOfSlot", bound=SlotRun)


class SlotRuns(Generic[RunOfSlot]):
    """
    The table of one slot's runs.

    Call `add` and `sent` under the slot's lock; `present` and `of` need no lock.
    """

    def __init__(self) -> None:
        self._runs: tuple[RunOfSlot, ...] = ()

    @property
    def present(self) -> RunOfSlot | None:
        """The run that has not ended, or None."""
        return next((run for run in self._runs if not run.ended), None)

    @property
    def unsent(self) -> tuple[RunOfSlot, ...]:
        """The runs whose `Ended` the slot has not sent: the present run, and runs that have ended."""
        return self._runs

    def of(self, fence: int) -> RunOfSlot | None:
        """Return the present run if it has this fence, else None."""
        run = self.present
        return run if run is not None and run.task.fence == fence else None

    def add(self, run: RunOfSlot) -> None:
        """Add a new run; raise RuntimeError if there is a present run."""
        if self.present is not None:
            raise RuntimeError("Expected an idle slot, got a second run: wait for Ended.")
        self._runs += (run,)

    def sent(self, fence: int) -> None:
        """Remove the run with this fence, whose `Ended` the slot has sent."""
        self._runs = tuple(run for run in self._runs if run.task.fence != fence)
