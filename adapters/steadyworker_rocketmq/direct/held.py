"""
The deliveries that a member holds, each with the lock of its queue.

A broker ends a lock that is not renewed for a minute.
So each beat renews the locks of all deliveries. If another member has the lock meanwhile, the delivery is `Lost`.
A delivery outlives its connection: while no broker can be reached, no other member can lock the delivery's queue either.

**An acknowledgement** that fails is sent again when there is a connection.
If the lock may have ended by then, the member first asks the broker whether the queue is still the member's own.
If other brokers reply, the acknowledgement waits only until the lock has ended, because a waiting delivery uses a slot of the prefetch.
While jobs are short, an acknowledgement also receives the next message of the same queue.
**Release** is the end of the lock. The message stays the first message of its queue, and comes at once, to any member.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from typing_extensions import override

from steadyworker.adapter import Clock, QueueSpec, Redelivered, Settle, Sink
from steadyworker_rocketmq.direct.connection import DirectLink, ignore
from steadyworker_rocketmq.direct.member import LOCKED_FOR, Finished, GroupMember, LockedMessage, LockState
from steadyworker_rocketmq.held import HeldDeliveries, HeldDelivery
from steadyworker_rocketmq.messages import wire_of_stored
from steadyworker_rocketmq.remoting import TopicQueue

_MARGIN = 15.0
"""A lock counts as expired this many seconds before its end, because a call can take long to reach the broker."""

_SHORT, _LONGEST_RUN = 1.0, 32
"""
Limits within which an acknowledgement also receives the next message: seconds since the queue was locked, and messages in a row.

This doubles the throughput of short jobs. Beyond the limits, other queues have their turn.
"""


@dataclass(slots=True, eq=False, kw_only=True)
class _LockedDelivery(HeldDelivery):
    """
    One delivery that is held by the lock of its queue.

    `tried` is true if a settlement was tried, and `in_doubt` is true if the lock may have ended.
    """

    locked: LockedMessage
    tried: bool = False
    in_doubt: bool = False


class DirectHeld(HeldDeliveries[_LockedDelivery]):
    """The held deliveries of one adapter; `link` runs blocking calls, and `window` returns the current prefetch."""

    def __init__(
        self,
        link: DirectLink,
        spec: QueueSpec,
        clock: Clock,
        sink: Sink,
        window: Callable[[], int],
        freed: Callable[[], None],
    ) -> None:
        super().__init__(spec, sink, freed)
        self._link = link
        self._clock = clock
        self._window = window
        self._over = False

    @property
    def queues(self) -> frozenset[TopicQueue]:
        """The queues whose messages are held."""
        return frozenset(item.locked.queue for item in self._items.values())

    @property
    def offsets(self) -> dict[TopicQueue, int]:
        """For each queue with a held message, the offset of this message; any thread may ask."""
        return {item.locked.queue: item.locked.message.offset for item in [*self._items.values()]}

    def add(self, locked: LockedMessage) -> None:
        """Hold a message, and deliver it."""
        message = locked.message
        delivery = self._delivery(wire_of_stored(message), message.id, Redelivered.UNKNOWN, message.born_at)
        self._hold(_LockedDelivery(delivery, locked.at + LOCKED_FOR, locked=locked))

    def doubt(self) -> None:
        """Record that locks may have ended, because a broker may have been restarted."""
        for item in self._items.values():
            item.in_doubt = True

    def renew(self) -> None:
        """Renew all locks; then settle the deliveries that wait for a connection."""
        items = [item for item in self._items.values() if not item.busy]
        asked_at = self._clock.monotonic()
        held = [item.locked for item in items]
        if not held:
            return

        def renewed(answer: Future[dict[LockedMessage, LockState]]) -> None:
            if answer.exception() is not None:
                return
            for item in items:
                state = answer.result().get(item.locked)
                if item.busy or item.delivery.id not in self._items:
                    continue
                if state is None:
                    item.in_doubt = True  # The broker did not reply, and may have been restarted.
                    if item.settlements and self._clock.monotonic() > item.until:
                        cause = "its broker did not reply before the lock of its queue ended"
                        self._lose(item, cause, "rocketmq.lock-ended")
                # A try whose reply was lost can have consumed the message.
                elif state is LockState.OURS or (state is LockState.CONSUMED and item.tried):
                    item.until = asked_at + LOCKED_FOR
                    item.in_doubt = False
                    self._turn(item)
                else:
                    cause = "another consumer has its queue, or has consumed it"
                    self._lose(item, cause, "rocketmq.queue-moved")

        self._link.run(lambda member: member.keep(held), renewed)

    def release_all(self) -> None:
        """Release every delivery that is not being settled, because the adapter stops."""
        self._over = True
        for item in self._to_release():
            if self._link.is_open:
                self._turn(item)
            else:
                self._lose(item, "the adapter was stopped without a connection")

    # ---------------------------------------------------------------------------------------------------------------

    def _has_room(self, more: int) -> bool:
        """Return whether the prefetch allows one more delivery, in addition to the held deliveries and `more` others."""
        return not self._over and len(self._items) + more < self._window()

    @override
    def _turn(self, item: _LockedDelivery) -> None:
        if item.busy or not item.settlements or not self._link.is_open:
            return  # The first beat of the next connection calls this again.
        item.busy = True
        item.tried = True
        how = item.settlements[0].how
        in_doubt = item.in_doubt or self._clock.monotonic() > item.until - _MARGIN

        locked = item.locked
        go_on = self._has_room(-1) and locked.run < _LONGEST_RUN and self._clock.monotonic() - locked.at < _SHORT

        def work(member: GroupMember) -> Finished | None:
            if how is Settle.ACK:
                return member.finish(locked, in_doubt=in_doubt, go_on=go_on)
            member.free([locked.queue])
            return Finished(done=True)

        def settled(answer: Future[Finished | None]) -> None:
            item.busy = False
            if item.delivery.id not in self._items:
                return  # abandoned
            finished = None if answer.exception() else answer.result()
            if finished is None:
                item.in_doubt = True  # the first renewal that succeeds tries again
            elif finished.done:
                self._is_settled(item)
                if finished.following is not None:
                    self._go_on(finished.following)
                self._freed()
            else:
                cause = "its queue's lock ended, and another consumer may have the message"
                self._lose(item, cause, "rocketmq.lock-ended")

        self._link.run(work, settled)

    def _go_on(self, following: LockedMessage) -> None:
        """Deliver the message that was received with an acknowledgement, or release it."""
        if self._has_room(0):
            self.add(following)
        else:
            self._link.run(lambda member: member.free([following.queue]), ignore)
