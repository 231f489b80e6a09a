"""
The consuming connection. It has one epoch after another until the adapter stops, and never publishes.

::

    broker prepared? ──→ connect ──→ Connected … Lost
       ↑        │            │                    │
       └─ wait ─┴ Unreachable┘               wait ┘

`steadyworker.network.backoff` draws the waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

from typing_extensions import override

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.errors import BrokerUnavailable, SteadyWorkerError
from steadyworker.network.backoff import USEFUL_AFTER
from steadyworker.network.consumer import Consumer
from steadyworker.network.iothread import IoThread
from steadyworker.network.owed import Owed
from steadyworker.network.preparation import Preparation
from steadyworker_stomp.connection import StompLink, when_done
from steadyworker_stomp.dialects import Dialect
from steadyworker_stomp.epoch import StompEpoch
from steadyworker_stomp.stomp_internals import StompConnection
from steadyworker_stomp.url import StompUrl

_PATIENCE = 1.0
"""Seconds in which the socket must accept a frame. A consumer's frames are short, and the I/O thread waits."""


class StompConsumer(Consumer[StompLink, StompEpoch]):
    """
    The consumer of one queue (`steadyworker.network.consumer`).

    Args:
        io: The I/O thread.
        url: Returns the current URL.
        preparation: Checks the broker.
        spec: The queue to consume.
        settings: The operator's settings.
    """

    def __init__(
        self,
        io: IoThread,
        url: Callable[[], StompUrl],
        preparation: Preparation[Dialect],
        spec: QueueSpec,
        settings: Settings,
    ) -> None:
        super().__init__(io)
        self._preparation = preparation
        self._spec = spec
        self._settings = settings
        self._preparing = False
        self._allowed = False
        self.link = StompLink(io, url, settings.clock, _PATIENCE, self._up, self._received, self._down)
        self._owed = Owed(io, self.link.abort)

    @override
    def _go(self) -> None:
        if self._io.stopping or self._epoch is not None or self._preparing or not self.link.is_closed:
            return
        if self._preparation.known is not None:
            self.link.open()
        else:
            self._preparing = True
            self._io.in_background(self._preparation.prepared, self._prepared)

    def _prepared(self, answer: Future[Dialect]) -> None:
        self._preparing = False
        try:
            answer.result()
        except SteadyWorkerError as error:
            self._gone(error)
        else:
            self._go()

    def _up(self, connection: StompConnection) -> None:
        dialect = connection.dialect
        if self._allowed:
            self._start_epoch(connection)
            return
        # If the user lacks the right to consume, this shows before the epoch begins. A message that comes now comes again.
        answered = self._owed.expect("a subscription")

        def ended(answer: Future[None]) -> None:
            answered()
            if answer.exception() is None:  # an error ends the connection, and `_down` follows
                self._allowed = True
                self._start_epoch(connection)

        connection.subscribe(dialect.destination(self._spec.queue), "right", dialect.subscribed)
        when_done(self._io, connection.unsubscribe("right"), ended)

    def _start_epoch(self, connection: StompConnection) -> None:
        self._begin(
            StompEpoch(
                self._next_number,
                connection,
                self._io,
                self._spec,
                self._settings.clock,
                lambda: self._window,
                self.signal,
            )
        )

    def _received(self, headers: Mapping[str, str], body: bytes) -> None:
        if self._epoch is not None:
            self._epoch.received(headers, body)

    def _down(self, error: BrokerUnavailable) -> None:
        """Handle a connection that failed or was lost, and report the loss of its epoch if an epoch had begun."""
        epoch, self._epoch = self._epoch, None
        self._owed.forgive()
        if epoch is None:
            self._gone(error)
            return
        epoch.lose(error)
        useful = epoch.useful(USEFUL_AFTER)
        self._allowed = useful  # otherwise the broker may have refused the subscription, and the next try shows why
        self._again(self._backoff.cut(useful=useful))
