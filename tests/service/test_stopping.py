"""Stop signals, in each stage of a worker process and of a job: what is done, what is kept, and within what time."""

from __future__ import annotations

import os
import signal

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker import lifecycle
from steadyworker.ledger.base import State
from steadyworker.lifecycle import Budget
from steadyworker.outcome import Counters
from tests.support.stage import Stage, WorkerProcess, each_once

JOBS = "tests.support.jobs"
STEPS = f"{JOBS}:Steps"


def counted(stage: Stage, queue: str = "steps") -> tuple[int, int, int, int]:
    """Attempts, crashes, losses and interruptions, as the ledger has them."""
    row = stage.row(queue)
    counters = row.counters if row is not None else Counters()
    return counters.attempts, counters.crashes, counters.losses, counters.interruptions


def mid_job(
    stage: Stage, target: str = STEPS, queue: str = "steps", payload: object = None, *, stop_within: float = 28
) -> WorkerProcess:
    """A worker process in the middle of its job."""
    stage.send(queue, payload)
    process = stage.worker(target, stop_within=stop_within).started()
    stage.notes("waiting" if queue == "steps" else "starts", 1)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_idle_worker_process_ends_at_once(stage: Stage, number: signal.Signals) -> None:
    process = stage.worker(f"{JOBS}:Slow").started()
    stage.notes("setups", 1)
    process.send_signal(number)
    assert process.ended(0) < 10
    assert stage.ledger.owners() == [], "it is not unregistered"


def test_a_signal_while_setup_hangs_ends_it_without_a_claim(stage: Stage) -> None:
    stage.send("slow", {})
    process = stage.worker(f"{JOBS}:Slow", env={"SLOW": "gate"}).started()
    stage.notes("setups", 1)
    process.signal_all(signal.SIGTERM)
    assert process.ended(0) < 10
    assert stage.row("slow") is None
    assert stage.ready("slow") == 1
    assert stage.lines("starts") == []


def test_a_job_that_ends_in_time_is_done(stage: Stage) -> None:
    """Its Job calls go on as if nothing had happened, until 13 s before the end of the budget."""
    process = mid_job(stage, payload={"gate": "gate"})
    process.signal_all(signal.SIGTERM)
    process.reports("stage_changed", stage="draining")
    stage.open()
    process.ended(0)
    row = stage.row("steps")
    assert row is not None
    assert row.state is State.DONE
    assert counted(stage) == (0, 0, 0, 0)
    assert stage.lines("starts") == ["job 1 0"]
    assert stage.depth("steps") == 0


@pytest.mark.parametrize("whole", [False, True], ids=["the process", "all of them"])
def test_a_job_that_is_interrupted_gives_back_and_the_next_worker_resumes_it(stage: Stage, whole: bool) -> None:
    process = mid_job(stage, payload={"gate": "gate", "hears": True, "at": 4})
    (process.signal_all if whole else process.send_signal)(signal.SIGTERM)
    process.ended(0)
    row = stage.row("steps")
    assert row is not None
    assert (row.state, row.checkpoint) == (State.INTERRUPTED, b"4")
    assert counted(stage) == (0, 0, 0, 1)
    assert stage.ready("steps") == 1
    stage.open()
    second = stage.worker(STEPS)
    stage.reaches("steps", State.DONE)
    assert counted(stage) == (0, 0, 0, 1)
    assert stage.lines("starts") == ["job 1 0", "job 1 4"]
    assert each_once(stage.lines("effects"), [f"job {n}" for n in range(10)])
    second.terminate()
    second.ended(0)


def test_a_process_group_that_is_signalled_as_one_loses_no_job(stage: Stage) -> None:
    """`kill -TERM -PGID` and a terminal's Ctrl-C: children are in sessions of their own."""
    process = mid_job(stage, payload={"gate": "gate"})
    os.killpg(process.pid, signal.SIGINT)
    process.reports("stage_changed", stage="draining")
    stage.open()
    process.ended(0)
    assert stage.lines("starts") == ["job 1 0"]
    assert stage.reaches("steps", State.DONE).counters == Counters()


