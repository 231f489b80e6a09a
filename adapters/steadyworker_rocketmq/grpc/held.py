"""
The deliveries that an adapter holds at a proxy.

The broker hides a message from other consumers for `?invisible=` seconds (60). This is the invisibility; each renewal starts its time from zero again.
The adapter renews a delivery after each third of the invisibility.
If no renewal succeeds in time, or the broker refuses a renewal, the delivery is `Lost`.

**An acknowledgement** that fails is tried again until the invisibility ends, because a handle stays valid across connections.
The result is `SENT` at best. A broker that crashes can forget an acknowledgement, and then delivers the message again (tried with 5.4.0).
**Release** is a confirmed copy to the work topic, and then an acknowledgement. The copy comes at once, to any member.
There is a second way of release: the end of the invisibility. This takes at least 10 s, and counts as a delivery.
So the adapter uses the second way only for a message that cannot be copied whole.
For example, a proxy can refuse the copy, or another application's message can have headers that are too long for a copy.
**A stop** tries each settlement once. If the settlement fails, its caller receives the error, and the message comes again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from typing_extensions import override

from steadyworker.adapter import Clock, QueueSpec, Redelivered, Settle, Sink
from steadyworker.errors import PublishFailed
from steadyworker.network.iothread import IoThread, Timer
from steadyworker_rocketmq.errors import is_early, is_refused_handle
from steadyworker_rocketmq.grpc.client import EARLY_FOR, GrpcSession, Received
from steadyworker_rocketmq.grpc.connection import GrpcLink
from steadyworker_rocketmq.grpc.publisher import GrpcPublisher
from steadyworker_rocketmq.held import HeldDeliveries, HeldDelivery
from steadyworker_rocketmq.url import SHORTEST_INVISIBLE

Answer = TypeVar("Answer")

_AGAIN = 1.0
"""Seconds between two tries of a call that failed."""


@dataclass(slots=True, eq=False, kw_only=True)
class _ReceivedDelivery(HeldDelivery):
    """One delivery with its invisibility; `released` is true if a copy was sent, and only the acknowledgement is left."""

    received: Received
    renew_at: float
    released: bool = False
    timer: Timer | None = None


class GrpcHeld(HeldDeliveries[_ReceivedDelivery]):
    """
    The held deliveries of one adapter.

    Args, in addition to the arguments of the base:
        link: Runs blocking calls, and ends when a call shows that the connection is lost.
        publisher: Sends the copies of released messages.
        invisible: The seconds for which the broker hides a message from other consumers.
    """

    def __init__(
        self,
        link: GrpcLink,
        io: IoThread,
        publisher: GrpcPublisher,
        spec: QueueSpec,
        clock: Clock,
        invisible: int,
        sink: Sink,
        freed: Callable[[], None],
    ) -> None:
        super().__init__(spec, sink, freed)
        self._session: GrpcSession | None = None
        self._began = 0.0
        self._link = link
        self._io = io
        self._publisher = publisher
        self._clock = clock
        self._invisible = invisible
        self._under_way = 0
        self._when_empty: Callable[[], None] | None = None

    def attach(self, session: GrpcSession | None) -> None:
        """Use this session from now on; None if there is no session."""
        self._session = session
        self._began = self._clock.monotonic()

    def is_early(self, error: BaseException) -> bool:
        """Return whether the only cause is that the proxy does not know the session yet."""
        return is_early(error) and self._clock.monotonic() - self._began < EARLY_FOR

    def add(self, received: Received, until: float) -> None:
        """Hold a message, and deliver it."""
        item = self._item(received, until)
        self._hold(item)
        self._turn(item)

    @property
    def is_idle(self) -> bool:
        """True if nothing is held, and no call that needs the session is under way."""
        return not self._items and not self._under_way

    def call(self, work: Callable[[], Answer], then: Callable[[Future[Answer]], None]) -> None:
        """Run a blocking call that needs the session, which stays open until the call has ended."""
        self._under_way += 1

        def done(answer: Future[Answer]) -> None:
            try:
                then(answer)
            finally:
                self._under_way -= 1
            self._freed()
            self._end_if_empty()

        self._link.run(work, done)

    def give_back(self, received: Received) -> None:
        """Release a message that was not delivered. If this fails, the message comes again when its invisibility ends."""
        session, item = self._session, self._item(received, 0.0)
        if session is not None:
            self.call(lambda: self._release(session, item), lambda _: None)

    def release_all(self, then: Callable[[], None]) -> None:
        """Release every delivery that is not being settled. Call `then` as soon as nothing is held and no call is under way."""
        self._when_empty = then
        for item in self._to_release():
            self._turn(item)
        self._end_if_empty()

    # ---------------------------------------------------------------------------------------------------------------

    def _item(self, received: Received, until: float) -> _ReceivedDelivery:
        redelivered = Redelivered.YES if received.attempt > 1 else Redelivered.UNKNOWN  # also 1 after a broker's crash
        delivery = self._delivery(received.wire, received.id, redelivered, received.born_at)
        renew_at = self._clock.monotonic() + self._invisible / 3
        return _ReceivedDelivery(delivery, until, received=received, renew_at=renew_at)

    @override
    def _turn(self, item: _ReceivedDelivery) -> None:
        if item.busy or item.delivery.id not in self._items:
            return
        now = self._clock.monotonic()
        if now >= item.until:
            cause = "its invisibility ended before a renewal succeeded, so the broker delivers it again"
            self._lose(item, cause, "rocketmq.invisibility-ended")
        elif self._session is None and self._when_empty is not None:
            self._lose(item, "the adapter was stopped without a connection")
        elif self._session is None or not (self._link.is_open or self._when_empty):
            self._later(item, _AGAIN)
        elif item.settlements:
            self._settle(item, self._session, item.settlements[0].how)
        elif now >= item.renew_at:
            self._renew(item, self._session, now)
        else:
            self._later(item, item.renew_at - now)

    def _later(self, item: _ReceivedDelivery, after: float) -> None:
        if item.timer is not None:
            item.timer.cancel()
        item.timer = self._io.after(max(0.0, after), lambda: self._turn(item))

    def _renew(self, item: _ReceivedDelivery, session: GrpcSession, now: float) -> None:
        item.busy = True

        def renewed(answer: Future[None]) -> None:
            item.busy = False
            if (error := answer.exception()) is None:
                item.until = now + self._invisible
                item.renew_at = now + self._invisible / 3
                self._turn(item)
            else:
                self._failed(item, session, error)

        self._link.run(lambda: session.renew(item.received, self._invisible), renewed)

    def _settle(self, item: _ReceivedDelivery, session: GrpcSession, how: Settle) -> None:
        item.busy = True

        def work() -> None:
            if how is Settle.ACK or item.released:
                session.ack(item.received)
            else:
                self._release(session, item)

        def settled(answer: Future[None]) -> None:
            item.busy = False
            if item.delivery.id not in self._items:
                return  # abandoned
            if (error := answer.exception()) is None:
                self._is_settled(item)
                self._freed()
            else:
                self._failed(item, session, error)

        self._link.run(work, settled)

    def _release(self, session: GrpcSession, item: _ReceivedDelivery) -> None:
        """Send a copy to the work topic, and acknowledge the original; blocks; without a copy, shorten the invisibility."""
        received = item.received
        try:
            self._publisher.send(self._spec.queue, received.wire.copied(received.id, received.born_at))
        except PublishFailed:
            session.renew(received, SHORTEST_INVISIBLE)
            return
        item.released = True  # So a second try sends no second copy.
        session.ack(received)

    def _failed(self, item: _ReceivedDelivery, session: GrpcSession, error: BaseException) -> None:
        """Handle a renewal or settlement that failed."""
        if item.delivery.id not in self._items:
            return  # abandoned
        if is_refused_handle(error):
            self._lose(item, f"the broker refused its handle ({error})", "rocketmq.receipt-handle")
        elif self._when_empty is not None:
            self._lose(item, f"the adapter was stopped, and the proxy did not confirm it ({error})")
        else:
            self._later(item, _AGAIN)
            if session is self._session and isinstance(error, Exception) and not self.is_early(error):
                self._link.abort(error)

    @override
    def _forget(self, item: _ReceivedDelivery) -> None:
        super()._forget(item)
        if item.timer is not None:
            item.timer.cancel()
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self._when_empty is not None and self.is_idle:
            then, self._when_empty = self._when_empty, None
            then()
