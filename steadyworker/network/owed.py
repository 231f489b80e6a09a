"""The replies that a broker owes, and the limit for each."""

from __future__ import annotations

from collections.abc import Callable

from steadyworker.network.errors import Silent
from steadyworker.network.iothread import IoThread, Timer

ANSWER_WITHIN = 30.0
"""Seconds in which the broker must reply to a request; the client libraries themselves would wait without limit."""

QUESTION_WITHIN = 10.0
"""
Seconds in which the broker must answer a question of a check or a count.

The limit is this short because people and the next question wait for the answer.
"""


class Owed:
    """
    The pending replies of the broker on one channel or connection; only for the I/O thread.

    If a reply is late, this object aborts the connection.
    """

    def __init__(self, io: IoThread, abort: Callable[[Exception], None]) -> None:
        self._io = io
        self._abort = abort
        self._timers: set[Timer] = set()

    def expect(self, what: str, id: str = "network.no-reply") -> Callable[[], None]:
        """
        Return a function that the caller must call when the reply arrives.

        If this call is late, this object aborts the connection.
        `id` is the entry of the catalogue that explains a missing reply.
        """
        silent = Silent(f"no reply to {what} within {ANSWER_WITHIN:g} s", id)
        timer = self._io.after(ANSWER_WITHIN, lambda: self._abort(silent))
        self._timers.add(timer)

        def answered() -> None:
            self._timers.discard(timer)
            timer.cancel()

        return answered

    def forgive(self) -> None:
        """Cancel all timers, because the channel or connection is closed and no reply will come."""
        while self._timers:
            self._timers.pop().cancel()
