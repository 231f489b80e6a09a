"""
An in-memory broker, with methods for the faults of real brokers.

`MemoryBroker(clock)` has no thread and never sleeps.
Publishing, settling and every fault act at once; signals wait until `pump()` delivers them.
So a test, a simulation or the Harness decides the order of events.
With `pump(choose=random.Random(seed).randrange)`, a seed decides the order.

| method | the same event on a real broker |
|---|---|
| `drop_connection(adapter)` | the socket is cut: the epoch ends, un-acked messages are redelivered, a new epoch follows |
| `redeliver(key)` | a delivery timeout: the message is delivered again, and the first delivery is no longer valid |
| `duplicate(key)` | a sender that did not receive its confirm and published twice |
| `lose(message)` | a purge, a TTL, a lost store, or a fault of the broker: the message is gone |
| `hasten(key)` | a delay that ends too early, because an operator set a clock |
| `delay_by(*levels)` | a broker without exact delays: a delay is rounded up to a level, and cut to the longest level |
| `lose_settlement(adapter, landed=…)` | a settlement, or the reply to it, is lost |
| `lose_confirm(adapter, landed=…)` | a publish, or its confirm, is lost |
| `go_down()`, `come_up()` | the broker restarts |
| `block()`, `unblock()` | an alarm: the broker accepts no publishes |
| `fill_queue(name)`, `make_room(name)` | a queue at its length limit refuses new messages, but accepts delayed messages that are due |
| `limit_bodies(size, rejects=…)` | a limit that was lowered: the broker refuses a copy of a message that it accepted before |
| `delete_queue(name)`, `declare_queue(name)` | an operator removes a queue, and declares it again |
"""

from __future__ import annotations

from collections.abc import Callable

from steadyworker.adapter import (
    Blocked,
    Connected,
    Delivered,
    Lost,
    QueueSpec,
    Settings,
    Signal,
    Sink,
    Unblocked,
    Unreachable,
)
from steadyworker.clock import Clock
from steadyworker.testing.memory_adapter import MemoryAdapter
from steadyworker.testing.queues import MemoryConsumer, QueuedMessage, Queues

Choose = Callable[[int], int]
"""A function that chooses one of n items: it returns an index from 0 to n - 1, as `random.Random.randrange` does."""


