"""Threads for settlements that wait for a broker."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

MOST_THREADS = 32


class SettlePool:
    """
    Daemon threads that run settlements; a thread that hangs in a broker's client does not keep the process alive.

    `submit(work)` queues a callable; a thread that is free calls it.
    """

    def __init__(self, count: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.submit: Callable[[Callable[[], None]], None] = self._work.put
        self._stopped = False
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self, within: float) -> None:
        """End the threads that are free; a thread that hangs ends with the process."""
        self._stopped = True
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(within / len(self._threads))

    @property
    def broken(self) -> bool:
        """True when a thread has died of an unexpected exception."""
        return not self._stopped and not all(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
