"""The progress of a run: in the ledger a second later, also if the ledger was away meanwhile; a runner without progress has no timer for it."""

from __future__ import annotations

from steadyworker.ledger.base import JobId
from steadyworker.runner.state import Renewed
from steadyworker.slots.base import Progressed
from tests.runner.bench import NAMESPACE, Bench
from tests.runner.kit import QUEUE


def written(bench: Bench) -> float | None:
    progress = bench.real.last_progress(JobId(NAMESPACE, QUEUE, "one"))
    return None if progress is None else progress.done


def report(bench: Bench, done: float) -> None:
    task = bench.slots[0].task
    assert task is not None
    bench.handle(Progressed(0, task.fence, done, None, ""))


def test_the_last_progress_of_each_second_is_written() -> None:
    bench = Bench()
    bench.deliver("one")
    report(bench, 1)
    bench.tick(0.5)
    report(bench, 2)
    assert written(bench) is None
    bench.tick(0.5)
    assert written(bench) == 2
    report(bench, 3)
    bench.tick(1)
    assert written(bench) == 3


def test_progress_waits_for_a_ledger_that_is_away() -> None:
    bench = Bench()
    bench.deliver("one")
    bench.line.cut()
    report(bench, 1)
    bench.tick(1)
    report(bench, 2)
    bench.tick(5)
    bench.line.mend()
    bench.handle(Renewed(bench.clock.boottime(), []))
    assert written(bench) is None
    bench.tick(1)
    assert written(bench) == 2


def test_without_progress_no_timer_wakes_the_runner() -> None:
    bench = Bench()
    before = bench.runner.timers.next_in()
    assert before is not None
    bench.deliver("one")
    assert bench.runner.timers.next_in() == before
    report(bench, 1)
    assert bench.runner.timers.next_in() == 1.0
    bench.tick(1)
    assert bench.runner.timers.next_in() == before - 1
