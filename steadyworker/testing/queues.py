"""What is inside the in-memory broker: messages, who holds them, and what is due."""

from __future__ import annotations

import threading
from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from steadyworker.adapter import Lost, Signal, Sink, Unreachable
from steadyworker.clock import Clock
from steadyworker.delivery import KEY, Delivery, Headers, OutgoingMessage, Redelivered, Settle, Target
from steadyworker.errors import BrokerUnavailable, PublishFailed, StaleDelivery, TargetMissing, Unsettled


@dataclass(slots=True, eq=False)
class Message:
    """A message that is in a queue until it is acknowledged; for assertions: look, don't touch."""

    queue: str
    body: bytes
    headers: Headers
    message_id: str
    due: float
    sent_at: float
    order: int
    handed: int = 0
    holder: Consumer | None = None
    pumped: int = 0


@dataclass(slots=True, eq=False)
class Consumer:
    """One consumer, as the broker sees it: the state behind a MemoryAdapter or a reader of dead letters."""

    queue: str
    tell: Sink = field(default=lambda _: None)
    epoch: int = 0
    connected: bool = False
    window: int = 0
    next_id: int = 0
    outbox: deque[Signal] = field(default_factory=deque)
    held: dict[str, Message] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    settlement_lost: bool | None = None
    confirm_lost: bool | None = None

    def give_back(self) -> None:
        """Let go of every message that is held."""
        for message in self.held.values():
            message.holder = None
        self.held.clear()
        self.revoked.clear()


class Queues:
    """
    Messages by queue, ordered by when they are due and then by when they came, and the consumers that take them.

    What adapters call takes the lock; what only the MemoryBroker calls expects its caller to hold it.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.everyone: list[Consumer] = []
        self.by_name: dict[str, list[Message]] = {}
        self.deleted: set[str] = set()
        self.down: str | None = None
        self.blocked: str | None = None
        self.levels: tuple[float, ...] = ()
        self._order = 0

    def messages(self, queue: str) -> list[Message]:
        """Everything that is not acknowledged, in the order in which it is due."""
        with self.lock:
            return list(self.by_name.get(queue, ()))

    def connect(self, consumer: Consumer) -> None:
        """The consumer wants to be connected, from the next pump on."""
        with self.lock:
            self.everyone.append(consumer)
            if self.down is not None:
                consumer.outbox.append(Unreachable(self.down))

    def close(self, consumer: Consumer) -> None:
        """The consumer is gone: what it held comes again, and it hears nothing more."""
        with self.lock:
            consumer.give_back()
            consumer.connected = False
            if consumer in self.everyone:
                self.everyone.remove(consumer)

    def publish(self, consumer: Consumer, queue: str, message: OutgoingMessage) -> None:
        """Put a copy into a queue."""
        with self.lock:
            refusal = self.down or self.blocked
            if refusal is not None:
                raise PublishFailed(f"Expected a broker that takes messages, got: {refusal}.")
            if queue in self.deleted:
                raise TargetMissing(f"Expected the queue {queue!r}, but it was deleted: declare it again.")
            lost, consumer.confirm_lost = consumer.confirm_lost, None
            if lost is not False:
                delay = self._delay(message.delay) if message.to is Target.LATER else 0.0
                self.put(queue, message.body, dict(message.headers), message.message_id, delay)
            if lost is not None:
                raise PublishFailed("Expected a confirm, got none: the message may or may not be there.")

    def settle(self, consumer: Consumer, delivery: Delivery, how: Settle) -> None:
        """Settle a delivery of the consumer's present epoch."""
        with self.lock:
            if not consumer.connected or delivery.epoch != consumer.epoch or delivery.id in consumer.revoked:
                got = f"{delivery.id} of epoch {delivery.epoch}"
                raise StaleDelivery(f"Expected a valid delivery of epoch {consumer.epoch}, got {got}: it comes again.")
            lost, consumer.settlement_lost = consumer.settlement_lost, None
            if lost is not False:
                self._take(consumer, delivery.id, remove=how is Settle.ACK)
            if lost is not None:
                self.end_epoch(consumer, "a settlement without an answer")
                raise Unsettled("Expected the broker's answer, got none: the message is gone, or comes again.")

    def consumers(self, queue: str) -> int:
        """How many connected consumers the queue has."""
        self.reach()
        with self.lock:
            return sum(1 for consumer in self.everyone if consumer.connected and consumer.queue == queue)

    def reach(self) -> None:
        """Raise BrokerUnavailable while the broker is down."""
        if self.down is not None:
            raise BrokerUnavailable(f"Expected a broker that answers, got: {self.down}.")

    def read(self, reader: Consumer) -> Iterator[Delivery]:
        """Hold each message that is due now, one by one, for a reader that is no worker."""
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
        message = Message(queue, body, headers, id_, due, self.clock.wall(), self._order)
        insort(self.by_name.setdefault(queue, []), message, key=_place)

    def hasten(self, key: str) -> None:
        """Make the messages with this job key or message id due now."""
        now = self.clock.boottime()
        for message in self.find(key):
            if message.due > now:
                self.by_name[message.queue].remove(message)
                message.due = now
                insort(self.by_name[message.queue], message, key=_place)

    def due(self, queue: str, pump: int, limit: int | None = None) -> list[Message]:
        """The messages that can be handed over now and were not in this pump, oldest first."""
        now = self.clock.boottime()
        due: list[Message] = []
        for message in self.by_name.get(queue, ()):
            if message.due > now or len(due) == limit:
                break
            if message.holder is None and message.pumped != pump:
                due.append(message)
        return due

    def plan(self, consumer: Consumer, message: Message, pump: int = 0) -> Delivery:
        """Let the consumer hold the message."""
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

    def end_epoch(self, consumer: Consumer, cause: str) -> None:
        """Cut the consumer's connection: it will hear `Lost`."""
        if consumer.connected:
            consumer.give_back()
            consumer.connected = False
            consumer.outbox.append(Lost(consumer.epoch, cause))

    def revoke(self, key: str) -> tuple[Consumer, str]:
        """Take an un-acked message from its holder; answers the holder, and the delivery that is no longer valid."""
        for message in self.find(key):
            if (holder := message.holder) is not None:
                id_ = next(id_ for id_, held in holder.held.items() if held is message)
                del holder.held[id_]
                holder.revoked.add(id_)
                message.holder = None
                return holder, id_
        raise LookupError(f"Expected an un-acked message {key!r}, but nobody holds it: pump first.")

    def find(self, key: str) -> list[Message]:
        """The messages with this job key or message id; raises LookupError when there is none."""
        everything = (message for queue in self.by_name.values() for message in queue)
        found = [message for message in everything if key in (message.message_id, message.headers.get(KEY))]
        if not found:
            raise LookupError(f"Expected a message with the job key or message id {key!r}, got none in any queue.")
        return found

    def _delay(self, wanted: float) -> float:
        """Rounded up to a level, where there are levels; one over the longest is cut to it."""
        return next((level for level in self.levels if level >= wanted), max(self.levels, default=wanted))

    def _take(self, consumer: Consumer, id_: str, *, remove: bool) -> None:
        message = consumer.held.pop(id_, None)
        if message is not None:  # else it was settled before: settling is idempotent
            message.holder = None
            if remove:
                self.by_name[message.queue].remove(message)


def _place(message: Message) -> tuple[float, int]:
    return message.due, message.order
