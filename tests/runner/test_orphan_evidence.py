"""A job whose message seems to be lost: what looks like a loss and is none, and what many losses do to a queue."""

from __future__ import annotations

import hashlib

import pytest

from steadyworker.events import MessageLost
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Moving, Renewal, Verdict
from steadyworker.lifecycle import Stage
from steadyworker.outcome import Counters
from steadyworker.runner.causes import HOST, Cause
from steadyworker.runner.settlement_plan import SettlementPlan
from steadyworker.runner.state import Renewed, Staged
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from tests.runner.ghosts import MISSED
from tests.runner.kit import QUEUE, Gate, events, nothing, worker


def ghost(h: Harness, key: str, message: KeptMessage | None = None) -> None:
    """The row of a job whose owner is gone."""
    digest = hashlib.sha256(b"{}").digest()
    assert h.ledger.claim(Claimed(JobId(NAMESPACE, QUEUE, key), None, "ghost/1", 0, digest, Counters(), message))


def test_a_job_whose_message_waits_in_the_queue_is_not_reported_as_lost(harness: MakeHarness) -> None:
    """The only slot is busy for hours, and the message waits behind the job that runs."""
    gate = Gate()
    exports = worker(gate, nothing)
    h = harness(exports)
    h.send(exports, {}, key="long")
    h.wait("long", until=gate.reached.is_set)
    ghost(h, "waits")
    h.send(exports, {}, key="waits")
    h.advance(3 * 3600)
    assert events(h, "waits", MessageLost) == []

    gate.open()
    h.wait("waits", until="done")
    assert h.starts("waits") == 1


def test_a_dead_letter_is_not_given_up_while_its_message_may_wait_in_the_queue(harness: MakeHarness) -> None:
    """The ledger has no copy, so the message is the only one, and a job that is dead already would let it be acknowledged."""
    gate = Gate()
    exports = worker(gate, nothing)
    h = harness(exports)
    h.send(exports, {}, key="long")
    h.wait("long", until=gate.reached.is_set)
    ghost(h, "dies")
    row = h.ledger.read(JobId(NAMESPACE, QUEUE, "dies"))
    assert row is not None
    assert h.ledger.moving(row.token, Verdict(Moving.DEAD, "no such merchant", Counters(attempts=3)))
    h.send(exports, {}, key="dies")
    h.advance(3 * 3600)
    gate.open()
    h.wait("long", until="done")
    h.advance(60)

    assert [letter.body for letter in h.broker.dead(QUEUE)] == [b"{}"]
    assert events(h, "dies", MessageLost) == []


