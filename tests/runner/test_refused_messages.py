"""Messages that the broker accepted once, and whose copies it never accepts: they become dead letters, and stop no other job."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from steadyworker.adapter import Capabilities, Undelivered
from steadyworker.delivery import Delivery, OutgoingMessage, Settle, Settled
from steadyworker.errors import MessageRefused, Snooze, Unsettled
from steadyworker.events import DeliveryDeferred, JobSettled
from steadyworker.ledger.base import State
from steadyworker.lifecycle import Stage
from steadyworker.outcome import Failed
from steadyworker.retry import RetryPolicy
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from tests.runner.bench import Bench, PlayedAdapter
from tests.runner.kit import QUEUE, AnyWorker, Gate, events, nothing, raises, worker

LARGE = {"pad": "x" * 100}
LIMIT = 50


def fails_if_large(job: Any) -> None:
    if job.payload:
        raise KeyError("never") if job.key.startswith("dead") else ValueError("odd")


@pytest.fixture
def exports() -> AnyWorker:
    return worker(fails_if_large, retry=RetryPolicy(dont_retry_on=(KeyError,)))


def refused_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines of refused messages, each of which is an error."""
    refused = []
    for record in caplog.records:
        if isinstance(record.msg, dict) and record.msg["event"] == "message_refused":
            assert record.levelno == logging.ERROR
            refused.append(record.msg)
    return refused


def at_its_end(harness: MakeHarness, gate: Gate) -> tuple[Harness, str]:
    """Start a large job, and let the broker refuse its copies while its handler waits at this gate."""
    exports = worker(gate, retry=RetryPolicy(dont_retry_on=(KeyError,)))
    h = harness(exports)
    key = h.send(exports, LARGE)
    h.wait(key, until="started")
    assert gate.reached.wait(20)
    h.broker.limit_bodies(LIMIT)
    return h, key


