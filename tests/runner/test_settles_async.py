"""An adapter that settles soon: the runner goes on meanwhile, and reports the settlement after the broker did."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from steadyworker.adapter import Capabilities, Connected, Delivery, Lost, Settle, Settled
from steadyworker.errors import StaleDelivery, Unsettled
from steadyworker.events import Event, JobSettled
from steadyworker.ledger.base import State
from steadyworker.outcome import Done, Failed
from tests.runner.bench import Bench, PlayedAdapter

OnSettled = Callable[[Settled | StaleDelivery | Unsettled], None]


class SoonAdapter(PlayedAdapter):
    """It keeps every `on_settled` until the test calls it."""

    def __init__(self) -> None:
        super().__init__(Capabilities())
        self.open: list[OnSettled] = []

    def settle_async(self, delivery: Delivery, how: Settle, on_settled: OnSettled) -> None:
        self.settled.append((delivery.id, how))
        self.open.append(on_settled)


class SoonBench(Bench):
    """What was submitted to another thread is counted: it may hang in a broker's client."""

    def __init__(self) -> None:
        self.soon = SoonAdapter()
        self.events: list[Event] = []
        self.submitted = 0
        super().__init__(adapter=self.soon, emit=self.events.append, submit=self._submit)

    def _submit(self, work: Callable[[], None]) -> None:
        self.submitted += 1
        work()

    def answer(self, answer: Settled | StaleDelivery | Unsettled) -> None:
        self.soon.open.pop(0)(answer)
        self.runner.drain_inbox()

    def settlements(self) -> list[str]:
        return [event.settled for event in self.events if isinstance(event, JobSettled)]


def test_the_next_job_runs_while_the_broker_has_not_answered() -> None:
    """Nothing of it wants another thread."""
    bench = SoonBench()
    first = bench.deliver("first")
    bench.ended(0, Done())
    assert bench.state("first") is State.DONE
    assert bench.soon.settled == [(first.id, Settle.ACK)]
    bench.deliver("second")
    assert bench.slots[0].task is not None
    assert bench.slots[0].task.key == "second"
    assert bench.settlements() == []
    bench.answer(Settled.CONFIRMED)
    assert bench.settlements() == ["confirmed"]
    assert bench.submitted == 0


@pytest.mark.parametrize("error", [StaleDelivery("old"), Unsettled("cut")])
def test_a_settlement_that_is_not_known_is_over_all_the_same(error: StaleDelivery | Unsettled) -> None:
    """The ledger answers the redelivery."""
    bench = SoonBench()
    bench.deliver("job")
    bench.ended(0, Done())
    bench.handle(Lost(1, "cut"), Connected(2))
    bench.answer(error)
    assert bench.settlements() == ["unknown"]
    assert bench.runner.idle
    bench.deliver("job", epoch=2)
    assert bench.slots[0].task is None, "it is answered from its record"
    bench.answer(Settled.CONFIRMED)
    assert bench.soon.settled == [("d1", Settle.ACK), ("d2", Settle.ACK)]


def test_a_stop_waits_for_the_answer() -> None:
    """What is under way is not idle."""
    bench = SoonBench()
    bench.deliver("job")
    bench.ended(0, Done())
    assert not bench.runner.idle
    bench.answer(Settled.SENT)
    assert bench.runner.idle
    assert bench.settlements() == ["sent"]


def test_a_copy_is_published_on_another_thread() -> None:
    """A confirm may take long."""
    bench = SoonBench()
    delivery = bench.deliver("job")
    bench.ended(0, Failed("odd"))
    assert bench.submitted == 1
    assert len(bench.soon.published) == 1
    assert bench.soon.settled == [(delivery.id, Settle.ACK)]
    assert bench.state("job") is State.MOVED
    bench.answer(Settled.CONFIRMED)
    assert bench.settlements() == ["confirmed"]
