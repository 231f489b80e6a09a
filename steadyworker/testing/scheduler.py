"""
Who does what next in a Harness, where nobody but handlers has a thread of its own; and when fake time passes.

Real time is only waited for while a handler or a `setup` is at work; each of them wakes the test when it has something
to say.  Fake time only passes when nothing else can happen, or when a test says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from steadyworker.clock import SystemClock
from steadyworker.testing.broker import MemoryBroker
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.worker_process import WorkerProcess

_LOOK = 0.05
_PATIENCE = 0.5
_STAGE = 10.0
_AT_ONCE = 1e-9
"""A due time is a sum of floats: whoever comes to it may still be that much too early."""


class Turns:
    """
    Lets broker and worker processes take their turns, in the calling thread.

    `wake` is to be set by whoever has something new to say.
    """

    def __init__(self, clock: FakeClock, broker: MemoryBroker, processes: Sequence[WorkerProcess]) -> None:
        self.wake = threading.Event()
        self._clock = clock
        self._broker = broker
        self._processes = processes
        self._real = SystemClock()

    def turn(self) -> bool:
        """Everybody does what there is to do now; answers whether there was anything."""
        self.wake.clear()
        done = [self._broker.pump() > 0, *(process.turn() for process in self._processes)]
        return any(done)

    def advance(self, seconds: float) -> None:
        """Let this much fake time pass, stopping wherever something falls due."""
        end = self._clock.monotonic() + seconds
        self._settle()
        while (left := end - self._clock.monotonic()) > _AT_ONCE:
            self._clock.advance(max(_AT_ONCE, min([left, *self._due()])))
            self._settle()

    def until(self, reached: Callable[[], object], told: Callable[[], str], timeout: float) -> None:
        """Go on until it is reached; raises AssertionError, with what is `told`, after that many real seconds."""
        deadline = self._real.monotonic() + timeout
        while not reached():
            left = deadline - self._real.monotonic()
            if left <= 0:
                raise AssertionError(f"{told()} Nothing came of it within {timeout:g} s.")
            if self.turn():
                continue
            if any(process.busy for process in self._processes):
                self.wake.wait(min(left, _LOOK))
            elif not self._skip():
                raise AssertionError(f"{told()} Nothing is under way that could change it.")

    def warm_up(self, process: WorkerProcess, within: float) -> None:
        """Go on until each `setup` of this worker process has returned or failed, for that many real seconds at most."""
        deadline = self._real.monotonic() + within
        warming = True
        while warming and self._real.monotonic() < deadline:
            warming = process.warming  # asked first: whoever has become warm by now has said so, and is heard below
            if not self.turn() and warming:
                self.wake.wait(_LOOK)

    def finish(self, processes: Sequence[WorkerProcess], *, by_force: bool) -> bool:
        """Give these their time to finish: real time to handlers, fake time to all else; answers whether all did."""
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
                self.wake.wait(_LOOK)
        return True

    def _settle(self) -> None:
        while self.turn():
            pass

    def _due(self) -> list[float]:
        """In how many seconds somebody has something to do."""
        awake = [process.due_in for process in self._processes if not (process.frozen or process.stopped)]
        due = self._broker.due_in()
        return awake if due is None else [*awake, due]

    def _skip(self) -> bool:
        """Let fake time pass until something is due; False when nothing ever will be."""
        due = self._broker.due_in()
        if not all(process.idle for process in self._processes):
            due = min(self._due(), default=None)
        if due is None:
            return False
        self._clock.advance(max(due, _AT_ONCE))
        return True
