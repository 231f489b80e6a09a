"""
An in-memory broker that does to a worker what real brokers do, when a test says so.

`MemoryBroker(clock)` has no thread and no sleep: publishing, settling and every fault act at once, and signals wait
until `pump()` delivers them.
A test, a simulation or the Harness therefore decides what happens in which order; with
`pump(choose=random.Random(seed).randrange)` a seed does.

| verb | what a worker would see of it on a real broker |
|---|---|
| `drop_connection(adapter)` | the socket is cut: the epoch ends, what is un-acked comes again, a new epoch follows |
| `redeliver(key)` | a delivery timeout: the message goes to someone again, and the first delivery is no longer valid |
| `duplicate(key)` | a sender that did not hear its confirm and published twice |
| `hasten(key)` | a delay that ends too early: a clock that was set |
| `delay_by(*levels)` | a broker without exact delays: they are rounded up to a level, and one over the longest is cut to it |
| `lose_settlement(adapter, landed=…)` | the acknowledgement, or the answer to it, is lost |
| `lose_confirm(adapter, landed=…)` | a publish, or its confirm, is lost |
| `go_down()`, `come_up()` | the broker restarts |
| `block()`, `unblock()` | an alarm: it takes no publishes |
| `delete_queue(name)`, `declare_queue(name)` | somebody removed the queue that copies go to |
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
from steadyworker.testing.queues import Consumer, Message, Queues

Choose = Callable[[int], int]
"""Picks one of n: an index from 0 to n - 1, as `random.Random.randrange` does."""


class MemoryBroker:
    """
    Queues in memory, shared by every adapter that `adapter(spec)` makes; delays are exact until told otherwise, by the clock given to it.

    Thread-safe, but for `pump`, which one thread calls; sinks are called by `pump` only, without any lock held.
    """

    def __init__(self, clock: Clock, identity: str = "memory") -> None:
        self.identity = identity
        self._queues = Queues(clock)
        self._clock = clock
        self._lock = self._queues.lock
        self._dead_letter_queues: dict[str, str] = {}
        self._pump = 0

    def adapter(self, spec: QueueSpec, settings: Settings | None = None) -> MemoryAdapter:
        """A new adapter for this queue: another worker process, as far as the broker can tell."""
        self._dead_letter_queues[spec.queue] = spec.dead_letter_queue
        return MemoryAdapter(self._queues, self.identity, spec, settings or Settings(clock=self._clock))

    # What a test looks at

    def messages(self, queue: str) -> list[Message]:
        """Everything that is not acknowledged, delayed and un-acked messages too, in the order in which it is due."""
        return self._queues.messages(queue)

    def dead(self, queue: str) -> list[Message]:
        """The dead letters of this *work* queue."""
        return self.messages(self._dead_letter_queues[queue])

    def depth(self, queue: str) -> int:
        """How many messages of the queue are not acknowledged, delayed and un-acked ones included."""
        return len(self._queues.by_name.get(queue, ()))

    def due_in(self) -> float | None:
        """Seconds until the next delayed message is due, or None when nothing waits for its time."""
        now = self._clock.boottime()
        with self._lock:
            waits = [
                message.due - now for queue in self._queues.by_name.values() for message in queue if message.due > now
            ]
        return min(waits, default=None)

    # What a test drives

    def pump(self, choose: Choose | None = None, limit: int | None = None) -> int:
        """
        Deliver signals until nothing is left to do, or `limit` of them, and answer how many.

        Without `choose`: the oldest message first, consumers in turn; with it, it picks who gets which message.
        A message is handed over once per call, so that a worker that releases everything cannot keep it busy for ever.
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
        """End this adapter's epoch: its un-acked messages come again, and the next pump says Lost, then Connected."""
        with self._lock:
            self._queues.end_epoch(adapter.consumer, cause)

    def redeliver(self, key: str, *, silent: bool = True) -> None:
        """
        Take an un-acked message, named by its job key or message id, from who holds it; it comes again.

        The holder is told (`Lost`); when `silent` it only finds out when it settles.
        """
        with self._lock:
            holder, id_ = self._queues.revoke(key)
            if not silent:
                holder.outbox.append(Lost(holder.epoch, "delivery timed out", id_))

    def duplicate(self, key: str) -> None:
        """Publish a second time what is in a queue under this job key or message id."""
        with self._lock:
            message = self._queues.find(key)[0]
            self._queues.put(message.queue, message.body, message.headers, message.message_id)

    def hasten(self, key: str) -> None:
        """Make every delayed message with this job key or message id due now."""
        with self._queues.lock:
            self._queues.hasten(key)

    def delay_by(self, *levels: float) -> None:
        """Delay by these levels only, in seconds, ascending; none: exactly."""
        self._queues.levels = levels

    def lose_settlement(self, adapter: MemoryAdapter, *, landed: bool) -> None:
        """The adapter's next settlement raises Unsettled, and its epoch ends; the broker heard it when it `landed`."""
        adapter.consumer.settlement_lost = landed

    def lose_confirm(self, adapter: MemoryAdapter, *, landed: bool) -> None:
        """The adapter's next publish raises PublishFailed; the message is there all the same when it `landed`."""
        adapter.consumer.confirm_lost = landed

    def go_down(self, cause: str = "the broker is down") -> None:
        """Drop every connection, and refuse everything until `come_up`."""
        with self._lock:
            self._queues.down = cause
            for consumer in self._queues.everyone:
                self._queues.end_epoch(consumer, cause)
                consumer.outbox.append(Unreachable(cause))

    def come_up(self) -> None:
        """Take connections again; whoever was started connects at the next pump."""
        self._queues.down = None

    def block(self, cause: str = "alarm") -> None:
        """Refuse publishes, and say so to every connected consumer."""
        self._queues.blocked = cause
        self._tell(Blocked(cause))

    def unblock(self) -> None:
        """Take publishes again."""
        self._queues.blocked = None
        self._tell(Unblocked())

    def delete_queue(self, name: str) -> None:
        """Publishing to it raises TargetMissing until it is declared again."""
        self._queues.deleted.add(name)

    def declare_queue(self, name: str) -> None:
        """Undo `delete_queue`."""
        self._queues.deleted.discard(name)

    def _step(self, choose: Choose | None) -> tuple[Sink, Signal] | None:
        ready: list[tuple[Consumer, list[Message]]] = []
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
            return consumer.tell, consumer.outbox.popleft()
        self._queues.everyone.remove(consumer)  # to the end of the line: consumers take turns
        self._queues.everyone.append(consumer)
        message = due[choose(len(due)) if choose else 0]
        return consumer.tell, Delivered(self._queues.plan(consumer, message, self._pump))

    def _tell(self, signal: Signal) -> None:
        with self._lock:
            for consumer in self._queues.everyone:
                if consumer.connected:
                    consumer.outbox.append(signal)
