"""A job's life does not depend on the life of a connection: adopt, defer, acknowledge a duplicate, take over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from steadyworker.delivery import HOP
from steadyworker.errors import Snooze
from steadyworker.events import (
    Adopted,
    DeliveryDeferred,
    DeliveryLost,
    DuplicateAcked,
    Fenced,
    JobSettled,
    JobStarted,
    TakenOver,
)
from steadyworker.ledger.base import State
from steadyworker.link import SaveExportState
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from tests.runner.kit import (
    QUEUE,
    Gate,
    Obedient,
    Seen,
    counted,
    events,
    nothing,
    quickly,
    raises,
    saves,
    settled,
    worker,
)

both_ways = pytest.mark.parametrize("adoption", [True, False], ids=["adopting", "not adopting"])

CUTS: dict[str, Callable[[Harness, str], None]] = {
    "the connection drops": lambda h, key: h.drop_connection(),
    "the connection drops three times": lambda h, key: _cut(h, times=3),
    "a delivery times out": lambda h, key: h.redeliver(key),
    "a delivery times out, and the broker does not report it": lambda h, key: h.broker.redeliver(key, silent=True),
    "the broker restarts": lambda h, key: _restart(h),
    "the sender publishes twice": lambda h, key: h.broker.duplicate(key),
}


@both_ways
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_whatever_happens_to_a_connection_the_job_runs_once(
    harness: MakeHarness, adoption: bool, cut: Callable[[Harness, str], None]
) -> None:
    gate = Gate()
    exports = worker(saves(1, gate))
    h = harness(exports, adoption=adoption)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")

    cut(h, key)
    h.advance(5)
    gate.open()
    row = h.wait(key)

    assert row is not None
    assert row.state is State.DONE
    assert h.starts(key) == 1
    assert counted(h, key) == (0, 0, 0, 0)
    assert settled(h, key) == ["ack"]
    assert h.broker.depth(QUEUE) == 0
    assert h.dead == []


@both_ways
def test_a_retry_is_not_lost_with_its_connection(harness: MakeHarness, adoption: bool) -> None:
    """The delivery is gone when the attempt fails; the copy is published all the same, and the stale original answered."""
    gate = Gate(raises(ValueError("odd")))
    exports = worker(saves(1, gate), nothing)
    h = harness(exports, adoption=adoption)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")

    h.drop_connection()
    gate.open()
    row = h.wait(key)

    assert row is not None
    assert row.state is State.DONE
    assert h.starts(key) == 2
    assert row.hop == 1
    assert counted(h, key) == (1, 0, 0, 0)


def test_a_redelivery_is_bound_to_the_run_that_is_under_way(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(saves(1, gate))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")

    h.drop_connection()
    h.wait(key, until=lambda: events(h, key, Adopted))
    gate.open()
    h.wait(key)

    assert len(events(h, key, DeliveryLost)) == 1
    assert len(events(h, key, Adopted)) == 1
    assert events(h, key, DuplicateAcked) == []
    assert [event.settled for event in events(h, key, JobSettled)] == ["confirmed"]


def test_without_adoption_a_redelivery_follows_until_it_is_answered(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(saves(1, gate))
    h = harness(exports, adoption=False)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")

    h.drop_connection()
    h.advance(100)
    gate.open()
    h.wait(key)

    assert events(h, key, Adopted) == []
    assert h.starts(key) == 1


@pytest.mark.parametrize("landed", [True, False], ids=["the broker received it", "the broker did not"])
def test_a_settlement_without_an_answer_is_answered_from_the_record(harness: MakeHarness, landed: bool) -> None:
    gate = Gate()
    exports = worker(saves(1, gate))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")
    h.broker.lose_settlement(h.processes[0].adapters[0], landed=landed)

    gate.open()
    row = h.wait(key)

    assert row is not None
    assert row.state is State.DONE
    assert h.starts(key) == 1
    assert [event.settled for event in events(h, key, JobSettled)] == ["unknown"]
    assert len(events(h, key, DuplicateAcked)) == (not landed)


@pytest.mark.parametrize("landed", [True, False], ids=["the copy is there", "the copy is not"])
@pytest.mark.parametrize("ending", [ValueError("odd"), KeyError("never")], ids=["retry", "dead letter"])
def test_a_confirm_that_is_lost_is_published_again(harness: MakeHarness, ending: Exception, landed: bool) -> None:
    """A retry that is there twice is one run; a dead letter may be there twice, and the job is dead once."""
    gate = Gate(raises(ending))
    exports = worker(saves(1, gate), nothing, retry=quickly(dont_retry_on=(KeyError,)))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")
    h.broker.lose_confirm(h.processes[0].adapters[0], landed=landed)

    gate.open()
    row = h.wait(key)

    dies = isinstance(ending, KeyError)
    assert row is not None
    assert row.state is (State.DEAD if dies else State.DONE)
    assert h.starts(key) == (1 if dies else 2)
    assert len(h.dead) == (dies * (1 + landed))
    assert h.broker.depth(QUEUE) == 0


def test_a_second_worker_process_follows_and_then_answers(harness: MakeHarness) -> None:
    """Two worker processes, one ledger, one message handed to the second while the first runs it."""
    gate = Gate()
    exports = worker(saves(1, gate))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")
    h.start()

    h.broker.duplicate(key)
    h.wait(key, until=lambda: events(h, key, DeliveryDeferred))
    follower = next(each for each in h.broker.messages(QUEUE) if each.holder is None)
    gate.open()
    h.wait(key)

    assert follower.headers.get(HOP, "0") == "0"
    assert [event.delay for event in events(h, key, DeliveryDeferred)] == [30.0]
    assert h.starts(key) == 1
    assert len(events(h, key, DuplicateAcked)) == 1
    assert counted(h, key) == (0, 0, 0, 0)


def test_a_lease_that_ran_out_is_taken_over_from_the_last_checkpoint(harness: MakeHarness) -> None:
    first = Obedient(interrupted_at=lambda job: job.progress())
    second = Seen(lambda job: (job.last_checkpoint, job.attempt))
    exports = worker(saves(17, first), second)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until=first.begun.is_set)

    h.expire_lease(key)
    row = h.wait(key)

    assert row is not None
    assert row.state is State.DONE
    assert settled(h, key) == ["ack"]
    assert second.values == [(17, 1)]
    assert counted(h, key) == (0, 0, 1, 0)
    assert [event.losses for event in events(h, key, TakenOver)] == [1]
    assert [event.why for event in events(h, key, JobStarted)] == ["new", "taken over"]
    h.wait(key, until=lambda: first.reasons)
    assert first.reasons == ["fenced"]


@pytest.mark.parametrize("asks", ["checkpoint", "export_state", "nothing"])
def test_whatever_a_thawed_owner_asks_for_is_refused(harness: MakeHarness, asks: str) -> None:
    """Its run ends as fenced, its outcome is not taken, and its process goes on to the next job."""
    gate, replies = Gate(), []

    def late(job: Any) -> None:
        gate(job)
        try:
            if asks == "checkpoint":
                job.checkpoint(99)
            elif asks == "export_state":
                job._link.ask(SaveExportState(b"99"))
        except BaseException as error:
            replies.append(getattr(error, "reason", error))
            raise

    exports = worker(saves(1, late), nothing)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")
    thawed = h.processes[0]

    thawed.freeze()
    h.start()
    h.broker.drop_connection(thawed.adapters[0])
    h.advance(91)
    h.wait(key, until="done")
    gate.open()
    if asks != "nothing":
        h.wait(key, until=lambda: thawed.runners[0].inbox)
    thawed.thaw()
    h.wait(key, until=lambda: thawed.idle)

    row = h.job(key)
    assert row is not None
    assert row.checkpoint == b"1"
    assert settled(h, key) == ["ack"]
    assert replies == ([] if asks == "nothing" else ["fenced"])
    assert len(events(h, key, Fenced)) == 1
    assert h.broker.depth(QUEUE) == 0
    h.processes[1].freeze()
    after = h.send(exports, {})
    h.wait(after)
    assert not any(slot.stuck for slot in thawed.runners[0].deps.slots)


def test_a_lease_that_ran_out_and_was_not_taken_is_renewed(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(saves(1, gate))
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")

    h.processes[0].freeze()
    h.advance(500)
    h.processes[0].thaw()
    gate.open()
    h.wait(key)

    assert h.starts(key) == 1
    assert events(h, key, Fenced) == []


def test_a_copy_that_comes_too_early_follows_until_it_is_due(harness: MakeHarness) -> None:
    exports = worker(raises(ValueError("odd")), nothing)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="moved")
    (message,) = h.broker.messages(QUEUE)
    message.due = h.clock.boottime()

    h.wait(key)

    (followed,) = events(h, key, DeliveryDeferred)
    assert followed.delay == 5.0
    started = [event.at for event in events(h, key, JobStarted)]
    assert started[1] - started[0] == pytest.approx(5.0)


def test_where_delays_have_levels_an_early_copy_follows_down_the_ladder_and_is_not_late(harness: MakeHarness) -> None:
    """A wait of 100 s, past the longest level: rounded up, the last step would end at 120 s."""
    exports = worker(raises(Snooze(100)), nothing)
    h = harness(exports)
    h.broker.delay_by(1, 2, 5, 10, 30, 60)

    key = h.send(exports, {})
    h.wait(key)

    assert [event.delay for event in events(h, key, DeliveryDeferred)] == [30.0, 10.0]
    started = [event.at for event in events(h, key, JobStarted)]
    assert started[1] - started[0] == pytest.approx(100.0)


def test_with_one_slot_a_job_comes_home_before_a_strangers(harness: MakeHarness) -> None:
    """A run adrift offers its credit; another job's message ends the offer, and is given back unrun."""
    gate = Gate()
    exports = worker(saves(1, gate), nothing)
    h = harness(exports)
    key = h.send(exports, {})
    h.wait(key, until="checkpoint")
    stranger = h.send(exports, {})
    h.broker._queues.by_name[QUEUE].reverse()  # the stranger is first in line

    h.drop_connection()
    h.advance(1)
    assert h.starts(stranger) == 0
    gate.open()
    h.wait(key)
    h.wait(stranger)

    assert h.starts(key) == 1
    assert h.starts(stranger) == 1


def _cut(h: Harness, times: int) -> None:
    for _ in range(times):
        h.drop_connection()
        h.advance(1)


def _restart(h: Harness) -> None:
    h.broker.go_down()
    h.advance(20)
    h.broker.come_up()
