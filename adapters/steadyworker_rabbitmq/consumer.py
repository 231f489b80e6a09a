"""
The consuming connection, which has one epoch after another until the adapter stops; it never publishes.

::

    connect ──→ queues ready? ──→ channel ──→ the queue exists ──→ Connected … Lost
       ↑            │                │                │                       │
       └── wait ←───┴── Unreachable ─┴────────────────┘        wait, channel ←┘

`backoff.py` draws the waits. If only the channel was lost, the next epoch has a new channel on the same connection.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue

from pika import SelectConnection
from pika.channel import Channel

from steadyworker.adapter import Connected, Delivery, QueueSpec, Settings, Settle, Settled, Signal, Sink, Unreachable
from steadyworker.errors import BrokerUnavailable, ConfigError, StaleDelivery, SteadyWorkerError, Unsettled
from steadyworker_rabbitmq.backoff import USEFUL_AFTER, Backoff
from steadyworker_rabbitmq.connection import ManagedConnection, Owed
from steadyworker_rabbitmq.declare import Preparation, Prepared
from steadyworker_rabbitmq.epoch import Epoch, OnSettled, Settlement, stale
from steadyworker_rabbitmq.errors import Refused, closed_channel, is_delivery_timeout, is_missing, is_unfit, unavailable
from steadyworker_rabbitmq.iothread import IoThread, Timer
from steadyworker_rabbitmq.url import BrokerUrl


class Consumer:
    """
    The consumer of one queue.

    Other threads may call only `start`, `prefetch`, `settle` and `settle_async`; the I/O thread may call everything.

    Args:
        io: The I/O thread.
        url: Returns the current URL.
        preparation: Creates or checks the queues.
        spec: The queue to consume.
        settings: The operator's settings.
    """

    def __init__(
        self, io: IoThread, url: Callable[[], BrokerUrl], preparation: Preparation, spec: QueueSpec, settings: Settings
    ) -> None:
        self._io = io
        self._preparation = preparation
        self._spec = spec
        self._settings = settings
        self._sink: Sink | None = None
        self._window = 0
        self._link = ManagedConnection(io, url, f"{settings.consumer} consumes {spec.queue}", self._up, self._down)
        self._backoff = Backoff()
        self._timer: Timer | None = None
        self._epochs = 0
        self._epoch: Epoch | None = None
        self._channel: Channel | None = None
        self._owed = Owed(io, self._link)
        self._preparing = False
        self._told = False
        self._said = ""

    # --- for other threads -----------------------------------------------------------------------------------------

    def start(self, sink: Sink) -> None:
        """Start to connect; does nothing after an earlier `start` or `stop`."""
        if self._sink is None and not self._io.stopping:
            self._sink = sink
            self._io.members.append(self)
            self._io.call(self._go)

    @property
    def started(self) -> bool:
        """True once `start` was called."""
        return self._sink is not None

    @property
    def was_connected(self) -> bool:
        """True once the broker has accepted this consumer; after a later refusal, the consumer tries again."""
        return self._epochs > 0

    def tell(self, signal: Signal) -> None:
        """Send a signal to the sink, if there is one; only for the I/O thread."""
        if self._sink is not None and not self._io.stopping:
            self._sink(signal)

    def prefetch(self, count: int) -> None:
        """Set the prefetch; it applies to the next delivery."""
        self._window = count
        if self.started:
            with suppress(BrokerUnavailable):  # the adapter was stopped
                self._io.call(self._adjust)

    def settle(self, delivery: Delivery, how: Settle) -> Settled:
        """Return when the broker has read the settlement; raises StaleDelivery or Unsettled."""
        if self._io.is_current:
            raise RuntimeError(
                "Expected a call of `settle` from another thread, got one from the I/O thread, which would wait for itself: "
                "call `settle` outside the `sink` callback."
            )
        answer: SimpleQueue[Settled | StaleDelivery | Unsettled] = SimpleQueue()
        self.settle_async(delivery, how, answer.put)
        settled = answer.get()
        if isinstance(settled, Settled):
            return settled
        raise settled

    def settle_async(self, delivery: Delivery, how: Settle, on_settled: OnSettled) -> None:
        """Start to settle; the consumer calls `on_settled` once, in the I/O thread or in the caller's thread."""
        if not self.started:
            on_settled(stale(delivery))
            return
        try:
            self._io.call(lambda: self._settle(Settlement(delivery, how, on_settled)))
        except BrokerUnavailable:
            on_settled(stale(delivery))

    # --- for the I/O thread ----------------------------------------------------------------------------------------

    @property
    def link(self) -> ManagedConnection:
        """The connection; the adapter also uses it for queries about the queue, because an alarm never blocks it."""
        return self._link

    @property
    def is_closed(self) -> bool:
        """True if nothing is connected."""
        return self._link.is_closed

    def close(self, within: float) -> None:
        """Release every delivery and close."""
        if self._timer is not None:
            self._timer.cancel()
        if self._epoch is not None:
            self._epoch.leave()
            self._epoch = None
        self._link.close(within)

    def fail(self, error: Exception) -> None:
        """End the connection because of an unexpected error."""
        if self._link.is_closed:
            self._again(self._backoff.refused())
        else:
            self._link.abort(error)

    def _adjust(self) -> None:
        if self._epoch is not None:
            self._epoch.adjust()

    def _settle(self, settlement: Settlement) -> None:
        if self._epoch is None or self._epoch.number != settlement.delivery.epoch:
            settlement.on_settled(stale(settlement.delivery))
            return
        self._epoch.settle(settlement)

    # --- connecting ------------------------------------------------------------------------------------------------

    def _again(self, after: float) -> None:
        if self._io.stopping:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._io.after(after, self._go)

    def _go(self) -> None:
        """Take the next step towards an epoch."""
        if self._io.stopping or self._epoch is not None or self._channel is not None or self._preparing:
            return
        connection = self._link.connection
        if connection is None:
            self._link.open()
        else:
            self._prepare()

    def _up(self, _: SelectConnection) -> None:
        self._go()

    def _down(self, error: BrokerUnavailable) -> None:
        """
        Handle a connection that failed or was lost.

        If the connection had an epoch, `_channel_closed` has already sent `Lost`, so this method sends no signal.
        """
        if not self._told:
            self._gone(error)
        self._told = False

    def _gone(self, error: SteadyWorkerError) -> None:
        """Send Unreachable once for each cause, not for each try, and try again later."""
        if str(error) != self._said:
            self._said = str(error)
            self.tell(Unreachable(self._said, final=isinstance(error, Refused | ConfigError) and self._epochs == 0))
        self._again(self._backoff.refused())

    def _prepare(self) -> None:
        """Prepare the queues on another thread and another connection, because the preparation blocks."""
        if (prepared := self._preparation.known) is not None:
            self._open_channel(prepared)
            return
        self._preparing = True
        self._io.in_background(self._preparation.prepared, self._prepared)

    def _prepared(self, answer: Future[Prepared]) -> None:
        self._preparing = False
        try:
            prepared = answer.result()
        except SteadyWorkerError as error:
            self._gone(error)
        else:
            self._open_channel(prepared)

    def _open_channel(self, prepared: Prepared) -> None:
        if (connection := self._link.connection) is None:  # lost while the queues were prepared
            self._again(self._backoff.cut(useful=False))
            return
        answered = self._owed.expect("channel.open")

        def opened(channel: Channel) -> None:
            answered()
            self._look(channel, prepared)

        self._channel = connection.channel(on_open_callback=opened)
        self._channel.add_on_close_callback(self._channel_closed)

    def _look(self, channel: Channel, prepared: Prepared) -> None:
        """Check that the queue exists, before the epoch begins; this check needs no permission."""
        answered = self._owed.expect("queue.declare")

        def found(_: object) -> None:
            answered()
            self._begin(channel, prepared)

        channel.queue_declare(self._spec.queue, passive=True, callback=found)

    def _begin(self, channel: Channel, prepared: Prepared) -> None:
        self._epochs += 1
        self._said = ""
        self._epoch = Epoch(
            self._epochs,
            channel,
            self._owed,
            self._spec,
            prepared,
            self._settings,
            lambda: self._window,
            self.tell,
            self._io.after,
        )
        self.tell(Connected(self._epochs))
        self._epoch.adjust()

    def _channel_closed(self, _: Channel, reason: Exception) -> None:
        epoch, self._epoch, self._channel = self._epoch, None, None
        self._owed.forgive()
        if is_missing(reason) or (is_unfit(reason) and not is_delivery_timeout(reason)):
            self._preparation.forget()  # another program may have created the queue again, with another type
        stands = self._link.connection is not None
        if epoch is None:
            if stands:
                got = f"Expected the queue {self._spec.queue!r} at {self._link.place}, got: {closed_channel(reason)}."
                self._gone(BrokerUnavailable(got))
            return
        epoch.closed(reason, None if stands else str(unavailable(reason, str(self._link.place))))
        self._told = not stands
        self._again(self._backoff.cut(useful=epoch.useful(USEFUL_AFTER)))
