"""The in-memory broker keeps the promises of every broker, and breaks its connections when it is told to."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from steadyworker.adapter import (
    Adapter,
    Blocked,
    Browsed,
    Capabilities,
    Connected,
    Delivered,
    Depth,
    Lost,
    QueueSpec,
    Settings,
    Signal,
    Unblocked,
    Unreachable,
)
from steadyworker.delivery import KEY, OutgoingMessage, Redelivered, Settle, Target
from steadyworker.errors import BrokerUnavailable, PublishFailed, StaleDelivery, TargetFull, TargetMissing, Unsettled
from steadyworker.testing.broker import MemoryBroker
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance import AdapterSuite
from steadyworker.testing.conformance.adapter_consume import ConsumePromises
from steadyworker.testing.memory_adapter import MemoryAdapter

SPEC = QueueSpec("exports", "exports.dead")


class TestMemoryAdapter(AdapterSuite):
    delay = 3600.0

    @pytest.fixture(autouse=True)
    def broker(self) -> MemoryBroker:
        self.clock = FakeClock()
        self._broker = MemoryBroker(self.clock)
        return self._broker

    def make_adapter(self, place: Path, spec: QueueSpec) -> MemoryAdapter:
        return self._broker.adapter(spec, Settings(clock=self.clock, max_body=1000))

    def cut(self, adapter: Adapter) -> None:
        assert isinstance(adapter, MemoryAdapter)
        self._broker.drop_connection(adapter)

    def pump(self) -> None:
        self._broker.pump()

    def let_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def wall(self) -> float:
        return self.clock.wall()


class HolderAdapter(MemoryAdapter):
    """Of a broker that also counts who holds a delivery."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, counts_holders=True)

    def consumers(self) -> int:
        idle = (each for each in self._queues.everyone if each.connected and not each.window)
        return super().consumers() + sum(bool(each.held) for each in idle)


class TestHolderAdapter(ConsumePromises):
    """The promises about consumers, where a holder is one."""

    @pytest.fixture(autouse=True)
    def broker(self) -> MemoryBroker:
        self.clock = FakeClock()
        self._broker = MemoryBroker(self.clock)
        return self._broker

    def make_adapter(self, place: Path, spec: QueueSpec) -> HolderAdapter:
        return HolderAdapter(self._broker._queues, "memory", spec, Settings(clock=self.clock))

    def cut(self, adapter: Adapter) -> None:
        assert isinstance(adapter, MemoryAdapter)
        self._broker.drop_connection(adapter)

    def pump(self) -> None:
        self._broker.pump()

    def let_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)


class Worker:
    """One adapter and all that it heard."""

    def __init__(self, broker: MemoryBroker, credits_: int = 1) -> None:
        self.received: list[Signal] = []
        self.adapter = broker.adapter(SPEC)
        self.adapter.start(self.received.append)
        self.adapter.prefetch(credits_)

    def deliveries(self) -> list[Delivered]:
        return [signal for signal in self.received if isinstance(signal, Delivered)]


def work(key: str = "k-1", to: Target = Target.WORK, delay: float = 0.0) -> OutgoingMessage:
    return OutgoingMessage(to, b"{}", {KEY: key}, delay)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> MemoryBroker:
    return MemoryBroker(clock)


