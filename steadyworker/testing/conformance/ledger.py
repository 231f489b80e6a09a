"""
`LedgerSuite`: the tests that every ledger must pass.

::

    class TestMyLedger(LedgerSuite):
        def make_ledger(self, place, clock, times):
            return MyLedger(place / "ledger", clock, times)

        def saved(self, ledger, place):
            copy = (place / "ledger").read_bytes()
            return lambda: (place / "ledger").write_bytes(copy)
"""

from __future__ import annotations

from steadyworker.testing.conformance.ledger_attempts import AttemptPromises
from steadyworker.testing.conformance.ledger_calls import CallPromises
from steadyworker.testing.conformance.ledger_claims import ClaimPromises
from steadyworker.testing.conformance.ledger_facts import FactPromises
from steadyworker.testing.conformance.ledger_messages import MessagePromises
from steadyworker.testing.conformance.ledger_people import PeoplePromises
from steadyworker.testing.conformance.ledger_record import RecordPromises
from steadyworker.testing.conformance.ledger_results import ResultPromises
from steadyworker.testing.conformance.ledger_turns import TurnPromises
from steadyworker.testing.conformance.ledger_writes import WritePromises


class LedgerSuite(
    ClaimPromises,
    WritePromises,
    RecordPromises,
    MessagePromises,
    TurnPromises,
    FactPromises,
    AttemptPromises,
    ResultPromises,
    CallPromises,
    PeoplePromises,
):
    """
    Tests of every promise of `steadyworker.ledger.base.Ledger` and `steadyworker.ledger.facts.Facts`.

    Subclass it, and implement `make_ledger` and `saved` (see `LedgerBench`).
    """
