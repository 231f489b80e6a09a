"""
One epoch: one channel of the consuming connection, and the deliveries that arrived on it.

**The prefetch.**
AMQP fixes a consumer's prefetch when the consumer starts.
So when the prefetch changes, the adapter cancels the consumer, and starts another consumer with the new prefetch.
Deliveries of the old consumer stay valid, on the same channel, and count towards the prefetch until they are settled.

**One consumer.**
The consumer audit counts consumers, and a quorum queue counts a cancelled consumer until that consumer's last delivery is settled.
If the next consumer had a new tag, the queue would count both consumers for as long as the longest job runs.
So where the queue permits this (`PreparedQueues.continues_consumers`), the next consumer has the cancelled consumer's tag.
The queue then continues the cancelled consumer: it counts one consumer, and counts the held deliveries towards the new prefetch.
If more deliveries than the new prefetch are held, the queue would deliver one more message for each settlement.
So the consumer starts again only when fewer deliveries than the new prefetch are held.
On every other queue, the next consumer has a new tag, and its prefetch is the new prefetch minus the number of held deliveries.

**The barrier.**
The broker does not reply to an ack, but it replies to a `basic.qos`, and reads the requests of a channel in order.
So a `basic.qos` is a barrier: its reply confirms every ack that was sent before it on the same channel.
At most one barrier waits for its reply.
The adapter sends acks at once, but leaves at least 20 ms between two barriers, so that several short jobs share one barrier.

**The end.**
If the broker cancels the consumer, the adapter closes the channel, and the epoch ends with the channel.
From 4.3 on, the broker also cancels the consumer on a delivery timeout, and the adapter must not use the channel again.
pika does not reply to that cancel, so a late ack would revive a consumer that no longer has a callback.

**No early end.**
The adapter does not open a new channel shortly before a delivery timeout, because that would help no job, and would harm some jobs.
Another worker process could receive the message first, and every other delivery of the channel would be lost too.
Up to 3.11, no API reports the timeout.
Up to 4.2, a delivery that is returned early counts towards a delivery limit, as a timeout does.
Such a delivery counts even if a nack returns the delivery (seen on 3.10.8 and 4.0.5).
From 4.3 on, the consumer itself sets its timeout.
On 4.3, a closed channel counts towards the delivery limit, and a timeout does not (seen on 4.3.6).
A new channel would only avoid one line of the log, and this line names the setting to change.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from pika.channel import Channel
from pika.spec import Basic, BasicProperties
from typing_extensions import override

from steadyworker.adapter import Delivered, Lost, QueueSpec, Settings, Settle, Settled, Sink
from steadyworker.errors import BrokerUnavailable
from steadyworker.network.consumer import Epoch
from steadyworker.network.iothread import Timer
from steadyworker.network.owed import Owed
from steadyworker.network.settlement import Settlement, stale, unsettled
from steadyworker_rabbitmq import pika_internals
from steadyworker_rabbitmq.declare import PreparedQueues
from steadyworker_rabbitmq.errors import channel_id, closed_channel, is_delivery_timeout
from steadyworker_rabbitmq.messages import delivery_of

_MOST = 65_535
"""The largest prefetch, because AMQP has two bytes for a prefetch."""

_EARLY = 1.0
"""The seconds by which the broker's delivery timeout can come early, measured by the clock of this process."""


_GATHER = 0.02
"""The least time between two barriers, in seconds. It delays only the report of a confirmed ack, and no job."""


@dataclass(frozen=True, slots=True)
class _OpenDelivery:
    consumer: str
    since: float


