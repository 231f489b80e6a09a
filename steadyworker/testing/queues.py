"""The state of the in-memory broker: its messages, and the consumers that hold them."""

from __future__ import annotations

import threading
from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from steadyworker.adapter import Browsed, Depth, Lost, Signal, Sink, Unreachable
from steadyworker.clock import Clock
from steadyworker.delivery import KEY, Delivery, Headers, OutgoingMessage, Redelivered, Settle, Target
from steadyworker.errors import (
    BrokerUnavailable,
    LettersHeld,
    MessageRefused,
    PublishFailed,
    StaleDelivery,
    TargetFull,
    TargetMissing,
    Unsettled,
)


@dataclass(slots=True, eq=False)
class QueuedMessage:
    """A message in a queue, until it is acknowledged; tests may read this object, but must not change it."""

    queue: str
    body: bytes
    headers: Headers
    message_id: str
    due: float
    sent_at: float
    order: int
    handed: int = 0
    holder: MemoryConsumer | None = None
    pumped: int = 0


@dataclass(slots=True, eq=False)
class MemoryConsumer:
    """The broker's state for one consumer, which is a MemoryAdapter or a reader of dead letters."""

    queue: str
    sink: Sink = field(default=lambda _: None)
    epoch: int = 0
    connected: bool = False
    window: int = 0
    next_id: int = 0
    outbox: deque[Signal] = field(default_factory=deque)
    held: dict[str, QueuedMessage] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    settlement_lost: bool | None = None
    confirm_lost: bool | None = None

    def give_back(self) -> None:
        """Release every message that this consumer holds."""
        for message in self.held.values():
            message.holder = None
        self.held.clear()
        self.revoked.clear()


