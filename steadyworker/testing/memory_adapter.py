"""The adapter of the in-memory broker: the smallest adapter that keeps every promise, and the first adapter to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from typing_extensions import override

from steadyworker.adapter import (
    Adapter,
    Browsed,
    Browses,
    Capabilities,
    ChecksMessages,
    DeadLetters,
    Delays,
    Depth,
    Finding,
    QueueSpec,
    Settings,
    Sink,
)
from steadyworker.delivery import Delivery, OutgoingMessage, Settle, Settled, Target
from steadyworker.errors import PublishFailed
from steadyworker.testing.queues import MemoryConsumer, Queues


class MemoryAdapter(Adapter, Browses, ChecksMessages):
    """
    The adapter of one queue of a MemoryBroker.

    The fault methods of the broker use its attribute `consumer`.
    """

    def __init__(self, queues: Queues, identity: str, spec: QueueSpec, settings: Settings) -> None:
        self.consumer = MemoryConsumer(spec.queue)
        self._queues = queues
        self._identity = identity
        self._targets = {Target.WORK: spec.queue, Target.LATER: spec.queue, Target.DEAD: spec.dead_letter_queue}
        self._max_body = settings.max_body
        self._started = False
        self._stopped = False

    @property
    @override
    def capabilities(self) -> Capabilities:
        levels = self._queues.levels
        return Capabilities(
            delays=Delays.LEVELS if levels else Delays.EXACT,
            levels=levels,
            counts_consumers=True,
            rejects=self._queues.rejects,
            max_body=self._max_body,
            one_host=True,
        )

    @property
    @override
    def last_turn(self) -> None:
        """None, because this adapter has no thread."""
        return

    @override
    def start(self, sink: Sink) -> None:
        """Connect at the next pump."""
        if not self._started and not self._stopped:
            self._started = True
            self.consumer.sink = sink
            self._queues.connect(self.consumer)

    @override
    def prefetch(self, count: int) -> None:
        self.consumer.window = count

    @override
    def publish(self, message: OutgoingMessage) -> None:
        self.check_message(message)
        if self._stopped:
            raise PublishFailed("Expected an open adapter, got a stopped one: open another.")
        self._queues.publish(self.consumer, self._targets[message.to], message)

    @override
    def check_message(self, message: OutgoingMessage) -> None:
        if message.first and len(message.body) > self._max_body:
            raise ValueError(
                f"Expected a body of at most {self._max_body} bytes, got {len(message.body)}: send a reference to it."
            )

    @override
    def settle(self, delivery: Delivery, how: Settle) -> Settled:
        self._queues.settle(self.consumer, delivery, how)
        return Settled.CONFIRMED

    @override
    def identity(self) -> str:
        self._queues.reach()
        return self._identity

    @override
    def exists(self) -> bool:
        """Return whether an adapter or a message has used the queue."""
        return self._queues.has_queue(self.consumer.queue)

    @override
    def consumers(self) -> int:
        return self._queues.consumers(self.consumer.queue)

    @override
    def depth(self) -> Depth:
        """Return all numbers of the queue."""
        return self._queues.depth(self.consumer.queue, self._targets[Target.DEAD])

    @override
    def browse(self, limit: int) -> Iterator[Browsed]:
        return self._queues.browse(self.consumer.queue, limit)

    @override
    def findings(self, spec: QueueSpec) -> Sequence[Finding]:
        self._queues.reach()
        return ()  # this broker fits every queue

    @override
    @contextmanager
    def dead_letters(self) -> Iterator[MemoryDeadLetters]:
        reader = MemoryConsumer(self._targets[Target.DEAD], epoch=1, connected=True)
        self._queues.open_reader(reader)
        try:
            yield MemoryDeadLetters(self, self._queues, reader)
        finally:
            self._queues.close(reader)

    @override
    def stop(self, within: float) -> None:
        """Close the consumer at once; its un-settled messages are delivered again."""
        self._stopped = True
        self._queues.close(self.consumer)


class MemoryDeadLetters(DeadLetters):
    """The dead letters of one queue, held for one reader."""

    def __init__(self, adapter: MemoryAdapter, queues: Queues, reader: MemoryConsumer) -> None:
        self._adapter = adapter
        self._queues = queues
        self._reader = reader

    @override
    def __iter__(self) -> Iterator[Delivery]:
        return self._queues.read(self._reader)

    @override
    def publish(self, message: OutgoingMessage) -> None:
        self._adapter.publish(message)

    @override
    def drop(self, delivery: Delivery) -> None:
        self._queues.settle(self._reader, delivery, Settle.ACK)
