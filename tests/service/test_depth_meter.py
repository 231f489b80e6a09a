"""One worker process of a fleet measures what waits, and neither an absent broker nor an absent ledger disturbs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from steadyworker.adapter import Adapter, Depth, QueueSpec
from steadyworker.clock import Times
from steadyworker.delivery import KEY, OutgoingMessage, Target
from steadyworker.errors import BrokerUnavailable, ConfigError, LedgerUnavailable
from steadyworker.ledger.facts import Facts, MeasuredDepth
from steadyworker.service.depth_meter import EVERY, DepthMeter, MeasuredQueue
from steadyworker.testing.broker import MemoryBroker
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_adapter import MemoryAdapter
from steadyworker.testing.memory_ledger import MemoryLedger

ONE = Depth(ready=1, delayed=0, unacked=0, dead=0, consumers=0, oldest_age=0.0)


class Fleet:
    """Meters of several processes on one queue, with one ledger."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker(self.clock)
        self.facts = MemoryLedger(self.clock, Times()).facts
        self.connected = True
        self.sized = 0

    def adapter(self, queue: str = "exports") -> MemoryAdapter:
        return self.broker.adapter(QueueSpec(queue, "exports.dead"))

    def meter(self, *adapters: Adapter, facts: Facts | None = None) -> DepthMeter:
        queues = ("exports", "imports")
        measured = [
            MeasuredQueue("shop", queue, adapter, lambda: self.connected)
            for queue, adapter in zip(queues, adapters or (self.adapter(),), strict=False)
        ]
        return DepthMeter(measured, facts or self.facts, self.clock, self.ledger_bytes)

    def ledger_bytes(self) -> int | None:
        self.sized += 1
        return 4096

    def send(self, queue: str = "exports") -> None:
        self.adapter(queue).publish(OutgoingMessage(Target.WORK, b"{}", {KEY: "k"}))

    def recorded(self) -> list[MeasuredDepth]:
        return list(self.facts.depths())


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


class Counted:
    """An adapter that returns or raises what the test sets, and counts the questions."""

    def __init__(self, *answers: Depth | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    def depth(self) -> Depth:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Absent:
    """Facts that raise LedgerUnavailable in one method, and pass every other call on."""

    def __init__(self, facts: Facts, absent: str) -> None:
        self._facts, self._absent = facts, absent

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name == self._absent:
            raise LedgerUnavailable("the ledger is away")
        return cast(Callable[..., object], getattr(self._facts, name))


def test_one_process_of_a_fleet_measures_and_records(fleet: Fleet) -> None:
    """The process that measured goes on with it; another follows once the first has ended."""
    first, second = fleet.meter(), fleet.meter()
    fleet.send()
    assert first.measure() == EVERY
    second.measure()
    assert (first.depths, second.depths) == ({"exports": ONE}, {})
    assert fleet.recorded() == [MeasuredDepth("shop", "exports", ONE, 0.0)]
    fleet.clock.advance(EVERY)
    first.measure()
    second.measure()
    assert ([*first.depths], [*second.depths]) == (["exports"], [])
    fleet.clock.advance(EVERY)
    second.measure()
    first.measure()
    assert ([*first.depths], [*second.depths]) == ([], ["exports"])


def test_the_process_that_measures_reads_the_bytes_of_the_ledger_once_a_minute(fleet: Fleet) -> None:
    first, second = fleet.meter(), fleet.meter()
    for _ in range(7):
        first.measure()
        second.measure()
        assert (first.ledger_bytes, second.ledger_bytes) == (4096, None)
        fleet.clock.advance(EVERY)
    assert fleet.sized == 2
    fleet.connected = False
    first.measure()
    assert first.ledger_bytes is None


def test_each_queue_of_a_process_is_measured(fleet: Fleet) -> None:
    meter = fleet.meter(fleet.adapter("exports"), fleet.adapter("imports"))
    fleet.send("imports")
    meter.measure()
    assert {queue: depth.ready for queue, depth in meter.depths.items()} == {"exports": 0, "imports": 1}
    assert [each.queue for each in fleet.recorded()] == ["exports", "imports"]


def test_an_unexpected_error_of_one_queue_is_logged_and_leaves_the_others(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """It can be a defect of a client library; the queue is measured again after a minute."""
    odd = Counted(KeyError("password=canary-secret"), ONE)
    meter = fleet.meter(cast(Adapter, odd), fleet.adapter("imports"))
    with caplog.at_level("WARNING"):
        meter.measure()
    lines: list[Any] = [record.msg for record in caplog.records]
    assert [(line["event"], line["queue"], line["explain"]) for line in lines] == [
        ("depth_not_measured", "exports", "steadyworker.not-measured")
    ]
    exports, imports = fleet.recorded()
    assert (exports.depth.ready, imports.depth.ready) == (None, 0)
    assert exports.depth.why["ready"].startswith("KeyError: 'password=***")
    fleet.clock.advance(59)
    meter.measure()
    assert odd.asked == 1
    fleet.clock.advance(2)
    meter.measure()
    assert fleet.recorded()[0].depth == ONE


def test_no_question_goes_to_a_broker_whose_connection_is_lost(fleet: Fleet) -> None:
    """Another process, whose connection is open, can then measure."""
    broker = Counted(ONE)
    meter = fleet.meter(cast(Adapter, broker))
    fleet.connected = False
    meter.measure()
    assert (broker.asked, meter.depths, fleet.recorded()) == (0, {}, [])
    assert fleet.facts.may_measure("shop", "exports", EVERY)


@pytest.mark.parametrize("error", [BrokerUnavailable, ConfigError])
def test_a_broker_that_does_not_answer_is_left_alone_for_a_minute(
    fleet: Fleet, error: type[BrokerUnavailable | ConfigError]
) -> None:
    """The record has the reason, so that no screen shows an old number as a new one; a URL that cannot be read is such a reason."""
    broker = Counted(error("Expected an answer, got none: wait."), ONE)
    meter = fleet.meter(cast(Adapter, broker))
    meter.measure()
    (recorded,) = fleet.recorded()
    assert recorded.depth == Depth.unknown("Expected an answer, got none: wait")
    for _ in range(5):
        fleet.clock.advance(EVERY)
        meter.measure()
    assert (broker.asked, meter.depths) == (1, {})
    fleet.clock.advance(EVERY)
    meter.measure()
    assert (broker.asked, meter.depths) == (2, {"exports": ONE})


@pytest.mark.parametrize(("absent", "asked"), [("may_measure", 0), ("record_depth", 1)])
def test_without_the_ledger_nothing_is_measured_and_nothing_fails(fleet: Fleet, absent: str, asked: int) -> None:
    broker = Counted(ONE)
    facts = cast(Facts, Absent(fleet.facts, absent))
    assert fleet.meter(cast(Adapter, broker), facts=facts).measure() == EVERY
    assert broker.asked == asked
    assert fleet.recorded() == []
