"""
One epoch: a connection to the broker file, a presence next to it, and a row in its table of consumers.

An epoch ends when the file fails or is replaced, or when another process has evicted this consumer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import SimpleQueue

from steadyworker.adapter import QueueSpec, Settings, Settle, Settled
from steadyworker_sqlite.errors import translated
from steadyworker_sqlite.presence import Presence, is_gone, remove, ring
from steadyworker_sqlite.store import BrokerFile, ReceivedMessage, Store

SILENCE = 30.0
"""A living process loses its messages if its I/O thread makes no turn for this many seconds."""

_STAMPS = 10
"""How many times the I/O thread records its turn within `SILENCE`: it records a turn every 3 s."""

SEARCH_EVERY = 0.5
"""How often an idle consumer searches for dead consumers, in seconds; a new message wakes the consumer at once."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingSettlement:
    """
    One `settle` call that waits for the I/O thread.

    The call waits at a queue, because a Future is ten times slower, and every job waits here.
    """

    seq: int
    count: int
    how: Settle
    _answer: SimpleQueue[Settled | Exception] = field(default_factory=SimpleQueue)

    def answer(self, answer: Settled | Exception) -> None:
        """End the wait with this result; the waiting call then returns or raises the result."""
        self._answer.put(answer)

    def wait(self) -> Settled:
        """Wait for the result, and return it; if the result is an error, raise the error."""
        answer = self._answer.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


class SqliteSession:
    """
    One epoch, from the registration in the broker file to its end.

    Other threads may call only `wake` and `vanish`; every other method is for the I/O thread.
    After the end of the session, the methods for the I/O thread raise BrokerUnavailable.
    """

    def __init__(self, file: BrokerFile, spec: QueueSpec, settings: Settings, silence: float) -> None:
        self._clock = settings.clock
        self._queue = spec.queue
        self._silence = silence
        now = self._turned = self._stamped = self._searched = self._clock.boottime()
        self._awake_since = float("-inf")
        self._held: set[tuple[int, int]] = set()
        self._consuming = False
        declare = settings.topology == "declare"
        with ExitStack() as stack:
            self._store = file.open()
            stack.callback(self._store.close)
            with translated(file.path):
                self._presence = Presence(self._store.folder, now)
            stack.callback(self._presence.close)
            self._evict_the_gone(now)
            with self._store.transaction(durable=False):
                if declare:
                    self._store.declare((spec.queue, spec.dead_letter_queue))
                self._id = self._store.register(spec.queue, self._presence.name, settings.consumer, reads=False)
            self._open = stack.pop_all()

    def turn(self, settlements: Sequence[WaitingSettlement], window: int) -> list[ReceivedMessage]:
        """
        Settle, and receive as many messages as the prefetch permits, in one transaction.

        So the transaction that acknowledges one job's message also receives the next message.
        If there is no work, write nothing.
        """
        self._note_prefetch(window)
        settled = {(each.seq, each.count) for each in settlements}
        room = max(0, window - len(self._held - settled))
        self._tend(room)
        if not settlements and (room == 0 or self._idle_for(room) > 0):
            return []
        durable = any(each.how is Settle.ACK for each in settlements)
        with self._store.transaction(durable=durable):
            self._store.assert_registered(self._id)
            for each in settlements:
                self._store.settle(self._id, each.seq, each.count, remove=each.how is Settle.ACK)
            received = self._store.receive(self._id, self._queue, room) if room else []
        self._held -= settled
        self._held.update((each.seq, each.count) for each in received)
        if any(each.how is Settle.RELEASE for each in settlements):
            ring_others(self._store, self._presence)
        return received

    def wait(self, window: int) -> None:
        """Wait until the bell rings, a message becomes due, or the next check is due."""
        with translated(self._store.path):
            self._presence.wait(self._idle_for(window - len(self._held)))

    def wake(self) -> None:
        """End a `wait` from another thread."""
        self._presence.ring()

    def leave(self) -> None:
        """End normally, so that other consumers can receive this consumer's messages at once."""
        try:
            with self._store.transaction(durable=False):
                self._store.evict((self._id,))
            ring_others(self._store, self._presence)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """
        End without a write.

        The lock becomes free, so the next process that checks the lock releases this consumer's messages.
        """
        self._open.close()

    def vanish(self) -> None:
        """Free the lock from another thread, because the I/O thread is late."""
        self._presence.close()

    def _idle_for(self, room: int) -> float:
        if room <= 0:
            return self._silence / _STAMPS
        due = self._store.due_in(self._queue)
        return SEARCH_EVERY if due is None else min(due, SEARCH_EVERY)

    def _note_prefetch(self, window: int) -> None:
        """Record whether this consumer receives messages, for processes that count the consumers."""
        consuming = window > 0
        if consuming is not self._consuming:
            with translated(self._store.path):
                self._presence.set_consuming(consuming=consuming)
            self._consuming = consuming

    def _tend(self, room: int) -> None:
        """Record the turn, check the file and this consumer's registration, and evict dead consumers; do each task when it is due."""
        now = self._clock.boottime()
        if now - self._turned > self._silence / 2:
            # This process itself was late (a suspended machine), so other processes can be late too. They get time to record a turn.
            self._awake_since = now
        self._turned = now
        if now - self._stamped >= self._silence / _STAMPS:
            self._stamped = now
            with translated(self._store.path):
                self._presence.stamp(now)
            self._check()
        if room and now - self._searched >= SEARCH_EVERY:
            self._searched = now
            self._check()
            self._evict_the_gone(now)
            self._store.shrink()

    def _check(self) -> None:
        self._store.check_place()
        self._store.assert_registered(self._id)

    def _evict_the_gone(self, now: float) -> None:
        silent_since = now - self._silence
        evict_the_gone(self._store, self._presence, silent_since if silent_since > self._awake_since else float("-inf"))


def evict_the_gone(store: Store, presence: Presence, silent_since: float) -> None:
    """Release the messages of consumers that are dead, or whose last turn was before `silent_since`; wake the other consumers."""
    peers = [peer for peer in store.peers() if peer.presence != presence.name]
    gone = [peer for peer in peers if is_gone(store.folder, peer.presence, silent_since)]
    if gone:
        with store.transaction(durable=False):
            store.evict(peer.id for peer in gone)
        for peer in gone:
            remove(store.folder, peer.presence)
        ring_others(store, presence)


def ring_others(store: Store, presence: Presence) -> None:
    """Wake every other consumer, because released messages can be there for them."""
    for peer in store.peers():
        if peer.presence != presence.name:
            ring(store.folder, peer.presence)
