"""The PostgreSQL ledger keeps the promises of every ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from steadyworker.clock import Times
from steadyworker.ledger.base import Ledger, Wanted
from steadyworker.ledger.postgres import statements as sql
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance import LedgerSuite
from steadyworker.testing.conformance.ledger_claims import ClaimPromises
from tests.brokers.postgres import Postgres
from tests.ledger.pgkit import Admin, Open, Schemas

ROWS = """
    INSERT INTO steadyworker_jobs (namespace, queue, key, round, uid, state, owner, lease_until, not_before)
    SELECT 'shop', 'exports', 'k-' || n, 0, n, state, CASE state WHEN 'running' THEN 'me' END,
        CASE state WHEN 'running' THEN now() END, CASE state WHEN 'moved' THEN now() - interval '1 day' END
    FROM (SELECT n, CASE n % 1000 WHEN 0 THEN 'moved' WHEN 1 THEN 'running' ELSE 'done' END FROM generate_series(1, 30000) AS n)
        AS made (n, state)
"""
"""One job in a thousand is late, one runs, and all others are done."""


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

    def saved(self, ledger: Ledger, place: Path) -> Callable[[], object]:
        return self.schemas.saved(place)


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


def test_late_jobs_are_found_by_an_index(opened: Open, admin: Admin) -> None:
    """`jobs --overdue` reads the few rows that can be late, not the hundreds of thousands that are done."""
    ledger = opened()
    ledger.ledger_id()
    admin.execute(ROWS)
    admin.execute(
        "INSERT INTO steadyworker_progress SELECT uid, 1, 1, 2, '', 1 FROM steadyworker_jobs WHERE number % 10 = 0"
    )
    admin.execute("ANALYZE")
    values = dict.fromkeys(("namespace", "queue", "states")) | {"late_by": 3600.0, "below": 1 << 62, "rows": 200}
    with psycopg.ClientCursor(admin) as cursor:  # as the ledger does it, with the values in the statement's text
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql.PAGE}", values | {"margin": 10.0, "lease": 60.0})
        ((plan,),) = cursor.fetchall()
    steps = list(_steps(plan[0]["Plan"]))
    assert "steadyworker_jobs_waiting" in {step.get("Index Name") for step in steps}
    assert "steadyworker_jobs" not in {step["Relation Name"] for step in steps if step["Node Type"] == "Seq Scan"}
    late = [row.id.key for row, _ in ledger.jobs(Wanted(late_by=3600.0))]
    assert late == [f"k-{number}" for number in range(30_000, 0, -1000)]


def _steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield plan
    for below in plan.get("Plans", []):
        yield from _steps(below)
