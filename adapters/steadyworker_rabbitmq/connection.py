"""
Connections on the I/O thread's loop, and blocking connections for short visits.

::

              open()                    connected
    closed ──────────→ opening ───────────────────→ open
      ↑                   │ every host refused        │ lost, aborted, closed
      └───────────────────┴──── down(cause) ──────────┘

A connection tries each host once, in a random order.
A connection does not use pika's own list of hosts, because pika gives up at the first name that does not resolve.
The code that uses a connection decides when to open it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from pika import BlockingConnection, SelectConnection
from typing_extensions import override

from steadyworker.errors import BrokerUnavailable, ConfigError
from steadyworker.network import owed
from steadyworker.network.consumer import BrokerLink
from steadyworker.network.errors import Foreign, Silent, worst
from steadyworker.network.iothread import IoThread, Timer
from steadyworker.network.url import Address
from steadyworker_rabbitmq import pika_internals
from steadyworker_rabbitmq.errors import translated, unavailable
from steadyworker_rabbitmq.url import RabbitmqUrl


class RabbitmqConnection(BrokerLink):
    """
    The connection for one purpose; only the I/O thread may call its methods.

    Args:
        io: The I/O thread.
        url: Returns the current URL; called before each connect, because an operator can change the password at any time.
        purpose: The connection's purpose, shown in the broker's list of connections.
        up: Called when the connection is open.
        down: Called once for each `open`, with the cause: no host accepted the connection, or the connection was lost.
    """

    def __init__(
        self,
        io: IoThread,
        url: Callable[[], RabbitmqUrl],
        purpose: str,
        up: Callable[[SelectConnection], None],
        down: Callable[[BrokerUnavailable], None],
    ) -> None:
        self.place: Address | None = None
        self.url: RabbitmqUrl | None = None
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
        """The connection if it is open; otherwise None."""
        return self._connection if self._connection is not None and self._connection.is_open else None

    @property
    @override
    def is_closed(self) -> bool:
        return self._connection is None

    def open(self) -> None:
        """Start to connect; a second call does nothing."""
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

    @override
    def abort(self, error: Exception) -> None:
        """
        End the connection without waiting for the broker.

        If this method is called twice, `down` receives the first error.
        """
        if self._connection is not None and self._cause is None:
            self._cause = error
            pika_internals.abort(self._connection, error)

    @override
    def close(self, within: float) -> None:
        self._left = []
        closing = Silent("closed by us", id="")
        if self._connection is None:
            return
        if not self._connection.is_open or within <= 0:
            self.abort(closing)
            return
        self._deadline = self._io.after(within, lambda: self.abort(closing))
        self._connection.close()

    def _try_next(self) -> None:
        assert self.url is not None, "`open` has set the URL"
        self.place = self._left.pop()
        self._cause = None
        try:
            self._connection = pika_internals.PikaConnection(
                self.url.parameters(self.place, self._purpose),
                on_open_callback=self._opened,
                on_open_error_callback=self._failed,
                on_close_callback=self._closed,
                custom_ioloop=self._io.loop,
            )
        except Exception as error:  # noqa: BLE001 - translated, like every error of pika
            self._next_or_down(error)

    def _opened(self, connection: SelectConnection) -> None:
        self._up(connection)

    def _failed(self, connection: SelectConnection, error: object) -> None:
        cause = error if isinstance(error, BaseException) else ConnectionError(str(error))
        if self._cause is None and pika_internals.sent_something_else(connection):
            cause = Foreign()
        self._connection = None
        self._next_or_down(self._cause or cause)

    def _next_or_down(self, error: BaseException) -> None:
        self._errors.append(unavailable(error, str(self.place)))
        if self._left:
            self._try_next()
            return
        self._report(worst(self._errors))

    def _closed(self, _: SelectConnection, error: Exception) -> None:
        self._report(unavailable(self._cause or error, str(self.place)))

    def _report(self, error: BrokerUnavailable) -> None:
        self._connection = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._io.guard(lambda: self._down(error))
        self._io.end_if_closed()


# --- Visits --------------------------------------------------------------------------------------------------------------

BLOCKED_FOR = 10.0
"""
Seconds that a visit waits during a memory or disk alarm.

An alarm blocks only connections that publish; a visit publishes only to probe its permission to publish.
"""

_HASTY = 10
"""The longest heartbeat of a visit, in seconds; with this heartbeat, a visit notices within 30 s that the broker sends nothing."""


def hasty(url: RabbitmqUrl) -> RabbitmqUrl:
    """Return the URL for a visit: with a short heartbeat, and a short limit for each connect."""
    return replace(brief(url), heartbeat=min(url.heartbeat, _HASTY))


def brief(url: RabbitmqUrl) -> RabbitmqUrl:
    """Return the URL with a short limit for each connect, because one of several hosts may not respond."""
    return replace(url, open_within=owed.QUESTION_WITHIN)


@contextmanager
def visit(url: RabbitmqUrl, purpose: str) -> Iterator[BlockingConnection]:
    """
    Open a blocking connection for a short visit, to the first host that accepts it.

    The caller must translate errors that are raised inside the context.

    Raises:
        BrokerUnavailable: No host accepted the connection. The error is `Refused` if a later try cannot succeed.
    """
    connection = _connected(url, purpose)
    try:
        yield connection
    finally:
        with suppress(Exception):  # the visit is over, so an error no longer matters
            connection.close()


def _connected(url: RabbitmqUrl, purpose: str) -> BlockingConnection:
    errors: list[BrokerUnavailable] = []
    for address in random.sample(url.addresses, len(url.addresses)):
        try:
            with translated(str(address)):
                parameters = url.parameters(address, purpose)
                parameters.blocked_connection_timeout = BLOCKED_FOR
                return BlockingConnection(parameters, _impl_class=pika_internals.PikaConnection)
        except BrokerUnavailable as error:
            errors.append(error)
    raise worst(errors)
