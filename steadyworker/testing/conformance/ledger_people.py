"""Promises about what people read of many jobs: counts, and parts of lists."""
# ruff: noqa: PLR2004 - the expected number belongs in the assertion

from __future__ import annotations

from msgspec.structs import replace

from steadyworker.ledger.base import (
    Began,
    Claimed,
    JobId,
    KeptMessage,
    Ledger,
    Moving,
    Need,
    NeedsOf,
    Progress,
    State,
    Verdict,
)
from steadyworker.outcome import CANCELLED, Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance.ledger_fixtures import (
    AGAIN,
    BODY,
    JOB,
    ME,
    OTHER,
    LedgerBench,
    claimed,
    in_state,
    seen,
)

LONG = 3600.0
NEEDS = NeedsOf(None, None, overdue=LONG, lost=2, stalled=LONG, dead=LONG)


def of(key: str, queue: str = "exports") -> JobId:
    """Return the id of a job."""
    return JobId("shop", queue, key)


def keys(ledger: Ledger, which: NeedsOf = NEEDS, offset: int = 0, limit: int = 10) -> list[tuple[str, Need | None]]:
    """Return the keys of the jobs that need a person, each with its need."""
    return [(row.id.key, need) for row, _, need in ledger.needing(which, offset, limit).jobs]


def stall(ledger: Ledger, id: JobId, owner: str = ME) -> None:
    """Claim a job, and let its run report progress once, at its start."""
    row = claimed(ledger, id, owner)
    ledger.progress(row.token, Progress(1, 2, "pages", row.started_at or 0.0))


