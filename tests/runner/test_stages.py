"""Quiet and back, draining, cancelling: what is asked of jobs, and what a deploy costs them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from steadyworker.ledger.base import State
from steadyworker.lifecycle import Stage
from steadyworker.runner.consumer_audit import AuditResult
from steadyworker.runner.state import Staged
from steadyworker.testing.plugin import MakeHarness
from tests.runner.kit import QUEUE, Gate, Obedient, Seen, counted, nothing, saves, settled, worker


def test_quiet_takes_no_new_message_and_is_left_again(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(saves(1, gate), nothing)
    h = harness(exports)
    (process,) = h.processes
    running = h.send(exports, {})
    h.wait(running, until="checkpoint")

    process.enter(Stage.QUIET)
    waiting = h.send(exports, {})
    h.advance(60)
    gate.open()
    h.wait(running)
    h.advance(60)

    assert h.starts(waiting) == 0
    assert h.not_ready == {"stage": "quiet"}

    process.enter(Stage.RUNNING)
    h.wait(waiting)

    assert h.not_ready == {}


def test_a_runner_is_quiet_after_a_minute_without_a_consumer_and_not_before(harness: MakeHarness) -> None:
    """Then it registers as quiet; after a short pause, such as the start of a slot, it would consume again anyway."""
    exports = worker(nothing)
    h = harness(exports)
    (process,) = h.processes
    (runner,) = process.runners
    h.wait(h.send(exports, {}))
    assert not runner.quiet

    process.enter(Stage.QUIET)
    h.advance(59)
    assert not runner.quiet
    h.advance(1)
    assert runner.quiet

    process.enter(Stage.RUNNING)
    h.wait(h.send(exports, {}))
    assert not runner.quiet


def test_a_runner_is_quiet_until_a_setup_has_succeeded(harness: MakeHarness) -> None:
    """It consumes nothing until then; in the count of consumers it would stand for a foreign one."""
    failures = iter([True, True, False])

    class Picky(worker(nothing)):  # type: ignore[misc]
        def setup(self) -> None:
            if next(failures):
                raise ConnectionError("no database")

    h = harness(Picky)
    (runner,) = h.processes[0].runners
    assert h.not_ready == {"setup": "setup raised ConnectionError: no database"}
    assert runner.quiet
    h.wait(h.send(Picky, {}))
    assert not runner.quiet


def test_draining_lets_a_job_finish_that_does_not_ask(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(saves(1, gate))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")

    h.processes[0].enter(Stage.DRAINING)
    h.advance(5)
    gate.open()
    row = h.wait(key)

    assert row is not None
    assert row.state is State.DONE
    assert h.processes[0].finished


@pytest.mark.parametrize(
    ("stage", "interrupted_at"),
    [
        (Stage.DRAINING, lambda job: job.check()),
        (Stage.INTERRUPTING, lambda job: job.progress()),
        (Stage.INTERRUPTING, lambda job: job.checkpoint(2)),
    ],
    ids=["draining: check", "cancelling: progress", "cancelling: checkpoint"],
)
def test_a_job_that_is_interrupted_gives_back(harness: MakeHarness, stage: Stage, interrupted_at: Any) -> None:
    obedient = Obedient(interrupted_at=interrupted_at)
    exports = worker(saves(1, obedient))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until=obedient.begun.is_set)

    h.processes[0].enter(stage)
    row = h.wait(key, until="interrupted")
    h.wait(key, until=lambda: h.processes[0].finished)

    assert row is not None
    assert row.owner is None
    assert obedient.reasons == ["shutdown"]
    assert counted(h, key) == (0, 0, 0, 1)
    assert settled(h, key) == ["release"]
    (message,) = h.broker.messages(QUEUE)
    assert message.holder is None


@pytest.mark.parametrize("call", ["progress", "checkpoint"])
def test_draining_raises_in_no_other_call(harness: MakeHarness, call: str) -> None:
    gate, began = Gate(), Obedient()

    def calls(job: Any) -> None:
        began.begun.set()
        gate(job)
        job.checkpoint(2) if call == "checkpoint" else job.progress(1, 2)

    exports = worker(calls)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until=began.begun.is_set)

    h.processes[0].enter(Stage.DRAINING)
    h.advance(1)
    gate.open()
    row = h.wait(key)

    assert row is not None
    assert row.state is State.DONE


def test_a_job_that_comes_while_draining_is_given_back_unrun(harness: MakeHarness) -> None:
    """It was on its way when the stop came."""
    exports = worker(nothing)
    h = harness(exports)
    (process,) = h.processes
    key = h.send(exports, {})
    h.broker.pump()

    for runner in process.runners:
        runner.handle(Staged(Stage.DRAINING))
    (message,) = h.broker.messages(QUEUE)
    assert message.holder is not None
    h.wait(key, until=lambda: message.holder is None and process.finished)

    assert h.starts(key) == 0
    assert h.job(key) is None


def test_twenty_deploys_in_a_row_cost_no_attempt_no_crash_and_no_loss(harness: MakeHarness) -> None:
    obedient = [Obedient() for _ in range(20)]
    position = Seen(lambda job: job.last_checkpoint)
    exports = worker(*[saves(number, deed) for number, deed in enumerate(obedient)], position)
    h = harness(exports)
    key = h.send(exports, {})

    for each in obedient:
        h.wait(key, until=each.begun.is_set)
        h.stop()
        h.start()
    row = h.wait(key)

    assert row is not None
    assert row.state is State.DONE
    assert h.starts(key) == 21
    assert position.values == [19]
    assert counted(h, key) == (0, 0, 0, 20)
    assert h.dead == []


def test_a_handler_that_swallows_the_interrupt_and_returns_is_not_done(harness: MakeHarness) -> None:
    obedient = Obedient()

    def swallows(job: Any) -> None:
        with suppress(BaseException):
            obedient(job)

    exports = worker(swallows, nothing)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until=obedient.begun.is_set)

    h.stop()
    row = h.job(key)
    assert row is not None
    assert row.state is State.INTERRUPTED
    h.start()
    h.wait(key)

    assert h.starts(key) == 2


def test_beyond_the_ledgers_reach_no_message_is_taken_and_what_runs_runs_on(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(saves(1, gate), nothing)
    h = harness(exports)
    (runner,) = h.processes[0].runners
    running = h.send(exports, {})
    h.wait(running, until="checkpoint")

    runner.post(AuditResult("3 consumers"))
    waiting = h.send(exports, {})
    h.advance(60)
    gate.open()
    h.wait(running)
    h.advance(60)

    assert h.starts(waiting) == 0
    assert h.not_ready == {"consumers": "3 consumers"}

    runner.post(AuditResult())
    h.wait(waiting)

    assert h.not_ready == {}
