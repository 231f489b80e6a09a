"""A job whose message seems to be lost: what looks like a loss, and is none."""

from __future__ import annotations

import hashlib

import pytest

from steadyworker.events import MessageLost
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Renewal
from steadyworker.lifecycle import Stage
from steadyworker.outcome import Counters
from steadyworker.runner.state import Renewed, Staged
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
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
        runner._take(Staged(Stage.QUIET))
    else:
        runner.state.unfit = "no temporary directory"
    h.clock.advance(1.5)
    runner.tick()
    h.advance(300)

    assert events(h, "ghost", MessageLost) == []
    assert h.starts("ghost") == 0


def test_a_renewal_that_is_refused_because_its_job_has_just_ended_ends_no_evidence(harness: MakeHarness) -> None:
    """In a queue of short jobs, nearly each renewal of all leases comes too late for one of them."""
    exports = worker(nothing)
    h = harness(exports)
    done = h.wait(h.send(exports, {}))
    assert done is not None
    ghost(h, "ghost", KeptMessage(b"{}", b"{}"))
    h.advance(200)
    assert events(h, "ghost", MessageLost) == []
    runner = h.processes[0].runners[0]
    runner.handle(Renewed(h.clock.boottime(), [(done.token, Renewal(granted=False))]))
    h.advance(60)

    assert [event.fate for event in events(h, "ghost", MessageLost)] == ["runs"]
