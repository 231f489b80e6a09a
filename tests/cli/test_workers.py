"""What `workers` and `jobs` show of a worker process that has just started, and of one that nobody replaces."""

from __future__ import annotations

from steadyworker.cli.job_lines import why as job_why
from steadyworker.cli.workers import cells
from steadyworker.clock import Times
from steadyworker.ledger.base import Claimed, JobId
from steadyworker.ledger.facts import STARTING, OwnerReport, QueueReport
from steadyworker.ledger.fleet import Trouble, workers
from steadyworker.ledger.lease import registered_name
from steadyworker.ledger.listing import Listing, Wanted
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger

EXPORTS = registered_name("shop", "exports")
FIRST = OwnerReport(4711, "1.4.0", 0.0, "running", not_ready=(STARTING,), queues={EXPORTS: QueueReport(slots=4)})
"""The report with which a process registers before it connects."""


def holding(owner: str, dead: set[str], report: OwnerReport) -> tuple[MemoryLedger, FakeClock]:
    """A ledger with one job, whose worker process has this report."""
    clock = FakeClock()
    ledger = MemoryLedger(clock, Times(), is_dead=dead.__contains__)
    ledger.bind("shop", "exports", "shop")
    ledger.register(owner, "host-1", [EXPORTS], report)
    assert ledger.claim(Claimed(JobId("shop", "exports", "k-1"), None, owner, 0, b"\x01" * 32, Counters()))
    return ledger, clock


def test_a_worker_process_that_has_just_started_is_not_called_detached() -> None:
    """It claims its first job seconds before its second report; the first one cannot have its connection."""
    ledger, clock = holding("worker-1", set(), FIRST)
    (job,) = Listing(ledger, Wanted(), clock.wall()).jobs()
    (worker,) = workers(ledger)
    assert job_why(job, clock.wall()) == ""
    assert worker.troubles == ()
    assert cells(worker, clock.wall())[3:7] == ["1/4", "starting", "–", "up"], "its job began after its report"
    assert cells(worker, clock.wall())[-1] == ""


def test_a_worker_process_that_never_connects_is_detached_from_its_second_report_on() -> None:
    second = OwnerReport(4711, "1.4.0", 0.0, "running", not_ready=("exports: broker: refused",), queues=FIRST.queues)
    ledger, clock = holding("worker-1", set(), second)
    (job,) = Listing(ledger, Wanted(), clock.wall()).jobs()
    (worker,) = workers(ledger)
    assert job_why(job, clock.wall()) == "its worker has no connection to the broker; it goes on"
    assert worker.troubles == (Trouble.DETACHED, Trouble.NOT_READY)
    assert cells(worker, clock.wall())[4:6] == ["running", "lost"]


def test_a_dead_worker_process_whose_queue_has_no_other_worker_has_no_heir() -> None:
    ledger, clock = holding("worker-1", {"worker-1"}, FIRST)
    clock.advance(9.0)
    (worker,) = workers(ledger)
    alone = "died 9 s ago; no other worker consumes exports: read its log, and start it again"
    assert cells(worker, clock.wall())[-1] == alone
    ledger.register("worker-2", "host-2", [EXPORTS], FIRST)
    gone, _ = workers(ledger)
    assert cells(gone, clock.wall())[-1] == alone.replace(
        "no other worker consumes exports", "another takes over its 1 job"
    )
