"""
The suites that define what an adapter and a ledger are: one test for each sentence of their Protocols.

An author subclasses a suite in a test module, says how one is made, and runs pytest.
"""

from __future__ import annotations

from steadyworker.testing.conformance.adapter import AdapterSuite
from steadyworker.testing.conformance.ledger import LedgerSuite

__all__ = ["AdapterSuite", "LedgerSuite"]
