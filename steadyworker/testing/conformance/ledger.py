"""
`LedgerSuite`: the definition of a ledger that works.

::

    class TestMyLedger(LedgerSuite):
        def make_ledger(self, place, clock, times):
            return MyLedger(place / "ledger", clock, times)
"""

from __future__ import annotations

from steadyworker.testing.conformance.ledger_claims import ClaimPromises
from steadyworker.testing.conformance.ledger_record import RecordPromises
from steadyworker.testing.conformance.ledger_writes import WritePromises


class LedgerSuite(ClaimPromises, WritePromises, RecordPromises):
    """Every promise of `steadyworker.ledger.base.Ledger`; subclass it and say how a ledger is made (`LedgerBench`)."""
