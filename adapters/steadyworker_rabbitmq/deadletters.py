"""A reader of the dead-letter queue, for one thread. It has its own connections."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

from pika import BlockingConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker
from pika.spec import Basic, BasicProperties
from typing_extensions import override

from steadyworker.adapter import DeadLetters, Delivery, OutgoingMessage
from steadyworker.errors import BrokerUnavailable, LettersHeld, Unsettled
from steadyworker_rabbitmq import pika_internals
from steadyworker_rabbitmq.errors import is_missing, translated
from steadyworker_rabbitmq.messages import delivery_of, origin_of

PATIENCE = 300
"""
The heartbeat of the connection that reads dead letters, in seconds.

The reading thread sends no heartbeat while it works on a dead letter, and this work can take minutes.
"""

_MOST_AT_ONCE = 65_535
"""The largest prefetch that AMQP can express."""

_COUNTS, _COUNTS_AFTER = 100, 0.1
"""
How many times a reader counts the queue's readers, and the seconds before each count.

An earlier reader can return its letters in these seconds.
"""

_EARLIER = 10
"""
How many times a reader counts again if it has counted an earlier reader.

The broker can return the letters of that earlier reader some time after the reader has ended.
"""

_NEXT_WITHIN = 5.0
"""If the broker sends no byte for this many seconds, a reader expects no further letter."""

_Message = tuple[Basic.Deliver | Basic.GetOk | None, BasicProperties | None, bytes | None]
Connect = Callable[[], AbstractContextManager[BlockingConnection]]


class RabbitmqDeadLetters(DeadLetters):
    """
    The dead letters of one queue, for use by one thread.

    With AMQP, a client that reads a message also holds the message. So a reader holds each letter until it drops or releases the letter.
    A second reader would receive only the remaining letters, so each reader checks that the queue has no other reader.
    Each reader is a consumer, because the broker reports the number of a queue's consumers to every client, without a permission.
    A reader first subscribes, and then counts the consumers.
    So if two readers begin at the same time, at least one of them counts the other reader.
    A consumer is also faster: it receives 10,000 letters in one second, and `basic.get` needs 15 s for them.

    Args:
        channel: A channel that is used for nothing else.
        connect: Opens another connection. On the connection of `channel`, a reply would arrive only after the bodies of all letters.
        queue: The dead-letter queue.
        place: The broker's name in errors.
        publish: The adapter's `publish`.
    """

    def __init__(
        self,
        channel: BlockingChannel,
        connect: Connect,
        queue: str,
        place: str,
        publish: Callable[[OutgoingMessage], None],
    ) -> None:
        self._publish = publish
        self._channel = channel
        self._connect = connect
        self._queue = queue
        self._place = place
        self._held: set[int] = set()
        self._consumer = ""
        self._arrived: deque[_Message] = deque()

    @override
    def __iter__(self) -> Iterator[Delivery]:
        with translated(self._place):
            try:
                pushed, left = self._begun()
            except ChannelClosedByBroker as refused:
                if is_missing(refused):
                    return  # the queue was never created, so nothing is in it
                raise
        for number in range(pushed + left):  # letters that arrive after this count are for the next reader
            with translated(self._place):
                # The broker pushes no more letters than the prefetch; `basic.get` fetches each of the remaining letters.
                message = self._next(_NEXT_WITHIN) if number < pushed else self._channel.basic_get(self._queue)
            match message:
                case (Basic.Deliver() | Basic.GetOk()) as method, BasicProperties() as properties, bytes(body):
                    self._held.add(method.delivery_tag)
                    yield replace(delivery_of(0, self._queue, method, properties, body), origin=origin_of(properties))
                case _:
                    raise LettersHeld(
                        f"Expected {pushed + left} dead letters in queue {self._queue!r}, got {number}: "
                        "another program takes messages from it, or they expire. Stop that program, or try again."
                    )

    @override
    def publish(self, message: OutgoingMessage) -> None:
        self._publish(message)

    @override
    def drop(self, delivery: Delivery) -> None:
        tag = int(delivery.id)
        if tag in self._held:
            self._held.remove(tag)
            with translated(self._place, Unsettled):
                self._channel.basic_ack(tag)
                self._channel.basic_qos(prefetch_count=1)  # the broker replies to this request, and never to an ack

    def release(self) -> None:
        """Release every dead letter that was not dropped, for the next reader; the end of a connection releases them, too."""
        if (
            self._consumer and self._channel.is_open
        ):  # pika does not expect the cancel of a consumer on a closed channel
            self._channel.basic_cancel(self._consumer)
            self._channel.basic_nack(multiple=True, requeue=True)

    def _begun(self) -> tuple[int, int]:
        """
        Subscribe, and return the number of letters that the broker pushes, and the number of letters that remain in the queue.

        Raises LettersHeld if the queue has another consumer, and still has that consumer a second later.
        """
        count, readers = self._count(self._channel)
        for _ in range(_EARLIER if readers else 0):
            self._channel.connection.sleep(_COUNTS_AFTER)
            count, readers = self._count(self._channel)
            if not readers:
                break
        self._refuse(readers)
        pushed = min(count, _MOST_AT_ONCE)
        self._channel.basic_qos(prefetch_count=max(pushed, 1))
        self._consumer = self._channel.basic_consume(self._queue, lambda *message: self._arrived.append(message[1:]))
        with self._connect() as other:
            left = self._alone(other)
        if not pushed and self._next(_COUNTS_AFTER, keep=True) is not None:
            pushed = 1
        return pushed, left

    def _alone(self, other: BlockingConnection) -> int:
        """Return the number of letters left in the queue; raise LettersHeld if the queue has another consumer."""
        channel = other.channel()
        for _ in range(_COUNTS):
            other.sleep(_COUNTS_AFTER)
            left, readers = self._count(channel)
            if readers:  # a busy quorum queue reports 0 messages and 0 consumers
                self._refuse(readers - 1)
                return left
        raise BrokerUnavailable(
            f"Expected a consumer count from queue {self._queue!r}, got no count for {_COUNTS * _COUNTS_AFTER:g} s: "
            "check whether the broker is overloaded, or the queue has lost its majority."
        )

    def _count(self, channel: BlockingChannel) -> tuple[int, int]:
        """Return the number of ready messages, and the number of the queue's consumers."""
        found = channel.queue_declare(self._queue, passive=True).method
        return found.message_count, found.consumer_count

    def _refuse(self, readers: int) -> None:
        if readers:
            raise LettersHeld(
                f"Expected no other consumer of the dead-letter queue {self._queue!r}, got {readers}: wait until the other "
                "`steadyworker dead` command has ended, or stop the program that consumes this queue."
            )

    def _next(self, within: float, *, keep: bool = False) -> _Message | None:
        """
        Return the next message that the broker pushes; None if no byte arrives for `within` seconds.

        The method counts bytes, because a large message arrives in parts.
        """
        connection = self._channel.connection
        before = -1
        while not self._arrived and (received := pika_internals.received(connection)) != before:
            before = received
            connection.process_data_events(time_limit=within)
        if not self._arrived:
            return None
        return self._arrived[0] if keep else self._arrived.popleft()
