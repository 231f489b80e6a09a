"""
Ends a worker process whose stop takes longer than its budget.

The main thread keeps the budget, but it can hang: in a user's logging handler or listener, or in a system call.
The thread of this file does nothing else, and writes no log line, so it cannot hang in the same place.
Nothing is lost: the children die with this process, and other worker processes take its jobs over.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from steadyworker.clock import Clock

_GRACE = 1.0
"""
Seconds that the main thread gets after the end of the budget.

The main thread needs them, for example, after the whole process stood still.
"""


class Deadline:
    """
    The thread that ends the process.

    `begin` starts the budget of `within` seconds.
    `met` ends the thread, because the stop was in time.
    If nothing calls `met` in time, the thread calls `leave`, which ends the process.
    """

    def __init__(self, within: float, clock: Clock, leave: Callable[[], object]) -> None:
        self._within = within
        self._clock = clock
        self._leave = leave
        # A SimpleQueue, because a signal handler can call `put` while its own thread is inside `put`.
        self._reports: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def start(self) -> None:
        """
        Start the thread.

        If the system allows no further thread, only the main thread keeps the budget.
        """
        with suppress(RuntimeError):
            threading.Thread(target=self._run, name="stop deadline", daemon=True).start()

    def begin(self) -> None:
        """
        Begin the stop; callable from a signal handler.

        A second call does nothing.
        """
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
        """Wait for the end of the stop, at most `within` seconds, and return whether the stop is over."""
        end = self._clock.monotonic() + within
        with suppress(queue.Empty):
            while not self._reports.get(timeout=max(0.0, end - self._clock.monotonic())):
                pass
            return True
        return False
