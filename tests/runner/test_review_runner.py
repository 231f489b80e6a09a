"""The runner, step by step, where a whole harness would hide the step: its window, its holds, its timers, its words."""

from __future__ import annotations

import hashlib
import itertools
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from steadyworker.adapter import Adapter, Capabilities, Connected, Delays, Delivered, Lost, Unreachable
from steadyworker.clock import Times
from steadyworker.delivery import KEY, REASON, Delivery, OutgoingMessage, Settle, Settled, Target
from steadyworker.errors import InterruptReason, LedgerUnavailable, Retry, Snooze, TargetMissing
from steadyworker.events import Listener
from steadyworker.ledger.base import Claimed, JobId, Ledger, Moving, Renewal, State, Token, Verdict
from steadyworker.lifecycle import Stage
from steadyworker.link import SaveCheckpoint, Task
from steadyworker.outcome import Counters, Crashed, Done, Failed, Interrupted, Outcome
from steadyworker.retry import RetryPolicy
from steadyworker.runner.runner import Runner, RunnerEvent
from steadyworker.runner.state import Deps, LedgerLost, Renewed, Staged
from steadyworker.slots.base import Asked, Ended, Ready, SlotSink, Unready
from steadyworker.spec import spec_of
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.flaky_ledger import FlakyLedger
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.runner.kit import QUEUE, AnyWorker, worker

NAMESPACE = "review"


class PlayedSlot:
    """A slot that is as warm as the test says, and ends its run when told to."""

    stuck = broken = False
    last_turn = None

    def __init__(self, id: int) -> None:
        self.id = id
        self.up = False
        self.task: Task | None = None
        self.replies: list[tuple[int, object]] = []

    @property
    def warm(self) -> bool:
        return self.up and self.task is None

    def start(self, sink: SlotSink) -> None: ...

    def run(self, task: Task) -> None:
        self.task = task

    def reply(self, fence: int, id: int, answer: Any, *, refused: Any = None, end: bool = True) -> None:
        self.replies.append((id, refused or answer))

    def interrupt(self, fence: int, reason: InterruptReason, *, hard: bool) -> None: ...

    def kill(self, fence: int, outcome: Outcome) -> None: ...

    def stopping(self) -> None: ...

    def close(self, within: float) -> None: ...


