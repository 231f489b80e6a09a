"""Threads for settlements that wait for the broker."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

MOST_THREADS = 32


class SettlePool:
    """
    A few daemon threads that carry out settlements.

    A thread that hangs in a broker's client cannot keep the process alive.
    """

    def __init__(self, count: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopped = False
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        """Queue this work; the next free thread does it."""
        self._work.put(work)

    def stop(self, within: float) -> None:
        """End the threads that are free; threads that hang are left behind."""
        self._stopped = True
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(within / len(self._threads))

    @property
    def broken(self) -> bool:
        """Whether a thread has died, from an error that no settlement may raise."""
        return not self._stopped and not all(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
