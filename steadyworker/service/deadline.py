"""
Ends a worker process whose stop takes longer than its budget.

The main thread keeps the budget, but it can hang: in a user's logging handler or listener, or in a system call.
This thread does nothing else, and writes no log line, so it cannot hang in the same place.
Nothing is lost: the children die with this process, and other worker processes take its jobs over.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from steadyworker.clock import Clock

_GRACE = 1.0
"""Seconds after the budget's end that the main thread gets, for example after the whole process stood still."""


class Deadline:
    """
    The thread that ends the process; `begin` starts the budget of `within` seconds, and `met` ends the thread.

    `leave` ends the process.
    """

    def __init__(self, within: float, clock: Clock, leave: Callable[[], object]) -> None:
        self._within = within
        self._clock = clock
        self._leave = leave
        # A SimpleQueue, because a signal handler can put into it while the same thread puts into it.
        self._reports: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def start(self) -> None:
        """Start the thread; without a further thread of the system, the main thread is alone with the budget."""
        with suppress(RuntimeError):
            threading.Thread(target=self._run, name="stop deadline", daemon=True).start()

    def begin(self) -> None:
        """Begin the stop; a second call does nothing; callable from a signal handler."""
        self._reports.put(False)  # noqa: FBT003 - the stop is not over

    def met(self) -> None:
        """Report that the stop is over."""
        self._reports.put(True)  # noqa: FBT003 - the stop is over

    def _run(self) -> None:
        if self._reports.get():
            return
        for within in (self._within, _GRACE):
            if self._over(within):
                return
        self._leave()

    def _over(self, within: float) -> bool:
        """Wait these seconds; return whether the stop is over by then."""
        end = self._clock.monotonic() + within
        with suppress(queue.Empty):
            while not self._reports.get(timeout=max(0.0, end - self._clock.monotonic())):
                pass
            return True
        return False
