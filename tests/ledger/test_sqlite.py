"""The SQLite ledger keeps the promises of every ledger."""

from __future__ import annotations

from pathlib import Path

from steadyworker.clock import Times
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.sqlite import SqliteLedger
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance import LedgerSuite


class TestSqliteLedger(LedgerSuite):
    def make_ledger(self, place: Path, clock: FakeClock, times: Times) -> Ledger:
        return SqliteLedger(place / "ledger.db", clock=clock, times=times)
