"""What `queues`, the page and `top` claim of a queue by numbers that are old, and by worker processes that are quiet."""

from __future__ import annotations

import pytest

from steadyworker.adapter import Depth
from steadyworker.backends.waiting import QueueNow, queues_now
from steadyworker.clock import Times
from steadyworker.dashboard.notices import queue_notices
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.dashboard.running import AskedLists, running_page
from steadyworker.ledger.facts import LinkEvent
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger


class Queue:
    """A queue with worker processes, whose depth is recorded."""

    def __init__(self, ready: int, consumers: int | None = None) -> None:
        self.clock = FakeClock()
        self.ledger = MemoryLedger(self.clock, Times())
        self.ledger.bind("shop", "exports", "shop")
        self.ledger.facts.record_depth("shop", "exports", Depth(ready=ready, consumers=consumers))

    def now(self) -> QueueNow:
        (found,) = queues_now(self.ledger, [("shop", "exports")], clock=self.clock)
        return found

    def texts(self) -> list[str]:
        return [f"{notice.kind}: {notice.text}" for notice in queue_notices([self.now()])]

    def summary(self) -> str:
        return running_page(ReadOnce(self.ledger), self.clock.wall(), AskedLists()).summary


@pytest.mark.parametrize("later", [31.0, 3600.0, 72000.0])
def test_the_consumers_in_an_old_record_are_those_of_nobody_else(later: float) -> None:
    """All worker processes stopped normally after the record, so nobody records another one."""
    queue = Queue(ready=0, consumers=3)
    owners = ["worker-1", "worker-2", "worker-3"]
    for owner in owners:
        queue.ledger.register(owner, owner, ["shop/exports"], None)
    queue.ledger.facts.add_link_events(
        [LinkEvent(owner, "exports", queue.clock.wall(), 1, "draining", "") for owner in owners]
    )
    for owner in owners:
        queue.ledger.unregister(owner)
    queue.clock.advance(later)
    assert (queue.now().unexplained, queue.texts()) == (None, [])


def test_an_old_number_has_its_age_everywhere() -> None:
    queue = Queue(ready=1234)
    assert queue.texts() == [
        "no worker: 1,234 messages ready, and no worker process consumes it: start one with `steadyworker run MODULE:CLASS`."
    ]
    assert "1,234 messages are ready." in queue.summary()
    queue.clock.advance(72000.0)
    assert queue.now().age == 72000.0
    assert queue.texts() == [
        "no worker: 1,234 messages ready 20 h 00 min ago, and no worker process consumes it: start one with `steadyworker run MODULE:CLASS`."
    ]
    assert "1,234 messages were ready 20 h 00 min ago." in queue.summary()


def test_a_quiet_worker_process_receives_no_messages() -> None:
    """In a paused queue, all are quiet, and receive messages after the pause."""
    queue = Queue(ready=5)
    queue.ledger.register("worker-1", "host-1", ["shop/exports (quiet)"], None)
    assert (queue.now().workers, queue.now().waits) == (1, True)
    assert queue.texts()[0].startswith("no worker: 5 messages ready, and no worker process consumes it: ")
    queue.ledger.facts.pause("shop", "exports", "ann", "")
    assert (queue.now().waits, queue.texts()) == (False, [])
    queue.ledger.facts.resume("shop", "exports")
    queue.ledger.register("worker-2", "host-2", ["shop/exports", "shop/exports"], None)
    assert (queue.now().workers, queue.now().waits, queue.texts()) == (2, False, [])
