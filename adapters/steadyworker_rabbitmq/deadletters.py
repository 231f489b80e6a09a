"""A reader of the dead-letter queue, on a connection of its own, for one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from steadyworker.adapter import Delivery, OutgoingMessage
from steadyworker.errors import Unsettled
from steadyworker_rabbitmq.errors import is_missing, translated
from steadyworker_rabbitmq.messages import delivery_of, origin_of

PATIENCE = 300
"""
The heartbeat of the connection that reads dead letters, in seconds.

The reading thread sends no heartbeat while it works on a dead letter, and this may take minutes.
"""


class RabbitmqDeadLetters:
    """
    The dead letters of one queue, for use by one thread.

    Each dead letter is fetched when it is asked for, and held until it is dropped or given back.

    Args:
        channel: A channel that is used for nothing else.
        queue: The dead-letter queue.
        place: The broker's name in errors.
        publish: The adapter's `publish`.
    """

    def __init__(
        self, channel: BlockingChannel, queue: str, place: str, publish: Callable[[OutgoingMessage], None]
    ) -> None:
        self._publish = publish
        self._channel = channel
        self._queue = queue
        self._place = place
        self._held: set[int] = set()

    def __iter__(self) -> Iterator[Delivery]:
        with translated(self._place):
            try:
                # Dead letters that arrive meanwhile are left to the next reader.
                there = self._channel.queue_declare(self._queue, passive=True).method.message_count
            except ChannelClosedByBroker as refused:
                if is_missing(refused):
                    return  # the queue was never created, so nothing is in it
                raise
        for _ in range(there):
            with translated(self._place):
                method, properties, body = self._channel.basic_get(self._queue)
            if method is None or properties is None or body is None:
                return
            self._held.add(method.delivery_tag)
            yield replace(delivery_of(0, self._queue, method, properties, body), origin=origin_of(properties))

    def publish(self, message: OutgoingMessage) -> None:
        """Publish as the adapter does."""
        self._publish(message)

    def drop(self, delivery: Delivery) -> None:
        """Remove this dead letter; return when the broker has read the ack."""
        tag = int(delivery.id)
        if tag in self._held:
            self._held.remove(tag)
            with translated(self._place, Unsettled):
                self._channel.basic_ack(tag)
                self._channel.basic_qos(prefetch_count=1)  # the broker replies to this, but not to an ack

    def give_back(self) -> None:
        """Release every dead letter that was not dropped, for the next reader."""
        if self._held:
            self._channel.basic_nack(multiple=True, requeue=True)