def test_nothing_happens_but_in_pump(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    worker.adapter.publish(work())
    assert worker.received == []
    assert broker.pump(limit=1) == 1
    assert worker.received == [Connected(1)]
    assert broker.pump() == 1
    assert broker.pump() == 0
    assert len(worker.deliveries()) == 1


def test_what_is_in_the_broker_can_be_looked_at(broker: MemoryBroker, clock: FakeClock) -> None:
    worker = Worker(broker)
    for message in (work("now"), work("later", Target.LATER, 60), work("dead", Target.DEAD)):
        worker.adapter.publish(message)
    assert [message.headers[KEY] for message in broker.messages("exports")] == ["now", "later"]
    assert [message.headers[KEY] for message in broker.dead("exports")] == ["dead"]
    assert broker.depth("exports") == 2
    assert broker.due_in() == 60
    clock.advance(60)
    assert broker.due_in() is None


@pytest.mark.parametrize("silent", [True, False])
def test_a_delivery_that_timed_out_is_stale_though_its_epoch_goes_on(broker: MemoryBroker, silent: bool) -> None:
    first, second = Worker(broker), Worker(broker, credits_=0)
    first.adapter.publish(work())
    broker.pump()
    first.adapter.prefetch(0)
    second.adapter.prefetch(1)
    broker.redeliver("k-1", silent=silent)
    broker.pump()
    old, new = first.deliveries()[0].delivery, second.deliveries()[0].delivery
    assert new.redelivered is Redelivered.YES
    assert [signal for signal in first.received if isinstance(signal, Lost)] == (
        [] if silent else [Lost(1, "delivery timed out", old.id)]
    )
    with pytest.raises(StaleDelivery):
        first.adapter.settle(old, Settle.ACK)
    second.adapter.settle(new, Settle.ACK)
    assert broker.depth("exports") == 0


def test_a_message_that_nobody_holds_cannot_be_taken_from_anybody(broker: MemoryBroker) -> None:
    Worker(broker, credits_=0).adapter.publish(work())
    with pytest.raises(LookupError, match="no consumer holds"):
        broker.redeliver("k-1")
    with pytest.raises(LookupError, match="k-2"):
        broker.redeliver("k-2")


def test_a_duplicate_is_the_same_message_once_more(broker: MemoryBroker) -> None:
    worker = Worker(broker, credits_=2)
    worker.adapter.publish(work())
    broker.duplicate("k-1")
    broker.pump()
    one, two = (delivered.delivery for delivered in worker.deliveries())
    assert (one.message_id, one.body, one.headers) == (two.message_id, two.body, two.headers)
    assert two.redelivered is Redelivered.NO


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_settlement_ends_its_epoch(broker: MemoryBroker, landed: bool) -> None:
    worker = Worker(broker)
    worker.adapter.publish(work())
    broker.pump()
    broker.lose_settlement(worker.adapter, landed=landed)
    with pytest.raises(Unsettled):
        worker.adapter.settle(worker.deliveries()[0].delivery, Settle.ACK)
    broker.pump()
    assert [type(signal) for signal in worker.received[2:]] == [Lost, Connected] + ([] if landed else [Delivered])


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_confirm_leaves_the_sender_in_doubt(broker: MemoryBroker, landed: bool) -> None:
    worker = Worker(broker)
    broker.lose_confirm(worker.adapter, landed=landed)
    with pytest.raises(PublishFailed):
        worker.adapter.publish(work())
    assert broker.depth("exports") == int(landed)
    worker.adapter.publish(work())
    assert broker.depth("exports") == 1 + int(landed)


def test_a_broker_that_is_down_refuses_everything_and_then_connects_again(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    worker.adapter.publish(work())
    broker.pump()
    broker.go_down("restart")
    with pytest.raises(PublishFailed, match="restart"):
        worker.adapter.publish(work())
    for question in (worker.adapter.identity, worker.adapter.consumers, lambda: worker.adapter.findings(SPEC)):
        with pytest.raises(BrokerUnavailable, match="restart"):
            question()
    with pytest.raises(StaleDelivery):
        worker.adapter.settle(worker.deliveries()[0].delivery, Settle.ACK)
    late = Worker(broker, credits_=0)
    broker.pump()
    assert worker.received[2:] == [Lost(1, "restart"), Unreachable("restart")]
    assert late.received == [Unreachable("restart")]
    broker.come_up()
    broker.pump()
    assert worker.received[4] == Connected(2)
    assert len(worker.deliveries()) == 2


def test_an_alarm_is_reported_and_refuses_publishes(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    broker.pump()
    broker.block("memory")
    with pytest.raises(PublishFailed, match="memory"):
        worker.adapter.publish(work())
    broker.unblock()
    worker.adapter.publish(work())
    broker.pump()
    assert worker.received[1:3] == [Blocked("memory"), Unblocked()]
    assert len(worker.deliveries()) == 1


def test_a_queue_that_was_deleted_is_missing(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    broker.delete_queue("exports.dead")
    worker.adapter.publish(work())
    with pytest.raises(TargetMissing, match=r"exports\.dead"):
        worker.adapter.publish(work(to=Target.DEAD))
    broker.declare_queue("exports.dead")
    worker.adapter.publish(work(to=Target.DEAD))
    assert len(broker.dead("exports")) == 1


def test_a_full_queue_refuses_all_but_what_waits_for_its_time(broker: MemoryBroker) -> None:
    worker = Worker(broker)
    broker.fill_queue("exports")
    with pytest.raises(TargetFull, match="exports"):
        worker.adapter.publish(work())
    worker.adapter.publish(work(to=Target.LATER))
    broker.make_room("exports")
    worker.adapter.publish(work())
    assert broker.depth("exports") == 2


def test_a_worker_that_releases_everything_cannot_keep_the_pump_busy(broker: MemoryBroker) -> None:
    adapter = broker.adapter(SPEC)
    adapter.prefetch(1)
    released: list[str] = []

    def release(signal: Signal) -> None:
        if isinstance(signal, Delivered):
            adapter.settle(signal.delivery, Settle.RELEASE)
            released.append(signal.delivery.headers[KEY])

    adapter.start(release)
    for key in ("k-1", "k-2"):
        adapter.publish(work(key))
    broker.pump()
    assert released == ["k-1", "k-2"]
    broker.pump()
    assert released == ["k-1", "k-2"] * 2


def test_a_seed_decides_who_gets_which_message(clock: FakeClock) -> None:
    def history(seed: int) -> list[list[str]]:
        broker = MemoryBroker(clock)
        workers = [Worker(broker, credits_=3) for _ in range(3)]
        for n in range(9):
            workers[0].adapter.publish(work(f"k-{n}"))
        broker.pump(choose=random.Random(seed).randrange)
        return [[delivered.delivery.headers[KEY] for delivered in worker.deliveries()] for worker in workers]

    assert history(1) == history(1)
    assert len({str(history(seed)) for seed in range(20)}) > 10
    assert sorted(key for keys in history(1) for key in keys) == [f"k-{n}" for n in range(9)]


def test_depth_and_browse_report_when_messages_are_due(broker: MemoryBroker, clock: FakeClock) -> None:
    """The age of a retried message begins when its delay ends, and both times are of the wall clock."""
    adapter = broker.adapter(SPEC)
    adapter.publish(OutgoingMessage(Target.LATER, b"{}", {KEY: "late"}, 100.0))
    adapter.publish(OutgoingMessage(Target.LATER, b"{}", {KEY: "soon"}, 30.0))
    sent_at = clock.wall()
    assert adapter.depth() == Depth(ready=0, delayed=2, next_due=sent_at + 30, unacked=0, dead=0, consumers=0)
    clock.advance(40)
    assert adapter.depth() == Depth(
        ready=1, delayed=1, next_due=sent_at + 100, unacked=0, dead=0, consumers=0, oldest_age=10.0
    )
    assert list(adapter.browse(5)) == [
        Browsed({KEY: "soon"}, "m-2", sent_at),
        Browsed({KEY: "late"}, "m-1", sent_at, sent_at + 100),
    ]
    broker.go_down()
    with pytest.raises(BrokerUnavailable):
        adapter.depth()
    with pytest.raises(BrokerUnavailable):
        next(adapter.browse(1))
