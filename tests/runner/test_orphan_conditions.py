"""A job whose message is lost: for what a worker process waits before it takes the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from steadyworker.adapter import Capabilities
from steadyworker.ledger.base import Claimed, Moving, Renewal, State
from steadyworker.ledger.facts import Pause
from steadyworker.lifecycle import Stage
from steadyworker.outcome import Counters
from steadyworker.runner.causes import HOST, Cause
from steadyworker.runner.consumer_audit import AuditResult
from steadyworker.runner.orphans import orphan_after
from steadyworker.runner.state import Paused
from steadyworker.testing.harness import Harness
from steadyworker.testing.memory_adapter import MemoryAdapter
from steadyworker.testing.plugin import MakeHarness
from tests.runner.ghosts import (
    DIGEST,
    FOUND_AFTER,
    MISSED,
    SEARCH_EVERY,
    SOON,
    fates,
    ghost,
    lose,
    moving,
)
from tests.runner.kit import Gate, nothing, worker

# --- each condition ----------------------------------------------------------------------------------------------------


def patient(h: Harness) -> Harness:
    """A thread whose run must end keeps its slot, however long it takes."""
    for slot in h.processes[0].runners[0].deps.slots:
        slot._grace = 1e9  # type: ignore[attr-defined]
    return h


def of_stage(h: Harness, *, able: bool) -> None:
    h.processes[0].enter(Stage.RUNNING if able else Stage.QUIET)


def of_broker(h: Harness, *, able: bool) -> None:
    (h.broker.unblock if able else h.broker.block)()


def of_host(h: Harness, *, able: bool) -> None:
    causes = h.processes[0].runners[0].state.causes
    if able:
        del causes[HOST]
    else:
        causes[HOST] = Cause("no temporary directory")


def of_pause(h: Harness, *, able: bool) -> None:
    h.processes[0].runners[0].post(Paused(None if able else Pause("harness", "exports", "ada", "", 0.0)))


def of_audit(h: Harness, *, able: bool) -> None:
    h.processes[0].runners[0].post(AuditResult(None if able else "a consumer that no owner explains"))


def of_connection(h: Harness, *, able: bool) -> None:
    (h.broker.come_up if able else h.broker.go_down)()


def of_ledger(h: Harness, *, able: bool) -> None:
    line = h.processes[0].ledger
    (line.mend if able else line.cut)()


def of_process(h: Harness, *, able: bool) -> None:
    (h.processes[0].thaw if able else h.processes[0].freeze)()


@pytest.mark.parametrize(
    "disable",
    [of_stage, of_broker, of_host, of_pause, of_audit, of_connection, of_ledger, of_process],
    ids=lambda f: f.__name__,
)
def test_a_runner_takes_orphans_only_when_it_could_have_consumed_for_long_enough(
    harness: MakeHarness, disable: Callable[..., None]
) -> None:
    h = harness(worker(nothing))
    ghost(h)
    h.advance(FOUND_AFTER - 60)
    disable(h, able=False)
    h.advance(600)
    assert fates(h) == []

    disable(h, able=True)
    h.advance(SOON)
    assert fates(h) == [], "its owner could have renewed, and its message could have come"
    h.advance(2 * SEARCH_EVERY)
    assert fates(h) == ["runs"]


def test_a_draining_process_takes_none(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(gate, concurrency=2)
    h = harness(exports)
    h.send(exports, {}, key="job")
    h.wait("job", until=gate.reached.is_set)
    ghost(h)
    h.processes[0].enter(Stage.DRAINING)
    h.advance(2 * FOUND_AFTER)
    gate.open()

    assert fates(h) == []


@pytest.mark.parametrize(
    "answer", [Renewal(granted=False), Renewal(granted=False, locked=True)], ids=["refused", "locked"]
)
def test_a_renewal_that_is_not_granted_begins_the_wait_anew(
    harness: MakeHarness, monkeypatch: pytest.MonkeyPatch, answer: Renewal
) -> None:
    gate = Gate()
    exports = worker(gate, nothing, concurrency=2)
    h = patient(harness(exports))
    h.send(exports, {}, key="job")
    h.wait("job", until=gate.reached.is_set)
    ghost(h)
    h.advance(FOUND_AFTER - 20)
    with monkeypatch.context() as patch:
        patch.setattr(h.processes[0].ledger, "renew", lambda tokens: [answer for _ in tokens], raising=False)
        h.advance(15)
    gate.open()
    h.wait("job", until="done")
    h.advance(75)
    assert fates(h) == []

    h.advance(2 * SEARCH_EVERY + 15)
    assert fates(h) == ["runs"]


def test_a_short_loss_of_the_connection_begins_the_wait_anew(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    ghost(h)
    h.advance(FOUND_AFTER - 10)
    h.broker.go_down()
    h.advance(1)
    h.broker.come_up()
    h.advance(SOON)
    assert fates(h) == []

    h.advance(2 * SEARCH_EVERY)
    assert fates(h) == ["runs"]


def test_a_suspend_of_the_host_begins_the_wait_anew(harness: MakeHarness) -> None:
    """The leases of all owners have ended meanwhile, by the boot clock, and each of them renews first."""
    gate = Gate()
    exports = worker(gate, concurrency=2)
    h = harness(exports)
    h.start()
    h.send(exports, {}, key="job")
    h.wait("job", until=gate.reached.is_set)
    h.advance(200)
    lose(h, "job")
    h.clock.sleep(300)
    h.advance(600)

    assert fates(h, "job") == []
    gate.open()
    h.wait("job", until="done")
    assert h.starts("job") == 1


def test_a_suspend_in_the_middle_of_the_question_makes_its_answer_old(
    harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the ledger's clock, the owner's lease is over, but the owner has not yet had the time to renew it."""
    gate = Gate()
    exports = worker(gate)
    h = harness(exports)
    h.start()
    h.send(exports, {}, key="job")
    h.wait("job", until=gate.reached.is_set)
    lose(h, "job")
    h.advance(200)
    (asks,) = [each for each in h.processes if each.run_of("job") is None]
    slept: list[float] = []

    def orphans(*arguments: Any, **options: Any) -> Any:
        if not slept:
            slept.append(300.0)
            h.clock.sleep(300.0)
        return h.ledger.orphans(*arguments, **options)

    monkeypatch.setattr(asks.ledger, "orphans", orphans, raising=False)
    h.advance(300)
    assert slept
    assert fates(h, "job") == []
    gate.open()
    h.wait("job", until="done")
    assert h.starts("job") == 1


