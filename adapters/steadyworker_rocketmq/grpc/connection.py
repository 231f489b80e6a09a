"""The connection of a consumer to the proxies. Blocking calls run in background threads, several at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from steadyworker.errors import BrokerUnavailable
from steadyworker.network.iothread import IoThread, Timer
from steadyworker_rocketmq.errors import unavailable

Answer = TypeVar("Answer")

_PROBE_EVERY = 5.0
"""Seconds between two questions to the proxy while no poll is under way."""


class GrpcLink:
    """
    The connection to the proxies, which counts as open while calls succeed; only for the I/O thread.

    Args:
        io: The I/O thread.
        probe: Asks a proxy, and blocks; raises an error if no proxy replies.
        up: Called when a proxy has replied after `open`.
        down: Called once for each `open`, with the cause.
        given_up: Called if a blocking call is still under way when the time of `close` is over.
    """

    def __init__(
        self,
        io: IoThread,
        probe: Callable[[], None],
        up: Callable[[], None],
        down: Callable[[BrokerUnavailable], None],
        given_up: Callable[[], None],
    ) -> None:
        self._io = io
        self._probe = probe
        self._up = up
        self._down = down
        self._given_up = given_up
        self._place = "a proxy"
        self._opening = False
        self._closing = False
        self._tasks = 0
        self._deadline: Timer | None = None
        self._next_probe: Timer | None = None
        self.is_open = False
        self.needs_probe = True
        """True if the proxy must be asked whether it replies; False while a poll shows that the proxy replies."""

    @property
    def is_closed(self) -> bool:
        """True if nothing is open, and no blocking call is under way."""
        return not self.is_open and not self._opening and not self._tasks

    def open(self) -> None:
        """Ask a proxy; do nothing in a second call."""
        if self.is_open or self._opening:
            return
        self._opening = True
        self._io.in_background(self._probe, self._opened)

    def run(self, work: Callable[[], Answer], then: Callable[[Future[Answer]], None]) -> None:
        """Run a blocking call in the background. The adapter stops only when the call has ended."""
        self._tasks += 1

        def done(answer: Future[Answer]) -> None:
            self._tasks -= 1
            self._io.guard(lambda: then(answer))
            self._ended()

        self._io.in_background(work, done)

    def abort(self, error: Exception) -> None:
        """Treat the connection as lost."""
        if self.is_open:
            self.is_open = False
            self._stop_probing()
            self._io.guard(lambda: self._down(unavailable(error, self._place)))
        self._ended()

    def close(self, within: float) -> None:
        """Close when every blocking call has ended, at the latest after `within` seconds."""
        self._closing = True
        self.is_open = False
        self._stop_probing()
        self._deadline = self._io.after(within, self._give_up)
        self._ended()

    def _give_up(self) -> None:
        self._io.guard(self._given_up)
        self._tasks = 0
        self._opening = False
        self._io.end_if_closed()

    def _opened(self, answer: Future[None]) -> None:
        self._opening = False
        if self._closing:
            self._ended()
            return
        error = answer.exception()
        if error is not None:
            self._down(unavailable(error, self._place))
            return
        self.is_open = True
        self._probe_later()
        self._up()

    def _probe_later(self) -> None:
        self._stop_probing()
        self._next_probe = self._io.after(_PROBE_EVERY, self._probe_now)

    def _probe_now(self) -> None:
        if not self.needs_probe:
            self._probe_later()
            return
        self._io.in_background(self._probe, self._probed)

    def _probed(self, answer: Future[None]) -> None:
        if not self.is_open:
            return
        if (error := answer.exception()) is not None:
            self.abort(error if isinstance(error, Exception) else RuntimeError(str(error)))
        else:
            self._probe_later()

    def _stop_probing(self) -> None:
        if self._next_probe is not None:
            self._next_probe.cancel()
            self._next_probe = None

    def _ended(self) -> None:
        if self._closing and self.is_closed and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._io.end_if_closed()
