"""A job whose message seems to be lost: what looks like a loss, and is none."""

from __future__ import annotations

import hashlib

from steadyworker.events import MessageLost
from steadyworker.ledger.base import Claimed, JobId
from steadyworker.outcome import Counters
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from tests.runner.kit import QUEUE, Gate, events, nothing, worker


def ghost(h: Harness, key: str) -> None:
    """The row of a job whose owner is gone, and whose message the ledger has not kept."""
    digest = hashlib.sha256(b"{}").digest()
    assert h.ledger.claim(Claimed(JobId(NAMESPACE, QUEUE, key), None, "ghost/1", 0, digest, Counters()))


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
