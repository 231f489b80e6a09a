"""The facts that a worker process collects between two renewals, and its report of itself."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from steadyworker.clock import Times
from steadyworker.errors import Finding, LedgerUnavailable
from steadyworker.events import Adopted, DeliveryLost, JobEnded, JobSettled
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.facts import (
    DURATIONS,
    Facts,
    LinkEvent,
    Minute,
    OwnerReport,
    Pause,
    QueueReport,
    ReportedFinding,
)
from steadyworker.lifecycle import Stage
from steadyworker.runner.state import Paused, Staged
from steadyworker.service.broker_recheck import BrokerRecheck
from steadyworker.service.fact_batch import FactBatch
from steadyworker.service.owner_report import OwnerReporter
from steadyworker.service.timed_ledger import timed
from steadyworker.service.watchdog import Snapshot
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.flaky_ledger import FlakyLedger
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker.text.versions import version
from tests.runner.bench import Bench


def ended(at: float, seconds: float, outcome: str = "done", queue: str = "exports") -> JobEnded:
    return JobEnded(key="k", queue=queue, fence=7, at=at, outcome=outcome, reason="", seconds=seconds)


def minute(at: int, outcome: str, **classes: int) -> Minute:
    counts = [0] * (len(DURATIONS) + 1)
    for name, runs in classes.items():
        counts[int(name[1:])] = runs
    return Minute("shop", "exports", at, outcome, tuple(counts))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ledger(clock: FakeClock) -> MemoryLedger:
    return MemoryLedger(clock, Times())


@pytest.fixture
def batch(clock: FakeClock) -> FactBatch:
    return FactBatch("me", {"exports": "shop", "refunds": "shop"}, clock)


def test_runs_are_counted_by_minute_outcome_and_duration(batch: FactBatch, ledger: MemoryLedger) -> None:
    """The bound of a class belongs to the class; the longest runs are above the last bound."""
    for event in (ended(119.9, 0.1), ended(60, 0.11), ended(61, 1.0), ended(120, 1e9), ended(120, 5, "failed")):
        batch(event)
    batch.write(ledger.facts)
    assert list(ledger.facts.minutes(0)) == [
        minute(60, "done", c0=1, c1=2),
        minute(120, "done", c11=1),
        minute(120, "failed", c2=1),
    ]
    batch.write(ledger.facts)
    assert sum(each.runs for each in ledger.facts.minutes(0)) == 5, "the batch was empty"


def test_events_of_runs_belong_to_the_last_connection_of_their_queue(
    batch: FactBatch, ledger: MemoryLedger, clock: FakeClock
) -> None:
    now = clock.wall()
    about: dict[str, Any] = {"key": "k", "queue": "exports", "fence": 7, "at": 1.0}
    batch.link("exports", "connected", 1, "")
    batch.link("refunds", "connected", 9, "")
    batch.link("exports", "lost", 1, "reset")
    batch(DeliveryLost(**about, cause="reset"))
    batch.link("exports", "connected", 2, "")
    batch(Adopted(**about))
    batch.link("exports", "draining", None, "")
    batch.write(ledger.facts)
    assert list(ledger.facts.link_events(0)) == [
        LinkEvent("me", "exports", now, 1, "connected"),
        LinkEvent("me", "refunds", now, 9, "connected"),
        LinkEvent("me", "exports", now, 1, "lost", "reset"),
        LinkEvent("me", "exports", now, 1, "delivery-lost", "reset", 7),
        LinkEvent("me", "exports", now, 2, "connected"),
        LinkEvent("me", "exports", now, 2, "adopted", "", 7),
        LinkEvent("me", "exports", now, 2, "draining"),
    ]


def test_what_is_not_collected_costs_the_ledger_nothing(batch: FactBatch) -> None:
    batch(
        JobSettled(
            key="k", queue="exports", fence=7, at=0.0, settlement="ack", outcome="done", reason="", attempts=1, crashes=0,
            losses=0, interruptions=0, settled="confirmed", seconds=1.0,
        )
    )  # fmt: skip
    batch.write(cast(Facts, None))


def test_a_batch_that_the_ledger_did_not_accept_is_lost(
    batch: FactBatch, ledger: MemoryLedger, clock: FakeClock
) -> None:
    line = FlakyLedger(ledger)
    batch.link("exports", "connected", 1, "")
    batch(ended(60, 1))
    line.cut()
    with pytest.raises(LedgerUnavailable):
        batch.write(line.facts)
    line.mend()
    batch.write(line.facts)
    assert (list(ledger.facts.link_events(0)), list(ledger.facts.minutes(0))) == ([], [])


def test_a_batch_does_not_grow_without_end_while_the_ledger_is_away(batch: FactBatch, ledger: MemoryLedger) -> None:
    """The newest events stay, and the oldest minutes: each of them is whole."""
    for number in range(5000):
        batch.link("exports", "connected", number, "")
        batch(ended(60 * number, 1))
        batch(ended(60 * number, 1))
    batch.write(ledger.facts)
    assert [event.epoch for event in ledger.facts.link_events(0)] == list(range(4800, 5000))
    assert [each.runs for each in ledger.facts.minutes(0)] == [2] * 1000


def finding(level: Any, id: str) -> Finding:
    return Finding(level, "what", "remedy.", id=id)


def test_a_report_shows_what_the_probes_show(clock: FakeClock) -> None:
    bench = Bench(slots=2)
    found = [
        finding("warning", "b.two"),
        finding("note", "b.note"),
        finding("error", "a.one"),
        finding("error", "a.one"),
    ]
    reporter = OwnerReporter({"shop/exports": bench.runner}, lambda: found, clock)
    begun = OwnerReport(
        pid=os.getpid(),
        version=version(),
        started_at=clock.wall(),
        stage="running",
        ready=False,
        not_ready=("worker: starting",),
        queues={"shop/exports": QueueReport(slots=2, busy=0, time_limit=None, connected=True)},
        findings=(
            ReportedFinding("a.one", "error", "what Remedy: remedy."),
            ReportedFinding("b.two", "warning", "what Remedy: remedy."),
        ),
    )
    assert reporter.report() == begun
    clock.advance(5)
    bench.deliver("job")
    bench.handle(Staged(Stage.QUIET), Paused(Pause("bench", "exports", "ada", "", 0.0)))
    reporter.snapshot = lambda: Snapshot(("stuck: x",), ("exports: stage: quiet",), ("exports: paused by ada",))
    later = reporter.report()
    assert (later.started_at, later.stage, later.ready) == (begun.started_at, "quiet", False)
    assert later.not_ready == ("stuck: x", "exports: stage: quiet")
    assert later.queues["shop/exports"] == QueueReport(slots=2, busy=1, connected=True, paused=True)
    reporter.snapshot = lambda: Snapshot(pauses=("exports: paused by ada",))
    assert (reporter.report().ready, reporter.report().not_ready) == (True, ())


def test_the_findings_of_the_start_and_of_the_last_check_are_reported() -> None:
    answers = iter([[finding("warning", "b.new")], []])
    recheck = BrokerRecheck([lambda: next(answers)], [finding("warning", "a.start")])
    assert [each.id for each in recheck.found] == ["a.start"]
    recheck.check()
    assert [each.id for each in recheck.found] == ["a.start", "b.new"]
    recheck.check()
    assert [each.id for each in recheck.found] == ["a.start"]


def test_the_calls_of_facts_are_measured() -> None:
    seen: list[tuple[str, bool]] = []

    def observe(call: str, seconds: float, *, failed: bool) -> None:
        assert seconds == 0.0
        seen.append((call, failed))

    clock = FakeClock()
    line = FlakyLedger(MemoryLedger(clock, Times()))
    ledger = timed(cast(Ledger, line), clock, observe)
    ledger.facts.pauses()
    line.cut()
    with pytest.raises(LedgerUnavailable):
        ledger.facts.pauses()
    assert seen == [("pauses", False), ("pauses", True)]
