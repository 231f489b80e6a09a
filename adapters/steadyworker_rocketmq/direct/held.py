"""
The deliveries that a member holds, each with the lock of its queue.

The brokers let a lock end if it is not renewed for a minute.
So each beat renews the locks of all deliveries; a lock that another member has got meanwhile is a delivery `Lost`.
A delivery outlives its connection: while no broker can be reached, no other member can lock its queue either.

**An acknowledgement** that fails is sent again once a connection is there.
If the lock may have ended by then, the member first asks whether it still has the queue.
While other brokers reply, it waits only until the lock has ended, because a delivery that waits takes the place of another one.
While jobs are short, an acknowledgement also takes the next message of the same queue.
**Release** is the end of the lock: the message stays the first one of its queue, and comes at once, to any member.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from steadyworker.adapter import Clock, Delivered, Delivery, Lost, QueueSpec, Redelivered, Settle, Settled, Sink
from steadyworker.network.settlement import Settlement, stale, unsettled
from steadyworker_rocketmq.direct.connection import DirectLink, ignore
from steadyworker_rocketmq.direct.member import LOCKED_FOR, Finished, GroupMember, LockedMessage, LockState
from steadyworker_rocketmq.messages import delivery_of, wire_of_stored
from steadyworker_rocketmq.remoting import TopicQueue

_MARGIN = 15.0
"""A lock counts as expired this many seconds before its end, because a call can take long to reach the broker."""

_SHORT, _LONGEST_RUN = 1.0, 32
"""
For this many seconds after a queue was locked, and for at most this many messages in a row, an acknowledgement also takes the next message.

