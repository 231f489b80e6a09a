"""
One epoch: one channel of the consuming connection, and the deliveries that came over it.

**The window.** AMQP gives a consumer its prefetch when it starts, and for good.
So when the window changes, the consumer is cancelled, and one with another prefetch takes its place.
What the old one holds stays valid, on the same channel, and takes its room from the window until it is settled.
There is never more than one consumer: other clients count them.

**The barrier.** An ack has no answer; a `basic.qos` behind it on the same channel has one, and the broker reads them in order.
One barrier is under way at a time, and vouches for every ack before it.
The ack itself goes at once; a barrier keeps 20 ms from the one before, so that a stream of short jobs shares them.

**The end.** Whatever ends the consumer ends the channel, and with it the epoch.
A channel whose consumer was cancelled by the broker (4.3 and later do so on a delivery timeout) must not be used again:
pika does not answer that cancel, and a late ack would wake the consumer that nobody listens to.

**Not before the end.** A delivery timeout could be forestalled, by a new channel shortly before it.
That is the same redelivery, and no cleaner: another worker may be handed the message first, all that the channel holds goes with it,
and up to 3.11 nobody tells when it is due.
Up to 4.2 it counts towards a delivery limit just the same, even as a nack (3.10.8, 4.0.5).
From 4.3 on the consumer says itself how long it may take; and a channel that is closed would count, where a timeout does not (4.3.6).
All that it would save is the line that says what to set.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from pika.channel import Channel
from pika.spec import Basic, BasicProperties

from steadyworker.adapter import Delivered, Delivery, Lost, QueueSpec, Settings, Settle, Settled, Sink
from steadyworker.errors import StaleDelivery, Unsettled
from steadyworker_rabbitmq import pika_internals
from steadyworker_rabbitmq.connection import Owed
from steadyworker_rabbitmq.declare import Prepared
from steadyworker_rabbitmq.errors import closed_channel, is_delivery_timeout
from steadyworker_rabbitmq.iothread import Timer
from steadyworker_rabbitmq.messages import delivery_of

_MOST = 65_535
"""The largest prefetch: a short."""

_EARLY = 1.0
"""Seconds by which the broker's clock may be ahead of ours, when it says that a delivery took too long."""


_GATHER = 0.02
"""Seconds between two barriers: nobody waits for one but the record that a settlement is known."""

OnSettled = Callable[[Settled | StaleDelivery | Unsettled], None]


@dataclass(frozen=True, slots=True, eq=False)
class Settlement:
    """One settlement on its way; `on_settled` is called once, in the I/O thread."""

    delivery: Delivery
    how: Settle
    on_settled: OnSettled


@dataclass(frozen=True, slots=True)
class _Held:
    consumer: str
    since: float


