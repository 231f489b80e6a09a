"""Work that a worker process repeats on a separate thread, because a broker or a ledger can respond slowly."""

from __future__ import annotations

import threading
from collections.abc import Callable

from steadyworker.telemetry.logs import get_logger

_AGAIN_IN = 60.0


class Repeating:
    """
    A daemon thread that repeats one piece of work until `end`; an error of the work is logged, and does not end the thread.

    Args:
        name: The thread's name.
        work: A function that does the work once, and returns the seconds until the next time.
        first_in: Seconds from the start until the first time.
        again_in: Seconds until the next time after an error.
    """

    def __init__(
        self, name: str, work: Callable[[], float], first_in: float = 0.0, *, again_in: float = _AGAIN_IN
    ) -> None:
        self._name = name
        self._work = work
        self._first_in = first_in
        self._again_in = again_in
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
            try:
                wait = self._work()
            except Exception:  # noqa: BLE001 - a client library can raise anything
                get_logger("steadyworker.service").warning(
                    "work_failed", work=self._name, exc_info=True, explain="steadyworker.work-failed"
                )
                wait = self._again_in