def test_a_pause_and_its_end_for_the_whole_service_kill_no_job(stage: Stage) -> None:
    """What `systemctl kill --signal=SIGUSR1` does: it signals every process of the unit."""
    process = mid_job(stage, payload={"gate": "gate"})
    process.signal_all(signal.SIGUSR1)
    process.reports("stage_changed", stage="quiet")
    process.signal_all(signal.SIGUSR2)
    process.reports("stage_changed", stage="running")
    stage.open()
    assert stage.reaches("steps", State.DONE).counters == Counters()
    assert stage.lines("starts") == ["job 1 0"]
    assert "most recent call first" not in process.log_end()
    process.terminate()
    process.ended(0)


def test_a_retry_is_handed_over_before_the_process_ends(stage: Stage) -> None:
    """The signal comes while the copy cannot be published: somebody has locked the broker's file."""
    process = mid_job(stage, payload={"gate": "gate", "steps": 1, "fail": 1})
    with stage.locked(stage.broker):
        stage.open()
        stage.reaches("steps", State.MOVING)
        process.signal_all(signal.SIGTERM)
        process.reports("stage_changed", stage="draining")
    process.ended(0)
    assert stage.reaches("steps", State.MOVED).counters.attempts == 1
    assert stage.ready("steps") == stage.depth("steps") == 1, "the copy, and nothing else"
    second = stage.worker(STEPS)
    stage.reaches("steps", State.DONE)
    assert stage.lines("starts") == ["job 1 0", "job 2 1"]
    assert counted(stage) == (1, 0, 0, 0)
    second.terminate()
    second.ended(0)


def test_a_second_signal_cancels_and_is_an_exit_code(stage: Stage) -> None:
    process = mid_job(stage, f"{JOBS}:Tidy", "tidy", {"seconds": 0.2})
    process.signal_all(signal.SIGTERM)
    process.reports("stage_changed", stage="draining")
    assert stage.lines("heard") == [], "progress does not raise yet"
    process.send_signal(signal.SIGTERM)
    process.ended(143)
    assert stage.lines("cleaned") == ["job"], "it was given the time"
    assert stage.reaches("tidy", State.INTERRUPTED).counters == Counters(interruptions=1)


def test_a_third_signal_kills(stage: Stage) -> None:
    process = mid_job(stage, f"{JOBS}:Tidy", "tidy", {"seconds": 60})
    for number in range(1, 4):
        process.send_signal(signal.SIGTERM)
        process.reports("stage_changed", number)
        if number == 2:
            stage.notes("heard", 1)
    assert process.ended(143) < 10
    assert stage.lines("cleaned") == []
    assert stage.reaches("tidy", State.INTERRUPTED).counters == Counters(interruptions=1)
    assert stage.ready("tidy") == 1


@pytest.mark.parametrize("whole", [False, True], ids=["the process", "all of them"])
def test_a_job_that_ignores_its_interrupt_is_killed_within_the_budget(stage: Stage, whole: bool) -> None:
    process = mid_job(stage, f"{JOBS}:Deaf", "deaf", {}, stop_within=5)
    child = process.program("slots.child").pid
    (process.signal_all if whole else process.send_signal)(signal.SIGTERM)
    assert process.ended(143) < 5
    assert not psutil.pid_exists(child)
    assert stage.reaches("deaf", State.INTERRUPTED).counters == Counters(interruptions=1)
    assert stage.ready("deaf") == 1


def test_a_child_that_is_killed_during_a_stop_was_interrupted(stage: Stage) -> None:
    """Whoever stops us may kill our children first."""
    process = mid_job(stage, payload={"gate": "never"})
    child = process.program("slots.child").pid
    process.terminate()
    process.reports("stage_changed", stage="draining")
    os.kill(child, signal.SIGKILL)
    process.ended(0)
    assert counted(stage) == (0, 0, 0, 1)


