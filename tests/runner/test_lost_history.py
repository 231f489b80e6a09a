"""A ledger that goes back in time is one error with its consequences, and never a take-over."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from steadyworker.events import Fenced, JobStarted, TakenOver
from steadyworker.ledger.base import Claimed, Hindrance, JobId, KeptMessage, Row, State
from steadyworker.outcome import Counters
from steadyworker.runner.report import lost_history
from steadyworker.runner.state import Phase
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from tests.runner.kit import QUEUE, Gate, counted, events, raises, worker


def lines(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """The error lines about it."""
    found = [record for record in caplog.records if "ledger_lost_history" in str(record.msg)]
    assert all(record.levelno == logging.ERROR for record in found)
    return [record.msg for record in found]


def at_a_gate(harness: MakeHarness) -> tuple[Harness, str, Gate]:
    """Start a job, and wait until its handler is at the gate."""
    gate = Gate()
    exports = worker(gate)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until=gate.reached.is_set)
    return h, key, gate


def goes_back(h: Harness, to: dict[JobId, Any]) -> None:
    h.ledger._jobs = copy.deepcopy(to)


def test_a_job_that_shows_a_loss_makes_old_records_of_all_others(harness: MakeHarness) -> None:
    h, key, gate = at_a_gate(harness)
    id = JobId(NAMESPACE, QUEUE, "waits")
    waits = h.ledger.claim(Claimed(id, None, "dead", 0, b"", Counters(), KeptMessage(b"{}", b"{}")))
    assert waits is not None
    h.ledger.interrupted(waits.token, Counters())
    before = {id: job for id, job in h.ledger._jobs.items() if id.key == "waits"}
    goes_back(h, before)
    while not events(h, key, Fenced):
        h.advance(1)
    gate.open()
    assert h.wait(key) is not None
    h.advance(600)
    (orphan,) = h.ledger.orphans(NAMESPACE, QUEUE, 1.0, 10, stranded=True)
    assert (orphan.row.id.key, orphan.hindrance) == ("waits", Hindrance.OLD_RECORD)
    assert events(h, "waits", JobStarted) == []


def test_jobs_whose_records_are_gone_are_one_error_and_start_again(
    harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    exports = worker(gate, concurrency=2)
    h = harness(exports)
    keys = [h.send(exports, {}), h.send(exports, {})]
    for key in keys:
        h.wait(key, until="started")
    gate.reached.wait(10)

    goes_back(h, {})
    while len([event for event in h.events if isinstance(event, Fenced)]) < 2:
        h.advance(1)
    gate.open()
    for key in keys:
        row = h.wait(key)
        assert row is not None
        assert row.state is State.DONE
        (fenced,) = events(h, key, Fenced)
        assert (fenced.write, fenced.lost, fenced.explain) == ("renew", "the job's record", "ledger.lost-history")
        assert [event.why for event in events(h, key, JobStarted)] == ["new", "after a lost record"]
        assert counted(h, key) == (0, 0, 0, 0)
    (line,) = lines(caplog)
    assert line["lost"] == "the job's record"
    assert "a job that was done runs again if its message comes again" in line["remedy"]


def test_a_record_of_an_earlier_run_is_no_later_run(harness: MakeHarness, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    exports = worker(raises(ValueError("odd")), gate)
    h = harness(exports)
    key = h.send(exports, {})
    earlier = h.wait(key, until="moved")
    before = copy.deepcopy(h.ledger._jobs)
    h.wait(key, until=gate.reached.is_set)

    goes_back(h, before)
    while not events(h, key, Fenced):
        h.advance(1)
    gate.open()
    row = h.wait(key)

    assert row is not None
    assert row.state is State.DONE
    assert earlier is not None
    (fenced,) = events(h, key, Fenced)
    assert fenced.lost == f"the start of this run; its last run of the job is {earlier.fence}"
    assert len(lines(caplog)) == 1
    assert counted(h, key) == (1, 0, 0, 0)


def test_a_take_over_is_no_loss(harness: MakeHarness, caplog: pytest.LogCaptureFixture) -> None:
    h, key, gate = at_a_gate(harness)
    h.expire_lease(key)
    gate.open()
    h.wait(key)
    assert len(events(h, key, TakenOver)) == 1
    assert [(event.lost, event.explain) for event in events(h, key, Fenced)] == [("", "")]
    assert lines(caplog) == []


def test_a_job_that_was_taken_over_ended_and_forgotten_while_its_owner_was_frozen_is_no_loss(
    harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """The record is missing, but the ledger has not gone back in time; its slow reply does not keep the run alive."""
    caplog.set_level(logging.INFO)
    h, key, gate = at_a_gate(harness)
    (run,) = h.processes[0].runners[0].state.by_fence.values()
    phases: list[tuple[Phase, bool]] = []
    read = h.ledger.read

    def watched(id: JobId) -> Row | None:
        phases.append((run.phase, bool(run.waiting)))
        return read(id)

    run.renewed_at -= 3600  # as after a long freeze
    goes_back(h, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(h.ledger, "read", watched)
        while not events(h, key, Fenced):
            h.advance(1)
    gate.open()
    assert phases[0] == (Phase.DROPPED, False)
    (fenced,) = events(h, key, Fenced)
    assert (fenced.lost, fenced.explain) == ("", "")
    assert lines(caplog) == []
    assert caplog.text.count("job_record_removed") == 1


def test_each_way_in_which_a_refused_run_meets_an_older_ledger(harness: MakeHarness) -> None:
    h, key, gate = at_a_gate(harness)
    (run,) = h.processes[0].runners[0].state.by_fence.values()
    row = h.job(key)
    assert row is not None

    def lost(write: str, *, held: bool = True, **changed: Any) -> str:
        seen = Row(**{name: getattr(row, name) for name in Row.__struct_fields__} | changed)
        return lost_history(run, seen, write, held=held)

    assert lost_history(run, None, "renew", held=True) == "the job's record"
    assert lost_history(run, None, "renew", held=False) == ""
    assert lost("renew", held=False, uid="another", fence=row.fence + 1) == ""
    assert lost("renew", held=False, uid="another", fence=row.fence - 1).startswith("the job's record, and another run")
    assert lost("renew", held=False, fence=row.fence - 1).startswith("the start of this run")
    assert lost("renew", uid="another", fence=row.fence + 1).startswith("the job's record, and another run")
    assert lost("confirm") == "the outcome of this run"
    assert lost("renew", fence=row.fence + 1, owner="another") == ""
    assert lost("record", state=State.DONE, owner=None) == ""
    gate.open()
    h.wait(key)


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
