"""
One AMQP connection after another, on the I/O thread's loop.

::

              open()                    connected
    closed ──────────→ opening ───────────────────→ open
      ↑                   │ every host refused        │ lost, aborted, closed
      └───────────────────┴──── down(cause) ──────────┘

Hosts are tried in a random order, each once: pika's own list gives up at the first name that does not resolve.
When to open again is for who uses the connection to say.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from pika import BlockingConnection, SelectConnection

from steadyworker.errors import BrokerUnavailable, ConfigError
from steadyworker_rabbitmq import pika_internals
from steadyworker_rabbitmq.errors import Foreign, Refused, Silent, translated, unavailable
from steadyworker_rabbitmq.iothread import IoThread, Timer
from steadyworker_rabbitmq.url import Address, BrokerUrl

ANSWER_WITHIN = 30.0
"""Seconds in which the broker answers an RPC; pika itself would wait for ever (its issue 652)."""


class ManagedConnection:
    """
    The connection for one purpose; every method is for the I/O thread.

    Args:
        io: The thread.
        url: Returns the URL as it is now: asked before each connect, for passwords are rotated.
        purpose: What it is for, as the broker's list of connections shows it.
        up: Called when it is open.
        down: Called once for each `open`, with the cause: nobody answered, or it was lost.
    """

    def __init__(
        self,
        io: IoThread,
        url: Callable[[], BrokerUrl],
        purpose: str,
        up: Callable[[SelectConnection], None],
        down: Callable[[BrokerUnavailable], None],
    ) -> None:
        self.place: Address | None = None
        self.url: BrokerUrl | None = None
        self._io = io
        self._url = url
        self._purpose = purpose
        self._up = up
        self._down = down
        self._connection: SelectConnection | None = None
        self._left: list[Address] = []
        self._errors: list[BrokerUnavailable] = []
        self._cause: Exception | None = None
        self._deadline: Timer | None = None

    @property
    def connection(self) -> SelectConnection | None:
        """The connection, while it is open and nobody closes it."""
        return self._connection if self._connection is not None and self._connection.is_open else None

    @property
    def is_closed(self) -> bool:
        """Whether there is no connection, not even one that is opening or closing."""
        return self._connection is None

    def open(self) -> None:
        """Begin to connect; nothing when that has begun."""
        if self._connection is not None:
            return
        if self._io.stopping:
            self._down(BrokerUnavailable("Expected an open adapter, got one that was stopped: open another."))
            return
        try:
            self.url = self._url()
        except ConfigError as error:
            self._down(unavailable(error, ""))
            return
        self._left = random.sample(self.url.addresses, len(self.url.addresses))
        self._errors = []
        self._try_next()

    def abort(self, error: Exception) -> None:
        """End it without asking the broker; `down` is told the first error of these."""
        if self._connection is not None and self._cause is None:
            self._cause = error
            pika_internals.abort(self._connection, error)

    def close(self, within: float) -> None:
        """End it in good order, or abort it after so many seconds."""
        self._left = []
        closing = Silent("closed by us")
        if self._connection is None:
            return
        if not self._connection.is_open or within <= 0:
            self.abort(closing)
            return
        self._deadline = self._io.after(within, lambda: self.abort(closing))
        self._connection.close()

    def _try_next(self) -> None:
        assert self.url is not None, "what is opened has an address"
        self.place = self._left.pop()
        self._cause = None
        try:
            self._connection = pika_internals.Connection(
                self.url.parameters(self.place, self._purpose),
                on_open_callback=self._opened,
                on_open_error_callback=self._failed,
                on_close_callback=self._closed,
                custom_ioloop=self._io.loop,
            )
        except Exception as error:  # noqa: BLE001 - translated, like all that pika raises
            self._next_or_down(error)

    def _opened(self, connection: SelectConnection) -> None:
        self._up(connection)

    def _failed(self, connection: SelectConnection, error: object) -> None:
        cause = error if isinstance(error, BaseException) else ConnectionError(str(error))
        if self._cause is None and pika_internals.spoke_something_else(connection):
            cause = Foreign()
        self._connection = None
        self._next_or_down(self._cause or cause)

    def _next_or_down(self, error: BaseException) -> None:
        self._errors.append(unavailable(error, str(self.place)))
        if self._left:
            self._try_next()
            return
        # Only when no host is left that waiting could heal, no waiting heals it.
        self._tell(next((each for each in self._errors if not isinstance(each, Refused)), self._errors[-1]))

    def _closed(self, _: SelectConnection, error: Exception) -> None:
        self._tell(unavailable(self._cause or error, str(self.place)))

    def _tell(self, error: BrokerUnavailable) -> None:
        self._connection = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._io.guard(lambda: self._down(error))
        self._io.end_if_closed()


class Owed:
    """What the broker owes us on one channel: each answer in time, or the connection ends; for the I/O thread."""

    def __init__(self, io: IoThread, link: ManagedConnection) -> None:
        self._io = io
        self._link = link
        self._timers: set[Timer] = set()

    def expect(self, what: str) -> Callable[[], None]:
        """Abort the connection unless what is returned is called in time."""
        silent = Silent(f"no answer to {what} within {ANSWER_WITHIN:g} s")
        timer = self._io.after(ANSWER_WITHIN, lambda: self._link.abort(silent))
        self._timers.add(timer)

        def answered() -> None:
            self._timers.discard(timer)
            timer.cancel()

        return answered

    def forgive(self) -> None:
        """The channel is no more: nothing will be answered, and nothing need be."""
        while self._timers:
            self._timers.pop().cancel()


# --- For a moment --------------------------------------------------------------------------------------------------------

BLOCKED_FOR = 10.0
"""Seconds: on a visit nothing is published but the question whether we may, and an alarm (memory, disk) is answer enough."""

_HASTY = 10
"""The heartbeat, in seconds, of a visit: it waits for nothing but answers, and misses a broker that gives none within 30 s."""


def hasty(url: BrokerUrl) -> BrokerUrl:
    """The same broker, for a visit that is not to last."""
    return replace(url, heartbeat=min(url.heartbeat, _HASTY))


@contextmanager
def visit(url: BrokerUrl, purpose: str) -> Iterator[BlockingConnection]:
    """
    A connection for a moment, to the first of the hosts that answers; blocks its caller.

    Raises BrokerUnavailable when none does, `Refused` where waiting does not help; errors inside are the caller's to translate.
    """
    connection = _connected(url, purpose)
    try:
        yield connection
    finally:
        with suppress(Exception):  # nobody is left to be told
            connection.close()


def _connected(url: BrokerUrl, purpose: str) -> BlockingConnection:
    errors: list[BrokerUnavailable] = []
    for address in random.sample(url.addresses, len(url.addresses)):
        try:
            with translated(str(address)):
                parameters = url.parameters(address, purpose)
                parameters.blocked_connection_timeout = BLOCKED_FOR
                return BlockingConnection(parameters, _impl_class=pika_internals.Connection)
        except BrokerUnavailable as error:
            errors.append(error)
    raise errors[-1]