def test_a_teardown_that_hangs_is_ended_within_the_budget(stage: Stage) -> None:
    process = stage.worker(f"{JOBS}:Slow", env={"SLOW": "hang in teardown"}, stop_within=4, concurrency=3)
    stage.notes("warm", 3)
    process.terminate()
    assert process.ended(0) < 4.5


def test_quiet_takes_no_message_until_it_is_left(stage: Stage) -> None:
    process = stage.worker(STEPS).started()
    process.send_signal(signal.SIGUSR1)
    process.reports("stage_changed", stage="quiet")
    stage.send("steps", {"steps": 1}, key="first")
    stage.send("steps", {"steps": 1}, key="second")
    assert stage.ready("steps") == 2
    process.send_signal(signal.SIGUSR2)
    process.reports("stage_changed", stage="running")
    stage.empties("steps")
    assert stage.lines("starts") == ["first 1 0", "second 1 0"]
    process.send_signal(signal.SIGUSR1)
    process.reports(
        "stage_changed",
        3,
    )
    process.terminate()
    process.ended(0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("deploys", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_deploys_in_a_row_cost_nothing(stage: Stage, deploys: int) -> None:
    """Each process does two positions of one long job; each position is done once, and the last process is done with it."""
    each = 2
    stage.send("steps", {"steps": each * deploys, "gate": "gate", "every": each, "hears": True})
    for deploy in range(1, deploys + 1):
        process = stage.worker(STEPS)
        stage.notes("waiting", deploy)
        process.signal_all(signal.SIGTERM)
        process.ended(0)
        assert counted(stage) == (0, 0, 0, deploy)
    stage.open()
    last = stage.worker(STEPS)
    stage.reaches("steps", State.DONE)
    assert counted(stage) == (0, 0, 0, deploys)
    assert stage.lines("starts") == [f"job 1 {each * deploy}" for deploy in range(deploys + 1)]
    assert stage.lines("effects") == [f"job {position}" for position in range(each * deploys)]
    last.terminate()
    last.ended(0)


def test_the_budget_enters_each_stage_at_its_time() -> None:
    budget = Budget(began=100.0, within=28.0)
    assert budget.stage(100.0) == (lifecycle.Stage.DRAINING, False)
    assert budget.stage(114.9) == (lifecycle.Stage.DRAINING, False)
    assert budget.stage(115.0) == (lifecycle.Stage.INTERRUPTING, False)
    assert budget.stage(124.9) == (lifecycle.Stage.INTERRUPTING, False)
    assert budget.stage(125.0) == (lifecycle.Stage.INTERRUPTING, True)
    assert (budget.left(120.0), budget.left(130.0)) == (8.0, 0.0)
    assert Budget(began=0.0, within=2.0).stage(0.0) == (lifecycle.Stage.INTERRUPTING, True), (
        "what is too short kills at once"
    )


def test_a_budget_of_sixteen_seconds_drains_for_three(stage: Stage) -> None:
    """The stages of a real budget: 3 s of draining, 10 s of cancelling, and then the kill."""
    process = mid_job(stage, f"{JOBS}:Tidy", "tidy", {"seconds": 1}, stop_within=16)
    process.terminate()
    process.reports("stage_changed", stage="interrupting", kill=False)
    process.ended(0)
    assert stage.lines("cleaned") == ["job"]
    assert counted(stage, "tidy") == (0, 0, 0, 1)


def test_ctrl_c_states_what_happens_now_and_what_another_one_does(stage: Stage) -> None:
    """Each of the three lines comes before the stage changes, so a person need not know the signals by heart."""
    process = mid_job(stage, payload={"gate": "gate"}, stop_within=28)
    for number in range(3):
        process.send_signal(signal.SIGINT)
        process.reports("stop_requested", number + 1)
    assert [(line["now"], line["then"]) for line in process.lines("stop_requested")] == [
        (
            "receives no more messages; running jobs may finish within 15 s",
            "a second Ctrl-C interrupts the jobs, which go on later from their last checkpoints",
        ),
        ("interrupts the jobs", "a third Ctrl-C kills them"),
        ("kills the jobs", "it ends within 3 s"),
    ]
    process.ended(lifecycle.EX_TERMINATED)
