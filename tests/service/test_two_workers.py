"""Worker processes that meet over one job: connections that drop, leases that end, a process that was frozen."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from steadyworker.ledger.base import State
from steadyworker.outcome import Counters
from tests.support.probes import free_address, ready
from tests.support.stage import Stage, WorkerProcess, eventually

STEPS = "tests.support.jobs:Steps"
QUICK = {"scale": 20, "silence": 1.5}
"""A lease of 3 s, taken over 1.5 s after its end; copies that follow come after 1.5 s."""
BLIND = QUICK | {"proof": False}
"""No owner is ever proven dead: leases have to run out."""


def adrift(stage: Stage, process: WorkerProcess) -> None:
    """The broker takes the process for dead: its message is another's at once, its connection over."""
    stage.evict("steps")
    for bell in Path(f"{stage.broker}.consumers").glob("*.bell"):
        handle = os.open(bell, os.O_WRONLY | os.O_NONBLOCK)
        os.write(handle, b"!")
        os.close(handle)
    process.reports("delivery_lost")


def outcomes(stage: Stage) -> list[str]:
    """Every final word on a job, in all logs."""
    return [line["outcome"] for process in stage.processes for line in process.lines("job_settled")]


def test_a_run_adrift_adopts_its_own_redelivery(stage: Stage) -> None:
    """One worker, one connection that drops in the middle: the job does not notice it, and starts once."""
    stage.send("steps", {"gate": "gate", "at": 3})
    process = stage.worker(STEPS, script={"silence": 1.5})
    stage.notes("waiting", 1)
    adrift(stage, process)
    process.reports("adopted")
    stage.open()
    stage.empties("steps")
    row = stage.reaches("steps", State.DONE)
    assert row.counters == Counters()
    assert stage.lines("starts") == ["job 1 0"]
    assert stage.lines("effects") == [f"job {position}" for position in range(10)]
    process.terminate()
    process.ended(0)
    assert outcomes(stage) == ["done"]


def test_a_redelivery_to_another_worker_follows_and_is_answered(stage: Stage) -> None:
    """The second worker defers the message while the first runs its job; then it acknowledges it from the record."""
    stage.send("steps", {"gate": "gate"})
    first = stage.worker(STEPS, script=QUICK | {"adoption": False})
    stage.notes("waiting", 1)
    second = stage.worker(STEPS, script=QUICK, health=(health := free_address()))
    ready(health)
    adrift(stage, first)
    second.reports("delivery_deferred")
    assert stage.lines("starts") == ["job 1 0"]
    stage.open()
    stage.empties("steps")
    assert stage.reaches("steps", State.DONE).counters == Counters()
    assert stage.lines("starts") == ["job 1 0"]
    assert stage.lines("effects") == [f"job {position}" for position in range(10)]
    for process in (first, second):
        process.terminate()
        process.ended(0)
    assert outcomes(stage) == ["done"]
    answered = [line["state"] for process in (first, second) for line in process.lines("duplicate_acked")]
    assert answered == ["done"], "by whoever had a slot free when the copy came"


def test_a_lease_that_ends_is_taken_over_without_any_proof_of_death(stage: Stage) -> None:
    stage.send("steps", {"gate": "gate", "at": 4})
    first = stage.worker(STEPS, script=BLIND)
    stage.notes("waiting", 1)
    second = stage.worker(STEPS, script=BLIND, health=(health := free_address()))
    ready(health)
    first.signal_all(signal.SIGKILL)
    second.reports("delivery_deferred")
    second.reports("taken_over", losses=1)
    assert stage.reaches("steps", State.DONE).counters == Counters(losses=1)
    assert stage.lines("starts") == ["job 1 0", "job 1 4"], "from the checkpoint"
    assert stage.lines("effects") == [f"job {position}" for position in range(10)]
    stage.empties("steps")
    second.terminate()
    second.ended(0)
    assert outcomes(stage) == ["done"]


def test_a_frozen_worker_that_thaws_after_its_take_over_changes_nothing(stage: Stage) -> None:
    """Every write of it is refused, its child is killed, and it goes on with the next message."""
    stage.send("steps", {"gate": "gate", "at": 4})
    first = stage.worker(STEPS, script=BLIND)
    (waiting,) = stage.notes("waiting", 1)
    child = first.program("slots.child").pid
    first.signal_all(signal.SIGSTOP)
    second = stage.worker(STEPS, script=BLIND)
    second.reports("taken_over", losses=1)
    stage.reaches("steps", State.DONE)
    stage.empties("steps")
    second.terminate()
    second.ended(0)
    row = stage.row("steps")
    assert row is not None
    assert row.fence > int(waiting.split()[1])

    first.signal_all(signal.SIGCONT)
    first.reports("fenced")
    eventually(lambda: not psutil.pid_exists(child), "the child is killed")
    assert stage.reaches("steps", State.DONE) == row, "nothing was written"
    assert stage.lines("starts") == ["job 1 0", "job 1 4"]
    assert stage.lines("effects") == [f"job {position}" for position in range(10)]
    assert outcomes(stage) == ["done"]
    stage.send("steps", {"steps": 1}, key="next")
    stage.reaches("steps", State.DONE, "next")
    stage.empties("steps")
    assert len(first.lines("fenced")) == 1
    first.terminate()
    first.ended(0)


def test_a_frozen_worker_that_is_not_taken_over_goes_on(stage: Stage) -> None:
    """Its lease ran out and nobody took it: the next renewal restores it, and the run gets no interrupt."""
    stage.send("steps", {"gate": "gate"})
    process = stage.worker(STEPS, script=BLIND)
    stage.notes("waiting", 1)
    process.signal_all(signal.SIGSTOP)
    row = eventually(lambda: (row := stage.row("steps")) is not None and row.late_by > 2 and row, "the lease is over")
    process.signal_all(signal.SIGCONT)
    stage.open()
    done = stage.reaches("steps", State.DONE)
    assert (done.fence, done.counters) == (row.fence, Counters())
    assert stage.lines("starts") == ["job 1 0"]
    stage.empties("steps")
    process.terminate()
    process.ended(0)