@pytest.mark.parametrize("key", ["retried", "dead"])
def test_the_broker_itself_moves_it_to_the_dead_letters(
    harness: MakeHarness, exports: AnyWorker, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    h = harness(exports)
    h.send(exports, LARGE, key=key)
    h.broker.limit_bodies(LIMIT)
    row = h.wait(key, timeout=5)
    assert row is not None
    assert row.state is State.DEAD
    assert "the broker refuses its copies: Expected a message of at most 50 bytes" in row.reason
    assert row.reason.startswith("KeyError" if key == "dead" else "ValueError: odd")
    assert [len(letter.body) > LIMIT for letter in h.dead] == [True]
    assert h.starts(key) == 1
    assert [event.settlement for event in events(h, key, JobSettled)] == ["dead-letter"]
    assert [(line["key"], line["explain"]) for line in refused_lines(caplog)] == [(key, "rabbitmq.message-too-large")]
    assert h.not_ready == {}


@pytest.mark.parametrize("key", ["retried", "dead"])
def test_a_queue_that_moves_nothing_keeps_it_and_goes_on(
    harness: MakeHarness, exports: AnyWorker, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One slot: the jobs behind it run; a raised limit ends it."""
    h = harness(exports)
    h.send(exports, LARGE, key=key)
    h.broker.limit_bodies(LIMIT, rejects=False)
    others = [h.send(exports, {}) for _ in range(3)]
    for other in others:
        h.wait(other, timeout=5)
    h.advance(700)
    row = h.job(key)
    assert row is not None
    assert (row.state, row.job_state.value) == (State.MOVING, "dead")
    assert "the broker refuses its copies: Expected a message of at most 50 bytes" in row.reason
    assert (h.starts(key), h.dead, h.broker.depth(QUEUE)) == (1, [], 1)
    assert [line["explain"] for line in refused_lines(caplog)] == ["rabbitmq.message-too-large"]
    assert h.not_ready == {}

    h.drop_connection()
    h.advance(700)
    assert (h.starts(key), h.dead, h.broker.depth(QUEUE)) == (1, [], 1)
    h.send(exports, {}, key="after")
    h.wait("after", timeout=5)

    h.broker.limit_bodies(None)
    h.advance(700)
    row = h.wait(key, timeout=5)
    assert row is not None
    assert row.state is State.DEAD
    assert [letter.headers["sw-job-key"] for letter in h.dead] == [key]
    assert h.starts(key) == 1


def test_a_kept_message_does_not_hold_up_a_stop_and_its_next_owner_keeps_it_too(
    harness: MakeHarness, exports: AnyWorker
) -> None:
    h = harness(exports)
    h.send(exports, LARGE, key="dead")
    h.broker.limit_bodies(LIMIT, rejects=False)
    h.wait("dead", until="moving")
    h.advance(5)
    (first,) = h.processes
    first.enter(Stage.DRAINING)
    first.turn()
    assert first.finished
    first.close()
    h.start()
    h.send(exports, {}, key="small")
    h.wait("small", timeout=5)
    h.advance(200)
    h.broker.limit_bodies(LIMIT)
    h.advance(700)
    row = h.wait("dead", timeout=5)
    assert row is not None
    assert row.state is State.DEAD
    assert len(h.dead) == 1
    assert h.starts("dead") == 1


@pytest.mark.parametrize("landed", [False, True], ids=["before the move", "after the move"])
def test_a_rejection_without_a_reply_loses_no_message(harness: MakeHarness, landed: bool) -> None:
    """The row is dead only once the move is certain: else a redelivery would be acknowledged, and no letter would be left."""
    gate = Gate(raises(KeyError("never")))
    h, key = at_its_end(harness, gate)
    h.broker.lose_settlement(h.processes[0].adapters[0], landed=landed)
    gate.open()
    h.wait(key, until=lambda: len(h.dead) == 1)
    h.advance(5)
    row = h.job(key)
    assert row is not None
    assert row.state is (State.MOVING if landed else State.DEAD)
    assert row.job_state.value == "dead"
    assert h.starts(key) == 1
    assert (len(h.dead), h.broker.depth(QUEUE)) == (1, 0)


class NoReply(PlayedAdapter):
    """Refuses each copy, and gets no reply to a rejection."""

    def publish(self, message: OutgoingMessage) -> None:
        raise MessageRefused("too large")

    def settle(self, delivery: Delivery, how: Settle) -> Settled:
        if how is Settle.REJECT:
            raise Unsettled("no reply")
        return super().settle(delivery, how)


def test_a_rejection_without_a_reply_leaves_no_delivery_behind() -> None:
    """Else the runner would never be idle again, and would count as a consumer of a queue that it has left."""
    bench = Bench(adapter=NoReply(Capabilities(rejects=True)))
    bench.deliver("one")
    bench.ended(0, Failed("odd"))
    assert bench.runner.state.by_fence == {}
    assert bench.runner.state.valid == {}
    assert bench.runner.idle


def test_a_run_that_lost_its_delivery_waits_for_the_redelivery(harness: MakeHarness) -> None:
    gate = Gate(raises(KeyError("never")))
    h, key = at_its_end(harness, gate)
    h.broker.go_down()
    gate.open()
    h.advance(100)
    h.broker.come_up()
    h.advance(100)
    row = h.wait(key, timeout=5)
    assert row is not None
    assert row.state is State.DEAD
    assert (len(h.dead), h.starts(key)) == (1, 1)


@pytest.mark.parametrize("rejects", [True, False])
def test_a_message_without_a_job_is_moved_or_kept(harness: MakeHarness, exports: AnyWorker, rejects: bool) -> None:
    h = harness(exports)
    h.broker.limit_bodies(LIMIT, rejects=rejects)
    h.broker._queues.put(QUEUE, b"x" * 100, {"sw-hop": "bad"}, "unreadable")
    h.send(exports, {}, key="small")
    h.wait("small", timeout=5)
    h.advance(10)
    assert (len(h.dead), h.broker.depth(QUEUE)) == ((1, 0) if rejects else (0, 1))
    assert h.not_ready == {}


def test_a_copy_for_later_of_a_job_that_another_runs_is_held(
    harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """It must not become a dead letter, because its job may be done soon; and it stops no other job."""
    gate = Gate()
    exports = worker(gate, nothing)
    h = harness(exports)
    key = h.send(exports, LARGE)
    h.wait(key, until="started")
    assert gate.reached.wait(20)
    other = h.start().runners[0].state
    h.broker.limit_bodies(LIMIT)
    h.broker.duplicate(key)
    h.wait(key, until=lambda: other.parked)
    assert (h.dead, h.broker.depth(QUEUE)) == ([], 2)
    small = h.send(exports, {})
    h.wait(small)
    assert len(events(h, key, DeliveryDeferred)) == 1
    h.advance(100)
    assert len(events(h, key, DeliveryDeferred)) == 1 + 3, "one more each 30 s"
    (line,) = refused_lines(caplog)
    assert (line["key"], line["fate"].partition(";")[0]) == (key, "another run may have its job")
    gate.open()
    h.wait(key, until="done")
    h.advance(100)
    assert (h.dead, h.broker.depth(QUEUE), h.starts(key)) == ([], 0, 1)


def test_too_many_kept_messages_make_the_process_not_ready(harness: MakeHarness, exports: AnyWorker) -> None:
    """Each keeps its body in memory, so their number has a limit."""
    h = harness(exports)
    for number in range(17):
        h.send(exports, LARGE, key=f"dead-{number}")
    h.broker.limit_bodies(LIMIT, rejects=False)
    h.wait("dead-16", until=lambda: "dead queue" in h.not_ready)
    assert h.starts("dead-16") == 1


def test_a_put_off_job_that_cannot_be_copied_is_a_dead_letter(harness: MakeHarness) -> None:
    exports = worker(raises(Snooze(5)))
    h = harness(exports)
    key = h.send(exports, LARGE)
    h.broker.limit_bodies(LIMIT)
    row = h.wait(key, timeout=5)
    assert row is not None
    assert row.state is State.DEAD
    assert row.counters.attempts == 0
    assert len(h.dead) == 1


def test_a_message_that_the_adapter_cannot_deliver_is_logged_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.handle(Undelivered("k-7", MessageRefused("too large", id="rocketmq.body-too-large"), "it is kept"))
    (line,) = refused_lines(caplog)
    assert (line["key"], line["queue"], line["fate"]) == ("k-7", bench.runner.deps.spec.queue, "it is kept")
    assert (line["why"], line["explain"]) == ("too large", "rocketmq.body-too-large")
    assert bench.runner.not_ready() == {}
    assert bench.deliver("next") is not None
