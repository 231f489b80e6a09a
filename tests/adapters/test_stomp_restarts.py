"""What a broker keeps when it is killed, and what a predecessor that hangs holds up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from steadyworker.adapter import Lost, Settle, Settled
from steadyworker.delivery import KEY, OutgoingMessage, Target
from tests.adapters.stomp_kit import Worker, work
from tests.brokers.stomp_broker import StompBroker
from tests.brokers.stomp_client import StompClient
from tests.brokers.stomp_node import StompNode

OpenWorker = Callable[[], Worker]
DELAY = 3.0


@pytest.fixture
def open_worker(stomp_broker: StompBroker, queue: str) -> Iterator[OpenWorker]:
    """Workers of this test's queue; stopped at its end."""
    workers: list[Worker] = []

    def another() -> Worker:
        workers.append(Worker(stomp_broker.url, queue))
        return workers[-1]

    yield another
    for worker in workers:
        worker.adapter.stop(10)


def test_a_broker_that_is_killed_right_after_a_receipt_has_the_delayed_copy(
    stomp_node: StompNode, open_worker: OpenWorker
) -> None:
    """A retry is safe once its copy is confirmed, though the broker dies before the original is acknowledged: both come."""
    worker = open_worker().start()
    worker.adapter.publish(work("k-1", hop="0"))
    original = worker.delivery()
    worker.adapter.publish(OutgoingMessage(Target.LATER, b"{}", {KEY: "k-1", "hop": "1"}, DELAY))
    stomp_node.kill()
    assert worker.lost().epoch == original.epoch
    stomp_node.start()
    found = {}
    for number in (2, 3):  # in either order, as the copy may be due before the broker is back
        delivery = worker.delivery(number)
        found[delivery.headers["hop"]] = delivery.message_id
        assert worker.adapter.settle(delivery, Settle.ACK) is Settled.CONFIRMED
    assert found["0"] == original.message_id
    assert set(found) == {"0", "1"}
    assert len(worker.deliveries) == 3


def test_a_predecessor_that_hangs_holds_up_its_message_for_four_heart_beats_and_nothing_else(
    stomp_broker: StompBroker, queue: str, open_worker: OpenWorker
) -> None:
    """A new worker is connected at once, as no name of a client is taken; the held message comes when the broker gives up."""
    beat = 2.0
    with StompClient(stomp_broker.url, headers={"heart-beat": f"{beat * 1000:.0f},0"}) as predecessor:
        predecessor.send(queue, b"{}", {KEY: "held"})
        predecessor.subscribe(queue)
        predecessor.message()
        hung = time.monotonic()
        worker = open_worker()
        worker.adapter.publish(work("free"))
        began = time.monotonic()
        worker.start()
        free = worker.delivery()
        assert free.headers[KEY] == "free"
        assert time.monotonic() - began < 10
        assert worker.adapter.settle(free, Settle.ACK) is Settled.CONFIRMED
        held = worker.delivery(2)
        assert held.headers[KEY] == "held"
        assert time.monotonic() - hung < 5 * 4 * beat  # five times what is asked for: the machine may be busy
        assert worker.adapter.settle(held, Settle.ACK) is Settled.CONFIRMED
        assert worker.all(Lost) == []