def test_a_job_that_stays_is_reported_once_when_its_message_could_have_come(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(gate, nothing)
    h = harness(exports)
    h.send(exports, {}, key="long")
    h.wait("long", until=gate.reached.is_set)
    ghost(h, "ghost")
    h.advance(1000)
    assert events(h, "ghost", MessageLost) == []

    gate.open()
    h.wait("long")
    h.advance(1000)
    assert [event.fate for event in events(h, "ghost", MessageLost)] == ["left"]


@pytest.mark.parametrize("cause", ["stop", "host"])
def test_a_runner_that_has_just_become_unable_takes_none(harness: MakeHarness, cause: str) -> None:
    """The question for orphans can be due in the same turn in which a stop begins, or the host turns out to be unfit."""
    h = harness(worker(nothing))
    ghost(h, "ghost", KeptMessage(b"{}", b"{}"))
    h.advance(209)
    runner = h.processes[0].runners[0]
    if cause == "stop":
        runner._receive(Staged(Stage.QUIET))
    else:
        runner.state.causes[HOST] = Cause("no temporary directory")
    h.clock.advance(1.5)
    runner.tick()
    h.advance(300)

    assert events(h, "ghost", MessageLost) == []
    assert h.starts("ghost") == 0


@pytest.mark.parametrize("phase", ["settled", "settling"])
def test_a_renewal_of_a_run_that_has_just_ended_is_not_refused(harness: MakeHarness, phase: str) -> None:
    """With short jobs, most renewals name such a run; a runner that never counts as steady would never take an orphan."""
    gate = Gate()
    exports = worker(gate, nothing)
    h = harness(exports)
    h.send(exports, {}, key="short")
    h.wait("short", until=gate.reached.is_set)
    ghost(h, "ghost", KeptMessage(b"{}", b"{}"))
    h.advance(170)
    runner = h.processes[0].runners[0]
    answers = [(token, Renewal(granted=False)) for token in runner.tokens()]
    if phase == "settling":
        (run,) = runner.state.by_fence.values()
        run.plan = SettlementPlan((), run.incoming)
        runner.handle(Renewed(h.clock.boottime(), answers))
        run.plan = None
    gate.open()
    h.wait("short")
    runner.handle(Renewed(h.clock.boottime(), answers))
    h.advance(60)
    assert [event.fate for event in events(h, "ghost", MessageLost)] == ["runs"]


def seconds(h: Harness, number: int) -> None:
    """Let time pass in steps in which a short job ends."""
    for _ in range(number):
        h.advance(1)
        h.wait("none", until=lambda: not h.processes[0].runners[0].state.by_fence)


def test_many_orphans_follow_each_other(harness: MakeHarness) -> None:
    """One for each question would be two a minute, and a purged queue of ten thousand short jobs would take three days."""
    h = harness(worker(nothing))
    for number in range(8):
        ghost(h, f"ghost-{number}", KeptMessage(b"{}", b"{}"))
    h.advance(209)
    seconds(h, 61)

    assert sum(h.starts(f"ghost-{number}") for number in range(8)) == 8


def test_a_message_behind_a_job_of_hours_is_not_called_lost(harness: MakeHarness) -> None:
    """The only slot is busy for hours, and the interrupted job's own message may be the next one of the queue."""
    gate = Gate()
    exports = worker(gate, nothing)
    h = harness(exports)
    h.send(exports, {}, key="long")
    h.wait("long", until=gate.reached.is_set)
    ghost(h, "ghost", KeptMessage(b"{}", b"{}"))
    h.send(exports, {}, key="next")
    h.advance(3 * 3600)
    gate.open()
    h.wait("next", until="done")

    assert events(h, "ghost", MessageLost) == []
    h.advance(60)
    assert [event.fate for event in events(h, "ghost", MessageLost)] == ["runs"]


def test_a_message_that_waited_for_hours_in_a_paused_queue_is_not_called_lost(harness: MakeHarness) -> None:
    """After the pause, the message needs time to come, because other messages are in front of it."""
    gate = Gate()
    exports = worker(gate, nothing)
    h = harness(exports)
    h.ledger.facts.pause(NAMESPACE, QUEUE, "ada@ops", "deploy")
    h.advance(15)
    ghost(h, "ghost", KeptMessage(b"{}", b"{}"))
    for key in ("long", "next", "ghost"):
        h.send(exports, {}, key=key)
    h.advance(3 * 3600)
    assert h.ledger.facts.resume(NAMESPACE, QUEUE)
    h.advance(15)
    h.wait("long", until=gate.reached.is_set)
    h.advance(1800)
    gate.open()
    h.wait("next", until="done")
    h.wait("ghost", until="done")

    assert h.starts("ghost") == 1
    assert events(h, "ghost", MessageLost) == []


def test_orphans_that_wait_for_an_hour_do_not_starve_the_queue(harness: MakeHarness) -> None:
    """One of them gets a slot after each question, and the queue gets the rest of the time."""
    gate = Gate()
    exports = worker(gate, nothing)
    h = harness(exports)
    h.send(exports, {}, key="long")
    h.wait("long", until=gate.reached.is_set)
    for number in range(20):
        ghost(h, f"ghost-{number}", KeptMessage(b"{}", b"{}"))
        h.send(exports, {}, key=f"waits-{number}")
    h.advance(2 * 3600)
    gate.open()
    h.wait("long", until="done")
    for _ in range(3):
        for number in range(20, 40):  # it is never empty
            h.send(exports, {}, key=f"waits-{number}")
        seconds(h, 30)

    assert sum(h.starts(f"ghost-{number}") for number in range(20)) >= 3
    assert sum(h.starts(f"waits-{number}") for number in range(40)) == 40


def test_a_reserved_slot_is_not_spent_on_a_job_that_was_sent_again(harness: MakeHarness) -> None:
    """Such a job needs no slot, and waits for an empty queue; behind it, no other orphan of a busy queue would get one."""
    gate = Gate()
    exports = worker(gate, nothing)
    h = harness(exports)
    ghost(h, "again", KeptMessage(b"{}", b"{}"))
    later = h.ledger.claim(Claimed(JobId(NAMESPACE, QUEUE, "again", 1), None, "ghost/1", 0, b"", Counters()))
    assert later is not None
    assert h.ledger.done(later.token)
    h.advance(1)
    ghost(h, "lost", KeptMessage(b"{}", b"{}"))
    h.advance(MISSED)
    h.send(exports, {}, key="long")
    h.wait("long", until=gate.reached.is_set)
    for number in range(3):
        h.send(exports, {}, key=f"waits-{number}")
    h.advance(2 * 3600)
    gate.open()
    h.wait("long", until="done")
    h.advance(6)

    assert [event.fate for event in events(h, "lost", MessageLost)] == ["runs"]
    assert events(h, "again", MessageLost) == []
