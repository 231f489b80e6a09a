"""How the driver for RocketMQ's brokers behaves when a broker moves, or takes no messages; at brokers in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from steadyworker.adapter import Connected, Lost, Settle, Settled
from steadyworker.delivery import KEY
from tests.adapters.direct.fake import FakeRocketMQ, fake_rocketmq
from tests.adapters.direct.kit import QUEUE, WITHIN, Worker, places, work
from tests.support.stage import eventually


@pytest.fixture
def name_server(broker: FakeRocketMQ) -> Iterator[FakeRocketMQ]:
    """A name server that is no broker."""
    with fake_rocketmq() as server:
        server.cluster = [broker]
        yield server


def test_what_is_held_at_a_broker_that_moves_is_settled_at_its_new_address(
    broker: FakeRocketMQ, name_server: FakeRocketMQ
) -> None:
    """As after the restart of a container: the same store at another address; the running message comes to nobody."""
    with Worker(name_server.url, prefetch=2) as worker:
        worker.adapter.publish(work())
        held = worker.delivery()
        broker.move()
        worker.wait(Connected, 2)
        answers: list[object] = []
        worker.adapter.settle_async(held, Settle.ACK, answers.append)
        eventually(lambda: answers, "an answer", WITHIN, lambda: str(worker.signals))
        assert answers == [Settled.SENT]
        broker.put(QUEUE, 0, "k-2")
        worker.adapter.settle(worker.delivery(2), Settle.ACK)
        assert [each.headers[KEY] for each in worker.deliveries] == ["k-1", "k-2"]
        assert places(broker) == 2
        assert not worker.all(Lost)