class Queues:
    """
    The consumers, and the messages of each queue, ordered by due time and then by time of arrival.

    Methods that adapters call acquire the lock themselves.
    The other methods are for the MemoryBroker, which must hold the lock when it calls them.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.everyone: list[MemoryConsumer] = []
        self.readers: list[MemoryConsumer] = []
        self.by_name: dict[str, list[QueuedMessage]] = {}
        self.deleted: set[str] = set()
        self.full: set[str] = set()
        self.down: str | None = None
        self.blocked: str | None = None
        self.levels: tuple[float, ...] = ()
        self.largest: int | None = None
        self.rejects = True
        self.dead_letter_queues: dict[str, str] = {}
        self._order = 0

    def messages(self, queue: str) -> list[QueuedMessage]:
        """Return every message that is not acknowledged, in the order of their due times."""
        with self.lock:
            return list(self.by_name.get(queue, ()))

    def connect(self, consumer: MemoryConsumer) -> None:
        """Connect the consumer at the next pump."""
        with self.lock:
            self.everyone.append(consumer)
            if self.down is not None:
                consumer.outbox.append(Unreachable(self.down))

    def close(self, consumer: MemoryConsumer) -> None:
        """Remove the consumer: its messages are redelivered, and it receives no more signals."""
        with self.lock:
            consumer.give_back()
            consumer.connected = False
            for group in (self.everyone, self.readers):
                if consumer in group:
                    group.remove(consumer)

    def publish(self, consumer: MemoryConsumer, queue: str, message: OutgoingMessage) -> None:
        """Put a message into a queue."""
        with self.lock:
            refusal = self.down or self.blocked
            if refusal is not None:
                raise PublishFailed(f"Expected a broker that accepts messages, got: {refusal}.")
            if self.largest is not None and len(message.body) > self.largest:
                raise MessageRefused(
                    f"Expected a message of at most {self.largest} bytes, got {len(message.body)}: raise the limit.",
                    id="rabbitmq.message-too-large",
                )
            if queue in self.deleted:
                raise TargetMissing(f"Expected the queue {queue!r}, got none, as it was deleted: declare it again.")
            if queue in self.full and message.to is not Target.LATER:
                raise TargetFull(
                    f"Expected the queue {queue!r} to accept a message, got a refusal, because it is full."
                )
            lost, consumer.confirm_lost = consumer.confirm_lost, None
            if lost is not False:
                delay = self._delay(message.delay) if message.to is Target.LATER else 0.0
                self.put(queue, message.body, dict(message.headers), message.message_id, delay)
            if lost is not None:
                raise PublishFailed("Expected a confirm, got none: the message may or may not be in its queue.")

    def settle(self, consumer: MemoryConsumer, delivery: Delivery, how: Settle) -> None:
        """Settle a delivery of the consumer's present epoch."""
        with self.lock:
            if not consumer.connected or delivery.epoch != consumer.epoch or delivery.id in consumer.revoked:
                got = f"{delivery.id} of epoch {delivery.epoch}"
                raise StaleDelivery(
                    f"Expected a valid delivery of epoch {consumer.epoch}, got {got}: its message is redelivered."
                )
            lost, consumer.settlement_lost = consumer.settlement_lost, None
            if lost is not False:
                self._remove(consumer, delivery.id, how)
            if lost is not None:
                self.end_epoch(consumer, "a settlement without a reply")
                raise Unsettled("Expected the broker's reply, got none: the message is either gone or redelivered.")

    def consumers(self, queue: str) -> int:
        """Return the number of the queue's connected consumers with a prefetch above 0."""
        self.reach()
        with self.lock:
            consuming = (each for each in self.everyone if each.connected and each.window > 0)
            return sum(1 for consumer in consuming if consumer.queue == queue)

    def depth(self, queue: str, dead_letter_queue: str) -> Depth:
        """Return all numbers of a work queue."""
        consumers = self.consumers(queue)
        with self.lock:
            now, wall = self.clock.boottime(), self.clock.wall()
            messages = self.by_name.get(queue, ())
            free = [message for message in messages if message.holder is None]
            ready = [message for message in free if message.due <= now]
            delayed = [message for message in free if message.due > now]
            return Depth(
                ready=len(ready),
                delayed=len(delayed),
                next_due=wall + delayed[0].due - now if delayed else None,
                unacked=len(messages) - len(free),
                dead=len(self.by_name.get(dead_letter_queue, ())),
                consumers=consumers,
                oldest_age=now - ready[0].due if ready else None,
            )

    def browse(self, queue: str, limit: int) -> Iterator[Browsed]:
        """Yield at most `limit` messages that no consumer holds."""
        self.reach()
        now, wall = self.clock.boottime(), self.clock.wall()
        for message in [message for message in self.messages(queue) if message.holder is None][:limit]:
            due = wall + message.due - now if message.due > now else None
            yield Browsed(message.headers, message.message_id, message.sent_at, due)

    def has_queue(self, queue: str) -> bool:
        """Return whether a message or a consumer has used the queue, and no test has deleted the queue."""
        self.reach()
        with self.lock:
            used = queue in self.by_name or any(consumer.queue == queue for consumer in self.everyone)
            return used and queue not in self.deleted

    def reach(self) -> None:
        """Raise BrokerUnavailable while the broker is down."""
        if self.down is not None:
            raise BrokerUnavailable(f"Expected a broker that responds, got: {self.down}.")

    def open_reader(self, reader: MemoryConsumer) -> None:
        """Record a reader of dead letters until `close`; raises LettersHeld if the queue already has a reader."""
        with self.lock:
            if any(other.queue == reader.queue for other in self.readers):
                raise LettersHeld(f"Expected no other reader of {reader.queue!r}, got one: wait until it has ended.")
            self.readers.append(reader)

    def read(self, reader: MemoryConsumer) -> Iterator[Delivery]:
        """Yield each message that is due now, and hold it for this reader of dead letters."""
        self.reach()
        for message in self.messages(reader.queue):
            with self.lock:
                if message.holder is not None or message.due > self.clock.boottime():
                    continue
                delivery = self.plan(reader, message)
            yield delivery

    def put(self, queue: str, body: bytes, headers: Headers, message_id: str | None, delay: float = 0.0) -> None:
        """Add a message that is due after `delay` seconds."""
        self._order += 1
        due = self.clock.boottime() + delay
        id_ = message_id or f"m-{self._order}"
        message = QueuedMessage(queue, body, headers, id_, due, self.clock.wall(), self._order)
        insort(self.by_name.setdefault(queue, []), message, key=_place)

    def hasten(self, key: str) -> None:
        """Make every message with this job key or message id due now."""
        now = self.clock.boottime()
        for message in self.find(key):
            if message.due > now:
                self.by_name[message.queue].remove(message)
                message.due = now
                insort(self.by_name[message.queue], message, key=_place)

    def due(self, queue: str, pump: int, limit: int | None = None) -> list[QueuedMessage]:
        """Return the messages that this pump can still deliver now, oldest first."""
        now = self.clock.boottime()
        due: list[QueuedMessage] = []
        for message in self.by_name.get(queue, ()):
            if message.due > now or len(due) == limit:
                break
            if message.holder is None and message.pumped != pump:
                due.append(message)
        return due

    def plan(self, consumer: MemoryConsumer, message: QueuedMessage, pump: int = 0) -> Delivery:
        """Make the consumer hold the message, and return the delivery."""
        consumer.next_id += 1
        id_ = str(consumer.next_id)
        consumer.held[id_] = message
        message.holder = consumer
        message.pumped = pump
        message.handed += 1
        return Delivery(
            epoch=consumer.epoch,
            id=id_,
            queue=message.queue,
            body=message.body,
            headers=message.headers,
            message_id=message.message_id,
            redelivered=Redelivered.YES if message.handed > 1 else Redelivered.NO,
            sent_at=message.sent_at,
        )

    def end_epoch(self, consumer: MemoryConsumer, cause: str) -> None:
        """Cut the consumer's connection; the next pump sends it `Lost`."""
        if consumer.connected:
            consumer.give_back()
            consumer.connected = False
            consumer.outbox.append(Lost(consumer.epoch, cause))

    def revoke(self, key: str) -> tuple[MemoryConsumer, str]:
        """Remove an un-acked message from its consumer; return the consumer, and the id of the invalid delivery."""
        for message in self.find(key):
            if (holder := message.holder) is not None:
                id_ = next(id_ for id_, held in holder.held.items() if held is message)
                del holder.held[id_]
                holder.revoked.add(id_)
                message.holder = None
                return holder, id_
        raise LookupError(
            f"Expected an un-acked message {key!r}, got one that no consumer holds: call `pump` first, which delivers it."
        )

    def lose(self, message: QueuedMessage, *, silent: bool) -> None:
        """Remove a message; `silent` as in `MemoryBroker.lose`."""
        self.by_name[message.queue].remove(message)
        if (holder := message.holder) is not None:
            id_ = next(id_ for id_, held in holder.held.items() if held is message)
            del holder.held[id_]
            message.holder = None
            if not silent:
                holder.revoked.add(id_)

    def find(self, key: str) -> list[QueuedMessage]:
        """Return the messages with this job key or message id; raises LookupError if there is none."""
        everything = (message for queue in self.by_name.values() for message in queue)
        found = [message for message in everything if key in (message.message_id, message.headers.get(KEY))]
        if not found:
            raise LookupError(f"Expected a message with the job key or message id {key!r}, got none in any queue.")
        return found

    def _delay(self, wanted: float) -> float:
        """
        Return the delay, rounded up to a level or cut to the longest level.

        Without levels, return the delay unchanged.
        """
        return next((level for level in self.levels if level >= wanted), max(self.levels, default=wanted))

    def _remove(self, consumer: MemoryConsumer, id_: str, how: Settle) -> None:
        message = consumer.held.pop(id_, None)
        if message is not None:  # otherwise the delivery is already settled, and a second settlement does nothing
            message.holder = None
            if how is not Settle.RELEASE:
                self.by_name[message.queue].remove(message)
            if how is Settle.REJECT:
                self.put(self.dead_letter_queues[message.queue], message.body, message.headers, message.message_id)


def _place(message: QueuedMessage) -> tuple[float, int]:
    return message.due, message.order
