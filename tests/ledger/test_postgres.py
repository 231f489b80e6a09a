"""The PostgreSQL ledger keeps the promises of every ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from steadyworker.clock import Times
from steadyworker.ledger.base import Ledger
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance import LedgerSuite
from steadyworker.testing.conformance.ledger_claims import ClaimPromises
from tests.brokers.postgres import Postgres
from tests.ledger.pgkit import Schemas


class OnPostgres:
    """One database for all tests of a class, one schema for each."""

    schemas: ClassVar[Schemas]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def own_schemas(cls, postgres: Postgres) -> Iterator[None]:
        url = postgres.add_database()
        cls.schemas = Schemas(url)
        yield
        cls.schemas.close()
        postgres.remove_database(url)


class TestPostgresLedger(OnPostgres, LedgerSuite):
    """On a server's clock that the test moves."""

    def make_ledger(self, place: Path, clock: FakeClock, times: Times) -> Ledger:
        return self.schemas.ledger(place, clock=clock, times=times)


class TestOnTheServersClock(OnPostgres, ClaimPromises):
    """Leases, judged by the clock that is judged by in use."""

    times = Times().scaled(50)
    own_clock = True

    def let_pass(self, clock: FakeClock, seconds: float) -> None:
        self.schemas.admin.execute("SELECT pg_sleep(%s)", [seconds])

    def make_ledger(self, place: Path, clock: FakeClock, times: Times) -> Ledger:
        # A call takes its time, whatever the lease.
        return self.schemas.ledger(
            place, times=Times(lease=times.lease, trust_for=times.trust_for, renew=times.renew, margin=times.margin)
        )
