"""
An offset does not distinguish two messages: what the driver for RocketMQ's brokers does when offsets begin at 0 again.

So they do when a topic is deleted and made again, when an operator destroys an expired queue, and when a broker loses its newest messages.
4.9.7 keeps the places of groups then.
"""

from __future__ import annotations

import time

import pytest

from steadyworker.adapter import Settle, Settled
from steadyworker.delivery import KEY
from tests.adapters.direct.fake import FakeRocketMQ
from tests.adapters.direct.kit import QUEUE, WITHIN, Worker, places
from tests.support.stage import eventually

pytestmark = pytest.mark.long


def consumed(broker: FakeRocketMQ) -> int:
    """Return the group's place in the first queue."""
    return broker.places[QUEUE, QUEUE, 0]


def run(worker: Worker, *wanted: str, after: int = 0) -> None:
    """Acknowledge the messages after so many, which must be these."""
    for number, key in enumerate(wanted, after + 1):
        delivery = worker.delivery(number)
        assert delivery.headers[KEY] == key
        assert worker.adapter.settle(delivery, Settle.ACK) is Settled.SENT


@pytest.fixture
def consumed_topic(broker: FakeRocketMQ) -> FakeRocketMQ:
    """A topic of which a worker has consumed three messages of the first queue."""
    with Worker(broker.url) as worker:
        worker.adapter._preparation.prepared()
        broker.put(QUEUE, 0, "old-0", "old-1", "old-2")
        run(worker, "old-0", "old-1", "old-2")
    assert consumed(broker) == 3
    return broker


def test_a_topic_with_fewer_messages_than_were_consumed_is_consumed_from_its_first(
    consumed_topic: FakeRocketMQ,
) -> None:
    """The group's place is behind the end of the queue."""
    consumed_topic.remake(QUEUE)
    consumed_topic.put(QUEUE, 0, "new-0", "new-1")
    with Worker(consumed_topic.url) as worker:
        run(worker, "new-0", "new-1")
        assert consumed(consumed_topic) == 2


@pytest.mark.parametrize("count", [3, 5])
def test_a_topic_with_as_many_messages_as_were_consumed_is_consumed_from_its_first(
    broker: FakeRocketMQ, count: int
) -> None:
    """The place is a valid one of the new queue; a worker that has seen the old one knows better."""
    with Worker(broker.url) as worker:
        worker.adapter._preparation.prepared()
        broker.put(QUEUE, 0, "old-0", "old-1", "old-2")
        run(worker, "old-0", "old-1", "old-2")
        eventually(lambda: not broker.locks, "an idle worker", WITHIN)
        broker.asked.clear()
        eventually(lambda: broker.asked.count(208) >= 2, "a question for the places", WITHIN)
        wanted = [f"new-{n}" for n in range(count)]
        with broker._lock:
            broker.remake(QUEUE)
            broker.put(QUEUE, 0, *wanted)
        run(worker, *wanted, after=3)
        assert consumed(broker) == count


def test_a_topic_that_the_worker_makes_again_has_no_consumed_messages(consumed_topic: FakeRocketMQ) -> None:
    """However many messages there are before a worker receives the first."""
    del consumed_topic.topics[QUEUE]
    with Worker(consumed_topic.url, prefetch=0) as worker:
        worker.adapter._preparation.prepared()
        assert places(consumed_topic) == 0
        consumed_topic.put(QUEUE, 0, *(f"new-{n}" for n in range(5)))
        worker.adapter.prefetch(1)
        run(worker, *(f"new-{n}" for n in range(5)))


@pytest.mark.parametrize("reset", [True, False], ids=["place reset", "place kept"])
@pytest.mark.parametrize("offsets", [0, 1, 4])
def test_an_acknowledgement_passes_no_message_of_a_topic_that_was_made_again(
    consumed_topic: FakeRocketMQ, offsets: int, reset: bool
) -> None:
    """The fourth message of the old queue is held, and the new queue has none, some, or one at the same offset."""
    consumed_topic.put(QUEUE, 0, "old-3")
    with Worker(consumed_topic.url) as worker:
        held = worker.delivery()
        at = time.monotonic()
        with consumed_topic._lock:
            consumed_topic.remake(QUEUE)
            consumed_topic.put(QUEUE, 0, *(f"new-{n}" for n in range(offsets)))
            if reset:  # as a worker does that makes the topic
                consumed_topic.places[QUEUE, QUEUE, 0] = 0
        eventually(lambda: time.monotonic() - at > 1.2, "a job of more than a second", WITHIN)
        assert worker.adapter.settle(held, Settle.ACK) is Settled.SENT
        consumed_topic.put(QUEUE, 0, "new-last")
        run(worker, *(f"new-{n}" for n in range(offsets)), "new-last", after=1)


def test_messages_after_a_crash_that_lost_others_are_delivered(consumed_topic: FakeRocketMQ) -> None:
    """A new message at an offset that was consumed is delivered; what was consumed comes again, and the ledger answers it."""
    log = consumed_topic.topics[QUEUE][0]
    del log.messages[1:]
    consumed_topic.put(QUEUE, 0, "new-1")
    with Worker(consumed_topic.url) as worker:
        run(worker, "old-0", "new-1")
        assert consumed(consumed_topic) == 2


def test_a_message_that_expires_during_its_job_is_acknowledged(consumed_topic: FakeRocketMQ) -> None:
    """The retention deletes it and the one before; its place is set all the same."""
    consumed_topic.put(QUEUE, 0, "old-3")
    with Worker(consumed_topic.url) as worker:
        held = worker.delivery()
        at = time.monotonic()
        log = consumed_topic.topics[QUEUE][0]
        log.messages.clear()
        log.first = 4
        eventually(lambda: time.monotonic() - at > 1.2, "a job of more than a second", WITHIN)
        assert worker.adapter.settle(held, Settle.ACK) is Settled.SENT
        assert consumed(consumed_topic) == 4