class MemoryBroker:
    """
    A broker with queues in memory; all adapters that `adapter(spec)` makes share these queues.

    Delays are exact by the given clock, unless `delay_by` sets levels.
    Every method except `pump` is thread-safe; only one thread may call `pump`.
    Only `pump` calls sinks, and it holds no lock during these calls.
    """

    def __init__(self, clock: Clock, identity: str = "memory") -> None:
        self.identity = identity
        self._queues = Queues(clock)
        self._clock = clock
        self._lock = self._queues.lock
        self._pump = 0

    def adapter(self, spec: QueueSpec, settings: Settings | None = None) -> MemoryAdapter:
        """Return a new adapter for this queue; the broker treats each adapter as another worker process."""
        self._queues.dead_letter_queues[spec.queue] = spec.dead_letter_queue
        return MemoryAdapter(self._queues, self.identity, spec, settings or Settings(clock=self._clock))

    # Results for a test

    def messages(self, queue: str) -> list[QueuedMessage]:
        """Return every message that is not acknowledged, in the order of the due times, including delayed and un-acked messages."""
        return self._queues.messages(queue)

    def dead(self, queue: str) -> list[QueuedMessage]:
        """Return the dead letters of this *work* queue."""
        return self.messages(self._queues.dead_letter_queues[queue])

    def depth(self, queue: str) -> int:
        """Return the number of the queue's messages that are not acknowledged, including delayed and un-acked messages."""
        return len(self._queues.by_name.get(queue, ()))

    def due_in(self) -> float | None:
        """Return the seconds until the next delayed message is due, or None if no message is delayed."""
        now = self._clock.boottime()
        with self._lock:
            waits = [
                message.due - now for queue in self._queues.by_name.values() for message in queue if message.due > now
            ]
        return min(waits, default=None)

    # Actions of a test

    def pump(self, choose: Choose | None = None, limit: int | None = None) -> int:
        """
        Deliver all waiting signals, or at most `limit` of them, and return the number of delivered signals.

        Without `choose`, the oldest message goes first, and consumers take turns.
        `choose` picks the consumer and the message.
        A call delivers a message at most once, so that the call ends even if a worker releases every message.
        """
        self._pump += 1
        done = 0
        while limit is None or done < limit:
            with self._lock:
                step = self._step(choose)
            if step is None:
                break
            sink, signal = step
            sink(signal)
            done += 1
        return done

    def drop_connection(self, adapter: MemoryAdapter, cause: str = "connection reset") -> None:
        """
        End this adapter's epoch.

        The epoch's un-acked messages are redelivered, and the next pump sends Lost, then Connected.
        """
        with self._lock:
            self._queues.end_epoch(adapter.consumer, cause)

    def redeliver(self, key: str, *, silent: bool = True) -> None:
        """
        Take an un-acked message back from its consumer, and deliver the message again.

        `key` is the job key or the message id.
        Without `silent`, the consumer receives `Lost`.
        With `silent`, the consumer receives no signal, and settling the old delivery raises StaleDelivery.
        """
        with self._lock:
            holder, id_ = self._queues.revoke(key)
            if not silent:
                holder.outbox.append(Lost(holder.epoch, "delivery timed out", id_))

    def duplicate(self, key: str) -> None:
        """Publish the message with this job key or message id a second time."""
        with self._lock:
            message = self._queues.find(key)[0]
            self._queues.put(message.queue, message.body, message.headers, message.message_id)

    def lose(self, message: QueuedMessage, *, silent: bool = True) -> None:
        """
        Lose this message, which `messages` or `dead` has returned.

        A consumer that holds the message receives no signal.
        With `silent`, a later settlement of the message's delivery succeeds, and does nothing.
        Without `silent`, such a settlement raises StaleDelivery.
        """
        with self._lock:
            self._queues.lose(message, silent=silent)

    def hasten(self, key: str) -> None:
        """Make every delayed message with this job key or message id due now."""
        with self._queues.lock:
            self._queues.hasten(key)

    def delay_by(self, *levels: float) -> None:
        """Round delays up to these levels, in ascending seconds; without levels, delays are exact."""
        self._queues.levels = levels

    def lose_settlement(self, adapter: MemoryAdapter, *, landed: bool) -> None:
        """
        Make the adapter's next settlement raise Unsettled and end the adapter's epoch.

        If `landed`, the broker first carries out the settlement.
        """
        adapter.consumer.settlement_lost = landed

    def lose_confirm(self, adapter: MemoryAdapter, *, landed: bool) -> None:
        """
        Make the adapter's next publish raise PublishFailed.

        If `landed`, the message still gets into its queue.
        """
        adapter.consumer.confirm_lost = landed

    def go_down(self, cause: str = "the broker is down") -> None:
        """Drop every connection, and refuse every call until `come_up`."""
        with self._lock:
            self._queues.down = cause
            for consumer in self._queues.everyone:
                self._queues.end_epoch(consumer, cause)
                consumer.outbox.append(Unreachable(cause))

    def come_up(self) -> None:
        """Accept connections again; each started adapter connects at the next pump."""
        self._queues.down = None

    def block(self, cause: str = "alarm") -> None:
        """Refuse publishes, and send Blocked to every connected consumer."""
        self._queues.blocked = cause
        self._broadcast(Blocked(cause))

    def unblock(self) -> None:
        """Accept publishes again, and send Unblocked to every connected consumer."""
        self._queues.blocked = None
        self._broadcast(Unblocked())

    def fill_queue(self, name: str) -> None:
        """
        Fill a queue: a publish to this queue raises TargetFull until `make_room`.

        A delayed message still gets into the queue when the message is due.
        """
        self._queues.full.add(name)

    def make_room(self, name: str) -> None:
        """Undo `fill_queue`."""
        self._queues.full.discard(name)

    def limit_bodies(self, size: int | None, *, rejects: bool = True) -> None:
        """
        Refuse each message with a body above `size` bytes; None removes the limit.

        Without `rejects`, the work queues do not move rejected messages to dead-letter queues.
        """
        self._queues.largest, self._queues.rejects = size, rejects

    def delete_queue(self, name: str) -> None:
        """Delete a queue: a publish to this queue raises TargetMissing until `declare_queue`."""
        self._queues.deleted.add(name)

    def declare_queue(self, name: str) -> None:
        """Undo `delete_queue`."""
        self._queues.deleted.discard(name)

    def _step(self, choose: Choose | None) -> tuple[Sink, Signal] | None:
        ready: list[tuple[MemoryConsumer, list[QueuedMessage]]] = []
        for consumer in self._queues.everyone:
            if not consumer.outbox and not consumer.connected and self._queues.down is None:
                consumer.epoch += 1
                consumer.connected = True
                consumer.outbox.append(Connected(consumer.epoch))
            if consumer.outbox:
                ready.append((consumer, []))
            elif consumer.connected and consumer.window > len(consumer.held):
                due = self._queues.due(consumer.queue, self._pump, 1 if choose is None else None)
                if due:
                    ready.append((consumer, due))
        if not ready:
            return None
        consumer, due = ready[choose(len(ready)) if choose else 0]
        if not due:
            return consumer.sink, consumer.outbox.popleft()
        self._queues.everyone.remove(consumer)  # the consumer moves to the end, so that consumers take turns
        self._queues.everyone.append(consumer)
        message = due[choose(len(due)) if choose else 0]
        return consumer.sink, Delivered(self._queues.plan(consumer, message, self._pump))

    def _broadcast(self, signal: Signal) -> None:
        with self._lock:
            for consumer in self._queues.everyone:
                if consumer.connected:
                    consumer.outbox.append(signal)
