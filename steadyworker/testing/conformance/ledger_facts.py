"""Tests of `Ledger.facts`: what a ledger records for people."""

from __future__ import annotations

from steadyworker.ledger.base import Ledger
from steadyworker.testing.conformance.ledger_fixtures import JOB, LedgerBench


class FactPromises(LedgerBench):
    """Tests of every promise of `steadyworker.ledger.facts.Facts`."""

    def test_a_job_without_a_row_has_no_attempts(self, ledger: Ledger) -> None:
        """Its runs go with its row."""
        assert list(ledger.facts.attempts(JOB)) == []