class RabbitmqEpoch(Epoch):
    """
    One epoch, from the signal `Connected` to the signal `Lost`. Only the I/O thread may call its methods.

    Args:
        number: The epoch's number.
        channel: An open channel that is used for nothing else.
        owed: The pending replies of the broker on this channel.
        spec: The queue.
        prepared: The facts about the queue.
        settings: The operator's settings.
        window: Returns the current prefetch.
        sink: Receives `Delivered` and `Lost`.
        after: Calls a function after a delay in seconds (`IoThread.after`).
    """

    def __init__(
        self,
        number: int,
        channel: Channel,
        owed: Owed,
        spec: QueueSpec,
        prepared: PreparedQueues,
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
        self._held: dict[int, _OpenDelivery] = {}
        self._tags = 0
        self._tag = self._new_tag()
        self._consuming = False
        self._prefetch = 0
        self._changing = False
        self._after = after
        self._gathering: Timer | None = None
        self._proved_at = -_GATHER
        self._unproven: list[Settlement] = []
        self._proving: list[Settlement] = []
        channel.add_on_cancel_callback(lambda _: self._cancelled_by_broker())

    def useful(self, after: float) -> bool:
        """Return whether the epoch has settled a delivery, or has lasted `after` seconds."""
        return self._settled_any or self._settings.clock.monotonic() - self._began >= after

    @override
    def adjust(self) -> None:
        if self._over or self._changing:
            return
        own = sum(1 for held in self._held.values() if held.consumer == self._tag)
        wanted = max(0, min(self._window(), _MOST) - (len(self._held) - own))
        if not self._consuming:
            if wanted > own:
                self._consume(wanted)
        elif wanted < self._prefetch or (wanted > self._prefetch and (own == self._prefetch or not self._held)):
            # Each change costs one or two round trips.
            # So the change to a larger prefetch waits until the present prefetch is used up, or no delivery is held.
            self._cancel()

    @override
    def settle(self, settlement: Settlement) -> None:
        """Send the ack, nack or reject, unless this delivery is settled already; the next barrier confirms the settlement."""
        if self._over or not self._channel.is_open:
            settlement.on_settled(stale(settlement.delivery))
            return
        # This comes first, because an error from here on ends the epoch, and the end calls `on_settled`.
        self._unproven.append(settlement)
        if self._held.pop(tag := int(settlement.delivery.id), None) is not None:
            match settlement.how:
                case Settle.ACK:
                    self._channel.basic_ack(tag)
                case Settle.RELEASE:
                    self._channel.basic_nack(tag, requeue=True)
                case Settle.REJECT:
                    self._channel.basic_reject(tag, requeue=False)
        self._prove()
        self.adjust()

    @override
    def leave(self) -> None:
        if not self._over and self._channel.is_open:
            if self._consuming and not self._changing:
                pika_internals.cancel(self._channel, self._tag, lambda: None)
            if self._held:
                self._channel.basic_nack(multiple=True, requeue=True)
        self._end()

    def closed(self, reason: BaseException, lost: BrokerUnavailable | None) -> None:
        """End the epoch after its channel closed; `lost` is the connection's error if the connection is lost as well."""
        if lost is not None:
            self._lose(str(lost), lost.id)
        else:
            cause = closed_channel(reason)
            self._lose(self._timed_out(cause) if is_delivery_timeout(reason) else cause, channel_id(reason))

    # --- the consumer ----------------------------------------------------------------------------------------------

    def _new_tag(self) -> str:
        self._tags += 1
        return f"{self._settings.consumer}-{os.getpid()}-{self.number}-{self._tags}"

    def _consume(self, prefetch: int) -> None:
        self._changing = self._consuming = True
        self._prefetch = prefetch
        answered = self._owed.expect("basic.consume")

        def consuming(_: object) -> None:
            answered()
            self._changing = False
            self.adjust()

        self._channel.basic_qos(prefetch_count=prefetch)
        self._channel.basic_consume(
            self._spec.queue,
            self._delivered,
            consumer_tag=self._tag,
            arguments=dict(self._prepared.consume_arguments),
            callback=consuming,
        )

    def _cancel(self) -> None:
        self._changing = True
        answered = self._owed.expect("basic.cancel")

        def cancelled() -> None:
            answered()
            self._changing = self._consuming = False
            if not self._prepared.continues_consumers:
                self._tag = self._new_tag()
            self.adjust()

        pika_internals.cancel(self._channel, self._tag, cancelled)

    def _delivered(self, _: Channel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        if self._over:
            return
        tag = method.delivery_tag
        if len(self._held) >= self._window():
            # The broker sent this delivery before the prefetch shrank.
            if self._consuming and not self._changing:
                self._cancel()  # before the nack; otherwise the broker could deliver the message to this consumer again at once
            self._channel.basic_nack(tag, requeue=True)
            return
        self._held[tag] = _OpenDelivery(method.consumer_tag, self._settings.clock.monotonic())
        delivery = delivery_of(self.number, self._spec.queue, method, properties, body)
        self._sink(Delivered(delivery))
        self.adjust()

    def _cancelled_by_broker(self) -> None:
        if self._over:
            return
        oldest = min((held.since for held in self._held.values()), default=None)
        timeout = self._prepared.delivery_timeout
        if oldest is not None and timeout is not None and self._settings.clock.monotonic() - oldest >= timeout - _EARLY:
            cause = self._timed_out(f"{timeout:g} s; the broker cancelled the consumer")
            self._lose(cause, "amqp.delivery-timeout")
        else:
            cause = "the broker cancelled the consumer: the queue or its virtual host was deleted, or the queue's leader moved"
            self._lose(cause, "amqp.consumer-cancelled")
        if self._channel.is_open:
            self._owed.expect("channel.close")
            self._channel.close()

    def _timed_out(self, cause: str) -> str:
        remedy = self._prepared.longer_timeout or "raise the queue's delivery timeout above the Worker's time_limit"
        return f"a job ran longer than the delivery timeout, so the broker took this consumer's deliveries back ({cause}); {remedy}"

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

    def _lose(self, cause: str, explain: str) -> None:
        if not self._over:
            self._end(cause)
            self._sink(Lost(self.number, cause, explain=explain))

    def _end(self, cause: str = "the adapter was stopped") -> None:
        self._over = True
        self._held.clear()
        if self._gathering is not None:
            self._gathering.cancel()
        open_, self._proving, self._unproven = [*self._proving, *self._unproven], [], []
        for settlement in open_:
            # The settlement was sent, but it is unknown whether it arrived.
            settlement.on_settled(unsettled(cause))
