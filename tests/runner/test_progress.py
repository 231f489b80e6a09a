"""Progress is written at most once a second, and a runner without progress does not wake up for it."""

from __future__ import annotations

from typing import Any

from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from tests.runner.kit import Gate, nothing, worker


def reports(done: int, then: Any = nothing) -> Any:
    def deed(job: Any) -> object:
        job.progress(done, 10)
        return then(job)

    return deed


def written(harness: Harness, key: str) -> float | None:
    """Return what the ledger has of the job's progress."""
    row = harness.job(key)
    progress = harness.ledger.last_progress(row.id) if row is not None else None
    return progress.done if progress is not None else None


def written_later(harness: Harness, key: str) -> float | None:
    harness.advance(1)
    return written(harness, key)


def test_progress_is_written_again_after_an_earlier_one(harness: MakeHarness) -> None:
    second, end = Gate(reports(2)), Gate()
    exports = worker(lambda job: (reports(1)(job), second(job), end(job))[2])
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until=lambda: written_later(h, key) == 1)
    second.open()
    h.wait(key, until=lambda: written_later(h, key) == 2)
    end.open()
    h.wait(key)


def test_progress_waits_for_the_ledger(harness: MakeHarness) -> None:
    first, end = Gate(reports(1)), Gate()
    exports = worker(lambda job: (first(job), end(job))[1])
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="started")
    h.processes[0].ledger.cut()
    first.open()
    h.advance(30)
    assert written(h, key) is None
    h.processes[0].ledger.mend()
    h.wait(key, until=lambda: written_later(h, key) == 1)
    end.open()
    h.wait(key)


def test_a_runner_without_progress_has_no_timer_for_it(harness: MakeHarness) -> None:
    exports = worker(reports(1))
    h = harness(exports)
    h.wait(h.send(exports, {}))
    h.advance(5)
    (runner,) = h.processes[0].runners
    wait = runner.timers.next_in()
    assert wait is not None
    assert wait > 1
