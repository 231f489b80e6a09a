"""The dead-letter queue, held open on a connection of its own by the thread that reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from steadyworker.adapter import Delivery, OutgoingMessage
from steadyworker.errors import Unsettled
from steadyworker_rabbitmq.errors import is_missing, translated
from steadyworker_rabbitmq.messages import delivery_of

PATIENCE = 300
"""The heartbeat of such a connection, in seconds: whoever reads may think about one of them for so long, and longer."""


class RabbitmqDeadLetters:
    """
    The dead letters of one queue, taken one at a time and held; for one thread.

    Args:
        channel: Used for nothing else.
        queue: The dead-letter queue.
        place: What the broker is called in errors.
        publish: As the adapter's.
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
                # What comes while we read is the next reader's.
                there = self._channel.queue_declare(self._queue, passive=True).method.message_count
            except ChannelClosedByBroker as refused:
                if is_missing(refused):
                    return  # nobody has made the queue, so nothing is in it
                raise
        for _ in range(there):
            with translated(self._place):
                method, properties, body = self._channel.basic_get(self._queue)
            if method is None or properties is None or body is None:
                return
            self._held.add(method.delivery_tag)
            yield delivery_of(0, self._queue, method, properties, body)

    def publish(self, message: OutgoingMessage) -> None:
        """As the adapter's."""
        self._publish(message)

    def drop(self, delivery: Delivery) -> None:
        """Remove this dead letter; the broker has read it when this returns."""
        tag = int(delivery.id)
        if tag in self._held:
            self._held.remove(tag)
            with translated(self._place, Unsettled):
                self._channel.basic_ack(tag)
                self._channel.basic_qos(prefetch_count=1)  # the barrier: an ack has no answer

    def give_back(self) -> None:
        """What was not dropped is the next reader's."""
        if self._held:
            self._channel.basic_nack(multiple=True, requeue=True)
