"""A job whose message is lost: what becomes of it in each state, what is left, and what the log has."""

from __future__ import annotations

import pytest

from steadyworker.delivery import KEY, OutgoingMessage, Target
from steadyworker.events import Adopted, DuplicateAcked, TakenOver
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Moving, State
from steadyworker.ledger.lease import registered_name
from steadyworker.outcome import Counters
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from tests.runner.ghosts import (
    BODY,
    DIGEST,
    FOUND_AFTER,
    SEARCH_EVERY,
    SOON,
    fates,
    ghost,
    lose,
    lost,
    message,
    moving,
    starts,
    state,
)
from tests.runner.kit import QUEUE, AnyWorker, Gate, Obedient, Seen, counted, events, nothing, raises, saves, worker

# --- each state --------------------------------------------------------------------------------------------------------


def test_a_running_job_is_taken_over_when_it_is_an_orphan_and_not_before(harness: MakeHarness) -> None:
    seen = Seen(lambda job: (job.payload, job.last_checkpoint))
    h = harness(worker(seen))
    row = ghost(h)
    assert h.ledger.checkpoint(row.token, b"7")

    h.advance(FOUND_AFTER)
    assert fates(h) == []

    h.advance(SEARCH_EVERY)
    h.wait("ghost", until="done")
    (event,) = lost(h)
    assert (event.fate, event.state, event.owner, event.why) == ("runs", "running", "ghost/1", "")
    assert 90 < event.unseen_for <= 90 + SEARCH_EVERY
    assert [event.losses for event in events(h, "ghost", TakenOver)] == [1]
    assert [event.redelivered_because for event in starts(h)] == ["message-lost"]
    assert seen.values == [({}, 7)]
    assert state(h) is State.DONE
    assert h.ledger.message(row.id) is None


def test_a_job_that_lost_its_owners_too_often_becomes_a_dead_letter(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    ghost(h, counters=Counters(losses=4))
    h.advance(FOUND_AFTER + SEARCH_EVERY)

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
    h.advance(row.due_in + SOON)
    assert fates(h, "job") == []

    h.advance(SEARCH_EVERY + 1)
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

    h.advance(900 + SOON)
    assert fates(h) == []
    h.advance(SEARCH_EVERY)
    assert fates(h) == ["runs"]


def test_a_settlement_to_a_retry_is_finished_and_the_retry_runs(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    moving(h, ghost(h), Moving.RETRY)
    h.advance(FOUND_AFTER + SEARCH_EVERY)

    h.wait("ghost", until="done")
    assert fates(h) == ["finished"]
    assert [event.attempt for event in starts(h)] == [2]
    assert state(h) is State.DONE


def test_a_settlement_to_a_dead_letter_is_finished(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    row = ghost(h)
    moving(h, row, Moving.DEAD, "never again")
    h.advance(FOUND_AFTER + SEARCH_EVERY)

    assert fates(h) == ["dead"]
    assert [letter.headers["sw-reason"] for letter in h.dead] == ["never again"]
    assert [letter.body for letter in h.dead] == [BODY]
    assert state(h) is State.DEAD
    assert h.ledger.message(row.id) == message()
    assert starts(h) == []


def test_without_a_message_the_job_is_dead_without_a_letter_and_an_event_reports_it(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    moving(h, ghost(h, message=None), Moving.DEAD)
    h.advance(FOUND_AFTER + SEARCH_EVERY)

    assert [(event.fate, event.why) for event in lost(h)] == [("dead", "no message, so it has no dead letter")]
    assert h.dead == []
    assert state(h) is State.DEAD


def test_an_interrupted_job_goes_on_from_its_checkpoint(harness: MakeHarness) -> None:
    obedient = Obedient()
    exports = worker(saves(3, obedient), Seen(lambda job: job.last_checkpoint))
    h = harness(exports)
    h.send(exports, {}, key="job")
    h.wait("job", until="checkpoint")
    h.wait("job", until=obedient.begun.is_set)
    h.stop()
    assert h.job("job").state is State.INTERRUPTED  # type: ignore[union-attr]
    lose(h, "job")
    h.start()

    h.advance(SOON)
    assert fates(h, "job") == []
    h.advance(2 * SEARCH_EVERY)
    assert [(event.fate, event.state, event.owner) for event in lost(h, "job")] == [("runs", "interrupted", "")]
    h.wait("job", until="done")
    assert counted(h, "job") == (0, 0, 0, 1)


def test_an_interrupted_job_waits_for_the_copy_of_a_message_that_was_deferred_while_it_ran(
    harness: MakeHarness,
) -> None:
    """The copy replaced its message, so no other comes; a broker's delay can be long."""
    h = harness(worker(nothing))
    row = ghost(h)
    h.ledger.deferred(row.id, 600.0)
    assert h.ledger.interrupted(row.token, Counters(interruptions=1))
    h.advance(600 + SOON)
    assert fates(h) == []

    h.advance(SEARCH_EVERY)
    assert fates(h) == ["runs"]


def test_a_cancelled_orphan_does_not_run(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    h.ledger.cancel(ghost(h).id, "not needed")
    h.advance(FOUND_AFTER + SEARCH_EVERY)

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

    h.advance(SOON)
    assert fates(h) == []
    h.advance(2 * SEARCH_EVERY)
    h.wait("ghost", until="done")
    assert [(event.fate, event.state) for event in lost(h)] == [("runs", "moved")]
    assert seen.values == [(1, 4)]
    assert (state(h, round_=0), state(h, round_=1)) == (State.DEAD, State.DONE)


# --- what never runs by itself -----------------------------------------------------------------------------------------


def test_a_worker_that_keeps_no_messages_leaves_the_job_and_reports_it_once(harness: MakeHarness) -> None:
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
    h.advance(300)
    h.wait("after", until="done")
    h.advance(700)

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
    h.advance(FOUND_AFTER + SEARCH_EVERY)

    assert [(event.queue, event.fate) for event in (*lost(h), *lost(h, "report"))] == [
        (QUEUE, "runs"),
        ("reports", "runs"),
    ]


def test_of_two_processes_one_takes_it(harness: MakeHarness) -> None:
    h = harness(worker(nothing))
    h.start()
    h.start()
    ghost(h)
    h.advance(FOUND_AFTER + 3 * SEARCH_EVERY)

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
    h.advance(FOUND_AFTER + SEARCH_EVERY)

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
    h.advance(FOUND_AFTER + SEARCH_EVERY)
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
    h.advance(FOUND_AFTER + SEARCH_EVERY)
    h.wait("ghost", until="done")
    comes(h)
    h.advance(1)

    assert [event.state for event in events(h, "ghost", DuplicateAcked)] == ["done"]
    assert len(starts(h)) == 1
    assert h.broker.messages(QUEUE) == []


# --- for people --------------------------------------------------------------------------------------------------------


def test_the_log_names_the_fate_of_each_orphan(harness: MakeHarness, caplog: pytest.LogCaptureFixture) -> None:
    h = harness(worker(nothing))
    row = ghost(h)
    h.advance(FOUND_AFTER + SEARCH_EVERY)

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
    assert line["unseen_for"] == pytest.approx(105, abs=20)
    assert line["fence"] == row.fence
