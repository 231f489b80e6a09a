"""What `/metrics` reads of a runner, at each step of its life."""

from __future__ import annotations

from steadyworker.adapter import Blocked, Connected, Lost, Unblocked, Unreachable
from steadyworker.outcome import Done
from steadyworker.runner.state import LedgerLost, Renewed
from steadyworker.slots.base import Unready
from tests.runner.bench import Bench


def test_slots_and_runs_are_counted_and_the_oldest_run_has_its_age() -> None:
    bench = Bench(slots=2)
    assert (bench.runner.reading().running, bench.runner.reading().oldest) == (0, 0.0)
    bench.deliver("first")
    bench.tick(30)
    bench.deliver("second")
    bench.tick(5)
    now = bench.runner.reading()
    assert (now.queue, now.running, now.slots, now.slots_ready, now.oldest) == (
        *(bench.runner.deps.spec.queue, 2, 2, 2),
        35.0,
    )
    assert now.time_limit == bench.runner.deps.spec.time_limit
    bench.ended(0, Done())
    assert (bench.runner.reading().running, bench.runner.reading().oldest) == (1, 5.0)
    bench.handle(Unready(0, "setup raised"))
    assert bench.runner.reading().slots_ready == 1


def test_each_loss_of_a_connection_is_counted_by_its_reason_and_a_lost_delivery_is_none() -> None:
    bench = Bench()
    delivery = bench.deliver("k")
    assert (bench.runner.reading().connected, sum(bench.runner.reading().losses.values())) == (True, 0)
    bench.handle(Lost(1, "the broker took it back", delivery.id))
    assert (bench.runner.reading().connected, sum(bench.runner.reading().losses.values())) == (True, 0)
    bench.handle(Lost(1, "Expected a connection …, got: no heartbeat; check whether the broker is frozen."))
    assert not bench.runner.reading().connected
    bench.handle(Unreachable("connection refused"))  # no connection was lost by this
    bench.handle(Connected(2), Lost(2, "Connection reset by peer"), Connected(3), Lost(3, "Connection reset by peer"))
    now = bench.runner.reading()
    assert {reason: number for reason, number in now.losses.items() if number} == {"heartbeat": 1, "reset": 2}
    assert now.losses["tls"] == 0, "each reason begins with 0"
    bench.handle(Connected(4))
    assert bench.runner.reading().connected


def test_an_alarm_of_the_broker_and_a_ledger_that_is_away_are_seen() -> None:
    bench = Bench()
    assert (bench.runner.reading().blocked, bench.runner.reading().ledger_up) == (False, True)
    bench.handle(Blocked("memory"), LedgerLost("away"))
    assert (bench.runner.reading().blocked, bench.runner.reading().ledger_up) == (True, False)
    bench.handle(Unblocked(), Renewed(bench.clock.boottime(), []))
    assert (bench.runner.reading().blocked, bench.runner.reading().ledger_up) == (False, True)


def test_a_runner_that_stands_still_does_not_know_its_state() -> None:
    bench = Bench()
    bench.tick(0)
    assert (bench.runner.reading().known, bench.runner.reading().up) == (True, True)
    bench.clock.advance(30)
    assert bench.runner.reading().up, "a turn can have three slow calls of the ledger"
    bench.clock.advance(1)
    assert (bench.runner.reading().connected, bench.runner.reading().up) == (True, False)
    bench.tick(0)
    assert bench.runner.reading().up
