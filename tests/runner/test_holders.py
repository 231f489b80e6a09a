"""A broker that counts who holds a delivery: the worker process is its consumer until the last delivery is settled."""

from __future__ import annotations

import pytest

from steadyworker.adapter import Capabilities, Lost
from steadyworker.clock import Times
from steadyworker.ledger.lease import QUIET, Keeper
from steadyworker.lifecycle import Stage
from steadyworker.outcome import Done
from steadyworker.runner.consumer_audit import AuditResult
from steadyworker.runner.runner import QUIET_AFTER
from steadyworker.runner.state import Renewed, Staged
from steadyworker.testing.memory_ledger import MemoryLedger
from tests.runner.bench import Bench, PlayedAdapter

NAME = "broker/exports"


class HolderBench(Bench):
    """A runner with a keeper, as the assembly wires them; `hurried` counts how often the runner asked for a turn."""

    def __init__(self, *, counts_holders: bool = True, slots: int = 1) -> None:
        self.hurried = 0
        super().__init__(
            slots=slots, adapter=PlayedAdapter(Capabilities(counts_holders=counts_holders)), hurry=self._hurry
        )
        self.owners = MemoryLedger(self.clock, Times())
        self.keeper = Keeper(
            self.owners,
            "me",
            "host",
            [NAME],
            [],
            self.clock,
            Times(),
            quiet=lambda _: self.runner.quiet,
            holds=lambda _: self.runner.holds(),
        )

    def _hurry(self) -> None:
        self.hurried += 1

    def waits(self, seconds: float) -> None:
        """Let so much time pass, with the renewals of that time."""
        for _ in range(int(seconds // self.times.renew)):
            self.tick(self.times.renew)
            tokens, now = self.runner.tokens(), self.clock.boottime()
            self.handle(Renewed(now, list(zip(tokens, self.real.renew(tokens), strict=True))))

    def registered(self) -> str:
        """The name under which the next turn of the keeper registers the queue."""
        self.keeper.turn()
        ((name,),) = (seen.queues for seen in self.owners.owners())
        return name


@pytest.mark.parametrize("stage", [Stage.QUIET, Stage.DRAINING])
def test_a_process_that_takes_no_message_registers_as_a_consumer_while_it_holds_one(stage: Stage) -> None:
    """A stop can wait for hours for its job, and the broker counts the process all that time."""
    bench = HolderBench()
    bench.deliver("long")
    bench.handle(Staged(stage))
    assert bench.adapter.windows[-1] == 0
    bench.waits(2 * QUIET_AFTER)
    assert bench.registered() == NAME
    before = bench.hurried
    bench.ended(0, Done())
    assert bench.hurried == before + 1, "the ledger must not count it longer than the broker does"
    assert bench.registered() == f"{NAME}{QUIET}"


def test_a_process_that_has_left_the_queue_registers_so_with_its_last_settlement(bench: HolderBench) -> None:
    first, second = bench.deliver("first"), bench.deliver("second")
    bench.handle(AuditResult("2 consumers"))
    bench.keeper.left(NAME, left=True)
    for delivery, name in ((first, NAME), (second, f"{NAME}{QUIET}")):
        assert bench.registered() == NAME
        bench.ended(0 if delivery is first else 1, Done())
        assert bench.registered() == name
    bench.keeper.left(NAME, left=False)
    bench.handle(AuditResult())
    assert bench.registered() == NAME


def test_a_lost_delivery_is_held_no_longer(bench: HolderBench) -> None:
    """Its run goes on without it, and the broker counts another holder."""
    delivery = bench.deliver("long")
    assert bench.runner.holds()
    bench.handle(Lost(1, "delivery timed out", delivery.id))
    assert bench.runner.state.slots_detached() == 1
    assert not bench.runner.holds()


def test_a_process_that_takes_messages_hurries_nobody_after_a_job(bench: HolderBench) -> None:
    """It is a consumer before and after the job; a renewal for each job would be a write for each job."""
    before = bench.hurried
    bench.deliver("short")
    bench.ended(0, Done())
    assert not bench.runner.holds()
    assert bench.hurried == before


def test_another_broker_counts_no_holder() -> None:
    bench = HolderBench(counts_holders=False)
    bench.deliver("long")
    bench.handle(Staged(Stage.QUIET))
    assert not bench.runner.holds()
    bench.tick(QUIET_AFTER)
    assert bench.registered() == f"{NAME}{QUIET}"


@pytest.fixture
def bench() -> HolderBench:
    return HolderBench(slots=2)
