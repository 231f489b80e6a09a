"""The headers of a message, as its handler sees them."""

from __future__ import annotations

from pika.spec import Basic, BasicProperties

from steadyworker.clock import Times
from steadyworker.ledger.base import Claimed
from steadyworker.outcome import Counters
from steadyworker.runner.envelope import Envelope, identify
from steadyworker.runner.planning import task_of
from steadyworker.spec import spec_of
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker_rabbitmq.messages import EXACT, delivery_of
from tests.runner.kit import nothing, worker


def test_a_handler_sees_no_note_of_the_adapter_to_itself() -> None:
    """Types and properties of a message travel in such a note to the next copy; the delivery keeps it, the job does not."""
    sent = BasicProperties(headers={"n": 5, "sw-job-key": "k", "sw-attempts": "1"}, content_type="application/json")
    delivery = delivery_of(1, "exports", Basic.Deliver("", 1), sent, b"{}")
    assert EXACT in delivery.headers
    envelope = identify(delivery, "shop", None)
    assert isinstance(envelope, Envelope)
    ledger = MemoryLedger(FakeClock(), Times())
    row = ledger.claim(Claimed(envelope.id, None, "host/boot/1", 0, envelope.body_sha256, Counters()))
    assert row is not None
    task = task_of(row, envelope, spec_of(worker(nothing, isolation="thread")))
    assert task.headers == {"n": "5", "sw-job-key": "k", "sw-attempts": "1"}
