"""A job whose message is lost: what a worker process takes, what it leaves, and what it waits for before."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from steadyworker.adapter import Capabilities
from steadyworker.delivery import KEY, OutgoingMessage, Target
from steadyworker.events import Adopted, DuplicateAcked, JobStarted, MessageLost, TakenOver
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Moving, Renewal, Row, State, Verdict
from steadyworker.ledger.lease import registered_name
from steadyworker.lifecycle import Stage
from steadyworker.outcome import Counters
from steadyworker.runner.consumer_audit import AuditResult
from steadyworker.runner.orphans import orphan_after
from steadyworker.testing.harness import Harness
from steadyworker.testing.memory_adapter import MemoryAdapter
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from tests.runner.kit import QUEUE, AnyWorker, Gate, Obedient, Seen, counted, events, nothing, raises, saves, worker

BODY = b"{}"
DIGEST = hashlib.sha256(BODY).digest()
FOUND_AFTER = 60 + 30 + 90
"""Lease, margin and `orphan_after`: the seconds after which a claim of a lost owner is an orphan."""
LOOK = 30


def message(**headers: str) -> KeptMessage:
    """A message as the ledger keeps it."""
    pairs = ",".join(f'"{name}":"{text}"' for name, text in headers.items())
    return KeptMessage(BODY, f'{{"headers":{{{pairs}}}}}'.encode())


def ghost(h: Harness, key: str = "ghost", *, queue: str = QUEUE, namespace: str = NAMESPACE, **claimed: Any) -> Row:
    """The row of a job whose owner and message are gone; nothing of it is in the broker."""
    values = {"hop": 0, "body_sha256": DIGEST, "counters": Counters(), "message": message()} | claimed
    row = h.ledger.claim(Claimed(JobId(namespace, queue, key), None, "ghost/1", **values))
    assert row is not None
    return row


def moving(h: Harness, row: Row, target: Moving, reason: str = "as asked", delay: float = 0.0) -> None:
    """Its owner had decided on a settlement."""
    assert h.ledger.moving(row.token, Verdict(target, reason, Counters(attempts=1), delay))


def lose(h: Harness, key: str) -> None:
    """Lose the job's messages in the work queue."""
    theirs = [each for each in h.broker.messages(QUEUE) if each.headers.get(KEY) == key]
    assert theirs
    for each in theirs:
        h.broker.lose(each)


def lost(h: Harness, key: str = "ghost") -> list[MessageLost]:
    return events(h, key, MessageLost)


def fates(h: Harness, key: str = "ghost") -> list[str]:
    return [event.fate for event in lost(h, key)]


def state(h: Harness, key: str = "ghost", round_: int = 0) -> State | None:
    row = h.ledger.read(JobId(NAMESPACE, QUEUE, key, round_))
    return None if row is None else row.state


def starts(h: Harness, key: str = "ghost") -> list[JobStarted]:
    return events(h, key, JobStarted)


# --- each state --------------------------------------------------------------------------------------------------------


def test_a_running_job_is_taken_over_when_it_is_an_orphan_and_not_before(harness: MakeHarness) -> None:
    seen = Seen(lambda job: (job.payload, job.last_checkpoint))
    h = harness(worker(seen))
    row = ghost(h)
    assert h.ledger.checkpoint(row.token, b"7")

    h.advance(FOUND_AFTER)
    assert fates(h) == []

    h.advance(LOOK)
    h.wait("ghost", until="done")
    (event,) = lost(h)
    assert (event.fate, event.state, event.owner, event.why) == ("runs", "running", "ghost/1", "")
    assert 90 < event.unseen_for <= 90 + LOOK
    assert [event.losses for event in events(h, "ghost", TakenOver)] == [1]
    assert [event.redelivered_because for event in starts(h)] == ["message-lost"]
    assert seen.values == [({}, 7)]
    assert state(h) is State.DONE
    assert h.ledger.message(row.id) is None


