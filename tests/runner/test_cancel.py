"""A job is cancelled before, during and after its run; either way it has one end."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from steadyworker.delivery import REASON
from steadyworker.errors import Interrupt
from steadyworker.events import Fenced, JobEnded, JobSettled, JobStarted
from steadyworker.exports import RowExport
from steadyworker.ledger.base import JobId, State
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from tests.runner.kit import QUEUE, Gate, Obedient, counted, events, nothing, raises, saves, worker


def cancel(h: Harness, key: str) -> State | None:
    return h.ledger.cancel(JobId(NAMESPACE, QUEUE, key), "not needed")


def died_cancelled(h: Harness, key: str) -> bool:
    """It is a dead letter, once, counted nothing, and its outcome has a name of its own."""
    row = h.wait(key)
    assert row is not None
    reasons = [letter.headers[REASON] for letter in h.dead]
    assert [event.outcome for event in events(h, key, JobEnded)][-1] == "cancelled"
    assert [event.outcome for event in events(h, key, JobSettled)][-1] == "cancelled"
    return row.state is State.DEAD and reasons == ["cancelled: not needed"] and counted(h, key)[1:] == (0, 0, 0)


def test_a_job_that_has_not_come_yet_is_not_run_when_it_comes(harness: MakeHarness) -> None:
    exports = worker(nothing)
    h = harness(exports)

    assert cancel(h, "k") is None
    key = h.send(exports, {}, key="k")

    assert died_cancelled(h, key)
    assert h.starts(key) == 0


def test_a_job_that_waits_for_its_retry_is_not_run_again(harness: MakeHarness) -> None:
    exports = worker(raises(ValueError("odd")), nothing)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="moved")

    assert cancel(h, key) is State.MOVED

    assert died_cancelled(h, key)
    assert h.starts(key) == 1


@pytest.mark.parametrize(
    "interrupted_at",
    [lambda job: job.check(), lambda job: job.progress(), lambda job: job.checkpoint(2)],
    ids=["check", "progress", "checkpoint"],
)
def test_a_run_under_way_is_interrupted_within_2_seconds(harness: MakeHarness, interrupted_at: Any) -> None:
    obedient = Obedient(interrupted_at=interrupted_at)
    exports = worker(saves(1, obedient))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until=obedient.begun.is_set)

    assert cancel(h, key) is State.RUNNING
    h.advance(2)

    assert died_cancelled(h, key)
    assert obedient.reasons == ["cancelled"]
    assert h.starts(key) == 1


def test_a_handler_that_returns_all_the_same_is_not_done(harness: MakeHarness) -> None:
    obedient = Obedient()

    def swallows(job: Any) -> None:
        with suppress(BaseException):
            obedient(job)

    exports = worker(swallows)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until=obedient.begun.is_set)

    cancel(h, key)
    h.advance(15)

    assert died_cancelled(h, key)


def test_a_run_that_is_done_before_the_interrupt_is_done(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(gate)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until=gate.reached.is_set)

    cancel(h, key)
    gate.open()
    row = h.wait(key)

    assert row is not None
    assert row.state is State.DONE
    assert h.dead == []


def test_an_accepted_cancel_stops_the_commit_of_an_export(harness: MakeHarness, tmp_path: Path) -> None:
    """No time passes between the cancel and the commit, so that only the ledger can stop it."""
    gate, out, reasons = Gate(), tmp_path / "out" / "payments.csv", []

    def exports_then(job: Any) -> None:
        def rows(_start: int) -> list[tuple[int]]:
            gate(job)
            return [(1,)]

        try:
            job.export(RowExport(rows, columns=("id",)), to=out)
        except Interrupt as interrupt:
            reasons.append(interrupt.reason)
            raise

    exports = worker(exports_then)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until=gate.reached.is_set)

    assert cancel(h, key) is State.RUNNING
    gate.open()

    assert died_cancelled(h, key)
    assert reasons == ["cancelled"]
    assert h.starts(key) == 1
    assert list(out.parent.iterdir()) == [], "neither the file nor a stage"
    assert events(h, key, Fenced) == []


@pytest.mark.parametrize("deed", [nothing, raises(KeyError("never"))], ids=["done", "dead"])
def test_what_has_ended_stays_what_it_is(harness: MakeHarness, deed: Any) -> None:
    exports = worker(deed)
    h = harness(exports)
    key = h.send(exports, {})
    before = h.wait(key)
    assert before is not None

    assert cancel(h, key) is before.state
    h.send(exports, {}, key=key)
    h.wait(key)

    assert h.job(key) == before
    assert len(h.dead) == (before.state is State.DEAD)


def test_a_cancelled_run_whose_connection_drops_dies_once(harness: MakeHarness) -> None:
    obedient = Obedient()
    exports = worker(saves(1, obedient))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until=obedient.begun.is_set)

    cancel(h, key)
    h.drop_connection()
    h.advance(15)

    assert died_cancelled(h, key)
    assert len(events(h, key, JobStarted)) == 1
