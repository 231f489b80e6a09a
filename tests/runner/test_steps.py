"""The runner, step by step, where a whole harness would hide the step: its prefetch, its holds, its timers, its log."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import pytest

from steadyworker.adapter import Connected, Delays, Lost, Unreachable
from steadyworker.delivery import KEY, REASON, Settle, Target
from steadyworker.errors import LedgerUnavailable, Retry, Snooze
from steadyworker.ledger.base import JobId, Moving, Renewal, State, Verdict
from steadyworker.lifecycle import Stage
from steadyworker.link import SaveCheckpoint
from steadyworker.outcome import Counters, Crashed, Done, Failed, Interrupted
from steadyworker.retry import RetryPolicy
from steadyworker.runner.state import LedgerLost, Renewed, Staged
from steadyworker.slots.base import Asked, Ended, Ready, Unready
from tests.runner.bench import NAMESPACE, Bench
from tests.runner.kit import QUEUE, worker

# --- the window, and what is held -------------------------------------------------------------------------------------


def test_a_message_waits_for_the_slot_that_warms_up_and_does_not_go_to_and_fro_while_another_is_adrift() -> None:
    """A release would come straight back, as often as the broker can, until its delivery limit is used up."""
    bench = Bench(slots=2)
    bench.deliver("first")
    bench.handle(Lost(1, "cut"), Connected(2))
    bench.tick(11)
    bench.slots[1].up = False  # its child is being replaced

    second = bench.deliver("second", epoch=2)

    assert bench.adapter.settled == []
    assert bench.adapter.windows[-1] == 1
    bench.handle(Ready(1))
    assert bench.slots[1].task is not None
    assert bench.slots[1].task.key == second.headers[KEY]


def test_a_message_that_waits_for_a_slot_goes_back_when_that_slot_is_given_up() -> None:
    """The other slot may be busy for hours."""
    bench = Bench(slots=2)
    bench.deliver("first")
    bench.slots[1].up = False
    second = bench.deliver("second")

    bench.handle(Unready(1, "setup raised"))

    assert bench.adapter.settled == [(second.id, Settle.RELEASE)]
    assert bench.adapter.windows[-1] == 1


@pytest.mark.parametrize("stage", [Stage.DRAINING, Stage.INTERRUPTING])
@pytest.mark.parametrize("why", ["ledger away", "no delays"])
def test_nothing_is_held_once_a_stop_has_begun(stage: Stage, why: str) -> None:
    """What nobody here will run goes to another worker process at once, and keeps no stop waiting."""
    bench = Bench(delays=Delays.NONE)
    if why == "ledger away":
        bench.line.cut()
        bench.handle(LedgerLost("away"))
    else:
        bench.elsewhere("k")
    before = bench.deliver("k")
    assert bench.adapter.settled == []

    bench.handle(Staged(stage))
    after = bench.deliver("k")

    assert bench.adapter.settled == [(before.id, Settle.RELEASE), (after.id, Settle.RELEASE)]
    assert bench.runner.finished


def test_what_is_held_is_asked_for_again_once_in_thirty_seconds_however_much_there_is() -> None:
    """A broker without delays: each look at what is held must not double the looks to come."""
    bench = Bench(delays=Delays.NONE, slots=3)
    tokens = [bench.elsewhere(key) for key in ("a", "b", "c")]
    for key in ("a", "b", "c"):
        bench.deliver(key)
    waiting = len(bench.runner.timers._heap)

    for _ in range(6):
        bench.real.renew(tokens)
        bench.handle(Renewed(bench.clock.boottime(), []))
        bench.tick(30)

    assert len(bench.runner.state.held) == 3
    assert len(bench.runner.timers._heap) <= waiting


def test_an_end_that_a_slot_reports_twice_is_settled_once() -> None:
    """A slot whose thread fails just after it has sent the end of a run sends it again."""
    bench = Bench()
    delivery = bench.deliver("k")
    task = bench.slots[0].task
    assert task is not None
    bench.line.cut()  # the settlement waits, so that the run is still known
    bench.handle(Ended(0, task.fence, Done()), Ended(0, task.fence, Crashed("the slot's thread failed")))
    bench.line.mend()
    bench.tick(30)
    bench.handle(Renewed(bench.clock.boottime(), []))
    assert bench.adapter.settled == [(delivery.id, Settle.ACK)]
    assert bench.state("k") is State.DONE


# --- what must not end the process ------------------------------------------------------------------------------------


def test_a_refused_login_after_the_first_connect_is_tried_again() -> None:
    """78 is for the first connect: a password may be rotated while we run."""
    bench = Bench()
    bench.handle(Lost(1, "cut"), Unreachable("login refused", final=True))
    assert bench.runner.final is None
    assert bench.runner.not_ready()["broker"].why == "login refused"


def test_a_message_without_a_key_that_is_too_large_for_a_stamp_is_a_dead_letter() -> None:
    bench = Bench()
    original = bench.deliver(None, b"x" * ((1 << 20) + 1))
    (letter,) = bench.adapter.published
    assert letter.to is Target.DEAD
    assert letter.headers[REASON].startswith("bad-payload: expected at most 1048576 bytes")
    assert bench.adapter.settled == [(original.id, Settle.ACK)]


def test_a_wait_that_raises_later_on_costs_the_job_its_own_wait_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is the user's code, in our thread."""

    def wait(state: Any) -> float:
        return {1: 1.0}[state.attempt_number]

    bench = Bench(worker(retry=RetryPolicy(wait=wait)))
    bench.deliver("k", sw_attempts="1")
    bench.ended(0, Failed("odd"))
    (message,) = bench.adapter.published
    assert message.to is Target.LATER
    assert message.delay == RetryPolicy().delay(2)
    assert bench.state("k") is State.MOVED


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "soon", True, b"5"])
def test_a_delay_that_is_none_is_the_handlers_own_error(delay: Any) -> None:
    with pytest.raises(ValueError, match="Expected a delay of 0 seconds to ten years"):
        Retry("later", delay=delay)
    with pytest.raises(ValueError, match="Expected a delay of 0 seconds to ten years"):
        Snooze(delay)


