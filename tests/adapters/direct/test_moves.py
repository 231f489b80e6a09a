"""How the driver for RocketMQ's brokers behaves when a broker moves, or accepts no messages; at brokers in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from steadyworker.adapter import Connected, Lost, Settle, Settled, Unreachable
from steadyworker.delivery import KEY
from steadyworker.errors import NotPublished, Unsettled
from steadyworker_rocketmq.direct import consumer, member
from steadyworker_rocketmq.direct import held as held_module
from tests.adapters.direct.fake import FakeRocketMQ, fake_rocketmq
from tests.adapters.direct.kit import QUEUE, WITHIN, Worker, places, reply_within, work
from tests.faults.proxy import Proxy
from tests.support.stage import eventually

pytestmark = pytest.mark.long


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


@pytest.fixture
def one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not reply for a second is silent, and beats are as much faster."""
    reply_within(1.0, monkeypatch)
    monkeypatch.setattr(consumer, "_BEAT_EVERY", 0.2)
    monkeypatch.setattr(member, "_ROUTE_EVERY", 2.0)


@pytest.mark.usefixtures("one_second")
def test_a_silent_name_server_delays_no_renewal_and_no_acknowledgement(
    broker: FakeRocketMQ, name_server: FakeRocketMQ
) -> None:
    """The brokers serve without it; waiting for it again and again would let the locks end."""
    with Proxy(name_server.url) as proxy, Worker(proxy.url, prefetch=2) as worker:
        worker.adapter.publish(work())
        held = worker.delivery()
        proxy.stall()
        broker.asked.clear()
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 8.0, "eight seconds without a name server", WITHIN)
        assert broker.asked.count(41) >= 15, "renewals"
        began = time.monotonic()
        assert worker.adapter.settle(held, Settle.ACK) is Settled.SENT
        assert time.monotonic() - began < 3.0
        assert not worker.all(Unreachable)


@pytest.mark.usefixtures("one_second")
def test_acknowledgements_at_a_silent_broker_delay_none_at_another(broker: FakeRocketMQ, second: FakeRocketMQ) -> None:
    """The first of them costs the time of a request, and the others wait until the broker replies again."""
    with Proxy(second.url) as proxy:
        second.advertised = proxy.port
        with Worker(broker.url, prefetch=16) as worker:
            for n in range(16):
                worker.adapter.publish(work(f"k-{n}"))
            held = [worker.delivery(number) for number in range(1, 17)]
            there = [each for each in held if each.id in held_at(worker, second)]
            here = next(each for each in held if each not in there)
            assert len(there) == 8
            proxy.stall()
            answers: list[object] = []
            for each in there:
                worker.adapter.settle_async(each, Settle.ACK, answers.append)
            began = time.monotonic()
            assert worker.adapter.settle(here, Settle.ACK) is Settled.SENT
            assert time.monotonic() - began < 3.5
            assert not worker.all(Unreachable)


@pytest.mark.long
def test_one_of_two_brokers_that_is_restarted_gives_nothing_to_another_member_first(
    broker: FakeRocketMQ, second: FakeRocketMQ
) -> None:
    """It has forgotten the locks; the member that holds a message of it locks the queue again before others search there."""
    with Worker(broker.url, prefetch=16) as holder, Worker(broker.url, prefetch=0) as other:
        holder.adapter._preparation.prepared()
        second.put(QUEUE, 0, "k-1")
        held = holder.delivery()
        other.adapter.prefetch(16)
        other.wait(Connected)
        second.stop()
        for worker in (holder, other):
            eventually(lambda worker=worker: failed(worker), "a failure that was noticed", WITHIN)  # type: ignore[misc]
        second.start()
        owners = eventually(lambda: {owner for owner, _ in list(second.locks.values())}, "a lock", 30.0)
        assert owners == {holder.adapter._consumer._id}
        assert holder.adapter.settle(held, Settle.ACK) is Settled.SENT
        second.put(QUEUE, 0, "k-2")
        eventually(lambda: len(holder.deliveries) + len(other.deliveries) == 2, "the next message", WITHIN)
        assert not holder.all(Lost)


def test_an_acknowledgement_at_a_broker_that_stays_away_ends_with_the_lock(
    broker: FakeRocketMQ, second: FakeRocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a worker with one slot receives no message of the other broker; the message comes again when its broker does."""
    monkeypatch.setattr(held_module, "LOCKED_FOR", 3.0)
    monkeypatch.setattr(held_module, "_MARGIN", 1.0)
    monkeypatch.setattr(consumer, "_BEAT_EVERY", 0.5)
    monkeypatch.setattr(member, "HOLDERS_FIRST", 1.0)
    with Worker(broker.url, prefetch=1) as worker:
        worker.adapter._preparation.prepared()
        second.put(QUEUE, 0, "k-1")
        held = worker.delivery()
        second.stop()
        broker.put(QUEUE, 0, "k-2")
        answers: list[object] = []
        worker.adapter.settle_async(held, Settle.ACK, answers.append)
        following = worker.delivery(2)
        assert following.headers[KEY] == "k-2"
        assert [type(each) for each in answers] == [Unsettled]
        assert [each.id for each in worker.all(Lost)] == [held.id]
        assert worker.adapter.settle(following, Settle.ACK) is Settled.SENT
        second.start()
        again = worker.delivery(3)
        assert again.headers[KEY] == "k-1"
        assert worker.adapter.settle(again, Settle.ACK) is Settled.SENT
        assert places(second) == 1


@pytest.mark.parametrize("change", [("perms", {QUEUE: 4}), ("id", 1)], ids=["not to be written to", "a slave"])
def test_messages_go_to_brokers_that_may_have_them(
    broker: FakeRocketMQ, second: FakeRocketMQ, change: tuple[str, object]
) -> None:
    """A broker accepts messages for queues that its operator has made read-only, to remove the broker when they are empty."""
    with Worker(broker.url, prefetch=0) as worker:
        worker.adapter._preparation.prepared()
        setattr(second, *change)
        for n in range(8):
            worker.adapter.publish(work(f"k-{n}"))
        assert stored(broker) == 8
        assert stored(second) == 0


def test_without_a_queue_that_may_be_written_to_a_message_is_not_published(broker: FakeRocketMQ) -> None:
    """The next one is, when an operator allows it again."""
    with Worker(broker.url, prefetch=0) as worker:
        worker.adapter._preparation.prepared()
        broker.perms[QUEUE] = 4
        with pytest.raises(NotPublished, match="no queue of 'exports' may be written to now"):
            worker.adapter.publish(work())
        broker.perms.clear()
        worker.adapter.publish(work())
        assert stored(broker) == 1


def stored(broker: FakeRocketMQ) -> int:
    return sum(len(log.messages) for log in broker.topics[QUEUE])


def held_at(worker: Worker, broker: FakeRocketMQ) -> set[str]:
    """Return the ids of the deliveries that a worker holds at this broker."""
    items = worker.adapter._consumer._held._items
    return {id_ for id_, item in items.items() if item.locked.queue.broker.name == broker.name}


def failed(worker: Worker) -> bool:
    """Return whether a worker has noticed that a broker is away."""
    found = worker.adapter._consumer.link._member
    return found is not None and bool(found._failed)
