"""What `workers` and `jobs` show of a worker process that has just started, and of one that nobody replaces."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

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
    (worker,) = workers(ledger, clock.wall())
    assert job_why(job, clock.wall()) == ""
    assert worker.troubles == ()
    assert cells(worker, clock.wall())[3:7] == ["1/4", "starting", "–", "up"], "its job began after its report"
    assert cells(worker, clock.wall())[-1] == ""


def test_a_worker_process_that_never_connects_is_detached_from_its_second_report_on() -> None:
    second = OwnerReport(4711, "1.4.0", 0.0, "running", not_ready=("exports: broker: refused",), queues=FIRST.queues)
    ledger, clock = holding("worker-1", set(), second)
    (job,) = Listing(ledger, Wanted(), clock.wall()).jobs()
    (worker,) = workers(ledger, clock.wall())
    assert job_why(job, clock.wall()) == "its worker has no connection to the broker; it goes on"
    assert worker.troubles == (Trouble.DETACHED, Trouble.NOT_READY)
    assert cells(worker, clock.wall())[4:6] == ["running", "lost"]


def test_a_dead_worker_process_whose_queue_has_no_other_worker_has_no_heir() -> None:
    ledger, clock = holding("worker-1", {"worker-1"}, FIRST)
    clock.advance(9.0)
    (worker,) = workers(ledger, clock.wall())
    alone = "died 9 s ago; no other worker consumes exports: read its log, and start it again"
    assert cells(worker, clock.wall())[-1] == alone
    ledger.register("worker-2", "host-2", [EXPORTS], FIRST)
    gone, _ = workers(ledger, clock.wall())
    assert cells(gone, clock.wall())[-1] == alone.replace(
        "no other worker consumes exports", "another takes over its 1 job"
    )


def test_a_sibling_that_died_is_no_predecessor_and_was_not_replaced() -> None:
    """Two of three processes, which were started together, were killed; the third never restarted, and nothing was started."""
    dead: set[str] = set()
    ledger, clock = fleet_of(dead)
    for number in range(3):
        begins(ledger, clock, number)
    clock.advance(600.0)
    renew(ledger, 0, 1, 2)
    clock.advance(5.0)
    dead |= {"worker-1", "worker-2"}
    renew(ledger, 0)
    gone, well = workers(ledger, clock.wall())
    assert (gone.troubles, gone.gone, gone.successor) == ((Trouble.GONE,), 2, "")
    assert cells(gone, clock.wall())[-1] == (
        "died 5 s ago, and nothing started in its place: read its log, and start it again"
    )
    assert (well.seen.owner, well.deaths, well.troubles) == ("worker-0", 0, ())


def test_each_process_that_follows_a_dead_one_replaces_one_and_inherits_its_deaths() -> None:
    """Two that died together, and were both started again, are no crash loop; one that died twice is one."""
    dead: set[str] = set()
    ledger, clock = fleet_of(dead)
    for number in range(2):
        begins(ledger, clock, number)
    clock.advance(60.0)
    renew(ledger, 0, 1)
    dead |= {"worker-0", "worker-1"}
    for number in (2, 3):
        begins(ledger, clock, number)
    assert [each.deaths for each in workers(ledger, clock.wall())] == [1, 1]
    clock.advance(60.0)
    renew(ledger, 2, 3)
    dead.add("worker-3")
    begins(ledger, clock, 4)
    renew(ledger, 2)
    loop, well = workers(ledger, clock.wall())
    assert (loop.seen.owner, loop.deaths, loop.troubles) == ("worker-4", 2, (Trouble.CRASH_LOOP,))
    assert cells(loop, clock.wall())[-1] == (
        "crash loop: 2 predecessors died within an hour: read the log of the last one, host-1:3"
    )
    assert (well.seen.owner, well.deaths) == ("worker-2", 1)
    every = {each.seen.owner: each for each in workers(ledger, clock.wall(), every=True)}
    assert cells(every["worker-3"], clock.wall())[-1] == "died, and was replaced by host-1:4"
    clock.advance(3600.0)
    renew(ledger, 2, 4)
    assert {each.deaths for each in workers(ledger, clock.wall())} == {0}


def test_processes_with_other_sets_of_queues_replace_a_dead_one_if_they_attend_all_of_its_queues() -> None:
    dead = {"worker-0"}
    ledger, clock = fleet_of(dead)
    begins(ledger, clock, 0, EXPORTS, "shop/refunds")
    clock.advance(600.0)
    begins(ledger, clock, 1)
    assert [each.troubles for each in workers(ledger, clock.wall())] == [(Trouble.GONE,), ()]
    begins(ledger, clock, 2, "shop/refunds (quiet)")
    assert [each.seen.owner for each in workers(ledger, clock.wall())] == ["worker-1", "worker-2"]


def test_a_quiet_worker_process_receives_no_messages_of_a_dead_one_before_the_end_of_a_pause() -> None:
    dead = {"worker-0"}
    ledger, clock = fleet_of(dead)
    begins(ledger, clock, 0, host="host-0")
    begins(ledger, clock, 1, f"{EXPORTS} (quiet)")
    assert workers(ledger, clock.wall())[0].forsaken == ("exports",)
    ledger.facts.pause("shop", "exports", "ann", "")
    assert workers(ledger, clock.wall())[0].forsaken == ()


def test_a_queue_with_slashes_has_its_whole_name() -> None:
    dead: set[str] = set()
    ledger, clock = fleet_of(dead)
    ledger.bind("shop", "eu/exports", "shop")
    begins(ledger, clock, 0, "shop/eu/exports", connected=False)
    (worker,) = workers(ledger, clock.wall())
    assert cells(worker, clock.wall())[2] == "eu/exports"
    assert "no connection to the broker of eu/exports: " in cells(worker, clock.wall())[-1]
    dead.add("worker-0")
    (worker,) = workers(ledger, clock.wall())
    assert "no other worker consumes eu/exports: " in cells(worker, clock.wall())[-1]


@pytest.mark.parametrize(
    ("busy", "seconds", "expected"),
    [
        ((1, 1), 62.0, "free to be taken over in 28 s, then with the next free slot; all 3 slots are busy"),
        ((1, 1), 91.0, "taken over with the next free slot; all 3 slots are busy"),
        ((1, 0), 62.0, "taken over by another worker within 28 s"),
        ((1,), 62.0, "free to be taken over in 28 s, then with the next free slot; the only slot is busy"),
    ],
)
def test_a_takeover_needs_a_free_slot(busy: Sequence[int], seconds: float, expected: str) -> None:
    ledger, clock = holding("worker-1", {"worker-1"}, FIRST)
    clock.advance(seconds)
    for number, each in enumerate(busy, 1):
        queue = QueueReport(number, each * number, connected=True)
        ledger.register(f"heir-{number}", "host-2", [EXPORTS], OwnerReport(number, queues={EXPORTS: queue}))
    (job,) = Listing(ledger, Wanted(), clock.wall()).jobs()
    assert job_why(job, clock.wall()) == expected


def fleet_of(dead: set[str]) -> tuple[MemoryLedger, FakeClock]:
    clock = FakeClock()
    ledger = MemoryLedger(clock, Times(), is_dead=dead.__contains__)
    ledger.bind("shop", "exports", "shop")
    ledger.bind("shop", "refunds", "shop")
    return ledger, clock


def begins(
    ledger: MemoryLedger, clock: FakeClock, number: int, *names: str, host: str = "host-1", connected: bool = True
) -> None:
    """Let a worker process register a second after its start."""
    started = clock.wall()
    clock.advance(1.0)
    queues = {name: QueueReport(1, connected=connected) for name in names or (EXPORTS,)}
    report = OwnerReport(number, "1.4.0", started, "running", ready=True, queues=queues)
    ledger.register(f"worker-{number}", host, names or (EXPORTS,), report)


def renew(ledger: MemoryLedger, *numbers: int) -> None:
    """Let worker processes renew their registrations, with their last reports."""
    seen = {each.owner: each for each in ledger.owners()}
    for number in numbers:
        each = seen[f"worker-{number}"]
        ledger.register(each.owner, each.host, each.queues, each.report)