class Epoch:
    """
    From Connected to Lost; every method is for the I/O thread.

    Args:
        number: The epoch's.
        channel: Open, and used for nothing else.
        owed: What the broker has to answer on it.
        spec: The queue.
        prepared: What is known of the queue.
        settings: The operator's.
        window: How many deliveries may be un-settled now.
        sink: Where deliveries and the end are told.
        after: Does something after so many seconds (`IoThread.after`).
    """

    def __init__(
        self,
        number: int,
        channel: Channel,
        owed: Owed,
        spec: QueueSpec,
        prepared: Prepared,
        settings: Settings,
        window: Callable[[], int],
        sink: Sink,
        after: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self.number = number
        self._channel = channel
        self._owed = owed
        self._spec = spec
        self._prepared = prepared
        self._settings = settings
        self._window = window
        self._sink = sink
        self._began = settings.clock.monotonic()
        self._settled_any = False
        self._over = False
        self._held: dict[int, _Held] = {}
        self._consumer: str | None = None
        self._consumers = 0
        self._prefetch = 0
        self._changing = False
        self._after = after
        self._gathering: Timer | None = None
        self._proved_at = -_GATHER
        self._unproven: list[Settlement] = []
        self._proving: list[Settlement] = []
        channel.add_on_cancel_callback(lambda _: self._cancelled_by_broker())

    def useful(self, after: float) -> bool:
        """Whether it settled anything, or lasted that many seconds."""
        return self._settled_any or self._settings.clock.monotonic() - self._began >= after

    def adjust(self) -> None:
        """Start, end or replace the consumer, as the window and what is un-settled want it."""
        if self._over or self._changing:
            return
        own = sum(1 for held in self._held.values() if held.consumer == self._consumer)
        wanted = max(0, min(self._window(), _MOST) - (len(self._held) - own))
        if self._consumer is None:
            if wanted:
                self._consume(wanted)
        elif wanted < self._prefetch or (wanted > self._prefetch and (own == self._prefetch or not self._held)):
            # A larger one can wait until this one is full, or nothing is under way: each change costs a round trip or two.
            self._cancel()

    def settle(self, settlement: Settlement) -> None:
        """Tell the broker, unless it was told; the answer comes with the next barrier."""
        if self._over or not self._channel.is_open:
            settlement.on_settled(stale(settlement.delivery))
            return
        self._unproven.append(settlement)  # first: whatever breaks now ends the epoch, which answers it
        if self._held.pop(tag := int(settlement.delivery.id), None) is not None:
            if settlement.how is Settle.ACK:
                self._channel.basic_ack(tag)
            else:
                self._channel.basic_nack(tag, requeue=True)
        self._prove()
        self.adjust()

    def leave(self) -> None:
        """Give everything back, because the connection is about to be closed; nothing is told any more."""
        if not self._over and self._channel.is_open:
            if self._consumer is not None and not self._changing:
                pika_internals.cancel(self._channel, self._consumer, lambda: None)
            if self._held:
                self._channel.basic_nack(multiple=True, requeue=True)
        self._end()

    def closed(self, reason: BaseException, cause: str | None) -> None:
        """The channel is no more; `cause` where the connection is no more either."""
        if cause is None:
            cause = self._timed_out(closed_channel(reason)) if is_delivery_timeout(reason) else closed_channel(reason)
        self._lose(cause)

    # --- the consumer ----------------------------------------------------------------------------------------------

    def _consume(self, prefetch: int) -> None:
        self._changing = True
        self._consumers += 1
        self._prefetch = prefetch
        self._consumer = f"{self._settings.consumer}-{os.getpid()}-{self.number}-{self._consumers}"
        answered = self._owed.expect("basic.consume")

        def consuming(_: object) -> None:
            answered()
            self._changing = False
            self.adjust()

        self._channel.basic_qos(prefetch_count=prefetch)
        self._channel.basic_consume(
            self._spec.queue,
            self._delivered,
            consumer_tag=self._consumer,
            arguments=dict(self._prepared.consume_arguments),
            callback=consuming,
        )

    def _cancel(self) -> None:
        assert self._consumer is not None, "what is cancelled was started"
        self._changing = True
        answered = self._owed.expect("basic.cancel")

        def cancelled() -> None:
            answered()
            self._changing = False
            self._consumer = None
            self.adjust()

        pika_internals.cancel(self._channel, self._consumer, cancelled)

    def _delivered(self, _: Channel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        if self._over:
            return
        tag = method.delivery_tag
        if len(self._held) >= self._window():
            # It was on its way when the window shrank.
            self._channel.basic_nack(tag, requeue=True)
            return
        self._held[tag] = _Held(method.consumer_tag, self._settings.clock.monotonic())
        delivery = delivery_of(self.number, self._spec.queue, method, properties, body)
        self._sink(Delivered(delivery))
        self.adjust()

    def _cancelled_by_broker(self) -> None:
        if self._over:
            return
        oldest = min((held.since for held in self._held.values()), default=None)
        timeout = self._prepared.delivery_timeout
        if oldest is not None and timeout is not None and self._settings.clock.monotonic() - oldest >= timeout - _EARLY:
            self._lose(self._timed_out(f"{timeout:g} s, and it cancelled the consumer"))
        else:
            self._lose("the broker cancelled the consumer: the queue was deleted, or its leader moved")
        if self._channel.is_open:
            self._owed.expect("channel.close")
            self._channel.close()

    def _timed_out(self, said: str) -> str:
        remedy = self._prepared.longer_timeout or "raise the queue's delivery timeout above time_limit"
        return f"the broker took its deliveries back, for one outlived the delivery timeout ({said}); {remedy}"

    # --- the barrier -----------------------------------------------------------------------------------------------

    def _prove(self) -> None:
        if self._proving or not self._unproven or self._gathering is not None:
            return
        now = self._settings.clock.monotonic()
        if (rest := self._proved_at + _GATHER - now) > 0:
            self._gathering = self._after(rest, self._gathered)
            return
        self._proved_at = now
        self._proving, self._unproven = self._unproven, []
        answered = self._owed.expect("basic.qos")

        def proven(_: object) -> None:
            answered()
            done, self._proving = self._proving, []
            self._settled_any = True
            for settlement in done:
                settlement.on_settled(Settled.CONFIRMED)
            self._prove()

        self._channel.basic_qos(prefetch_count=max(1, self._prefetch), callback=proven)

    def _gathered(self) -> None:
        self._gathering = None
        if not self._over and self._channel.is_open:
            self._prove()

    # --- the end ---------------------------------------------------------------------------------------------------

    def _lose(self, cause: str) -> None:
        if not self._over:
            self._end(cause)
            self._sink(Lost(self.number, cause))

    def _end(self, cause: str = "the adapter was stopped") -> None:
        self._over = True
        self._held.clear()
        if self._gathering is not None:
            self._gathering.cancel()
        open_, self._proving, self._unproven = [*self._proving, *self._unproven], [], []
        for settlement in open_:
            # An ack is out, and nobody will say whether it arrived.
            settlement.on_settled(
                Unsettled(
                    f"Expected the broker to confirm a settlement, got: {cause}; what was not settled comes again."
                )
            )


def stale(delivery: Delivery) -> StaleDelivery:
    """What is raised for a delivery of an epoch that is over."""
    return StaleDelivery(
        f"Expected a delivery of the open channel, got one of epoch {delivery.epoch}, which is over: its message comes again."
    )