class PlayedAdapter:
    """An adapter that writes down what it is told."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.last_turn: float | None = None
        self.windows: list[int] = []
        self.settled: list[tuple[str, Settle]] = []
        self.published: list[OutgoingMessage] = []
        self.missing: set[Target] = set()

    def start(self, sink: Any) -> None: ...

    def prefetch(self, count: int) -> None:
        self.windows.append(count)

    def publish(self, message: OutgoingMessage) -> None:
        if message.to in self.missing:
            raise TargetMissing(f"Expected the {message.to.value} queue, but it is not there.")
        if message.to is Target.WORK and len(message.body) > 1 << 20:
            raise ValueError("Expected a smaller body.")
        self.published.append(message)

    def settle(self, delivery: Delivery, how: Settle) -> Settled:
        self.settled.append((delivery.id, how))
        return Settled.CONFIRMED


class Bench:
    """A runner on a bench: everything around it is played, and hand-overs are carried out at once."""

    def __init__(
        self,
        cls: AnyWorker | None = None,
        *,
        slots: int = 1,
        delays: Delays = Delays.EXACT,
        adapter: PlayedAdapter | None = None,
        emit: Listener = lambda _event: None,
        submit: Callable[[Callable[[], None]], object] = lambda work: work(),
        **more: Any,
    ) -> None:
        self.clock = FakeClock()
        self.times = Times()
        self.real = MemoryLedger(self.clock, self.times)
        self.line = FlakyLedger(self.real)
        self.adapter = adapter or PlayedAdapter(Capabilities(delays=delays))
        self.slots = [PlayedSlot(number) for number in range(slots)]
        self._ids = itertools.count(1)
        deps = Deps(
            spec=spec_of(cls or worker(), {"isolation": "thread"}),
            namespace=NAMESPACE,
            owner="me",
            worker="me",
            ledger=cast(Ledger, self.line),
            adapter=cast(Adapter, self.adapter),
            slots=self.slots,
            clock=self.clock,
            times=self.times,
            emit=emit,
            submit=submit,
            **more,
        )
        self.runner = Runner(deps)
        self.say(Connected(1), *(Ready(slot.id) for slot in self.slots))

    def say(self, *happenings: RunnerEvent) -> None:
        for event in happenings:
            if isinstance(event, Ready):
                self.slots[event.slot].up = True
            if isinstance(event, Ended):
                self.slots[event.slot].task = None
            self.runner.handle(event)
            self.runner.drain_inbox()

    def deliver(self, key: str | None, body: bytes = b"{}", *, epoch: int = 1, **headers: str) -> Delivery:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        delivery = Delivery(epoch, f"d{next(self._ids)}", QUEUE, body, named | ({KEY: key} if key else {}))
        self.say(Delivered(delivery))
        return delivery

    def elsewhere(self, key: str, owner: str = "another") -> Token:
        """Another worker process runs this job."""
        claim = Claimed(JobId(NAMESPACE, QUEUE, key), None, owner, 0, hashlib.sha256(b"{}").digest(), Counters())
        row = self.real.claim(claim)
        assert row is not None
        return row.token

    def ended(self, slot: int, outcome: Outcome, *, killed: bool = False) -> None:
        task = self.slots[slot].task
        assert task is not None
        self.say(Ended(slot, task.fence, outcome, killed=killed))

    def tick(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.runner.tick()
        self.runner.drain_inbox()

    def state(self, key: str) -> State | None:
        row = self.real.read(JobId(NAMESPACE, QUEUE, key))
        return None if row is None else row.state


# --- the window, and what is held -------------------------------------------------------------------------------------


def test_a_message_waits_for_the_slot_that_warms_up_and_does_not_go_to_and_fro_while_another_is_adrift() -> None:
    """A release would come straight back, as often as the broker can, until its delivery limit is used up."""
    bench = Bench(slots=2)
    bench.deliver("first")
    bench.say(Lost(1, "cut"), Connected(2))
    bench.tick(11)
    bench.slots[1].up = False  # its child is being replaced

    second = bench.deliver("second", epoch=2)

    assert bench.adapter.settled == []
    assert bench.adapter.windows[-1] == 1
    bench.say(Ready(1))
    assert bench.slots[1].task is not None
    assert bench.slots[1].task.key == second.headers[KEY]


def test_a_message_that_waits_for_a_slot_goes_back_when_that_slot_is_given_up() -> None:
    """The other slot may be busy for hours."""
    bench = Bench(slots=2)
    bench.deliver("first")
    bench.slots[1].up = False
    second = bench.deliver("second")

    bench.say(Unready(1, "setup raised"))

    assert bench.adapter.settled == [(second.id, Settle.RELEASE)]
    assert bench.adapter.windows[-1] == 1


@pytest.mark.parametrize("stage", [Stage.DRAINING, Stage.INTERRUPTING])
@pytest.mark.parametrize("why", ["ledger away", "no delays"])
def test_nothing_is_held_once_a_stop_has_begun(stage: Stage, why: str) -> None:
    """What nobody here will run goes to another worker process at once, and keeps no stop waiting."""
    bench = Bench(delays=Delays.NONE)
    if why == "ledger away":
        bench.line.cut()
        bench.say(LedgerLost("away"))
    else:
        bench.elsewhere("k")
    before = bench.deliver("k")
    assert bench.adapter.settled == []

    bench.say(Staged(stage))
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
        bench.say(Renewed(bench.clock.boottime(), []))
        bench.tick(30)

    assert len(bench.runner.state.held) == 3
    assert len(bench.runner.timers._heap) <= waiting


def test_an_end_that_a_slot_says_twice_is_settled_once() -> None:
    """A slot whose thread fails just after it has sent the end of a run sends it again."""
    bench = Bench()
    delivery = bench.deliver("k")
    task = bench.slots[0].task
    assert task is not None
    bench.line.cut()  # the settlement waits, so that the run is still known
    bench.say(Ended(0, task.fence, Done()), Ended(0, task.fence, Crashed("the slot's thread failed")))
    bench.line.mend()
    bench.tick(30)
    bench.say(Renewed(bench.clock.boottime(), []))
    assert bench.adapter.settled == [(delivery.id, Settle.ACK)]
    assert bench.state("k") is State.DONE


# --- what must not end the process ------------------------------------------------------------------------------------


def test_a_refused_login_after_the_first_connect_is_tried_again() -> None:
    """78 is for the first connect: a password may be rotated while we run."""
    bench = Bench()
    bench.say(Lost(1, "cut"), Unreachable("login refused", final=True))
    assert bench.runner.final is None
    assert bench.runner.not_ready()["broker"] == "login refused"


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

    bench.say(Lost(1, "cut"), Connected(2))
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
        bench.say(Asked(0, task.fence, 1, SaveCheckpoint(b"1")))
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
    bench.say(LedgerLost("away"))
    for slot in bench.slots:
        assert slot.task is not None
        bench.say(Asked(slot.id, slot.task.fence, 1, SaveCheckpoint(b"1")))
    calls: list[str] = []

    def away(*_: Any) -> bool:
        calls.append("checkpoint")
        raise LedgerUnavailable("away again")

    bench.line.checkpoint = away  # type: ignore[attr-defined]
    tokens = [run.token for run in bench.runner.state.by_fence.values()]
    bench.say(Renewed(bench.clock.boottime(), list(zip(tokens, bench.real.renew(tokens), strict=True))))

    assert calls == ["checkpoint"]
    del vars(bench.line)["checkpoint"]
    bench.say(Renewed(bench.clock.boottime(), list(zip(tokens, bench.real.renew(tokens), strict=True))))
    assert [slot.replies for slot in bench.slots] == [[(1, None)]] * 3


def test_a_run_that_stalls_because_the_ledger_is_away_is_not_blamed_for_it() -> None:
    """An outage of the ledger is ours: free."""
    bench = Bench()
    bench.deliver("k")
    bench.say(LedgerLost("away"))
    task = bench.slots[0].task
    assert task is not None
    bench.say(Asked(0, task.fence, 1, SaveCheckpoint(b"1")))
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
        bench.say(Renewed(bench.clock.boottime(), [(token, Renewal(granted=False)) for token in tokens]))
    bench.say(Staged(Stage.DRAINING))
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
    seen = [run.trusted_until for run in bench.runner.state.by_fence.values()]
    assert seen == [began + bench.times.trust_for]


def test_nothing_is_left_of_a_run_that_is_done() -> None:
    bench = Bench(slots=2)
    for number in range(20):
        bench.deliver(f"job-{number}")
        bench.ended(0, Done())
    runner = bench.runner
    assert (runner.state.by_fence, runner.state.passing, runner.state.valid, runner.state.held) == (
        {},
        [],
        {},
        [],
    )
    assert runner.tokens() == ()
