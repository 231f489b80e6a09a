"""
The consumer of one queue at a proxy. A delivery outlives its connection, so the adapter has one epoch for its whole life.

::

    topics made? ──→ a proxy replies ──→ Connected ──→ a call fails ──→ Unreachable
       ↑                  │                                                │
       └───── wait ───────┴────────────────────────────────────────────────┘   Connected again has the same epoch

**A session** is a member of the consumer group. A session is open while the prefetch is above 0 or a delivery is held.
**A poll** receives as many messages as the prefetch allows. The proxy replies at once if there is a message, otherwise after 5 s.
The session stays open until its poll has ended.
The adapter releases messages that arrive after the stop began. Otherwise they would stay invisible for a minute.
While no poll is under way, the adapter asks every few seconds whether the proxy replies.

`held.py` has the held deliveries, and `later.py` has the delayed messages.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from steadyworker.adapter import Clock, Connected, QueueSpec, Settings, Undelivered, Unreachable
from steadyworker.errors import BrokerUnavailable, MessageRefused, SteadyWorkerError
from steadyworker.network import consumer
from steadyworker.network.backoff import USEFUL_AFTER
from steadyworker.network.iothread import IoThread
from steadyworker.network.settlement import Settlement
from steadyworker_rocketmq.errors import unavailable
from steadyworker_rocketmq.grpc.client import EARLY_EVERY, GrpcSession, Received
from steadyworker_rocketmq.grpc.connection import GrpcLink
from steadyworker_rocketmq.grpc.held import GrpcHeld
from steadyworker_rocketmq.grpc.later import Mover
from steadyworker_rocketmq.grpc.publisher import GrpcPublisher
from steadyworker_rocketmq.held import EPOCH
from steadyworker_rocketmq.names import QueueNames
from steadyworker_rocketmq.url import RocketmqUrl

_HURRY = (1.0, 4.0)
"""The shortest and the longest wait before a reconnect while deliveries are held; both are short, because invisibilities end."""


class GrpcEpoch:
    """
    The one epoch of an adapter: session, polls and deliveries. Only the I/O thread may call the methods.

    Args:
        link: The connection.
        io: The I/O thread.
        url: Returns the current URL.
        names: The names of topics and groups.
        held: The deliveries that are held.
        invisible: The seconds for which the broker hides a message from other consumers.
        clock: The clock.
        window: Returns the current prefetch.
    """

    number = EPOCH

    def __init__(
        self,
        link: GrpcLink,
        io: IoThread,
        url: Callable[[], RocketmqUrl],
        names: QueueNames,
        held: GrpcHeld,
        invisible: int,
        clock: Clock,
        window: Callable[[], int],
    ) -> None:
        self._link = link
        self._io = io
        self._url = url
        self._names = names
        self._held = held
        self._invisible = invisible
        self._clock = clock
        self._window = window
        self._session: GrpcSession | None = None
        self._opening = False
        self._polling = False
        self._over = False
        self._since = math.inf

    def begin(self) -> None:
        """Record that a connection has begun."""
        self._since = self._clock.monotonic()
        self._held.has_settled = False

    def useful(self, after: float) -> bool:
        """Return whether there is a connection that has settled a delivery, or has lasted for `after` seconds."""
        if self._since == math.inf:
            return False
        return self._held.has_settled or self._clock.monotonic() - self._since >= after

    def adjust(self) -> None:
        """Open or close the session, and poll, as the prefetch requires."""
        if self._over or not self._link.is_open:
            return
        wanted = self._window() > 0 or not self._held.is_idle
        if wanted and self._session is None and not self._opening:
            self._open()
        elif not wanted and self._session is not None:
            self._drop()
        self._poll()

    def settle(self, settlement: Settlement) -> None:
        """Settle one delivery."""
        self._held.settle(settlement)
        self.adjust()

    def leave(self) -> None:
        """Release every delivery, because the adapter stops."""
        self._over = True
        self._held.release_all(self._drop)

    def abandon(self) -> None:
        """Answer every settlement, and close the session without waiting, because the adapter has no more time."""
        self._held.abandon()
        self._drop()

    def lose_connection(self) -> None:
        """Close the session. The deliveries stay, and the next session renews them."""
        self._since = math.inf
        self._drop()

    # ---------------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._opening = True
        self._link.run(self._new_session, self._opened)

    def _new_session(self) -> GrpcSession:
        """Open a session; blocks. The URL is read here, because its file can be unreadable for a moment."""
        session = GrpcSession(self._url(), self._names.group, self._names.work)
        if self._io.stopping:  # the I/O thread may have ended
            session.close()
            raise BrokerUnavailable("Expected an open adapter, got one that was stopped: open another.")
        return session

    def _opened(self, answer: Future[GrpcSession]) -> None:
        self._opening = False
        if (error := answer.exception()) is not None:
            self._link.abort(error if isinstance(error, Exception) else RuntimeError(str(error)))
            return
        session = answer.result()
        if self._over or not self._link.is_open:
            self._link.run(session.close, _ignore)
            return
        self._session = session
        self._held.attach(session)
        self.adjust()

    def _drop(self) -> None:
        """Leave the group."""
        session, self._session = self._session, None
        self._held.attach(None)
        self._polling = False
        self._link.needs_probe = True
        if session is not None:
            self._link.run(session.close, _ignore)

    def _poll(self) -> None:
        session, free = self._session, self._window() - len(self._held)
        if self._polling or session is None or free <= 0 or self._over:
            return
        self._polling = True
        self._link.needs_probe = False
        until = self._clock.monotonic() + self._invisible

        def polled(answer: Future[list[Received]]) -> None:
            self._polled(session, answer, until)

        self._held.call(lambda: session.receive(free, self._invisible), polled)

    def _polled(self, session: GrpcSession, answer: Future[list[Received]], until: float) -> None:
        current = session is self._session
        if current:
            self._polling = False
            self._link.needs_probe = True
        error = answer.exception()
        if error is None:
            for received in answer.result():
                if not self._over and len(self._held) < self._window():
                    self._held.add(received, until)
                else:
                    self._held.give_back(received)
            self.adjust()
        elif current and self._held.is_early(error):
            self._polling = True
            self._io.after(EARLY_EVERY, lambda: self._poll_again(session))
        elif current:
            self._link.abort(error if isinstance(error, Exception) else RuntimeError(str(error)))

    def _poll_again(self, session: GrpcSession) -> None:
        if session is self._session:
            self._polling = False
            self.adjust()


def _ignore(_: Future[None]) -> None:
    """Ignore the result of a close."""


class GrpcConsumer(consumer.Consumer[GrpcLink, GrpcEpoch]):
    """
    The consumer of one queue (`steadyworker.network.consumer`).

    Args:
        io: The I/O thread.
        url: Returns the current URL.
        names: The names of topics and groups.
        invisible: The seconds for which the broker hides a message from other consumers.
        publisher: Sends copies, and asks for routes.
        spec: The queue to consume.
        settings: The operator's settings.
    """

    def __init__(
        self,
        io: IoThread,
        url: Callable[[], RocketmqUrl],
        names: QueueNames,
        invisible: int,
        publisher: GrpcPublisher,
        spec: QueueSpec,
        settings: Settings,
    ) -> None:
        super().__init__(io)
        self._names = names
        self._clock = clock = settings.clock
        self._unmoved = ""
        self.link = GrpcLink(io, lambda: publisher.reach(names.work), self._up, self._down, self._given_up)
        self._held = GrpcHeld(self.link, io, publisher, spec, clock, invisible, self.signal, self._adjust)
        self._only = GrpcEpoch(self.link, io, url, names, self._held, invisible, clock, lambda: self._window)
        self._mover = Mover(url, names, publisher, clock, self._mover_reported, self._mover_refused)

    def fail(self, error: Exception) -> None:
        """End the connection because of an unexpected error. Without a connection, try again."""
        if self.link.is_open:
            self.link.abort(error)
        else:
            self._again(self._backoff.refused())

    def _adjust(self) -> None:
        super()._adjust()
        self._move_delayed()

    def _move_delayed(self) -> None:
        """Move delayed messages while there is a connection and the prefetch is above 0."""
        self._mover.wanted(wanted=self.link.is_open and self._window > 0)

    def _mover_reported(self, error: Exception | None) -> None:
        """
        Report that delayed messages are not moved because of this error, or that they are moved again (None).

        Called in the mover's thread.
        """
        with suppress(BrokerUnavailable):  # the adapter was stopped
            self._io.call(lambda: self._moved(error))

    def _mover_refused(self, key: str, error: MessageRefused, fate: str) -> None:
        """Report that a delayed message can never be moved; called in the mover's thread."""
        with suppress(BrokerUnavailable):  # the adapter was stopped
            self._io.call(lambda: self.signal(Undelivered(key, error, fate)))

    def _moved(self, error: Exception | None) -> None:
        if not self.link.is_open:
            return  # the connection's own cause is known
        cause = explain = ""
        if error is not None:
            got = error if isinstance(error, SteadyWorkerError) else unavailable(error, "a proxy")
            explain = got.id
            cause = f"Expected to move the delayed messages of the topic {self._names.later!r} that are due, got: {got}"
        if cause != self._unmoved:
            self._unmoved = cause
            self.signal(Unreachable(cause, explain=explain) if cause else Connected(self._only.number))

    def _go(self) -> None:
        """Take the next step towards Connected."""
        if not self._io.stopping and not self.link.is_open:
            self.link.open()

    def _up(self) -> None:
        self._only.begin()
        self._unmoved = ""
        self._begin(self._only)
        self._move_delayed()

    def _down(self, error: BrokerUnavailable) -> None:
        useful = self._only.useful(USEFUL_AFTER)
        self._only.lose_connection()
        self._move_delayed()
        self._gone(error)
        if self._held:
            self._again(random.uniform(*_HURRY))  # noqa: S311 - so that not all workers ask at once
        elif useful:
            self._again(self._backoff.cut(useful=True))

    def _given_up(self) -> None:
        self._only.abandon()

    def close(self, within: float) -> None:
        """Release every delivery and close."""
        self._mover.stop()
        super().close(within)
