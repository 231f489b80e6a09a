"""
Test suites that define a correct adapter and a correct ledger: one test for each promise of their Protocols.

An author subclasses a suite in a test module, implements the method that makes an adapter or a ledger, and runs pytest.
"""

from __future__ import annotations

from steadyworker.testing.conformance.adapter import AdapterSuite
from steadyworker.testing.conformance.ledger import LedgerSuite

__all__ = ["AdapterSuite", "LedgerSuite"]
