"""
Collects the facts of a worker process between two renewals: the events of its links, and the counts of its runs by minute.

The end of a run only changes a number in memory, and needs no call of the ledger.
The keeper writes the batch after each renewal; if the ledger does not respond then, the batch is lost.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque

from steadyworker.clock import Clock
from steadyworker.events import Adopted, DeliveryLost, Event, JobEnded
from steadyworker.ledger.facts import DURATIONS, Facts, LinkChange, LinkEvent, Minute

_MOST_EVENTS = 200
"""The largest number of events in a batch, so that a connection that breaks again and again does not fill the ledger."""

_MOST_COUNTS = 1000
"""The largest number of counts in a batch; an outage of the ledger can last long."""


class FactBatch:
    """
    The facts that are not yet in the ledger; as a listener, the batch receives the events of all runners.

    1. `link` adds an event of a link; an event without an epoch belongs to the queue's last connection.
    2. `write` empties the batch, and then writes its content.

    Any thread may call these methods.
    """

    def __init__(self, owner: str, namespaces: dict[str, str], clock: Clock) -> None:
        self._owner = owner
        self._namespaces = namespaces
        self._clock = clock
        self._lock = threading.Lock()
        self._events: deque[LinkEvent] = deque(maxlen=_MOST_EVENTS)
        self._counts: dict[tuple[str, int, str], list[int]] = {}
        self._epochs: dict[str, int] = {}

    def link(self, queue: str, event: LinkChange, epoch: int | None, why: str, fence: int | None = None) -> None:
        """Add an event of the link to this queue."""
        with self._lock:
            if epoch is None:
                epoch = self._epochs.get(queue, 0)
            else:
                self._epochs[queue] = epoch
            self._events.append(LinkEvent(self._owner, queue, self._clock.wall(), epoch, event, why, fence))

    def __call__(self, event: Event) -> None:
        """Count the end of a run, and add an event of a run's delivery."""
        match event:
            case JobEnded(queue=queue, at=at, outcome=outcome, seconds=seconds):
                self._count(queue, int(at // 60) * 60, outcome, seconds)
            case DeliveryLost(queue=queue, fence=fence, cause=cause):
                self.link(queue, "delivery-lost", None, cause, fence)
            case Adopted(queue=queue, fence=fence):
                self.link(queue, "adopted", None, "", fence)

    def _count(self, queue: str, minute: int, outcome: str, seconds: float) -> None:
        which = (queue, minute, outcome)
        with self._lock:
            counts = self._counts.get(which)
            if counts is None:
                if len(self._counts) >= _MOST_COUNTS:
                    return
                counts = self._counts[which] = [0] * (len(DURATIONS) + 1)
            counts[bisect_left(DURATIONS, seconds)] += 1

    def write(self, facts: Facts) -> None:
        """Write the batch to the ledger; after a LedgerUnavailable, the rest of the batch is lost."""
        with self._lock:
            events, counts = list(self._events), self._counts
            self._events.clear()
            self._counts = {}
        if events:
            facts.add_link_events(events)
        if counts:
            facts.add_minutes(
                [
                    Minute(self._namespaces[queue], queue, at, outcome, tuple(runs))
                    for (queue, at, outcome), runs in counts.items()
                ]
            )
