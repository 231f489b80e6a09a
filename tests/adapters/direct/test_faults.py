"""How the driver for RocketMQ's brokers behaves when brokers and connections do not; at a broker in this process."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from steadyworker.adapter import (
    Connected,
    Delivered,
    Delivery,
    Lost,
    Settle,
    Settled,
    Signal,
    Unreachable,
)
from steadyworker.delivery import KEY
from steadyworker.network import backoff
from steadyworker_rocketmq.direct import consumer
from tests.adapters.cuts import noted_cuts
from tests.adapters.direct.fake import FakeRocketMQ, fake_rocketmq
from tests.adapters.direct.kit import QUEUE, WITHIN, Worker, places, work
from tests.faults.link import Link
from tests.faults.proxy import Proxy
from tests.support.stage import eventually

pytestmark = pytest.mark.long

_LOCK = 41
"""RocketMQ's request for the locks of queues (`LOCK_BATCH_MQ`)."""


def test_a_broker_that_is_restarted_during_a_job_loses_nothing(broker: FakeRocketMQ) -> None:
    """The same handle settles afterwards, although the broker has forgotten the lock."""
    with Worker(broker.url, prefetch=2) as worker:
        worker.adapter.publish(work())
        held = worker.delivery()
        broker.stop()
        worker.wait(Unreachable)
        broker.start()
        assert worker.wait(Connected, 2).epoch == held.epoch
        with Worker(broker.url) as other:
            other.wait(Connected)
            assert worker.adapter.settle(held, Settle.ACK) is Settled.SENT
            worker.adapter.publish(work("k-2"))
            eventually(lambda: len(worker.deliveries) + len(other.deliveries) == 2, "the other message", WITHIN)
        assert not worker.all(Lost)


def test_an_acknowledgement_waits_for_the_broker(broker: FakeRocketMQ) -> None:
    """It is sent once the broker is there again."""
    with Worker(broker.url) as worker:
        worker.adapter.publish(work())
        held = worker.delivery()
        broker.stop()
        worker.wait(Unreachable)
        answers: list[object] = []
        worker.adapter.settle_async(held, Settle.ACK, answers.append)
        broker.start()
        eventually(lambda: answers, "an answer", WITHIN)
        assert answers == [Settled.SENT]
        assert places(broker) == 1


def test_stop_without_a_broker_answers_every_settlement(broker: FakeRocketMQ) -> None:
    """No caller waits without end."""
    with Worker(broker.url) as worker:
        worker.adapter.publish(work())
        held = worker.delivery()
        broker.stop()
        worker.wait(Unreachable)
        answers: list[object] = []
        worker.adapter.settle_async(held, Settle.ACK, answers.append)
        worker.adapter.stop(5.0)
        eventually(lambda: answers, "an answer", 1.0)
        assert len(answers) == 1
        assert isinstance(answers[0], Exception)


def test_of_two_brokers_one_goes_on_while_the_other_is_away(broker: FakeRocketMQ) -> None:
    """What is held at the one that is away stays, and its acknowledgement waits; nothing is Unreachable."""
    with fake_rocketmq() as second:
        second.name = "c"
        broker.cluster.append(second)
        with Worker(broker.url, prefetch=4) as worker:
            for n in range(4):
                worker.adapter.publish(work(f"k-{n}"))
            held = [worker.delivery(number) for number in range(1, 5)]
            assert len(broker.locks) == len(second.locks) == 2
            second.stop(forget=False)
            answers: list[object] = []
            for delivery in held:
                worker.adapter.settle_async(delivery, Settle.ACK, answers.append)
            eventually(lambda: len(answers) == 2, "two answers", WITHIN)
            for n in range(4, 8):
                worker.adapter.publish(work(f"k-{n}"))  # the broker that is away refuses connections
            for number in range(5, 9):
                delivery = worker.delivery(number)
                assert worker.adapter.settle(delivery, Settle.ACK) is Settled.SENT
            assert places(broker) == 6
            second.start()
            eventually(lambda: len(answers) == 4, "two more answers", 30.0)
            assert answers == [Settled.SENT] * 4
            assert places(second) == 2
            assert not worker.all(Unreachable)
            assert not worker.all(Lost)


