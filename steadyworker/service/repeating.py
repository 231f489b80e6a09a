"""Work that a worker process repeats on a separate thread, because a broker or a ledger can respond slowly."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Repeating:
    """
    A daemon thread that repeats one piece of work until `end`.

    Args:
        name: The thread's name.
        work: A function that does the work once, and returns the seconds until the next time.
        first_in: Seconds from the start until the first time.
    """

    def __init__(self, name: str, work: Callable[[], float], first_in: float = 0.0) -> None:
        self._work = work
        self._first_in = first_in
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """End the thread; this call does not wait for work under way."""
        self._ended.set()

    def _run(self) -> None:
        wait = self._first_in
        while not self._ended.wait(wait):
            wait = self._work()
