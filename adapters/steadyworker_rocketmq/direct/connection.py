"""The connection of a consumer to the brokers. Blocking calls run in the background, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from steadyworker.errors import BrokerUnavailable
from steadyworker.network.iothread import IoThread, Timer
from steadyworker_rocketmq.direct.member import GroupMember
from steadyworker_rocketmq.errors import unavailable

Answer = TypeVar("Answer")


class DirectLink:
    """
    The connection of one member of a consumer group; only for the I/O thread.

    Args:
        io: The I/O thread.
        connect: Returns an open member; blocks.
        place: Returns the brokers' name in errors.
        up: Called when the member is open.
        down: Called once for each `open`, with the cause.
        ended: Called once after `close`, when no call is under way, or when the time of `close` is over.
    """

    def __init__(
        self,
        io: IoThread,
        connect: Callable[[], GroupMember],
        place: Callable[[], str],
        up: Callable[[], None],
        down: Callable[[BrokerUnavailable], None],
        ended: Callable[[], None],
    ) -> None:
        self._io = io
        self._connect = connect
        self._place = place
        self._up = up
        self._down = down
        self._on_end = ended
        self._member: GroupMember | None = None
        self._opening = False
        self._closing = False
        self._calls: deque[tuple[Callable[[GroupMember], Any], Callable[[Future[Any]], None]]] = deque()
        self._busy = False
        self._deadline: Timer | None = None

    @property
    def is_open(self) -> bool:
        """True while calls can succeed."""
        return self._member is not None

    @property
    def is_closed(self) -> bool:
        """True if nothing is open, and no blocking call is under way."""
        return self._member is None and not self._opening and not self._busy

    def open(self) -> None:
        """Open a member; do nothing in a second call."""
        if self._member is None and not self._opening and not self._closing:
            self._opening = True
            self._io.in_background(self._connect, self._opened)

    def run(self, work: Callable[[GroupMember], Answer], then: Callable[[Future[Answer]], None]) -> None:
        """
        Run a blocking call after all earlier calls, and then call `then` with its result.

        If the call fails, the connection ends before `then` is called. A call that has not begun by then fails with the same error.
        """
        self._calls.append((work, then))
        self._next()

    def abort(self, error: Exception) -> None:
        """Treat the connection as lost."""
        member, self._member = self._member, None
        if member is None:
            return
        calls, self._calls = self._calls, deque()
        if not self._busy:  # Otherwise the call under way ends first.
            self._io.in_background(member.close, ignore)
        for _, then in calls:
            answer: Future[Any] = Future()
            answer.set_exception(error)
            self._io.guard(lambda then=then, answer=answer: then(answer))  # type: ignore[misc]
        if not self._closing:
            self._io.guard(lambda: self._down(unavailable(error, self._place())))
        self._ended()

    def close(self, within: float) -> None:
        """Close when every blocking call has ended, at the latest after `within` seconds."""
        self._closing = True
        self._deadline = self._io.after(within, self._give_up)
        self._ended()

    def _opened(self, answer: Future[GroupMember]) -> None:
        self._opening = False
        if (error := answer.exception()) is not None:
            if not self._closing:
                self._down(unavailable(error, self._place()))
            self._ended()
            return
        self._member = answer.result()
        if self._closing:
            self._ended()
        else:
            self._up()

    def _next(self) -> None:
        if self._busy or self._member is None or not self._calls:
            self._ended()
            return
        member = self._member
        work, then = self._calls.popleft()
        self._busy = True

        def done(answer: Future[Any]) -> None:
            error = answer.exception()
            if error is not None and member is self._member:
                self.abort(error if isinstance(error, Exception) else RuntimeError(str(error)))
            self._busy = False
            if member is not self._member:  # aborted now, or meanwhile
                self._io.in_background(member.close, ignore)
                if (
                    error is None
                ):  # The next connection receives and settles the same messages again. The calls can be repeated.
                    answer = Future()
                    answer.set_exception(ConnectionError("the connection was given up"))
            self._io.guard(lambda: then(answer))
            self._next()

        self._io.in_background(lambda: work(member), done)

    def _give_up(self) -> None:
        self._opening = self._busy = False
        self._calls.clear()
        self._ended()

    def _ended(self) -> None:
        if not self._closing or self._busy or self._opening or self._calls:
            return
        member, self._member = self._member, None
        if member is not None:
            self._io.in_background(member.close, ignore)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._on_end()
            self._io.end_if_closed()


def ignore(_: Future[None]) -> None:
    """Ignore the result of a call."""