def test_a_job_that_lost_its_owners_too_often_becomes_a_dead_letter(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    ghost(h, counters=Counters(losses=4))
    h.advance(FOUND_AFTER + LOOK)

    assert fates(h) == ["dead"]
    assert starts(h) == []
    assert [letter.headers["sw-reason"] for letter in h.dead] == ["owner lost ×5"]
    assert state(h) is State.DEAD


def test_a_retry_whose_copy_is_lost_runs_when_it_is_due_and_no_earlier(harness: MakeHarness) -> None:
    exports = worker(raises(ValueError("once")), nothing)
    h = harness(exports)
    h.send(exports, {}, key="job")
    h.wait("job", until="moved")
    row = h.job("job")
    assert row is not None
    lose(h, "job")
    h.advance(row.due_in + 90)
    assert fates(h, "job") == []

    h.advance(LOOK + 1)
    assert fates(h, "job") == ["runs"]
    assert [event.attempt for event in starts(h, "job")] == [1, 2]
    after = h.wait("job", until="done")
    assert after is not None
    assert (after.state, after.hop, after.counters.attempts) == (State.DONE, 1, 1)


def test_a_retry_is_an_orphan_only_after_its_delay(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    row = ghost(h)
    moving(h, row, Moving.RETRY, delay=600.0)
    assert h.ledger.moved(row.token, 900.0)  # the broker's next level

    h.advance(900 + 90)
    assert fates(h) == []
    h.advance(LOOK)
    assert fates(h) == ["runs"]


def test_a_settlement_to_a_retry_is_finished_and_the_retry_runs(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    moving(h, ghost(h), Moving.RETRY)
    h.advance(FOUND_AFTER + LOOK)

    h.wait("ghost", until="done")
    assert fates(h) == ["finished"]
    assert [event.attempt for event in starts(h)] == [2]
    assert state(h) is State.DONE


def test_a_settlement_to_a_dead_letter_is_finished(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    row = ghost(h)
    moving(h, row, Moving.DEAD, "never again")
    h.advance(FOUND_AFTER + LOOK)

    assert fates(h) == ["dead"]
    assert [letter.headers["sw-reason"] for letter in h.dead] == ["never again"]
    assert [letter.body for letter in h.dead] == [BODY]
    assert state(h) is State.DEAD
    assert h.ledger.message(row.id) == message()
    assert starts(h) == []


def test_without_a_message_the_job_is_dead_without_a_letter_and_says_so(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    moving(h, ghost(h, message=None), Moving.DEAD)
    h.advance(FOUND_AFTER + LOOK)

    assert [(event.fate, event.why) for event in lost(h)] == [("dead", "no message, so it has no dead letter")]
    assert h.dead == []
    assert state(h) is State.DEAD


def test_an_interrupted_job_goes_on_from_its_checkpoint(harness: MakeHarness) -> None:
    told = Obedient()
    exports = worker(saves(3, told), Seen(lambda job: job.last_checkpoint))
    h = harness(exports)
    h.send(exports, {}, key="job")
    h.wait("job", until="checkpoint")
    h.wait("job", until=told.begun.is_set)
    h.stop()
    assert h.job("job").state is State.INTERRUPTED  # type: ignore[union-attr]
    lose(h, "job")
    h.start()

    h.advance(90)
    assert fates(h, "job") == []
    h.advance(2 * LOOK)
    assert [(event.fate, event.state, event.owner) for event in lost(h, "job")] == [("runs", "interrupted", "")]
    h.wait("job", until="done")
    assert counted(h, "job") == (0, 0, 0, 1)


def test_a_cancelled_orphan_does_not_run(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    h.ledger.cancel(ghost(h).id, "not needed")
    h.advance(FOUND_AFTER + LOOK)

    assert starts(h) == []
    assert [letter.headers["sw-reason"] for letter in h.dead] == ["cancelled: not needed"]
    assert state(h) is State.DEAD


def test_a_cancel_mark_alone_is_no_orphan(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    h.ledger.cancel(JobId(NAMESPACE, QUEUE, "ghost"), "not needed")
    h.advance(2 * FOUND_AFTER)

    assert fates(h) == []
    assert state(h) is State.INTERRUPTED


def test_a_replay_whose_message_is_lost_runs_from_the_checkpoint_of_the_round_before(harness: MakeHarness) -> None:
    seen = Seen(lambda job: (job.attempt, job.last_checkpoint))
    h = harness(worker(seen))
    row = ghost(h)
    assert h.ledger.checkpoint(row.token, b"4")
    moving(h, row, Moving.DEAD)
    assert h.ledger.moved(row.token)
    assert h.ledger.replay(JobId(NAMESPACE, QUEUE, "ghost", 1), message(**{KEY: "ghost", "sw-round": "1"}), DIGEST)

    h.advance(90)
    assert fates(h) == []
    h.advance(2 * LOOK)
    h.wait("ghost", until="done")
    assert [(event.fate, event.state) for event in lost(h)] == [("runs", "moved")]
    assert seen.values == [(1, 4)]
    assert (state(h, round_=0), state(h, round_=1)) == (State.DEAD, State.DONE)


# --- each condition ----------------------------------------------------------------------------------------------------


def of_stage(h: Harness, *, able: bool) -> None:
    h.processes[0].enter(Stage.RUNNING if able else Stage.QUIET)


def of_broker(h: Harness, *, able: bool) -> None:
    (h.broker.unblock if able else h.broker.block)()


def of_host(h: Harness, *, able: bool) -> None:
    h.processes[0].runners[0].state.unfit = None if able else "no temporary directory"


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
    "disable", [of_stage, of_broker, of_host, of_audit, of_connection, of_ledger, of_process], ids=lambda f: f.__name__
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
    h.advance(89)
    assert fates(h) == [], "its owner could have renewed, and its message could have come"
    h.advance(2 * LOOK)
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
    h = harness(exports)
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

    h.advance(2 * LOOK + 15)
    assert fates(h) == ["runs"]


def test_a_short_loss_of_the_connection_begins_the_wait_anew(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    ghost(h)
    h.advance(FOUND_AFTER - 10)
    h.broker.go_down()
    h.advance(1)
    h.broker.come_up()
    h.advance(89)
    assert fates(h) == []

    h.advance(2 * LOOK)
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
    h.advance(LOOK + 5)
    assert fates(h) == ["runs"]


@pytest.mark.parametrize(("answers_within", "taken"), [(5.0, True), (40.0, False)])
def test_the_broker_has_its_time_to_answer(
    harness: MakeHarness, monkeypatch: pytest.MonkeyPatch, answers_within: float, taken: bool
) -> None:
    """As long as two polls of RocketMQ take: a message can wait in front, of which nothing is heard before."""
    able = Capabilities(counts_consumers=True, answers_within=answers_within)
    monkeypatch.setattr(MemoryAdapter, "capabilities", able)
    exports = worker(nothing)
    h = harness(exports)
    ghost(h)
    h.advance(FOUND_AFTER)  # the next look but one is due in 30 s, and the row has just become an orphan
    h.send(exports, {}, key="job")
    h.wait("job")
    h.advance(LOOK)
    assert fates(h) == (["runs"] if taken else [])
    h.advance(LOOK)
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
    h.advance(90 + 900)
    assert fates(h) == []
    h.advance(LOOK)
    assert fates(h) == ["runs"]


def test_after_an_hour_an_orphan_gets_the_next_slot_of_a_queue_that_is_never_empty(harness: MakeHarness) -> None:
    first, second = Gate(), Gate()
    exports = worker(first, second, nothing)
    h = harness(exports)
    h.send(exports, {}, key="first")
    h.wait("first", until=first.reached.is_set)
    row = ghost(h)
    for number in range(3):
        h.send(exports, {}, key=f"waits-{number}")
    h.advance(90 + 3600)
    assert h.processes[0].adapters[0].consumer.window == 1, "the delivery of the run"
    h.advance(LOOK)
    assert h.processes[0].adapters[0].consumer.window == 0, "no message follows it"

    first.open()
    h.wait("first")
    h.advance(LOOK)
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
    h.send(exports, {}, key="first")
    h.wait("first", until=first.reached.is_set)
    ghost(h)
    h.send(exports, {}, key="flies")
    h.advance(90 + 3600 + LOOK)
    first.open()
    h.wait("first", until="done")
    h.processes[0].adapters[0].consumer.window = 1  # the broker has sent it before it heard of the lower prefetch
    h.wait("flies", until=second.reached.is_set)
    h.advance(5 * LOOK)
    assert fates(h) == []

    second.open()
    h.wait("flies")
    h.advance(LOOK)
    assert fates(h) == ["runs"]


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
    h.advance(FOUND_AFTER + LOOK)

    assert fates(h) == ["dead"]
    assert not quota.spent


def test_a_job_waits_for_the_end_of_its_earlier_run_in_this_process(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(gate, nothing, concurrency=2)
    h = harness(exports)
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
    h.advance(LOOK)
    h.wait("job", until="done")
    assert fates(h, "job") == ["runs"]
    assert h.starts("job") == 2


# --- what never runs by itself -----------------------------------------------------------------------------------------


def test_a_worker_that_keeps_no_messages_leaves_the_job_and_says_so_once(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(gate, nothing, keep_message=False)
    h = harness(exports)
    h.send(exports, {}, key="job")
    h.wait("job", until=gate.reached.is_set)
    row = h.job("job")
    assert row is not None
    assert h.ledger.message(row.id) is None
    h.processes[0].freeze()
    lose(h, "job")
    h.start()
    h.advance(3600)
    gate.open()

    assert [(event.fate, event.why) for event in lost(h, "job")] == [("left", "no message")]
    assert h.starts("job") == 1


def test_a_message_over_the_limit_is_not_kept(harness: MakeHarness) -> None:
    exports = worker(nothing)
    h = harness(exports)
    object.__setattr__(h.processes[0].runners[0].deps, "max_body", 5)
    h.send(exports, {"a": "long one"}, key="job")
    row = h.wait("job", until="dead")
    assert row is not None
    assert h.ledger.message(row.id) is None


def test_a_job_of_before_a_restore_is_left_and_one_of_after_it_runs(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    h.processes[0]._keeper._queues = [registered_name(NAMESPACE, QUEUE)]
    h.advance(15)
    ghost(h, "before")
    h.ledger.restore(h.ledger.saved())
    h.advance(15)
    ghost(h, "after")
    h.advance(1000)

    assert [(event.fate, event.why) for event in lost(h, "before")] == [("left", "old record")]
    assert fates(h, "after") == ["runs"]


def test_another_namespace_is_another_broker(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    ghost(h, namespace="elsewhere")
    h.advance(2 * FOUND_AFTER)

    assert fates(h) == []


def test_each_of_two_workers_takes_the_orphans_of_its_own_queue(harness: MakeHarness) -> None:
    first: AnyWorker = worker(nothing)
    second: AnyWorker = worker(nothing, queue="reports")
    h = harness(first, second)
    ghost(h)
    ghost(h, "report", queue="reports")
    h.advance(FOUND_AFTER + LOOK)

    assert [(event.queue, event.fate) for event in (*lost(h), *lost(h, "report"))] == [
        (QUEUE, "runs"),
        ("reports", "runs"),
    ]


def test_of_two_processes_one_takes_it(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    h.start()
    h.start()
    ghost(h)
    h.advance(FOUND_AFTER + 3 * LOOK)

    assert fates(h) == ["runs"]
    assert len(starts(h)) == 1


def test_a_refused_claim_is_no_loss(harness: MakeHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process was faster, between the question and the claim."""
    h = harness(worker(nothing))
    quota = h.processes[0].runners[0].deps.quota
    quota._left = 1
    row = ghost(h)
    ledger = h.processes[0].ledger

    def slower(id_: JobId) -> KeptMessage | None:
        h.ledger.claim(Claimed(id_, h.ledger.read(id_), "ghost/2", 0, DIGEST, Counters()))
        return h.ledger.message(id_)

    monkeypatch.setattr(ledger, "message", slower, raising=False)
    h.advance(FOUND_AFTER + LOOK)

    assert fates(h) == []
    assert not quota.spent
    assert h.ledger.read(row.id).owner == "ghost/2"  # type: ignore[union-attr]


# --- a message that comes after all -------------------------------------------------------------------------------------


def comes(h: Harness, key: str = "ghost") -> None:
    """The message that was called lost comes."""
    h.processes[0].adapters[0].publish(OutgoingMessage(Target.WORK, BODY, {KEY: key}, message_id=key))


def test_a_message_that_comes_while_its_job_runs_is_adopted(harness: MakeHarness) -> None:
    gate = Gate()
    h = harness(worker(gate, concurrency=2))
    ghost(h)
    h.advance(FOUND_AFTER + LOOK)
    comes(h)
    h.advance(1)
    assert len(events(h, "ghost", Adopted)) == 1

    gate.open()
    h._turns.until(lambda: not h.broker.messages(QUEUE), lambda: "its message is acknowledged", 10)
    assert state(h) is State.DONE
    assert len(starts(h)) == 1


def test_a_message_that_comes_when_its_job_is_done_is_a_duplicate(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    ghost(h)
    h.advance(FOUND_AFTER + LOOK)
    h.wait("ghost", until="done")
    comes(h)
    h.advance(1)

    assert [event.state for event in events(h, "ghost", DuplicateAcked)] == ["done"]
    assert len(starts(h)) == 1
    assert h.broker.messages(QUEUE) == []


# --- for people --------------------------------------------------------------------------------------------------------


def test_the_log_says_what_happened(harness: MakeHarness, caplog: pytest.LogCaptureFixture) -> None:
    h = harness(worker(nothing))
    row = ghost(h)
    h.advance(FOUND_AFTER + LOOK)

    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    (line,) = [line for line in lines if line.get("event") == "message_lost"]
    assert {name: line[name] for name in ("key", "queue", "state", "fate", "owner", "explain")} == {
        "key": "ghost",
        "queue": QUEUE,
        "state": "running",
        "fate": "runs",
        "owner": "ghost/1",
        "explain": "steadyworker.message-lost",
    }
    assert line["unseen_for"] == pytest.approx(105, abs=15)
    assert line["fence"] == row.fence
