"""
Connections that the I/O thread holds, and blocking connections for short visits.

::

              open()                    connected
    closed ──────────→ opening ───────────────────→ open
      ↑                   │ every host refused        │ lost, aborted, silent, closed
      └───────────────────┴──── down(cause) ──────────┘

A connection tries the hosts on another thread, because this blocks (`hosts.py`).
Each try makes a new connection object of stomp.py, because an object that reconnects has no heart-beats.
The code that uses a connection decides when to open it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue

from typing_extensions import override

from steadyworker.adapter import Clock
from steadyworker.errors import BrokerUnavailable, ConfigError
from steadyworker.network import owed
from steadyworker.network.consumer import BrokerLink
from steadyworker.network.errors import Silent
from steadyworker.network.iothread import IoThread, Timer
from steadyworker.network.url import Address
from steadyworker_stomp.errors import translated, unavailable
from steadyworker_stomp.hosts import connect_any
from steadyworker_stomp.stomp_internals import OnMessage, StompConnection
from steadyworker_stomp.url import StompUrl

_BEATS = 3
"""The number of heart-beats to send in the time in which the broker expects one heart-beat. The number is above 1, because Classic has no tolerance by default."""


class StompLink(BrokerLink):
    """
    The connection for one purpose; only the I/O thread may call its methods.

    Args:
        io: The I/O thread.
        url: Returns the current URL. Called before each connect, because an operator can change the password at any time.
        clock: The clock.
        patience: Seconds in which the socket must accept a frame.
        up: Called when the connection is open.
        received: Called with the headers and the body of each message of the open connection.
        down: Called once for each `open`, with the cause. The cause is that no host accepted the connection, or that the connection was lost.
    """

    def __init__(
        self,
        io: IoThread,
        url: Callable[[], StompUrl],
        clock: Clock,
        patience: float,
        up: Callable[[StompConnection], None],
        received: OnMessage,
        down: Callable[[BrokerUnavailable], None],
    ) -> None:
        self.place = ""
        self._io = io
        self._url = url
        self._clock = clock
        self._patience = patience
        self._up = up
        self._received = received
        self._down = down
        self._connection: StompConnection | None = None
        self._opening = False
        self._closing = False
        self._beats: Timer | None = None
        self._deadline: Timer | None = None

    @property
    def connection(self) -> StompConnection | None:
        """The connection while it is open, otherwise None."""
        return self._connection if self._connection is not None and self._connection.is_open else None

    @property
    @override
    def is_closed(self) -> bool:
        return self._connection is None and not self._opening

    def open(self) -> None:
        """Start to connect; do nothing in a second call."""
        if not self.is_closed:
            return
        if self._io.stopping:
            self._down(BrokerUnavailable("Expected an open adapter, got one that was stopped: open another."))
            return
        self._opening = True
        self._io.in_background(self._connect, self._connected)

    @override
    def abort(self, error: Exception) -> None:
        """End the connection without waiting for the broker. After two calls, `down` receives the error of the first call."""
        if self._connection is not None:
            self._connection.abort(error)

    @override
    def close(self, within: float) -> None:
        """Send DISCONNECT when the broker has answered every request, and close. Abort after `within` seconds."""
        closing = Silent("closed by us", id="")
        if self._connection is None or not self._connection.is_open or within <= 0:
            # A connection that is being opened is closed as soon as it is open.
            self._closing = True
            self.abort(closing)
            return
        if self._closing:
            return
        self._closing = True
        self._deadline = self._io.after(within, lambda: self.abort(closing))
        self._after_answers(self._connection, closing)

    def _after_answers(self, connection: StompConnection, closing: Exception) -> None:
        pending = connection.pending
        if pending:
            when_done(self._io, pending[0], lambda _: self._after_answers(connection, closing))
        else:
            when_done(self._io, connection.disconnect(), lambda _: connection.abort(closing))

    def _connect(self) -> tuple[StompConnection, Address]:
        return connect_any(self._url(), self._clock, self._patience, self._on_message, self._on_end)

    def _connected(self, answer: Future[tuple[StompConnection, Address]]) -> None:
        self._opening = False
        try:
            self._connection, address = answer.result()
        except (BrokerUnavailable, ConfigError) as error:
            self._report_end(unavailable(error, ""))
            return
        self.place = str(address)
        if (cause := self._connection.end) is not None:
            self._report_end(unavailable(cause, self.place))
            return
        if self._io.stopping:
            self.abort(Silent("closed by us", id=""))
            return
        self._beat(self._connection)
        self._up(self._connection)

    def _beat(self, connection: StompConnection) -> None:
        """Send a heart-beat, and end a connection whose broker is silent."""
        silent = self._clock.monotonic() - connection.received_at
        if connection.silent_after and silent >= connection.silent_after:
            text = f"nothing from the broker for {silent:.1f} s, which is three heart-beats"
            connection.abort(Silent(text, id="stomp.silent-broker"))
            return
        if connection.beat_every:
            connection.beat()
        every = min(filter(None, (connection.beat_every, connection.silent_after)), default=0.0)
        if every:
            self._beats = self._io.after(every / _BEATS, lambda: self._beat(connection))

    # --- in the reading thread ---------------------------------------------------------------------------------------

    def _on_message(self, headers: Mapping[str, str], body: bytes) -> None:
        with suppress(BrokerUnavailable):  # the adapter was stopped
            self._io.call(lambda: self._received(headers, body))

    def _on_end(self, connection: StompConnection, cause: Exception) -> None:
        with suppress(BrokerUnavailable):
            self._io.call(lambda: self._ended(connection, cause))

    # ---------------------------------------------------------------------------------------------------------------

    def _ended(self, connection: StompConnection, cause: Exception) -> None:
        """Report the end of the present connection. If a connection ends before `_connected` receives it, `_connected` itself notices the end."""
        if connection is self._connection:
            self._report_end(unavailable(cause, self.place))

    def _report_end(self, error: BrokerUnavailable) -> None:
        self._connection = None
        self._closing = False
        for timer in filter(None, (self._beats, self._deadline)):
            timer.cancel()
        self._beats = self._deadline = None
        self._io.guard(lambda: self._down(error))
        self._io.end_if_closed()


def when_done(io: IoThread, request: Future[None], then: Callable[[Future[None]], None]) -> None:
    """Call a function on the I/O thread when a request is done."""

    def done(answer: Future[None]) -> None:
        with suppress(BrokerUnavailable):  # the adapter was stopped
            io.call(lambda: then(answer))

    request.add_done_callback(done)


# --- Visits --------------------------------------------------------------------------------------------------------------

_PATIENCE = 10.0

_VISIT = 60
"""
The heartbeat of a visit, in seconds.

