"""What a listing claims of more late jobs than one question to the ledger returns."""

from __future__ import annotations

import pytest

from steadyworker.clock import Times
from steadyworker.dashboard.notices import need_text
from steadyworker.ledger import listing
from steadyworker.ledger.base import Claimed, Hindrance, JobId, KeptMessage, Moving, Need, Verdict
from steadyworker.ledger.listing import Listing, Wanted
from steadyworker.ledger.lost import MOST
from steadyworker.ledger.need_words import remedy_clause
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger


def test_each_late_job_has_its_own_hindrance() -> None:
    """The question for late jobs returns the oldest, and a listing begins with the newest."""
    clock = FakeClock()
    ledger = MemoryLedger(clock, Times())
    ledger.bind("shop", "exports", "shop")
    ledger.register("worker-1", "host-1", ["shop/exports"], None)
    for number in range(MOST + 30):
        for kind in ("retry", "interrupted"):
            id = JobId("shop", "exports", f"{kind}-{number}")
            row = ledger.claim(Claimed(id, None, "worker-1", 0, b"\1" * 32, Counters(), KeptMessage(b"{}", b"{}")))
            assert row is not None
            if kind == "interrupted":
                assert ledger.interrupted(row.token, Counters())
            else:
                assert ledger.moving(row.token, Verdict(Moving.RETRY, "no", Counters(attempts=1)))
                assert ledger.moved(row.token)
    clock.advance(7210.0)
    ledger.register("worker-2", "host-1", ["shop/exports"], None)
    now = clock.wall()
    for jobs in (
        Listing(ledger, Wanted(), now).needing(0, 20).jobs,
        Listing(ledger, Wanted(), now).needing(240, 20).jobs,
        list(Listing(ledger, Wanted(keys=("retry-129", "interrupted-129", "retry-0", "interrupted-0")), now).jobs()),
    ):
        assert {job.need for job in jobs} == {Need.STRANDED}
        assert {None if job.orphan is None else job.orphan.hindrance for job in jobs} == {Hindrance.OLD_RECORD}
        assert all("no worker runs it by itself" in need_text(job, now) for job in jobs)


def test_of_too_many_late_jobs_the_hindrance_is_unknown_and_no_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "MOST_LATE", 1)
    clock = FakeClock()
    ledger = MemoryLedger(clock, Times())
    ledger.bind("shop", "exports", "shop")
    ledger.register("worker-1", "host-1", ["shop/exports"], None)
    for number in range(3):
        id = JobId("shop", "exports", f"retry-{number}")
        row = ledger.claim(Claimed(id, None, "worker-1", 0, b"\1" * 32, Counters(), KeptMessage(b"{}", b"{}")))
        assert row is not None
        assert ledger.moving(row.token, Verdict(Moving.RETRY, "no", Counters(attempts=1)))
        assert ledger.moved(row.token)
    clock.advance(7210.0)
    ledger.register("worker-2", "host-1", ["shop/exports"], None)
    jobs = Listing(ledger, Wanted(), clock.wall()).needing(0, 20).jobs
    assert [(job.row.id.key, job.unsure) for job in jobs] == [("retry-2", True), ("retry-1", True), ("retry-0", False)]
    assert [remedy_clause(job) for job in jobs] == ["", "", ""]
    assert need_text(jobs[0], clock.wall()) == (
        "Its message did not come. So many jobs of its queue are late that the page cannot name its hindrance."
    )
