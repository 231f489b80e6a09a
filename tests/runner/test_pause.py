"""A pause of a queue: no process of the fleet receives its messages, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest

from steadyworker.adapter import Blocked, Connected, Lost, Unblocked
from steadyworker.delivery import Settle
from steadyworker.ledger.base import State
from steadyworker.ledger.facts import Pause
from steadyworker.lifecycle import Stage
from steadyworker.outcome import Done
from steadyworker.runner.state import Paused, Staged
from steadyworker.slots.base import Ended
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from tests.runner.bench import Bench
from tests.runner.kit import QUEUE, Gate, nothing, saves, settled, worker

ADA = "ada@ops"
SOON = 15.0
"""The seconds until a process without a job has read a pause: a process of the harness reads it with its renewal."""


def pause(h: Harness, queue: str = QUEUE, reason: str = "disk is full") -> None:
    h.ledger.facts.pause(NAMESPACE, queue, ADA, reason)
    h.advance(SOON)


def resume(h: Harness, queue: str = QUEUE) -> None:
    assert h.ledger.facts.resume(NAMESPACE, queue)
    h.advance(SOON)


def test_a_paused_queue_keeps_its_job_and_its_connection_and_takes_nothing(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(saves(1, gate), nothing, concurrency=2)
    h = harness(exports)
    ((runner,),) = [process.runners for process in h.processes]
    running = h.send(exports, {})
    h.wait(running, until="checkpoint")

    pause(h)
    waiting = h.send(exports, {})
    h.advance(600)
    assert (h.starts(running), h.starts(waiting)) == (1, 0)
    assert h.job(waiting) is None
    assert h.not_ready == {}
    assert runner.pause is not None
    assert runner.pause.why == f"by {ADA}: disk is full"

    gate.open()
    h.wait(running)
    assert settled(h, running) == ["ack"]
    h.advance(600)
    assert h.starts(waiting) == 0
    assert h.processes[0].adapters[0].consumer.epoch == 1

    resume(h)
    h.wait(waiting)
    assert runner.pause is None
    assert h.processes[0].adapters[0].consumer.epoch == 1


def test_a_pause_is_read_within_seconds_while_a_job_runs(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(gate, nothing, concurrency=2)
    h = harness(exports)
    running = h.send(exports, {})
    h.wait(running, until=gate.reached.is_set)
    h.ledger.facts.pause(NAMESPACE, QUEUE, ADA, "")
    h.advance(2)
    assert h.processes[0].runners[0].pause is not None
    waiting = h.send(exports, {})
    h.advance(60)
    assert h.starts(waiting) == 0
    gate.open()


def test_a_process_that_starts_while_its_queue_is_paused_takes_nothing(harness: MakeHarness) -> None:
    exports = worker(nothing)
    h = harness(exports)
    pause(h)
    waiting = h.send(exports, {})
    h.stop()
    h.start()
    h.advance(600)
    assert h.starts(waiting) == 0
    assert h.not_ready == {}
    resume(h)
    h.wait(waiting)
    assert h.starts(waiting) == 1


def test_every_process_of_the_fleet_obeys_a_pause(harness: MakeHarness) -> None:
    exports = worker(nothing)
    h = harness(exports)
    h.start()
    pause(h)
    waiting = [h.send(exports, {}) for _ in range(3)]
    h.advance(600)
    assert [h.starts(key) for key in waiting] == [0, 0, 0]
    assert [process.runners[0].pause is not None for process in h.processes] == [True, True]
    resume(h)
    for key in waiting:
        h.wait(key)


def test_a_pause_of_another_queue_changes_nothing(harness: MakeHarness) -> None:
    exports = worker(nothing)
    h = harness(exports)
    pause(h, "refunds")
    h.ledger.facts.pause("another", QUEUE, ADA, "")
    h.advance(SOON)
    h.wait(h.send(exports, {}))


def test_a_pause_lasts_through_an_outage_of_the_ledger(harness: MakeHarness) -> None:
    """And a pause that began in the outage is obeyed before the first message after it."""
    exports = worker(nothing)
    h = harness(exports)
    pause(h)
    (process,) = h.processes
    process.ledger.cut()
    h.advance(60)
    process.ledger.mend()
    waiting = h.send(exports, {})
    h.advance(60)
    assert h.starts(waiting) == 0
    resume(h)
    h.wait(waiting)

    process.ledger.cut()
    h.advance(60)
    h.ledger.facts.pause(NAMESPACE, QUEUE, ADA, "again")
    later = h.send(exports, {})
    process.ledger.mend()
    h.advance(60)
    assert h.starts(later) == 0


def test_a_paused_process_stops_as_any_other(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    pause(h)
    h.processes[0].enter(Stage.DRAINING)
    h.advance(1)
    assert h.processes[0].runners[0].finished


PAUSE = Pause("bench", QUEUE, ADA, "disk is full", 0.0)


def test_the_prefetch_is_0_in_the_turn_of_a_pause_and_back_in_the_turn_of_its_end() -> None:
    bench = Bench(slots=2)
    bench.handle(Paused(PAUSE))
    bench.handle(Paused(None))
    assert bench.adapter.windows[-3:] == [2, 0, 2]


def test_a_delivery_that_was_under_way_goes_back_to_the_queue() -> None:
    """The broker sent it before it had the prefetch of 0."""
    bench = Bench()
    bench.handle(Paused(PAUSE))
    delivery = bench.deliver("late")
    assert bench.adapter.settled == [(delivery.id, Settle.RELEASE)]
    assert bench.state("late") is None


def test_a_paused_process_without_a_job_waits_as_one_of_an_empty_queue() -> None:
    """So `--idle-exit` ends it, too."""
    bench = Bench()
    bench.deliver("job")
    assert not bench.runner.reading().paused
    bench.handle(Paused(PAUSE))
    assert bench.runner.reading().paused
    assert not bench.runner.waiting
    bench.ended(0, Done())
    assert bench.runner.waiting
    bench.handle(Staged(Stage.QUIET))
    assert not bench.runner.waiting


def test_a_delivery_that_waits_for_a_slot_goes_back_at_a_pause() -> None:
    bench = Bench()
    bench.line.cut()
    delivery = bench.deliver("held")
    assert bench.adapter.settled == []
    bench.line.mend()
    bench.handle(Paused(PAUSE))
    bench.runner.renewed(bench.clock.boottime(), [])
    bench.runner.drain_inbox()
    assert bench.adapter.settled == [(delivery.id, Settle.RELEASE)]


def test_a_message_that_a_run_here_needs_no_more_is_still_acknowledged_in_a_pause() -> None:
    """The decision table applies: a pause only keeps new runs from beginning."""
    bench = Bench()
    bench.deliver("job")
    bench.ended(0, Done())
    bench.handle(Paused(PAUSE))
    again = bench.deliver("job")
    assert (bench.adapter.settled[-1], bench.state("job")) == ((again.id, Settle.ACK), State.DONE)


def test_the_events_of_the_link_are_noted() -> None:
    """Each with the epoch of its connection, where the broker's client names one."""
    noted: list[Any] = []
    bench = Bench(note_link=lambda *event: noted.append(event))
    bench.handle(Lost(1, "reset"), Connected(2), Blocked("memory"), Unblocked())
    bench.handle(Staged(Stage.QUIET), Staged(Stage.RUNNING), Staged(Stage.DRAINING), Staged(Stage.INTERRUPTING))
    assert noted == [
        ("connected", 1, ""),
        ("lost", 1, "reset"),
        ("connected", 2, ""),
        ("blocked", None, "memory"),
        ("unblocked", None, ""),
        ("draining", None, ""),
    ]


def test_the_busy_slots_are_counted() -> None:
    """A run whose settlement goes on has no slot any more."""
    work: list[Any] = []
    bench = Bench(slots=2, submit=work.append)
    bench.deliver("job")
    assert bench.runner.busy == 1
    task = bench.slots[0].task
    assert task is not None
    bench.slots[0].task = None
    bench.runner.handle(Ended(0, task.fence, Done()))
    assert bench.runner.busy == 0


@pytest.mark.parametrize("reason", ["disk is full", ""])
def test_a_pause_names_its_person_and_its_reason(reason: str) -> None:
    bench = Bench()
    bench.handle(Paused(Pause("bench", QUEUE, ADA, reason, 0.0)))
    assert bench.runner.pause is not None
    assert bench.runner.pause.why == (f"by {ADA}: {reason}" if reason else f"by {ADA}")
    assert "paused" not in bench.runner.not_ready()
