"""
One epoch: one consuming connection, and the deliveries that arrived on it.

**The prefetch** is the number of subscriptions. The broker sends each subscription one message. After the acknowledgement, the broker sends the next message.
So a larger prefetch adds subscriptions, and a smaller prefetch ends subscriptions that hold no delivery.
A subscription that holds a delivery stays until the delivery is settled, because the end of the subscription would release the delivery.
The broker can send one more message to a subscription that is ending. The adapter does not acknowledge this message, so it comes again.

**Release** is the end of the subscription that holds the delivery.
The broker then sends the message to another consumer at once, and the other subscriptions stay valid.
A NACK does not release a message: Classic moves the message to its dead-letter queue, and Artemis removes the message.

**A message whose content did not arrive** is rejected, because an acknowledgement would destroy the only copy.
On Classic, a NACK moves the message unchanged to the dead letters.
Artemis has no such request. So the subscription keeps the message, and a new subscription receives messages in its place.
If the epoch keeps `MOST_KEPT` such messages, it accepts no more messages of any kind, and reports Unreachable.
When the prefetch has been 0 for `KEEPS_FOR` seconds, the epoch gives the kept messages back, and reports Connected.

**An acknowledgement** is confirmed by the broker's receipt.
The adapter sends an acknowledgement only once, and only on the delivery's own connection. Otherwise Artemis would close the connection.
If a receipt is late, or the broker sends an ERROR, the connection and the epoch end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from steadyworker.adapter import Clock, Connected, Delivered, Lost, QueueSpec, Settle, Settled, Sink, Unreachable
from steadyworker.errors import BrokerUnavailable
from steadyworker.network.iothread import IoThread, Timer
from steadyworker.network.owed import Owed
from steadyworker.network.settlement import Settlement, stale, unsettled
from steadyworker_stomp.connection import when_done
from steadyworker_stomp.messages import delivery_of
from steadyworker_stomp.stomp_internals import StompConnection

Window = Callable[[], int]
Then = Callable[[], None]

MOST_KEPT = 16
"""The number of kept messages at which an epoch accepts no other messages. Each kept message has its own subscription."""

KEEPS_FOR = 5.0
"""
Seconds at a prefetch of 0 after which an adapter is no longer a consumer.

