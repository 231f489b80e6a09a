"""
One epoch: a connection to the broker file, a presence beside it, and a row in its table of consumers.

It ends when the file fails or is replaced, or when another process evicted us.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from steadyworker.adapter import QueueSpec, Settings, Settle, Settled
from steadyworker_sqlite.errors import translated
from steadyworker_sqlite.presence import Presence, is_gone, remove, ring
from steadyworker_sqlite.store import Store, Taken

SILENCE = 30.0
"""Seconds after which a consumer whose I/O thread does not turn loses its messages, though its process lives."""

_STAMPS = 10
"""So many stamps fit into the silence: one every 3 s."""

LOOK = 0.5
"""Seconds between two looks of an idle consumer for consumers that died; news of messages comes at once, by its bell."""


@dataclass(frozen=True, slots=True, eq=False)
class Settlement:
    """One `settle` call that waits for the I/O thread; every job waits here, and a Future takes ten times as long as a queue."""

    seq: int
    count: int
    how: Settle
    _answer: SimpleQueue[Settled | Exception] = field(default_factory=SimpleQueue)

    def answer(self, answer: Settled | Exception) -> None:
        """Let the call return this, or raise it."""
        self._answer.put(answer)

    def wait(self) -> Settled:
        """The answer, when it comes; raises it when it is an error."""
        answer = self._answer.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Session:
    """
    One epoch, from registering in the broker file to leaving it; used by the I/O thread alone, but for `wake` and `vanish`.

    Every method but those two raises BrokerUnavailable when the session is over.
    """

    def __init__(self, path: Path, spec: QueueSpec, settings: Settings, silence: float) -> None:
        self._clock = settings.clock
        self._queue = spec.queue
        self._silence = silence
        now = self._turned = self._stamped = self._looked = self._clock.boottime()
        self._awake_since = float("-inf")
        self._held: set[tuple[int, int]] = set()
        declare = settings.topology == "declare"
        with ExitStack() as stack:
            self._store = Store(path, settings.clock, create=declare)
            stack.callback(self._store.close)
            with translated(path):
                self._presence = Presence(self._store.folder, now)
            stack.callback(self._presence.close)
            self._evict_the_gone(now)
            with self._store.transaction(durable=False):
                if declare:
                    self._store.declare((spec.queue, spec.dead_letter_queue))
                self._id = self._store.register(spec.queue, self._presence.name, settings.consumer, reads=False)
            self._open = stack.pop_all()

    def turn(self, settlements: Sequence[Settlement], window: int) -> list[Taken]:
        """
        Settle, and take what the window has room for, in one transaction: the ack of one job brings the next.

        Nothing is written when there is nothing to do.
        """
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
            taken = self._store.take(self._id, self._queue, room) if room else []
        self._held -= settled
        self._held.update((each.seq, each.count) for each in taken)
        if any(each.how is Settle.RELEASE for each in settlements):
            ring_others(self._store, self._presence)
        return taken

    def wait(self, window: int) -> None:
        """Wait until there may be something to do: the bell, a message that comes due, the time to look after things."""
        with translated(self._store.path):
            self._presence.wait(self._idle_for(window - len(self._held)))

    def wake(self) -> None:
        """End a `wait` from another thread."""
        self._presence.ring()

    def leave(self) -> None:
        """End in good order: what is held is another's at once."""
        try:
            with self._store.transaction(durable=False):
                self._store.evict((self._id,))
            ring_others(self._store, self._presence)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End it as it is: its lock is free, and whoever looks next gives back what it held."""
        self._open.close()

    def vanish(self) -> None:
        """Free the lock from another thread, because the I/O thread does not come back in time."""
        self._presence.close()

    def _idle_for(self, room: int) -> float:
        if room <= 0:
            return self._silence / _STAMPS
        due = self._store.due_in(self._queue)
        return LOOK if due is None else min(due, LOOK)

    def _tend(self, room: int) -> None:
        """Stamp, see that the file and we are still there, and evict the dead, each at its time."""
        now = self._clock.boottime()
        if now - self._turned > self._silence / 2:
            # We were late ourselves (a suspended machine): others may have been too, and have yet to stamp.
            self._awake_since = now
        self._turned = now
        if now - self._stamped >= self._silence / _STAMPS:
            self._stamped = now
            with translated(self._store.path):
                self._presence.stamp(now)
            self._check()
        if room and now - self._looked >= LOOK:
            self._looked = now
            self._check()
            self._evict_the_gone(now)

    def _check(self) -> None:
        self._store.check_place()
        self._store.assert_registered(self._id)

    def _evict_the_gone(self, now: float) -> None:
        silent_since = now - self._silence
        evict_the_gone(self._store, self._presence, silent_since if silent_since > self._awake_since else float("-inf"))


def evict_the_gone(store: Store, presence: Presence, silent_since: float) -> None:
    """Give back what consumers hold that are dead, or whose stamp is older than `silent_since`, and wake the others."""
    peers = [peer for peer in store.peers() if peer.presence != presence.name]
    gone = [peer for peer in peers if is_gone(store.folder, peer.presence, silent_since)]
    if gone:
        with store.transaction(durable=False):
            store.evict(peer.id for peer in gone)
        for peer in gone:
            remove(store.folder, peer.presence)
        ring_others(store, presence)


def ring_others(store: Store, presence: Presence) -> None:
    """Wake every other consumer: a message may have come back."""
    for peer in store.peers():
        if peer.presence != presence.name:
            ring(store.folder, peer.presence)