This doubles the throughput of short jobs; after that, other queues have their turn.
"""

_REMEMBERED = 1000
"""The number of lost deliveries that are remembered, so that a late settlement is refused as late, and not mistaken for a repeated one."""


@dataclass(slots=True, eq=False)
class _LockedDelivery:
    """One delivery that is held; its lock ends at `until`, and an acknowledgement was `tried`."""

    delivery: Delivery
    taken: LockedMessage
    until: float
    busy: bool = False
    tried: bool = False
    in_doubt: bool = False
    settlements: list[Settlement] = field(default_factory=list)


class DirectHeld:
    """
    The deliveries of one adapter; only the I/O thread may call its methods.

    Args:
        epoch: The number of the epoch.
        link: Runs blocking calls.
        spec: The queue.
        clock: The clock.
        sink: Receives `Delivered` and `Lost`.
        window: Returns the current prefetch.
        freed: Called when a delivery is no longer held.
    """

    def __init__(
        self,
        epoch: int,
        link: DirectLink,
        spec: QueueSpec,
        clock: Clock,
        sink: Sink,
        window: Callable[[], int],
        freed: Callable[[], None],
    ) -> None:
        self._epoch = epoch
        self._link = link
        self._spec = spec
        self._clock = clock
        self._sink = sink
        self._window = window
        self._freed = freed
        self._over = False
        self._items: dict[str, _LockedDelivery] = {}
        self._lost: deque[str] = deque(maxlen=_REMEMBERED)
        self._count = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def queues(self) -> frozenset[TopicQueue]:
        """The queues whose messages are held."""
        return frozenset(item.taken.queue for item in self._items.values())

    def add(self, taken: LockedMessage) -> None:
        """Hold a message, and deliver it."""
        self._count += 1
        message = taken.message
        wire = wire_of_stored(message)
        delivery = delivery_of(
            self._epoch, str(self._count), self._spec.queue, wire, message.id, Redelivered.UNKNOWN, message.born_at
        )
        self._items[delivery.id] = _LockedDelivery(delivery, taken, taken.at + LOCKED_FOR)
        self._sink(Delivered(delivery))

    def settle(self, settlement: Settlement) -> None:
        """Settle a delivery, if this was not done before."""
        id_ = settlement.delivery.id
        if (item := self._items.get(id_)) is not None:
            item.settlements.append(settlement)
            self._turn(item)
        elif id_ in self._lost:
            settlement.on_settled(stale(settlement.delivery))
        else:
            settlement.on_settled(Settled.SENT)  # it was settled before

    def doubt(self) -> None:
        """Note that locks may have ended, because a broker may have been restarted."""
        for item in self._items.values():
            item.in_doubt = True

    def renew(self) -> None:
        """Renew all locks; then settle what waits for a connection."""
        items = [item for item in self._items.values() if not item.busy]
        asked_at = self._clock.monotonic()
        held = [item.taken for item in items]
        if not held:
            return

        def renewed(answer: Future[dict[LockedMessage, LockState]]) -> None:
            if answer.exception() is not None:
                return
            for item in items:
                state = answer.result().get(item.taken)
                if item.busy or item.delivery.id not in self._items:
                    continue
                if state is None:
                    item.in_doubt = True  # its broker did not reply, and may have been restarted
                    if item.settlements and self._clock.monotonic() > item.until:
                        said = "its broker did not reply before the lock of its queue ended"
                        self._lose(item, said, "rocketmq.lock-ended")
                elif state is LockState.OURS or (
                    state is LockState.CONSUMED and item.tried
                ):  # by a try whose reply was lost
                    item.until = asked_at + LOCKED_FOR
                    item.in_doubt = False
                    self._turn(item)
                else:
                    said = "another consumer has its queue, or has consumed it"
                    self._lose(item, said, "rocketmq.queue-moved")

        self._link.run(lambda member: member.keep(held), renewed)

    def release_all(self) -> None:
        """Release everything that is not being settled, because the adapter stops."""
        self._over = True
        for item in [*self._items.values()]:
            if not item.settlements:
                item.settlements.append(Settlement(item.delivery, Settle.RELEASE, lambda _: None))
            if self._link.is_open:
                self._turn(item)
            else:
                self._lose(item, "the adapter was stopped without a connection")

    def abandon(self) -> None:
        """Forget what is still held after `release_all`, because the adapter has no more time."""
        for item in [*self._items.values()]:
            self._lose(item, "the adapter was stopped before the broker replied")

    # ---------------------------------------------------------------------------------------------------------------

    def _has_room(self, more: int) -> bool:
        """Return whether the prefetch allows one more delivery when `more` others have come."""
        return not self._over and len(self._items) + more < self._window()

    def _turn(self, item: _LockedDelivery) -> None:
        """Settle a delivery that is to be settled, if that is possible now."""
        if item.busy or not item.settlements or not self._link.is_open:
            return  # the next connection's first beat comes here again
        item.busy = True
        item.tried = True
        how = item.settlements[0].how
        in_doubt = item.in_doubt or self._clock.monotonic() > item.until - _MARGIN

        taken = item.taken
        go_on = self._has_room(-1) and taken.run < _LONGEST_RUN and self._clock.monotonic() - taken.at < _SHORT

        def work(member: GroupMember) -> Finished | None:
            if how is Settle.ACK:
                return member.finish(taken, in_doubt=in_doubt, go_on=go_on)
            member.free([taken.queue])
            return Finished(done=True)

        def settled(answer: Future[Finished | None]) -> None:
            item.busy = False
            if item.delivery.id not in self._items:
                return  # abandoned
            finished = None if answer.exception() else answer.result()
            if finished is None:
                item.in_doubt = True  # the first renewal that succeeds tries again
            elif finished.done:
                del self._items[item.delivery.id]
                for settlement in item.settlements:
                    settlement.on_settled(Settled.SENT)
                if finished.following is not None:
                    self._go_on(finished.following)
                self._freed()
            else:
                said = "its queue's lock ended, and another consumer may have the message"
                self._lose(item, said, "rocketmq.lock-ended")

        self._link.run(work, settled)

    def _go_on(self, following: LockedMessage) -> None:
        """Deliver the message that was taken with an acknowledgement, or give it back."""
        if self._has_room(0):
            self.add(following)
        else:
            self._link.run(lambda member: member.free([following.queue]), ignore)

    def _lose(self, item: _LockedDelivery, cause: str, explain: str = "") -> None:
        del self._items[item.delivery.id]
        self._lost.append(item.delivery.id)
        said = f"Expected to hold a message until its job ends, but lost it: {cause}."
        self._sink(Lost(self._epoch, said, item.delivery.id, explain))
        for settlement in item.settlements:
            settlement.on_settled(unsettled(cause))
        self._freed()
