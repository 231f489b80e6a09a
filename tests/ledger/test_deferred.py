"""A message that was deferred while its job ran gives the job time, also when the job is interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from steadyworker.clock import Times
from steadyworker.ledger.base import JobId, Ledger
from steadyworker.ledger.memory import MemoryLedger
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance.ledger_fixtures import JOB, claimed


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_an_interrupted_job_is_no_orphan_before_the_deferred_copy_of_its_message(tmp_path: Path, kind: str) -> None:
    clock = FakeClock()
    ledger: Ledger = MemoryLedger(clock, Times())
    if kind == "sqlite":
        ledger = SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())
    token = claimed(ledger).token
    ledger.deferred(JOB, 600.0)
    assert ledger.interrupted(token, Counters())

    def left() -> list[JobId]:
        return [each.row.id for each in ledger.orphans(JOB.namespace, JOB.queue, 90.0, 9, stranded=True)]

    clock.advance(600.0 + 90.0)
    assert left() == []
    clock.advance(1.0)
    assert left() == [JOB]
    ledger.close()