The runner often pauses for one turn. If the epoch released the messages at once, the broker would deliver them again.
"""


@dataclass(slots=True, eq=False)
class _EpochSubscription:
    """One subscription; `held` is the id of the delivery that the subscription holds, and `kept` is true if this delivery was rejected."""

    number: str
    held: str | None = None
    kept: bool = False


class StompEpoch:
    """
    One epoch, from Connected to Lost. Only the I/O thread may call the methods.

    Args:
        number: The epoch's number.
        connection: An open connection that is used for nothing else.
        io: The I/O thread.
        spec: The queue.
        clock: The clock.
        window: Returns the current prefetch.
        sink: Receives `Delivered` and `Lost`.
    """

    def __init__(
        self,
        number: int,
        connection: StompConnection,
        io: IoThread,
        spec: QueueSpec,
        clock: Clock,
        window: Window,
        sink: Sink,
    ) -> None:
        self.number = number
        self._connection = connection
        self._io = io
        self._owed = Owed(io, connection.abort)
        self._spec = spec
        self._dialect = connection.dialect
        self._clock = clock
        self._window = window
        self._sink = sink
        self._began = clock.monotonic()
        self._settled_any = False
        self._over = False
        self._numbers = 0
        self._subscriptions: dict[str, _EpochSubscription] = {}
        self._holders: dict[str, _EpochSubscription] = {}
        self._settling: dict[str, list[Settlement]] = {}
        self._giving_back: Timer | None = None
        self._full = False

    def useful(self, after: float) -> bool:
        """Return whether the epoch has settled a delivery, or has lasted for `after` seconds."""
        return self._settled_any or self._clock.monotonic() - self._began >= after

    def adjust(self) -> None:
        """Add subscriptions, or end subscriptions that hold no delivery, as the prefetch and the number of kept messages require."""
        if self._over:
            return
        window = self._window()
        wanted = window if len(self._kept) < MOST_KEPT else 0
        for subscription in [each for each in self._subscriptions.values() if each.held is None]:
            if self._counted > wanted:
                self._unsubscribe(subscription)
        while self._counted < wanted:
            self._subscribe()
        if self._giving_back is not None and window:
            self._giving_back.cancel()
            self._giving_back = None
        if self._giving_back is None and self._kept and not window:
            self._giving_back = self._io.after(KEEPS_FOR, self._give_back)
        self._report_full()

    def settle(self, settlement: Settlement) -> None:
        """Send the acknowledgement or end the subscription, unless this was done before."""
        id_ = settlement.delivery.id
        if self._over:
            settlement.on_settled(stale(settlement.delivery))
        elif id_ in self._settling:
            self._settling[id_].append(settlement)
        elif (
            holder := self._holders.pop(id_, None)
        ) is None:  # A delivery of this epoch that is not held was settled before.
            settlement.on_settled(Settled.CONFIRMED)
        else:
            self._settling[id_] = [settlement]
            self._settle(holder, settlement, partial(self._confirmed, id_))
            self.adjust()

    def received(self, headers: Mapping[str, str], body: bytes) -> None:
        """Handle a message from the broker. If the subscription has ended, the broker delivers the message again elsewhere."""
        subscription = self._subscriptions.get(headers.get("subscription", ""))
        if self._over or subscription is None:
            return
        delivery = delivery_of(self.number, self._spec.queue, self._dialect, headers, body)
        subscription.held = delivery.id
        self._holders[delivery.id] = subscription
        self._sink(Delivered(delivery))

    def leave(self) -> None:
        """
        End every subscription before the connection closes.

        If the subscriptions did not end first, Artemis would count a failed delivery of each message.
        """
        if not self._over:
            for subscription in [*self._subscriptions.values()]:
                self._connection.unsubscribe(subscription.number)
        self._end("the adapter was stopped")

    def lose(self, error: BrokerUnavailable) -> None:
        """End the epoch after its connection ended with this error."""
        if not self._over:
            cause = str(error)
            self._end(cause)
            self._sink(Lost(self.number, cause, explain=error.id))

    # ---------------------------------------------------------------------------------------------------------------

    @property
    def _counted(self) -> int:
        """The number of subscriptions that the prefetch counts."""
        return len(self._subscriptions) - len(self._kept)

    @property
    def _kept(self) -> list[_EpochSubscription]:
        """The subscriptions that each keep a rejected message."""
        return [each for each in self._subscriptions.values() if each.kept]

    def _give_back(self) -> None:
        """Give the kept messages back for other consumers, because this adapter accepts no messages for now."""
        self._giving_back = None
        if not self._over:
            for subscription in self._kept:
                self._unsubscribe(subscription)
            self._report_full()

    def _report_full(self) -> None:
        """Report once that the epoch keeps too many messages to accept more messages. Report once when this is over."""
        full = len(self._kept) >= MOST_KEPT
        if full == self._full:
            return
        self._full = full
        if not full:
            self._sink(Connected(self.number))
            return
        self._sink(
            Unreachable(
                f"Expected text or bytes in the queue {self._spec.queue!r}, got {len(self._kept)} messages whose content "
                f"{self._dialect.broker} does not send over STOMP; this process keeps them, and accepts no more: let the sender send "
                "text or bytes, stop this process, and remove or move these messages with a JMS client or the broker's console.",
                explain="steadyworker.unshown",
            )
        )

    def _settle(self, holder: _EpochSubscription, settlement: Settlement, confirmed: Then) -> None:
        id_, how = settlement.delivery.id, settlement.how
        rejects = how is Settle.REJECT or (how is Settle.ACK and settlement.delivery.unshown is not None)
        if rejects and not self._dialect.moves_refused:
            holder.kept = True
            del self._settling[id_]
            settlement.on_settled(Settled.SENT)
            return
        holder.held = None
        if rejects:
            self._expect("a refusal of a message", self._connection.nack(id_), confirmed)
        elif how is Settle.ACK:
            self._expect("an acknowledgement", self._connection.ack(id_), confirmed)
        else:
            self._unsubscribe(holder, confirmed)

    def _subscribe(self) -> None:
        self._numbers += 1
        subscription = _EpochSubscription(f"{self.number}-{self._numbers}")
        self._subscriptions[subscription.number] = subscription
        destination = self._dialect.destination(self._spec.queue)
        request = self._connection.subscribe(destination, subscription.number, self._dialect.subscribed)
        self._expect("a subscription", request, lambda: None)

    def _unsubscribe(self, subscription: _EpochSubscription, then: Then = lambda: None) -> None:
        del self._subscriptions[subscription.number]
        self._expect("the end of a subscription", self._connection.unsubscribe(subscription.number), then)

    def _expect(self, what: str, request: Future[None], then: Then) -> None:
        """Call `then` when the broker has executed the request. If the broker does not answer in time, end the connection."""
        answered = self._owed.expect(what)

        def done(answer: Future[None]) -> None:
            answered()
            if not self._over and answer.exception() is None:  # an error ends the connection, and `lose` follows
                then()

        when_done(self._io, request, done)

    def _confirmed(self, id_: str) -> None:
        self._settled_any = True
        for settlement in self._settling.pop(id_):
            settlement.on_settled(Settled.CONFIRMED)

    def _end(self, cause: str) -> None:
        self._over = True
        if self._giving_back is not None:
            self._giving_back.cancel()
        self._owed.forgive()
        self._holders.clear()
        self._subscriptions.clear()
        open_, self._settling = [each for waiting in self._settling.values() for each in waiting], {}
        for settlement in open_:
            # The settlement was sent, but it is unknown whether it arrived.
            settlement.on_settled(unsettled(cause))