def test_a_handlers_delay_may_be_a_text() -> None:
    assert (Snooze("10m").delay, Retry("later", delay="1m").delay) == (600, 60)


# --- what is said -----------------------------------------------------------------------------------------------------


def test_a_target_that_was_missing_is_forgotten_with_the_hand_over_that_needed_it() -> None:
    bench = Bench()
    bench.adapter.missing.add(Target.LATER)
    bench.elsewhere("k")
    bench.deliver("k")
    assert "later queue" in bench.runner.not_ready()

    bench.handle(Lost(1, "cut"), Connected(2))
    bench.tick(60)

    assert "later queue" not in bench.runner.not_ready()


def test_a_target_is_missing_for_as_long_as_any_hand_over_needs_it() -> None:
    bench = Bench(slots=2)
    bench.adapter.missing.add(Target.LATER)
    for key in ("a", "b"):
        bench.elsewhere(key)
        bench.deliver(key)
    bench.adapter.missing.clear()
    bench.tick(60)
    assert "later queue" not in bench.runner.not_ready()


def test_why_it_is_not_ready_may_be_asked_from_any_thread() -> None:
    """Probes and the watchdog ask while slots come and go."""
    bench = Bench(slots=4)
    stop = threading.Event()
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            while not stop.is_set():
                bench.runner.not_ready()
        except RuntimeError as error:
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(4000):
            bench.runner.handle(Unready(1, "setup raised"))
            bench.runner.handle(Ready(1))
    finally:
        stop.set()
        asking.join()
        sys.setswitchinterval(before)
    assert failures == []


def test_ten_interruptions_without_a_checkpoint_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench()
    for number in range(10):
        assert "often_interrupted" not in caplog.text, number
        bench.deliver("k")
        bench.ended(0, Interrupted())
    assert "often_interrupted" in caplog.text


def test_a_job_that_saves_its_position_may_be_interrupted_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench()
    for _ in range(12):
        bench.deliver("k")
        task = bench.slots[0].task
        assert task is not None
        bench.handle(Asked(0, task.fence, 1, SaveCheckpoint(b"1")))
        bench.ended(0, Interrupted())
    assert "often_interrupted" not in caplog.text


