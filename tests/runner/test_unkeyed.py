"""Messages without a key: what a full queue does with them, and which of them waits for which delivery."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steadyworker.adapter import Delivery, OutgoingMessage, QueueSpec, Target
from steadyworker.delivery import KEY
from steadyworker.events import DuplicateAcked, JobStarted
from steadyworker.ledger.base import JobFilter, State
from steadyworker.runner.unkeyed import fingerprint
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from tests.runner.kit import QUEUE, Gate, Seen, nothing, raises, saves, worker


def publish(h: Harness, count: int = 1, body: bytes = b"{}") -> None:
    """Messages of a sender that gives neither key nor id."""
    adapter = h.broker.adapter(QueueSpec(QUEUE, f"{QUEUE}.dead"))
    for _ in range(count):
        adapter.publish(OutgoingMessage(Target.WORK, body, {}))
        h.broker.messages(QUEUE)[-1].message_id = ""


def states(h: Harness) -> list[State]:
    return [row.state for row, _ in h.ledger.jobs(JobFilter(NAMESPACE, QUEUE))]


def starts(h: Harness) -> int:
    return sum(isinstance(event, JobStarted) for event in h.events)


def until(h: Harness, what: object) -> None:
    h.wait("anything", until=what)  # type: ignore[arg-type]


def test_messages_in_a_full_queue_run_while_it_is_full(harness: MakeHarness) -> None:
    seen = Seen(lambda job: job.key)
    h = harness(worker(seen))
    publish(h, 3)
    h.broker.fill_queue(QUEUE)

    until(h, lambda: states(h) == [State.DONE] * 3)
    assert h.not_ready == {}
    until(h, lambda: h.broker.depth(QUEUE) == 0)

    assert len(set(seen.values)) == starts(h) == 3
    assert sum(isinstance(event, DuplicateAcked) for event in h.events) == 3


def test_a_job_that_began_before_its_message_fails_and_is_tried_again(harness: MakeHarness) -> None:
    h = harness(worker(raises(ValueError("odd")), nothing))
    publish(h)
    h.broker.fill_queue(QUEUE)

    until(h, lambda: states(h) == [State.DONE] and h.broker.depth(QUEUE) == 0)

    assert starts(h) == 2
    ((row, _),) = h.ledger.jobs(JobFilter(NAMESPACE, QUEUE))
    assert (row.counters.attempts, row.hop) == (1, 1)


def test_a_job_that_began_before_its_message_goes_on_after_a_kill(harness: MakeHarness) -> None:
    seen = Seen(lambda job: job.last_checkpoint)
    h = harness(worker(saves(17, Gate()), seen))
    publish(h)
    h.broker.fill_queue(QUEUE)
    until(h, lambda: [row.checkpoint for row, _ in h.ledger.jobs(JobFilter(NAMESPACE, QUEUE))] not in ([], [None]))

    h.processes[0].freeze()
    h.processes[0].close()
    h.start()
    until(h, lambda: states(h) == [State.DONE])

    assert seen.values == [17]
    assert starts(h) == 2


def test_a_message_in_a_full_queue_stays_there_while_no_slot_is_free(harness: MakeHarness) -> None:
    """After a cut a worker process takes messages for a while, for its detached run: no other message leaves the queue."""
    gate = Gate()
    h = harness(worker(gate))
    publish(h, 3)
    h.broker.fill_queue(QUEUE)
    until(h, lambda: starts(h) == 1)

    h.drop_connection()
    h.advance(1)

    assert [message.headers.get(KEY) is not None for message in h.broker.messages(QUEUE)] == [False, False, True]
    gate.open()
    until(h, lambda: states(h) == [State.DONE] * 3 and h.broker.depth(QUEUE) == 0)
    assert starts(h) == 3


@pytest.mark.parametrize("landed", [True, False])
def test_a_message_whose_copy_may_be_there_has_one_key_when_it_comes_back(harness: MakeHarness, landed: bool) -> None:
    h = harness(worker(nothing))
    publish(h, 2)
    h.broker.lose_confirm(h.processes[0].adapters[0], landed=landed)
    until(h, lambda: "work queue" in str(h.not_ready))

    h.drop_connection()
    until(h, lambda: h.broker.depth(QUEUE) == 0)

    assert states(h) == [State.DONE] * 2
    assert starts(h) == 2


def test_a_message_that_may_have_been_acknowledged_costs_no_other(harness: MakeHarness) -> None:
    """The acknowledgement was read, its reply was lost: the equal message is another job."""
    h = harness(worker(nothing))
    publish(h, 2)
    h.broker.lose_settlement(h.processes[0].adapters[0], landed=True)

    until(h, lambda: h.broker.depth(QUEUE) == 0)

    assert states(h) == [State.DONE] * 2


def test_equal_is_what_the_sender_gave_and_not_what_the_broker_added() -> None:
    first = Delivery(
        1, "1", QUEUE, b"{}", {"a": "1", "x-delivery-count": "0"}, brokers_own=frozenset({"x-delivery-count"})
    )
    again = replace(first, epoch=2, id="7", headers={"x-delivery-count": "1", "a": "1"})
    others = [
        replace(first, headers={"a": "2"}),
        replace(first, headers={"a": "1", "x-mine": "1"}),
        replace(first, body=b"{} "),
        replace(first, sent_at=1.0),
    ]
    assert fingerprint(again) == fingerprint(first)
    assert fingerprint(first) not in map(fingerprint, others)
