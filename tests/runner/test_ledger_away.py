"""The ledger away, or its answer lost: held, not ready, nothing lost, and no attempt burnt."""

from __future__ import annotations

from typing import Any

import pytest

from steadyworker.events import JobSettled
from steadyworker.ledger.base import State
from steadyworker.retry import RetryPolicy
from steadyworker.testing.plugin import MakeHarness
from tests.runner.kit import QUEUE, Gate, Obedient, counted, events, nothing, raises, saves, settled, worker


def test_nothing_is_claimed_while_the_ledger_is_away(harness: MakeHarness) -> None:
    """The message is held, not released: a release would burn a broker's delivery limit."""
    exports = worker(nothing)
    h = harness(exports)
    (process,) = h.processes
    process.ledger.cut("the disk is gone")
    key = h.send(exports, {})

    h.advance(120)

    assert h.starts(key) == 0
    (held,) = h.broker.messages(QUEUE)
    assert held.handed <= 1
    assert "the disk is gone" in h.not_ready["ledger"]
    assert process.adapters[0].consumer.window == 0

    process.ledger.mend()
    h.wait(key)

    assert h.not_ready == {}
    assert h.starts(key) == 1
    assert counted(h, key) == (0, 0, 0, 0)


@pytest.mark.parametrize("away", [5, 45, 500])
def test_a_checkpoint_waits_for_the_ledger_and_the_job_goes_on(harness: MakeHarness, away: float) -> None:
    gate = Gate(saves(2))
    exports = worker(saves(1, gate))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")

    h.processes[0].ledger.cut()
    gate.open()
    h.advance(away)
    row = h.job(key)
    assert row is not None
    assert row.checkpoint == b"1"
    h.processes[0].ledger.mend()
    row = h.wait(key)

    assert row is not None
    assert (row.state, row.checkpoint) == (State.DONE, b"2")
    assert h.starts(key) == 1
    assert counted(h, key) == (0, 0, 0, 0)


@pytest.mark.parametrize("away", [5, 45, 500])
@pytest.mark.parametrize("ending", ["done", "retry", "dead letter"])
def test_an_outcome_waits_for_the_ledger(harness: MakeHarness, ending: str, away: float) -> None:
    """Nothing is published and nothing acknowledged before the ledger's word."""
    gate = Gate()

    def ends(job: Any) -> None:
        gate(job)
        if ending == "retry" and job.attempt == 1:
            raise ValueError("odd")
        if ending == "dead letter":
            raise KeyError("never")

    exports = worker(saves(1, ends), retry=RetryPolicy(dont_retry_on=(KeyError,)))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")

    h.processes[0].ledger.cut()
    gate.open()
    h.advance(away)
    assert h.broker.depth(QUEUE) == 1
    assert h.dead == []
    h.processes[0].ledger.mend()
    h.wait(key)

    attempts = ending == "retry"
    assert h.starts(key) == 1 + attempts
    assert counted(h, key) == (attempts, 0, 0, 0)
    assert (
        settled(h, key)
        == {
            "done": ["ack"],
            "retry": ["later", "ack"],
            "dead letter": ["dead-letter"],
        }[ending]
    )
    assert len(h.dead) == (ending == "dead letter")


@pytest.mark.parametrize("call", ["claim", "done", "moving", "moved", "settled", "renew", "read", "checkpoint"])
@pytest.mark.parametrize("fails", [False, True], ids=["done", "retry"])
def test_an_answer_that_never_came_loses_nothing_and_burns_nothing(
    harness: MakeHarness, call: str, fails: bool
) -> None:
    """The write landed, but its reply was lost: the row is read again, and decides."""
    gate = Gate()
    exports = worker(*[saves(1, raises(ValueError("odd")))] * fails, saves(2, gate))
    h = harness(exports)
    h.processes[0].ledger.lose_answer(call)
    key = h.send(exports, {})
    gate.open()

    row = h.wait(key)

    assert row is not None
    assert row.state is State.DONE
    assert counted(h, key) == (fails, 0, 0, 0)
    assert h.broker.depth(QUEUE) == 0
    assert h.dead == []
    assert h.starts(key) == 1 + fails


def test_an_outage_on_one_side_is_a_take_over_on_the_other(harness: MakeHarness) -> None:
    """The owner gets no reply, another process takes over after the lease; the next reply refuses the owner."""
    obedient = Obedient()
    exports = worker(saves(1, obedient), nothing)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until=obedient.begun.is_set)
    cut = h.processes[0]
    h.start()

    cut.ledger.cut()
    h.advance(20)
    h.redeliver(key)
    h.advance(200)
    h.wait(key, until="done")
    cut.ledger.mend()
    h.advance(1)
    h.wait(key, until=lambda: obedient.reasons)
    h.wait(key)

    assert obedient.reasons == ["fenced"]
    assert h.starts(key) == 2
    assert counted(h, key) == (0, 0, 1, 0)
    assert [event.outcome for event in events(h, key, JobSettled)] == ["done"]