def test_a_hop_that_the_ledger_does_not_know_of_is_logged_and_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench()
    bench.deliver("k")
    bench.ended(0, Interrupted())
    bench.deliver("k", sw_hop="3")
    assert bench.slots[0].task is not None
    assert "ledger_lost_history" in caplog.text


# --- the ledger away --------------------------------------------------------------------------------------------------


def test_when_the_ledger_goes_away_again_nobody_else_asks_it() -> None:
    """Each call may take ten seconds, and the runner's thread has many jobs that wait."""
    bench = Bench(slots=3)
    for key in ("a", "b", "c"):
        bench.deliver(key)
    bench.handle(LedgerLost("away"))
    for slot in bench.slots:
        assert slot.task is not None
        bench.handle(Asked(slot.id, slot.task.fence, 1, SaveCheckpoint(b"1")))
    calls: list[str] = []

    def away(*_: Any) -> bool:
        calls.append("checkpoint")
        raise LedgerUnavailable("away again")

    bench.line.checkpoint = away  # type: ignore[attr-defined]
    tokens = [run.token for run in bench.runner.state.by_fence.values()]
    bench.handle(Renewed(bench.clock.boottime(), list(zip(tokens, bench.real.renew(tokens), strict=True))))

    assert calls == ["checkpoint"]
    del vars(bench.line)["checkpoint"]
    bench.handle(Renewed(bench.clock.boottime(), list(zip(tokens, bench.real.renew(tokens), strict=True))))
    assert [slot.replies for slot in bench.slots] == [[(1, None)]] * 3


def test_a_run_that_stalls_because_the_ledger_is_away_is_not_blamed_for_it() -> None:
    """An outage of the ledger is ours: free."""
    bench = Bench()
    bench.deliver("k")
    bench.handle(LedgerLost("away"))
    task = bench.slots[0].task
    assert task is not None
    bench.handle(Asked(0, task.fence, 1, SaveCheckpoint(b"1")))
    bench.ended(0, Failed("stalled"), killed=True)
    row = bench.real.read(JobId(NAMESPACE, QUEUE, "k"))
    assert row is not None
    assert (row.counters.attempts, row.counters.interruptions) == (0, 1)


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_shutdown_has_killed_a_job_only_if_the_job_was_still_its_own(taken_over: bool) -> None:
    """A run that another worker process took over is killed in any stage: this costs nobody anything, and is no exit code 143."""
    bench = Bench()
    bench.deliver("k")
    task = bench.slots[0].task
    assert task is not None
    if taken_over:
        tokens = [run.token for run in bench.runner.state.by_fence.values()]
        bench.handle(Renewed(bench.clock.boottime(), [(token, Renewal(granted=False)) for token in tokens]))
    bench.handle(Staged(Stage.DRAINING))
    bench.ended(0, Interrupted(), killed=True)
    assert bench.runner.killed is not taken_over


def test_trust_in_a_hand_over_that_was_taken_counts_from_the_start_of_the_call() -> None:
    bench = Bench()
    token = bench.elsewhere("k", owner="me")
    assert bench.real.moving(token, Verdict(Moving.RETRY, "odd", Counters(1)))
    real_take_over = bench.real.take_over

    def slow(*arguments: Any) -> Any:
        bench.clock.advance(8)
        return real_take_over(*arguments)

    bench.line.take = slow  # type: ignore[attr-defined]
    bench.adapter.missing.add(Target.LATER)
    began = bench.clock.boottime()
    bench.deliver("k")
    seen = [run.renewed_at for run in bench.runner.state.by_fence.values()]
    assert seen == [began]


def test_nothing_is_left_of_a_run_that_is_done() -> None:
    bench = Bench(slots=2)
    for number in range(20):
        bench.deliver(f"job-{number}")
        bench.ended(0, Done())
    runner = bench.runner
    assert (runner.state.by_fence, runner.state.plans_without_run, runner.state.valid, runner.state.held) == (
        {},
        [],
        {},
        [],
    )
    assert runner.tokens() == ()