This heartbeat is long, because a visit sends no heartbeats. Each request of a visit has its own time limit.
"""


def brief(url: StompUrl) -> StompUrl:
    """Return the same URL with the heartbeat of a visit."""
    return replace(url, heartbeat=max(url.heartbeat, _VISIT))


class Visit:
    """
    A blocking connection for a short visit; for one thread.

    Args:
        url: The URL, with the heartbeat of a visit.
        clock: The clock.
        within: Seconds in which the broker must accept the connection, and reply to each request.
        whole: The seconds are for the whole visit, and not for each request.

    Attributes:
        within: Seconds in which the broker must reply to a request.
        connection: The connection.
        place: The host.
        dialect: The broker's dialect.
    """

    def __init__(self, url: StompUrl, clock: Clock, within: float, *, whole: bool = False) -> None:
        self.within = within
        self._ends = clock.monotonic() + within if whole else math.inf
        self._url = url
        self._clock = clock
        self._open()

    def reopen(self) -> None:
        """Open another connection, because a refusal has ended this connection; raises the errors of `visit`."""
        self.close()
        self._open()

    def close(self) -> None:
        """Send DISCONNECT, and close."""
        with suppress(Exception):  # the visit is over, so an error no longer matters
            self.connection.disconnect().result(min(1.0, self._left))
        self.connection.abort(Silent("closed by us", id=""))

    def _open(self) -> None:
        arrived: SimpleQueue[Message] = SimpleQueue()

        def received(headers: Mapping[str, str], body: bytes) -> None:
            arrived.put((headers, body))

        self._arrived = arrived

        def ended(connection: StompConnection, cause: Exception) -> None:
            arrived.put((connection, cause))

        self.connection, address = connect_any(self._url, self._clock, _PATIENCE, received, ended, self._left)
        self.place = str(address)
        self.dialect = self.connection.dialect

    @property
    def _left(self) -> float:
        """The seconds in which the next reply must arrive."""
        return min(self.within, max(0.0, self._ends - self._clock.monotonic()))

    def wait(self, request: Future[None]) -> None:
        """Wait for the broker's answer; raises BrokerError, Silent or OSError."""
        try:
            request.result(self._left)
        except TimeoutError:
            if request.done():
                raise  # the connection's own error
            raise Silent(f"no reply to a request within {self.within:g} s") from None

    def message(self, what: str) -> Received:
        """
        Return the next message.

        Raises Silent, with the message's name `what`, if no message arrives in time. Raises the cause if the connection has ended.
        """
        found = self.next(self.within)
        if found is None:
            raise Silent(f"no {what} within {self.within:g} s")
        return found

    def next(self, within: float) -> Received | None:
        """Return the next message; None if no message arrives within these seconds; raises the cause if the connection has ended."""
        try:
            match self._arrived.get(timeout=min(within, self._left)):
                case (StompConnection() as connection, Exception() as cause):
                    if connection is self.connection:
                        raise cause
                    return self.next(within)  # a host that was slower
                case received:
                    return received
        except Empty:
            return None


Received = tuple[Mapping[str, str], bytes]
Message = Received | tuple[StompConnection, Exception]


@contextmanager
def ask(url: StompUrl, clock: Clock) -> Iterator[Visit]:
    """Open a visit for one question of a check or a count, with a limit of time, and translate the errors of the visit."""
    with visit(brief(url), clock, owed.QUESTION_WITHIN, whole=True) as visited, translated(visited.place):
        yield visited


@contextmanager
def visit(url: StompUrl, clock: Clock, within: float = owed.ANSWER_WITHIN, *, whole: bool = False) -> Iterator[Visit]:
    """
    Open a blocking connection for a short visit, to the first host that accepts it.

    A visit sends no heart-beats, so its URL has a long heart-beat interval (`brief`, `patient`).
    The caller must translate errors that are raised inside the context.

    Raises:
        BrokerUnavailable: No host accepted the connection; `Refused` if a later try cannot succeed.
        ConfigError: The broker's dialect is unknown.
    """
    visited = Visit(url, clock, within, whole=whole)
    try:
        yield visited
    finally:
        visited.close()
