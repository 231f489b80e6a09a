"""
The life of a consuming connection, which has one epoch after another until the adapter stops.

`backoff.py` chooses the waits between two tries at random; an adapter's consumer implements `_go`, which connects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from steadyworker.adapter import Connected, Delivery, Settle, Settled, Signal, Sink, Unreachable
from steadyworker.errors import BrokerUnavailable, ConfigError, StaleDelivery, SteadyWorkerError, Unsettled
from steadyworker.network.backoff import Backoff
from steadyworker.network.errors import Refused
from steadyworker.network.iothread import IoThread, Timer
from steadyworker.network.settlement import OnSettled, Settlement, stale


class BrokerLink(Protocol):
    """The interface of a consuming connection; only for the I/O thread."""

    @property
    def is_closed(self) -> bool:
        """True if no connection is open, opening or closing."""
        ...

    def abort(self, error: Exception) -> None:
        """End the connection without waiting for the broker."""
        ...

    def close(self, within: float) -> None:
        """Close the connection; abort it if it is not closed within `within` seconds."""
        ...


class Epoch(Protocol):
    """The interface of an epoch; only for the I/O thread."""

    number: int

    def adjust(self) -> None:
        """Start, end or replace consumers, as the prefetch requires."""
        ...

    def settle(self, settlement: Settlement) -> None:
        """Settle one delivery of this epoch."""
        ...

    def leave(self) -> None:
        """Release every delivery, because the connection is about to close."""
        ...


AnEpoch = TypeVar("AnEpoch", bound=Epoch)
ALink = TypeVar("ALink", bound=BrokerLink)


class Consumer(ABC, Generic[ALink, AnEpoch]):
    """
    The consumer of one queue.

    Other threads may call only `start`, `prefetch`, `settle` and `settle_async`; the I/O thread may call everything.

    Attributes:
        link: The consuming connection; a subclass makes it.
    """

    link: ALink

    def __init__(self, io: IoThread) -> None:
        self._io = io
        self._sink: Sink | None = None
        self._window = 0
        self._backoff = Backoff()
        self._timer: Timer | None = None
        self._epochs = 0
        self._epoch: AnEpoch | None = None
        self._last_cause = ""

    @abstractmethod
    def _go(self) -> None:
        """Take the next step towards an epoch, if no epoch is under way."""

    # --- for other threads -----------------------------------------------------------------------------------------

    def start(self, sink: Sink) -> None:
        """Start to connect; does nothing after an earlier `start` or `stop`."""
        if self._sink is None and not self._io.stopping:
            self._sink = sink
            self._io.members.append(self)
            self._io.call(self._go)

    @property
    def started(self) -> bool:
        """True once `start` was called."""
        return self._sink is not None

    @property
    def was_connected(self) -> bool:
        """True once the broker has accepted this consumer; after a later refusal, the consumer tries again."""
        return self._epochs > 0

    def signal(self, signal: Signal) -> None:
        """Send a signal to the sink, if there is one; only for the I/O thread."""
        if self._sink is not None and not self._io.stopping:
            self._sink(signal)

    def prefetch(self, count: int) -> None:
        """Set the prefetch, which applies from the next delivery on."""
        self._window = count
        if self.started:
            with suppress(BrokerUnavailable):  # the adapter was stopped
                self._io.call(self._adjust)

    def settle(self, delivery: Delivery, how: Settle) -> Settled:
        """Settle the delivery, and return when the broker has read the settlement; raises StaleDelivery or Unsettled."""
        if self._io.is_current:
            raise RuntimeError(
                "Expected a call of `settle` from another thread, got one from the I/O thread, which would wait for itself: "
                "call `settle` outside the `sink` callback."
            )
        answer: SimpleQueue[Settled | StaleDelivery | Unsettled] = SimpleQueue()
        self.settle_async(delivery, how, answer.put)
        settled = answer.get()
        if isinstance(settled, Settled):
            return settled
        raise settled

    def settle_async(self, delivery: Delivery, how: Settle, on_settled: OnSettled) -> None:
        """Start to settle the delivery; the consumer calls `on_settled` once, in the I/O thread or in the caller's thread."""
        if not self.started:
            on_settled(stale(delivery))
            return
        try:
            self._io.call(lambda: self._settle(Settlement(delivery, how, on_settled)))
        except BrokerUnavailable:
            on_settled(stale(delivery))

    # --- for the I/O thread ----------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """True if nothing is connected."""
        return self.link.is_closed

    def close(self, within: float) -> None:
        """Release every delivery and close."""
        if self._timer is not None:
            self._timer.cancel()
        if self._epoch is not None:
            self._epoch.leave()
            self._epoch = None
        self.link.close(within)

    def fail(self, error: Exception) -> None:
        """End the connection because of an unexpected error."""
        if self.link.is_closed:
            self._again(self._backoff.refused())
        else:
            self.link.abort(error)

    def _begin(self, epoch: AnEpoch) -> None:
        """Send Connected for a new epoch, whose number is `_next_number`."""
        self._epochs = epoch.number
        self._last_cause = ""
        self._epoch = epoch
        self.signal(Connected(epoch.number))
        epoch.adjust()

    @property
    def _next_number(self) -> int:
        return self._epochs + 1

    def _adjust(self) -> None:
        if self._epoch is not None:
            self._epoch.adjust()

    def _settle(self, settlement: Settlement) -> None:
        if self._epoch is None or self._epoch.number != settlement.delivery.epoch:
            settlement.on_settled(stale(settlement.delivery))
            return
        self._epoch.settle(settlement)

    def _again(self, after: float) -> None:
        """Try again after these seconds."""
        if self._io.stopping:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._io.after(after, self._go)

    def _gone(self, error: SteadyWorkerError) -> None:
        """Send Unreachable once for each cause, not for each try, and try again later."""
        if str(error) != self._last_cause:
            self._last_cause = str(error)
            final = isinstance(error, Refused | ConfigError) and self._epochs == 0
            self.signal(Unreachable(self._last_cause, final, error.id))
        self._again(self._backoff.refused())
