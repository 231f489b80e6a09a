"""
The scheduler of a Harness: it decides on the next turn, and moves fake time.

Only handlers have their own threads in a Harness; everything else runs in the test's thread.
The test waits in real time only while a handler or a `setup` runs; an event of the handler or the `setup` wakes the test.
Fake time passes only when nothing else can happen, or when a test moves it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from steadyworker.clock import SystemClock
from steadyworker.testing.broker import MemoryBroker
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.worker_process import WorkerProcess

_POLL = 0.05
_PATIENCE = 0.5
_STAGE = 10.0
_AT_ONCE = 1e-9
"""Tolerance in seconds: a due time is a sum of floats, so the clock may stop slightly before the due time."""


class Turns:
    """
    Runs the turns of broker and worker processes in the calling thread.

    A thread that posts an event sets `wake`.
    """

    def __init__(self, clock: FakeClock, broker: MemoryBroker, processes: Sequence[WorkerProcess]) -> None:
        self.wake = threading.Event()
        self._clock = clock
        self._broker = broker
        self._processes = processes
        self._real = SystemClock()

    def turn(self) -> bool:
        """Run one turn of the broker and of each worker process, and return whether the broker or a process had work."""
        self.wake.clear()
        done = [self._broker.pump() > 0, *(process.turn() for process in self._processes)]
        return any(done)

    def advance(self, seconds: float) -> None:
        """Move fake time forward by `seconds`, in steps from one due time to the next."""
        end = self._clock.monotonic() + seconds
        self._settle()
        while (left := end - self._clock.monotonic()) > _AT_ONCE:
            self._clock.advance(max(_AT_ONCE, min([left, *self._due()])))
            self._settle()

    def until(self, reached: Callable[[], object], describe: Callable[[], str], timeout: float) -> None:
        """
        Run turns until `reached` returns something true.

        Raises AssertionError, with the text of `describe`, after `timeout` real seconds, or if nothing more can happen.
        """
        deadline = self._real.monotonic() + timeout
        while not reached():
            left = deadline - self._real.monotonic()
            if left <= 0:
                raise AssertionError(f"{describe()} This did not change within {timeout:g} s.")
            if self.turn():
                continue
            if any(process.busy for process in self._processes):
                self.wake.wait(min(left, _POLL))
            elif not self._skip():
                raise AssertionError(f"{describe()} Nothing is running that could change this.")

    def warm_up(self, process: WorkerProcess, within: float) -> None:
        """Run turns until each `setup` of this worker process has returned or failed, or `within` real seconds are over."""
        deadline = self._real.monotonic() + within
        warming = True
        while warming and self._real.monotonic() < deadline:
            # This is read before the turn, because a slot that is warm by now has posted its event, which the turn below handles.
            warming = process.warming
            if not self.turn() and warming:
                self.wake.wait(_POLL)

    def finish(self, processes: Sequence[WorkerProcess], *, by_force: bool) -> bool:
        """
        Run turns until these processes have finished, and return whether all have finished.

        Only handlers get real time, and everything else gets fake time.
        """
        real, fake = self._real.monotonic() + _PATIENCE * (1 + by_force), self._clock.monotonic() + _STAGE
        while not all(process.finished for process in processes):
            if self.turn():
                continue
            busy = any(process.busy for process in processes)
            if self._real.monotonic() > real or (not busy and self._clock.monotonic() > fake):
                return False
            if by_force or not busy:
                self._clock.advance(_PATIENCE)
            if busy:
                self.wake.wait(_POLL)
        return True

    def _settle(self) -> None:
        while self.turn():
            pass

    def _due(self) -> list[float]:
        """Return the seconds until the next work of each process, and of the broker."""
        awake = [process.due_in for process in self._processes if not (process.frozen or process.stopped)]
        due = self._broker.due_in()
        return awake if due is None else [*awake, due]

    def _skip(self) -> bool:
        """Move fake time forward until something is due; return False if nothing will ever be due."""
        due = self._broker.due_in()
        if not all(process.idle for process in self._processes):
            due = min(self._due(), default=None)
        if due is None:
            return False
        self._clock.advance(max(due, _AT_ONCE))
        return True
