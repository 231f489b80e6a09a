"""
The base for the deliveries that a driver holds. Each delivery is settled once, or `Lost`.

A delivery outlives its connection, so an adapter has one epoch for its whole life (`EPOCH`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from steadyworker.adapter import Delivered, Delivery, Lost, QueueSpec, Redelivered, Settle, Settled, Sink
from steadyworker.network.settlement import Settlement, stale, unsettled
from steadyworker_rocketmq.messages import WireMessage, delivery_of

EPOCH = 1

_REMEMBERED = 1000
"""The number of lost deliveries that are remembered. So a late settlement is refused, and not mistaken for a repeated settlement."""


@dataclass(slots=True, eq=False)
class HeldDelivery:
    """
    One delivery that is held.

    Attributes:
        delivery: The delivery.
        until: The time (monotonic clock) at which the broker gives the message to other consumers, unless the delivery is renewed.
        busy: A blocking call for this delivery is under way.
        settlements: The settlements that wait for the broker; all these settlements end when the first settlement ends.
    """

    delivery: Delivery
    until: float
    busy: bool = False
    settlements: list[Settlement] = field(default_factory=list)


Item = TypeVar("Item", bound=HeldDelivery)


class HeldDeliveries(ABC, Generic[Item]):
    """
    The held deliveries of one adapter. Only the I/O thread may call the methods.

    Args:
        spec: The queue.
        sink: Receives `Delivered` and `Lost`.
        freed: Called when a delivery is no longer held.

    Attributes:
        has_settled: True if a delivery was settled on the present connection; the epoch sets it to False when a connection begins.
    """

    def __init__(self, spec: QueueSpec, sink: Sink, freed: Callable[[], None]) -> None:
        self._spec = spec
        self._sink = sink
        self._freed = freed
        self._items: dict[str, Item] = {}
        self._lost: deque[str] = deque(maxlen=_REMEMBERED)
        self._count = 0
        self.has_settled = False

    def __len__(self) -> int:
        return len(self._items)

    @abstractmethod
    def _turn(self, item: Item) -> None:
        """Take the next step for one delivery, if a step is possible now."""

    def settle(self, settlement: Settlement) -> None:
        """Settle a delivery, unless this was done before."""
        id_ = settlement.delivery.id
        if (item := self._items.get(id_)) is not None:
            item.settlements.append(settlement)
            self._turn(item)
        elif id_ in self._lost:
            settlement.on_settled(stale(settlement.delivery))
        else:
            settlement.on_settled(Settled.SENT)  # it was settled before

    def abandon(self) -> None:
        """Forget the deliveries that are still held, because the adapter has no more time."""
        for item in [*self._items.values()]:
            self._lose(item, "the adapter was stopped before the broker replied")

    def _delivery(self, wire: WireMessage, id_: str, redelivered: Redelivered, born_at: float | None) -> Delivery:
        self._count += 1
        return delivery_of(EPOCH, str(self._count), self._spec.queue, wire, id_, redelivered, born_at)

    def _hold(self, item: Item) -> None:
        self._items[item.delivery.id] = item
        self._sink(Delivered(item.delivery))

    def _to_release(self) -> list[Item]:
        """Order the release of each delivery that is not being settled, and return all held deliveries."""
        for item in self._items.values():
            if not item.settlements:
                item.settlements.append(Settlement(item.delivery, Settle.RELEASE, lambda _: None))
        return [*self._items.values()]

    def _is_settled(self, item: Item) -> None:
        """Forget a delivery that the broker has settled."""
        self.has_settled = True
        self._forget(item)
        for settlement in item.settlements:
            settlement.on_settled(Settled.SENT)

    def _lose(self, item: Item, cause: str, explain: str = "") -> None:
        self._forget(item)
        self._lost.append(item.delivery.id)
        text = f"Expected to hold a message until its job ends, but lost it: {cause}."
        self._sink(Lost(EPOCH, text, item.delivery.id, explain))
        for settlement in item.settlements:
            settlement.on_settled(unsettled(cause))
        self._freed()

    def _forget(self, item: Item) -> None:
        del self._items[item.delivery.id]