class PeoplePromises(LedgerBench):
    """Tests of the promises of `held`, `needing`, `running`, `waiting` and `Facts.last_runs`."""

    def test_held_jobs_are_counted_by_owner_and_queue(self, ledger: Ledger, clock: FakeClock) -> None:
        """A run without any progress is not stalled, because not every handler reports progress."""
        stall(ledger, of("a"))
        claimed(ledger, of("b"))
        assert ledger.moving(claimed(ledger, of("c")).token, AGAIN)
        claimed(ledger, of("d", "refunds"))
        claimed(ledger, of("e"), OTHER)
        in_state(ledger, State.MOVED, id=of("f"))
        self.let_pass(clock, 0.2)
        found = {(each.owner, each.queue): each for each in ledger.held(0.1)}
        assert {at: (each.jobs, each.running, each.stalled) for at, each in found.items()} == {
            (ME, "exports"): (3, 2, ("a",)),
            (ME, "refunds"): (1, 1, ()),
            (OTHER, "exports"): (1, 1, ()),
        }
        assert {each.stalled for each in ledger.held(LONG)} == {()}

    def test_each_job_that_needs_a_person_has_one_need(self, ledger: Ledger, clock: FakeClock) -> None:
        """A cancelled job and a replayed one need no person; the most urgent need comes first."""
        stall(ledger, of("stuck"))
        claimed(ledger, of("well"))
        crashed = replace(AGAIN, counters=Counters(crashes=1, losses=1))
        late = claimed(ledger, of("crashing"))
        assert ledger.moving(late.token, crashed)
        assert ledger.moved(late.token, 3 * LONG)
        in_state(ledger, State.DEAD, id=of("dead"))
        row, _ = in_state(ledger, State.DEAD, id=of("replayed"))
        assert ledger.replay(replace(row.id, round=1), KeptMessage(b"", b"{}"), BODY, delay=LONG, wake_in=LONG)
        cancelled = claimed(ledger, of("cancelled"))
        ledger.cancel(cancelled.id, "wrong")
        assert ledger.moving(cancelled.token, Verdict(Moving.DEAD, f"{CANCELLED}wrong", Counters()))
        assert ledger.moved(cancelled.token)
        self.let_pass(clock, 0.2)
        needs = replace(NEEDS, stalled=0.1)
        assert keys(ledger, needs) == [("crashing", Need.CRASHING), ("stuck", Need.STUCK), ("dead", Need.DEAD)]
        assert keys(ledger, needs, 1, 1) == [("stuck", Need.STUCK)]
        assert ledger.needing(needs, 1, 1).number == 3
        beyond = ledger.needing(needs, 7, 1)
        assert ([row.id.key for row, _, _ in beyond.jobs], beyond.number, beyond.offset) == (["crashing"], 3, 0)
        assert keys(ledger, replace(needs, queue="refunds")) == keys(ledger, replace(needs, namespace="other")) == []
        assert keys(ledger, replace(needs, dead=0.1)) == [("crashing", Need.CRASHING), ("stuck", Need.STUCK)]

    def test_a_cancelled_job_in_its_settlement_needs_no_person(self, ledger: Ledger) -> None:
        """Its crashes no longer matter, because it does not run again; those of a dying job do."""
        crashed = Counters(crashes=2)
        for key, reason in (("cancelled", f"{CANCELLED}wrong"), ("dies", "exhausted")):
            row = claimed(ledger, of(key))
            ledger.cancel(row.id, "wrong")
            assert ledger.moving(row.token, Verdict(Moving.DEAD, reason, crashed))
        assert keys(ledger) == [("dies", Need.DEAD)]

    def test_a_job_without_any_worker_process_needs_a_person(self, ledger: Ledger) -> None:
        """A lease that goes on is only over if its owner is proven dead."""
        claimed(ledger)
        alone = replace(NEEDS, alone=((ME, "shop", "exports"), (OTHER, "shop", "refunds")))
        assert keys(ledger, alone) == []
        assert keys(ledger, replace(alone, dead_owners=(ME,))) == [(JOB.key, Need.NO_WORKER)]
        assert keys(ledger, replace(NEEDS, dead_owners=(ME,))) == []

    def test_a_late_job_needs_a_person(self, ledger: Ledger, clock: FakeClock) -> None:
        """The interrupted job has no message, so no worker process starts it by itself."""
        ledger.register(ME, "host", ["shop/exports"])
        in_state(ledger, State.INTERRUPTED, id=of("stranded"))
        row = claimed(ledger, of("retry"))
        assert ledger.moving(row.token, replace(AGAIN, delay=0.0))
        assert ledger.moved(row.token)
        self.let_pass(clock, 0.2)
        needs = replace(NEEDS, overdue=0.1)
        assert keys(ledger, needs) == [("stranded", Need.STRANDED), ("retry", Need.OVERDUE)]
        ledger.facts.pause("shop", "exports", "ann", "")
        assert keys(ledger, needs) == [("retry", Need.OVERDUE)]

    def test_a_list_of_running_jobs_has_the_newest_first(self, ledger: Ledger) -> None:
        """A part of the list has the number of the whole list."""
        for number in range(5):
            stall(ledger, of(f"m-{number}"))
        in_state(ledger, State.MOVED, id=of("moved"))
        page = ledger.running(NEEDS, 1, 2)
        assert [(row.id.key, need) for row, _, need in page.jobs] == [("m-3", None), ("m-2", None)]
        assert [progress.note for _, progress, _ in page.jobs if progress is not None] == ["pages", "pages"]
        assert (page.number, page.offset) == (5, 1)
        assert ledger.running(replace(NEEDS, queue="refunds"), 0, 2).number == 0
        assert ledger.running(replace(NEEDS, namespace="other"), 0, 2).number == 0

    def test_a_list_of_running_jobs_begins_with_those_that_may_hang(self, ledger: Ledger, clock: FakeClock) -> None:
        """Then come others that need a person, and then the newest; a run without a report has no usual silence."""
        stall(ledger, of("hung"))
        claimed(ledger, of("first"))
        row = claimed(ledger, of("crashing"))
        assert ledger.moving(row.token, replace(AGAIN, counters=Counters(crashes=2)))
        assert ledger.moved(row.token)
        again = ledger.read(row.id)
        assert again is not None
        assert ledger.claim(Claimed(row.id, again, ME, 0, BODY, again.counters, None)) is not None
        claimed(ledger, of("second"))
        claimed(ledger, of("last"))
        self.let_pass(clock, 0.2)
        needs = replace(NEEDS, stalled=0.1)
        page = ledger.running(needs, 0, 9)
        assert [(row.id.key, need) for row, _, need in page.jobs] == [
            ("hung", Need.STUCK),
            ("crashing", Need.CRASHING),
            ("last", None),
            ("second", None),
            ("first", None),
        ]
        assert [row.id.key for row, _, _ in ledger.running(needs, 1, 2).jobs] == ["crashing", "last"]
        assert {each.stalled for each in ledger.held(0.1)} == {("hung",)}
        assert keys(ledger, needs) == [("crashing", Need.CRASHING), ("hung", Need.STUCK)]
        assert keys(ledger, replace(needs, dead_owners=(ME,))) == [("crashing", Need.CRASHING)]

    def test_a_list_of_waiting_jobs_has_the_next_one_first(self, ledger: Ledger) -> None:
        """A job in its settlement comes before all of them; a cancel of an unseen job is left out."""
        for number, wake_in in enumerate((3 * LONG, LONG, 2 * LONG)):
            row = claimed(ledger, of(f"m-{number}"))
            assert ledger.moving(row.token, AGAIN)
            assert ledger.moved(row.token, wake_in)
        assert ledger.moving(claimed(ledger, of("moving")).token, AGAIN)
        in_state(ledger, State.INTERRUPTED, id=of("interrupted"))
        in_state(ledger, State.RUNNING, id=of("running"))
        in_state(ledger, State.DEAD, id=of("dead"))
        ledger.cancel(of("unseen"), "wrong")
        page = ledger.waiting(None, None, 0, 9)
        assert [row.id.key for row, _, _ in page.jobs] == ["moving", "interrupted", "m-1", "m-2", "m-0"]
        assert [row.id.key for row, _, _ in ledger.waiting(None, "exports", 3, 1).jobs] == ["m-2"]
        assert ledger.waiting(None, "exports", 3, 1).number == 5

    def test_the_reason_of_the_last_run_is_known(self, ledger: Ledger) -> None:
        """A job without a recorded run is left out."""
        began = Claimed(JOB, None, ME, 0, BODY, Counters(), None, Began(1, "new"))
        row = ledger.claim(began)
        assert row is not None
        assert ledger.interrupted(row.token, Counters(interruptions=1))
        assert ledger.claim(replace(began, seen=seen(ledger), run=Began(1, "interrupted"))) is not None
        claimed(ledger, of("unrecorded"))
        assert ledger.facts.last_runs([of("unrecorded"), JOB, of("unknown")]) == {JOB: (2, "interrupted")}