def test_a_runner_without_an_open_credit_takes_none(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(gate, nothing)
    h = harness(exports)
    h.send(exports, {}, key="job")
    h.wait("job", until=gate.reached.is_set)
    ghost(h)
    h.advance(3000)
    assert fates(h) == []

    gate.open()
    h.wait("job")
    h.advance(SEARCH_EVERY + 5)
    assert fates(h) == ["runs"]


@pytest.mark.parametrize(("answers_within", "taken"), [(5.0, True), (40.0, False)])
def test_the_broker_has_its_time_to_answer(
    harness: MakeHarness, monkeypatch: pytest.MonkeyPatch, answers_within: float, taken: bool
) -> None:
    """As long as two polls of RocketMQ take: a message can wait in front, that the broker does not report before."""
    able = Capabilities(counts_consumers=True, answers_within=answers_within)
    monkeypatch.setattr(MemoryAdapter, "capabilities", able)
    exports = worker(nothing)
    h = harness(exports)
    ghost(h)
    h.advance(FOUND_AFTER)  # the next look but one is due in 30 s, and the row has just become an orphan
    h.send(exports, {}, key="job")
    h.wait("job")
    h.advance(SEARCH_EVERY)
    assert fates(h) == (["runs"] if taken else [])
    h.advance(SEARCH_EVERY)
    assert fates(h) == ["runs"]


def test_the_time_is_the_longest_of_all_that_can_delay_a_message() -> None:
    times = Harness()._times
    assert orphan_after(times, Capabilities()) == 90
    assert orphan_after(times, Capabilities(forgets_consumers_within=180.0)) == 180
    assert orphan_after(times, Capabilities(redelivers_within=900.0)) == 900


def test_the_brokers_own_redelivery_comes_first(harness: MakeHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryAdapter, "capabilities", Capabilities(redelivers_within=900.0))
    h = harness(worker(nothing))
    ghost(h)
    h.advance(SOON + 900)
    assert fates(h) == []
    h.advance(SEARCH_EVERY)
    assert fates(h) == ["runs"]


def test_after_an_hour_an_orphan_gets_the_next_slot_of_a_queue_that_is_never_empty(harness: MakeHarness) -> None:
    first, second = Gate(), Gate()
    exports = worker(first, second, nothing)
    h = harness(exports)
    row = ghost(h)
    h.advance(MISSED)
    h.send(exports, {}, key="first")
    h.wait("first", until=first.reached.is_set)
    for number in range(3):
        h.send(exports, {}, key=f"waits-{number}")
    h.advance(SOON + 3600 - MISSED)
    assert h.processes[0].adapters[0].consumer.window == 1, "the delivery of the run"
    h.advance(SEARCH_EVERY)
    assert h.processes[0].adapters[0].consumer.window == 0, "no message follows it"

    first.open()
    h.wait("first")
    h.advance(SEARCH_EVERY)
    h.wait("ghost", until=second.reached.is_set)
    assert fates(h) == ["runs"]
    assert [h.starts(f"waits-{number}") for number in range(3)] == [0, 0, 0]

    second.open()
    for number in range(3):
        h.wait(f"waits-{number}")
    assert h.ledger.read(row.id).state is State.DONE  # type: ignore[union-attr]
    assert [h.starts(f"waits-{number}") for number in range(3)] == [1, 1, 1]


def test_a_delivery_in_flight_wins_over_an_orphan_with_a_reserved_slot(harness: MakeHarness) -> None:
    first, second = Gate(), Gate()
    exports = worker(first, second, nothing)
    h = harness(exports)
    ghost(h)
    h.advance(MISSED)
    h.send(exports, {}, key="first")
    h.wait("first", until=first.reached.is_set)
    h.send(exports, {}, key="flies")
    h.advance(SOON + 3600 + SEARCH_EVERY - MISSED)
    assert h.processes[0].adapters[0].consumer.window == 0
    first.open()
    h.wait("first", until="done")
    h.processes[0].adapters[0].consumer.window = 1  # the broker has sent it before it heard of the lower prefetch
    h.wait("flies", until=second.reached.is_set)
    h.advance(5 * SEARCH_EVERY)
    assert fates(h) == []

    second.open()
    h.wait("flies")
    h.advance(SEARCH_EVERY)
    assert fates(h) == ["runs"]


def test_a_reserved_slot_is_not_for_an_orphan_that_waits_for_less_time(harness: MakeHarness) -> None:
    """Another process has taken the one for which it was reserved; for the next one, a message may wait in the queue."""
    gate = Gate()
    exports = worker(gate, nothing)
    h = harness(exports)
    old = ghost(h, "old")
    h.advance(MISSED)
    h.send(exports, {}, key="first")
    h.wait("first", until=gate.reached.is_set)
    h.advance(3450 - MISSED)
    ghost(h, "young")
    h.advance(SOON + 150 + SEARCH_EVERY)
    assert h.processes[0].adapters[0].consumer.window == 0
    h.ledger.claim(Claimed(old.id, h.ledger.read(old.id), "ghost/2", 0, DIGEST, Counters()))
    gate.open()
    h.wait("first", until="done")
    h.advance(6)  # it has asked again, with a free slot
    assert fates(h, "young") == []
    assert h.processes[0].adapters[0].consumer.window == 1

    h.advance(SEARCH_EVERY)
    assert fates(h, "young") == ["runs"]


def test_max_jobs_counts_the_run_of_an_orphan(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    quota = h.processes[0].runners[0].deps.quota
    quota._left = 1
    ghost(h)
    ghost(h, "other")
    h.advance(3 * FOUND_AFTER)

    assert sorted(fates(h) + fates(h, "other")) == ["runs"]
    assert quota.spent


def test_max_jobs_does_not_count_a_settlement_that_is_finished(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    quota = h.processes[0].runners[0].deps.quota
    quota._left = 1
    moving(h, ghost(h), Moving.DEAD)
    h.advance(FOUND_AFTER + SEARCH_EVERY)

    assert fates(h) == ["dead"]
    assert not quota.spent


def test_a_job_waits_for_the_end_of_its_earlier_run_in_this_process(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(gate, nothing, concurrency=2)
    h = patient(harness(exports))
    h.send(exports, {}, key="job")
    h.wait("job", until=gate.reached.is_set)
    row = h.job("job")
    assert row is not None
    lose(h, "job")
    h.drop_connection()
    h.ledger.claim(Claimed(row.id, row, "ghost/1", 0, row.body_sha256 or b"", row.counters))
    h.advance(2 * FOUND_AFTER)
    assert fates(h, "job") == []

    gate.open()
    h.wait("job", until=lambda: not h.processes[0].runners[0].state.by_fence)
    h.advance(SEARCH_EVERY)
    h.wait("job", until="done")
    assert fates(h, "job") == ["runs"]
    assert h.starts("job") == 2
