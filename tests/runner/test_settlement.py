"""A settlement that cannot publish keeps its lease and its delivery, reports what is missing, and goes on when it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from steadyworker.delivery import HOP, Target
from steadyworker.errors import Reject
from steadyworker.events import JobSettled
from steadyworker.ledger.base import State
from steadyworker.retry import RetryPolicy
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from tests.runner.kit import QUEUE, Deed, Gate, counted, events, nothing, raises, saves, worker

DEAD_LETTERS = f"{QUEUE}.dead"

TROUBLES: dict[str, tuple[Callable[[Harness], None], Callable[[Harness], None]]] = {
    "the target was deleted": (
        lambda h: _each_queue(h.broker.delete_queue),
        lambda h: _each_queue(h.broker.declare_queue),
    ),
    "the broker takes no publishes": (lambda h: h.broker.block("disk alarm"), lambda h: h.broker.unblock()),
    "the broker is down": (lambda h: h.broker.go_down(), lambda h: h.broker.come_up()),
}


@pytest.mark.parametrize("target", [Target.LATER, Target.DEAD])
@pytest.mark.parametrize(("trouble", "remedy"), TROUBLES.values(), ids=TROUBLES)
def test_it_waits_and_goes_on(
    harness: MakeHarness, trouble: Callable[[Harness], None], remedy: Callable[[Harness], None], target: Target
) -> None:
    gate = Gate(raises(ValueError("odd") if target is Target.LATER else KeyError("never")))
    exports = worker(saves(1, gate), nothing, retry=RetryPolicy(dont_retry_on=(KeyError,)))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")

    trouble(h)
    gate.open()
    h.wait(key, until="moving")
    h.advance(600)

    row = h.job(key)
    assert row is not None
    assert row.state is State.MOVING
    assert row.owner == "harness/1"
    assert not row.lease_over
    assert h.broker.depth(QUEUE) == 1
    assert f"{target.value} queue" in h.not_ready

    remedy(h)
    h.advance(60)
    row = h.wait(key)

    dies = target is Target.DEAD
    assert row is not None
    assert row.state is (State.DEAD if dies else State.DONE)
    assert len(h.dead) == dies
    assert h.starts(key) == (1 if dies else 2)
    assert h.not_ready == {}
    assert h.broker.depth(QUEUE) == 0


def test_its_slot_is_free_for_other_jobs_meanwhile(harness: MakeHarness) -> None:
    """A dead-letter queue that is missing holds up what would go there, and nothing else."""

    def rejects_the_first(job: Any) -> None:
        if job.key == "first":
            raise KeyError("never")

    exports = worker(rejects_the_first, concurrency=2, retry=RetryPolicy(dont_retry_on=(KeyError,)))
    h = harness(exports)
    h.broker.delete_queue(DEAD_LETTERS)
    first = h.send(exports, {}, key="first")
    h.wait(first, until="moving")

    others = [h.send(exports, {}) for _ in range(3)]
    for key in others:
        h.wait(key)

    row = h.job(first)
    assert row is not None
    assert row.state is State.MOVING


@pytest.mark.parametrize("published", [False, True], ids=["before the publish", "after the publish"])
def test_who_meets_a_hand_over_without_its_owner_finishes_it(harness: MakeHarness, published: bool) -> None:
    """`moving` with its owner gone: the copy is published, nothing is run again for this attempt."""
    gate = Gate(raises(ValueError("odd")))
    exports = worker(saves(1, gate), nothing)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")
    gone = h.processes[0]
    if published:
        h.broker.lose_confirm(gone.adapters[0], landed=True)
    else:
        h.broker.delete_queue(QUEUE)
    gate.open()
    h.wait(key, until="moving")
    if published:
        h.wait(key, until=lambda: h.broker.depth(QUEUE) == 2)

    gone.freeze()
    h.broker.drop_connection(gone.adapters[0])
    h.broker.declare_queue(QUEUE)
    h.start()
    row = h.wait(key, until="done")

    assert row is not None
    assert row.hop == 1
    assert h.starts(key) == 2
    assert counted(h, key) == (1, 0, 0, 0)
    h.wait(key, until=lambda: h.broker.depth(QUEUE) == 0)


def test_each_copy_is_one_hop_further(harness: MakeHarness) -> None:
    def fails(job: Any) -> None:
        hops.append(job.headers.get(HOP, "0"))
        raise ValueError("odd")

    hops: list[str] = []
    exports = worker(fails, retry=RetryPolicy(max_attempts=4))
    h = harness(exports)
    key = h.send(exports, {})

    h.wait(key)

    assert hops == ["0", "1", "2", "3"]
    assert [letter.headers[HOP] for letter in h.dead] == ["3"]
    assert [event.settled for event in events(h, key, JobSettled)] == ["confirmed"] * 4


def _each_queue(do: Callable[[str], None]) -> None:
    do(QUEUE)
    do(DEAD_LETTERS)


@pytest.mark.parametrize("deed", [nothing, raises(Reject("no such merchant"))], ids=["done", "dead letter"])
def test_the_ledger_learns_that_the_broker_confirmed_the_settlement(harness: MakeHarness, deed: Deed) -> None:
    """The ledger may forget such a row sooner, because its message cannot come again."""
    exports = worker(deed)
    h = harness(exports)
    row = h.wait(h.send(exports, {}))
    assert row is not None
    assert row.settled == "confirmed"


def test_a_run_whose_delivery_is_lost_leaves_its_settlement_unknown(harness: MakeHarness) -> None:
    """Its message comes again, so the ledger keeps the row for longer."""
    gate = Gate()
    exports = worker(saves(1, gate))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")
    h.broker.go_down()
    gate.open()
    row = h.wait(key, until="done")
    assert row is not None
    assert row.settled == "unknown"
