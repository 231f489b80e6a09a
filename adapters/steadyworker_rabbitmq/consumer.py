"""
The consuming connection. It never publishes, and has one epoch after another until the adapter stops.

::

    connect ──→ queues ready? ──→ channel ──→ the queue exists ──→ Connected … Lost
       ↑            │                │                │                       │
       └── wait ←───┴── Unreachable ─┴────────────────┘        wait, channel ←┘

`backoff.py` draws the length of each wait at random.
If only the channel was lost, the next epoch has a new channel on the same connection.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from pika import SelectConnection
from pika.channel import Channel
from typing_extensions import override

from steadyworker.adapter import QueueSpec, Settings
from steadyworker.errors import BrokerUnavailable, SteadyWorkerError
from steadyworker.network import consumer
from steadyworker.network.backoff import USEFUL_AFTER
from steadyworker.network.iothread import IoThread
from steadyworker.network.owed import Owed
from steadyworker.network.preparation import Preparation
from steadyworker_rabbitmq.connection import RabbitmqConnection
from steadyworker_rabbitmq.declare import PreparedQueues
from steadyworker_rabbitmq.epoch import RabbitmqEpoch
from steadyworker_rabbitmq.errors import (
    QueueUnavailable,
    channel_id,
    closed_channel,
    is_delivery_timeout,
    is_down,
    is_missing,
    is_unfit,
    unavailable,
)
from steadyworker_rabbitmq.url import RabbitmqUrl


class RabbitmqConsumer(consumer.Consumer[RabbitmqConnection, RabbitmqEpoch]):
    """
    The consumer of one queue (`steadyworker.network.consumer`).

    The adapter also sends queries about the queue over this consumer's `link`, because an alarm never blocks that connection.

    Args:
        io: The I/O thread.
        url: Returns the current URL.
        preparation: Creates or checks the queues.
        spec: The queue to consume.
        settings: The operator's settings.
    """

    def __init__(
        self,
        io: IoThread,
        url: Callable[[], RabbitmqUrl],
        preparation: Preparation[PreparedQueues],
        spec: QueueSpec,
        settings: Settings,
    ) -> None:
        super().__init__(io)
        self._preparation = preparation
        self._spec = spec
        self._settings = settings
        self.link = RabbitmqConnection(io, url, f"{settings.consumer} consumes {spec.queue}", self._up, self._down)
        self._channel: Channel | None = None
        self._owed = Owed(io, self.link.abort)
        self._preparing = False
        self._lost_reported = False

    @override
    def _go(self) -> None:
        if self._io.stopping or self._epoch is not None or self._channel is not None or self._preparing:
            return
        connection = self.link.connection
        if connection is None:
            self.link.open()
        else:
            self._prepare()

    def _up(self, _: SelectConnection) -> None:
        self._go()

    def _down(self, error: BrokerUnavailable) -> None:
        """
        Handle a connection that failed or was lost.

        If the connection had an epoch, `_channel_closed` has already sent `Lost`, so this method sends no signal.
        """
        if not self._lost_reported:
            self._gone(error)
        self._lost_reported = False

    def _prepare(self) -> None:
        """Prepare the queues on another thread and another connection, because the preparation blocks."""
        if (prepared := self._preparation.known) is not None:
            self._open_channel(prepared)
            return
        self._preparing = True
        self._io.in_background(self._preparation.prepared, self._prepared)

    def _prepared(self, answer: Future[PreparedQueues]) -> None:
        self._preparing = False
        try:
            prepared = answer.result()
        except SteadyWorkerError as error:
            self._gone(error)
        else:
            self._open_channel(prepared)

    def _open_channel(self, prepared: PreparedQueues) -> None:
        if (connection := self.link.connection) is None:  # the connection was lost while the queues were prepared
            self._again(self._backoff.cut(useful=False))
            return
        answered = self._owed.expect("channel.open")

        def opened(channel: Channel) -> None:
            answered()
            self._find_queue(channel, prepared)

        self._channel = connection.channel(on_open_callback=opened)
        self._channel.add_on_close_callback(self._channel_closed)

    def _find_queue(self, channel: Channel, prepared: PreparedQueues) -> None:
        """Check that the queue exists, before the epoch begins; this check needs no permission."""
        # The broker has just opened the channel, so if it does not reply now, only the queue can be the cause.
        answered = self._owed.expect(f"a question about queue {self._spec.queue!r}", "rabbitmq.queue-node-down")

        def found(_: object) -> None:
            answered()
            self._start_epoch(channel, prepared)

        channel.queue_declare(self._spec.queue, passive=True, callback=found)

    def _start_epoch(self, channel: Channel, prepared: PreparedQueues) -> None:
        epoch = RabbitmqEpoch(
            self._next_number,
            channel,
            self._owed,
            self._spec,
            prepared,
            self._settings,
            lambda: self._window,
            self.signal,
            self._io.after,
        )
        self._begin(epoch)

    def _channel_closed(self, _: Channel, reason: Exception) -> None:
        epoch, self._epoch, self._channel = self._epoch, None, None
        self._owed.forgive()
        if is_missing(reason) or (is_unfit(reason) and not is_delivery_timeout(reason)):
            self._preparation.forget()  # another program may have created the queue again, with another type
        stands = self.link.connection is not None
        if epoch is None:
            if stands:
                got = f"Expected the queue {self._spec.queue!r} at {self.link.place}, got: {closed_channel(reason)}."
                kind = QueueUnavailable if is_down(reason) else BrokerUnavailable
                self._gone(kind(got, id=channel_id(reason)))
            return
        epoch.closed(reason, None if stands else unavailable(reason, str(self.link.place)))
        self._lost_reported = not stands
        self._again(self._backoff.cut(useful=epoch.useful(USEFUL_AFTER)))
