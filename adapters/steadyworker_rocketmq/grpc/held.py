"""
The deliveries that an adapter holds at a proxy.

The broker keeps a message from others for `?invisible=` seconds (60), and each renewal starts that time again.
So a delivery is renewed every third of that time; if no renewal succeeds in time, or the broker refuses one, it is `Lost`.

**An acknowledgement** that fails is tried again until that time ends, because a handle stays valid across connections.
**Release** is a copy to the work topic, confirmed, and then an acknowledgement: the copy comes at once, to any member.
The end of the invisibility would take at least 10 s, and would count as a delivery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from steadyworker.adapter import Clock, Delivered, Delivery, Lost, QueueSpec, Redelivered, Settle, Settled, Sink
from steadyworker.network.iothread import IoThread, Timer
from steadyworker.network.settlement import Settlement, stale, unsettled
from steadyworker_rocketmq.errors import is_refused_handle
from steadyworker_rocketmq.grpc.client import Received, Session
from steadyworker_rocketmq.messages import delivery_of
from steadyworker_rocketmq.url import BrokerUrl

if TYPE_CHECKING:
    from steadyworker_rocketmq.grpc.consumer import Link
    from steadyworker_rocketmq.grpc.publisher import Publisher

_AGAIN = 1.0
"""Seconds between two tries of a call that failed."""

_REMEMBERED = 1000
"""The number of lost deliveries that are remembered, so that a late settlement is refused as late, and not mistaken for a repeated one."""


@dataclass(slots=True, eq=False)
class _Item:
    """One delivery that is held."""

    delivery: Delivery
    received: Received
    until: float
    renew_at: float
    busy: bool = False
    released: bool = False
    timer: Timer | None = None
    settlements: list[Settlement] = field(default_factory=list)


class Held:
    """
    The deliveries of one adapter; only the I/O thread may call its methods.

    Args:
        epoch: The number of the epoch.
        link: Runs blocking calls, and is told of a connection that failed.
        io: The I/O thread.
        publisher: Sends the copies of released messages.
        topic: The work topic.
        spec: The queue.
        clock: The clock.
        url: Returns the current URL.
        sink: Receives `Delivered` and `Lost`.
        freed: Called when a delivery is no longer held.
    """

    def __init__(
        self,
        epoch: int,
        link: Link,
        io: IoThread,
        publisher: Publisher,
        topic: str,
        spec: QueueSpec,
        clock: Clock,
        url: Callable[[], BrokerUrl],
        sink: Sink,
        freed: Callable[[], None],
    ) -> None:
        self.session: Session | None = None
        self._epoch = epoch
        self._link = link
        self._io = io
        self._publisher = publisher
        self._topic = topic
        self._spec = spec
        self._clock = clock
        self._url = url
        self._sink = sink
        self._freed = freed
        self._items: dict[str, _Item] = {}
        self._lost: deque[str] = deque(maxlen=_REMEMBERED)
        self._count = 0
        self._when_empty: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def add(self, received: Received, until: float) -> None:
        """Hold a message, and deliver it."""
        self._count += 1
        redelivered = Redelivered.YES if received.attempt > 1 else Redelivered.UNKNOWN  # 1 after a broker's crash, too
        delivery = delivery_of(
            self._epoch, str(self._count), self._spec.queue, received.wire, received.id, redelivered, received.born_at
        )
        item = _Item(delivery, received, until, self._clock.monotonic() + self._third())
        self._items[delivery.id] = item
        self._sink(Delivered(delivery))
        self._turn(item)

    def give_back(self, received: Received) -> None:
        """Release a message that was not delivered; if this fails, it comes again when its invisibility ends."""
        session = self.session
        if session is not None:
            self._link.run(lambda: self._copy_and_ack(session, received), lambda _: None)

    def settle(self, settlement: Settlement) -> None:
        """Settle a delivery, if this was not done before."""
        id_ = settlement.delivery.id
        if (item := self._items.get(id_)) is not None:
            item.settlements.append(settlement)
            self._turn(item)
        elif id_ in self._lost:
            settlement.on_settled(stale(settlement.delivery))
        else:
            settlement.on_settled(Settled.CONFIRMED)  # it was settled before

    def release_all(self, then: Callable[[], None]) -> None:
        """Release everything that is not being settled, and call `then` when nothing is held."""
        self._when_empty = then
        for item in [*self._items.values()]:
            if not item.settlements:
                item.settlements.append(Settlement(item.delivery, Settle.RELEASE, lambda _: None))
            self._turn(item)
        self._end_if_empty()

    # ---------------------------------------------------------------------------------------------------------------

    def _third(self) -> float:
        return self._url().invisible / 3

    def _turn(self, item: _Item) -> None:
        """Take the next step for one delivery."""
        if item.busy or item.delivery.id not in self._items:
            return
        now = self._clock.monotonic()
        if now >= item.until:
            self._lose(item, "its invisibility ended before a renewal succeeded, so the broker delivers it again")
        elif self.session is None or not (self._link.is_open or self._when_empty):
            self._later(item, _AGAIN)
        elif item.settlements:
            self._settle(item, self.session, item.settlements[0].how)
        elif now >= item.renew_at:
            self._renew(item, self.session, now)
        else:
            self._later(item, item.renew_at - now)

    def _later(self, item: _Item, after: float) -> None:
        if item.timer is not None:
            item.timer.cancel()
        item.timer = self._io.after(max(0.0, after), lambda: self._turn(item))

    def _renew(self, item: _Item, session: Session, now: float) -> None:
        invisible = self._url().invisible
        item.busy = True

        def renewed(answer: Future[None]) -> None:
            item.busy = False
            if (error := answer.exception()) is None:
                item.until = now + invisible
                item.renew_at = now + self._third()
                self._turn(item)
            else:
                self._failed(item, error)

        self._link.run(lambda: session.renew(item.received, invisible), renewed)

    def _settle(self, item: _Item, session: Session, how: Settle) -> None:
        item.busy = True

        def work() -> None:
            if how is Settle.ACK or item.released:
                session.ack(item.received)
            else:
                self._copy_and_ack(session, item.received, item)

        def settled(answer: Future[None]) -> None:
            item.busy = False
            if (error := answer.exception()) is None:
                self._forget(item)
                for settlement in item.settlements:
                    settlement.on_settled(Settled.CONFIRMED)
                self._freed()
            else:
                self._failed(item, error)

        self._link.run(work, settled)

    def _copy_and_ack(self, session: Session, received: Received, item: _Item | None = None) -> None:
        """Send a copy to the work topic, and acknowledge the original; blocking."""
        self._publisher.send(self._topic, received.wire.copied(received.id, received.born_at))
        if item is not None:
            item.released = True  # a second try must not send a second copy
        session.ack(received)

    def _failed(self, item: _Item, error: BaseException) -> None:
        """Handle a renewal or settlement that failed."""
        if is_refused_handle(error):
            self._lose(item, f"the broker refused its handle ({error})")
            return
        self._later(item, _AGAIN)
        if isinstance(error, Exception):
            self._link.abort(error)

    def _lose(self, item: _Item, cause: str) -> None:
        self._forget(item)
        self._lost.append(item.delivery.id)
        self._sink(
            Lost(self._epoch, f"Expected to hold a message until its job ends, but lost it: {cause}.", item.delivery.id)
        )
        for settlement in item.settlements:
            settlement.on_settled(unsettled(cause))
        self._freed()

    def _forget(self, item: _Item) -> None:
        del self._items[item.delivery.id]
        if item.timer is not None:
            item.timer.cancel()
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self._when_empty is not None and not self._items:
            then, self._when_empty = self._when_empty, None
            then()