def test_one_of_two_brokers_that_refuses_a_right_is_no_broker_that_is_away(broker: FakeRocketMQ) -> None:
    """Its messages would wait unseen; plain_acl.yml of 4.9.7 is a file of each broker, so one can lack a line."""
    with fake_rocketmq() as second:
        second.name = "c"
        broker.cluster.append(second)
        second.refuse[_LOCK] = (16, "No default permission for group: exports")
        with Worker(broker.url, prefetch=4) as worker:
            for n in range(4):
                worker.adapter.publish(work(f"k-{n}"))
            assert "add exports=SUB to groupPerms" in worker.wait(Unreachable).cause
            del second.refuse[_LOCK]
            got = {worker.delivery(number).headers[KEY] for number in range(1, 5)}
            assert got == {"k-0", "k-1", "k-2", "k-3"}


def test_a_connection_that_is_cut_again_and_again_loses_and_repeats_nothing(
    broker: FakeRocketMQ, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message is delivered once and settled once, wherever a cut strikes."""
    monkeypatch.setattr(consumer, "HOLDERS_FIRST", 0.05)
    monkeypatch.setattr(consumer, "_HURRY", (0.0, 0.1))
    monkeypatch.setattr(consumer, "_BEAT_EVERY", 0.1)
    for wait in ("FIRST", "REFUSED", "LONGEST"):
        monkeypatch.setattr(backoff, wait, 0.1)
    with Worker(broker.url) as sender:
        sender.adapter.prefetch(0)
        for n in range(100):
            sender.adapter.publish(work(f"k-{n}"))
    before = proxy.connections
    answers: list[object] = []

    def sink(signal: Signal) -> None:
        if isinstance(signal, Delivered):
            threading.Timer(random.random() / 20, settle, (signal.delivery,)).start()

    def settle(delivery: Delivery) -> None:
        worker.adapter.settle_async(delivery, Settle.ACK, answers.append)

    def cut(link: Link) -> None:
        proxy.after(random.randrange(1, 12_000), "down", cut)
        link.cut()

    with Worker(proxy.url, prefetch=4, then=sink) as worker:
        worker.wait(Connected)
        proxy.after(100, "down", cut)
        eventually(lambda: len(answers) >= 100, "all settlements", 60.0, lambda: f"{len(answers)} of 100")
        assert set(answers) == {Settled.SENT}
        assert Counter(each.headers[KEY] for each in worker.deliveries) == {f"k-{n}": 1 for n in range(100)}
        assert not worker.all(Lost)
        assert proxy.connections - before > 10
    assert places(broker) == 100


def test_bytes_that_come_one_by_one(broker: FakeRocketMQ, proxy: Proxy) -> None:
    """No frame may be taken for granted."""
    proxy.slice(1)
    with Worker(proxy.url) as worker:
        worker.adapter.publish(work(body=b"\0line\n" * 50))
        assert worker.delivery().body == b"\0line\n" * 50


def test_a_blackhole_that_is_shorter_than_a_lock_loses_nothing(broker: FakeRocketMQ, proxy: Proxy) -> None:
    """Nothing arrives for 12 s, and nothing is reported; then the same handle settles."""
    with Worker(proxy.url, prefetch=2) as worker:
        worker.adapter.publish(work())
        held = worker.delivery()
        proxy.stall()
        worker.wait(Unreachable)
        proxy.resume()
        proxy.cut()
        assert worker.adapter.settle(held, Settle.ACK) is Settled.SENT
        assert places(broker) == 1
        assert not worker.all(Lost)


def test_stop_is_in_time_although_the_broker_sends_nothing(broker: FakeRocketMQ, proxy: Proxy) -> None:
    """Also while a call is under way; every caller gets an answer."""
    with Worker(proxy.url, prefetch=2) as worker:
        worker.adapter.publish(work())
        held = worker.delivery()
        proxy.stall()
        answers: list[object] = []
        worker.adapter.settle_async(held, Settle.ACK, answers.append)
        began = time.monotonic()
        worker.adapter.stop(2.0)
        assert time.monotonic() - began < 3.0
        eventually(lambda: answers, "an answer", 1.0)
        assert isinstance(answers[0], Exception)


def test_a_connection_that_has_settled_a_message_was_useful(
    broker: FakeRocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "USEFUL_AFTER", 1000.0)
    with Worker(broker.url) as worker:
        cuts = noted_cuts(worker.adapter._consumer._backoff, monkeypatch)
        worker.adapter.publish(work())
        assert worker.adapter.settle(worker.delivery(), Settle.ACK) is Settled.SENT
        broker.stop()
        worker.wait(Unreachable)
        eventually(lambda: cuts, "a cut", WITHIN)
        assert cuts == [True]
        broker.start()


def test_only_the_loss_of_a_connection_is_a_cut(broker: FakeRocketMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    """If each refused try counted as the cut of a useful connection, all workers would try twice a second."""
    monkeypatch.setattr(consumer, "USEFUL_AFTER", 0.0)
    tries: list[float] = []
    with Worker(broker.url, prefetch=0) as worker:
        cuts = noted_cuts(worker.adapter._consumer._backoff, monkeypatch)
        refused = worker.adapter._consumer._backoff.refused

        def noted() -> float:
            tries.append(min(refused(), 0.05))
            return tries[-1]

        monkeypatch.setattr(worker.adapter._consumer._backoff, "refused", noted)
        worker.wait(Connected)
        broker.stop()
        eventually(lambda: len(tries) > 3, "some tries", WITHIN)
        assert cuts == [True]
        broker.start()


def test_without_a_name_server_at_the_start(broker: FakeRocketMQ) -> None:
    """It is Unreachable, which is not final, and Connected follows."""
    broker.stop()
    with Worker(broker.url) as worker:
        gone = worker.wait(Unreachable)
        assert not gone.final
        assert "127.0.0.1" in gone.cause
        broker.start()
        worker.wait(Connected)


def test_messages_that_the_broker_deleted_are_passed(broker: FakeRocketMQ) -> None:
    """Retention has removed the first messages of every queue; those that remain are delivered."""
    with Worker(broker.url, prefetch=0) as sender:
        for n in range(48):
            sender.adapter.publish(work(f"k-{n}"))
    for log in broker.topics[QUEUE]:
        del log.messages[:2]
        log.first = 2
    with Worker(broker.url, prefetch=16) as worker:
        for number in range(1, 17):
            worker.adapter.settle(worker.delivery(number), Settle.ACK)
        assert {each.headers[KEY] for each in worker.deliveries} == {f"k-{n}" for n in range(32, 48)}
        assert all(place == 3 for (_, topic, _), place in broker.places.items() if topic == QUEUE)


def test_a_broker_that_lost_its_newest_messages_delivers_new_ones(broker: FakeRocketMQ) -> None:
    """After a crash, the place of a queue can be behind its end; what was consumed comes again, and the ledger answers it."""
    with Worker(broker.url, prefetch=1) as worker:
        worker.adapter.publish(work())
        worker.adapter.settle(worker.delivery(), Settle.ACK)
        for key in broker.places:
            if key[1] == QUEUE:
                broker.places[key] = 5
        again = worker.delivery(2)
        assert again.headers[KEY] == "k-1"
        worker.adapter.settle(again, Settle.ACK)
        eventually(lambda: places(broker) == 1, "corrected places", WITHIN)
        worker.adapter.publish(work("k-2"))
        assert worker.delivery(3).headers[KEY] == "k-2"
