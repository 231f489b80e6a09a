"""The PostgreSQL ledger keeps the promises of every ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, LiteralString

import psycopg
import pytest

from steadyworker.clock import Times
from steadyworker.ledger.base import Ending, JobFilter, Ledger, Need, NeedsOf, State
from steadyworker.ledger.postgres import statements as sql
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.ledger.postgres.trust import ORPHANS
from steadyworker.ledger.retention import DAY, Retention
from steadyworker.ledger.shared import filter_values
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance import LedgerSuite
from steadyworker.testing.conformance.ledger_attempts import begun
from steadyworker.testing.conformance.ledger_claims import ClaimPromises
from steadyworker.testing.conformance.ledger_fixtures import JOB, seen
from tests.brokers.postgres import Postgres
from tests.ledger.kit import SAFE_CHECKPOINT, SECRET_CHECKPOINT, leave_a_checkpoint
from tests.ledger.pgkit import Admin, Open, Schemas

ROWS = """
    INSERT INTO steadyworker_jobs (namespace, queue, key, round, uid, state, fence, owner, lease_until, wake_at, not_before)
    SELECT 'shop', 'exports', 'k-' || n, 0, n, state, n, CASE state WHEN 'running' THEN 'me' END,
        CASE state WHEN 'running' THEN now() END, CASE state WHEN 'moved' THEN now() END,
        CASE state WHEN 'moved' THEN now() - interval '1 day' END
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

    def test_the_clock_of_a_worker_process_purges_nothing(self, ledger: Ledger, clock: FakeClock) -> None:
        """A process whose wall clock is a year ahead would otherwise delete the attempts of the whole fleet."""
        ledger.retain(JOB.namespace, JOB.queue, Retention(attempts=60.0))
        assert ledger.done(begun(ledger).token, Ending("done"))
        clock.step_wall(365 * DAY)
        ledger.purge()
        assert len(ledger.facts.attempts(JOB)) == 1
        clock.step_wall(-2 * 365 * DAY)
        clock.advance(61.0)
        ledger.purge()
        assert len(ledger.facts.attempts(JOB)) == 0


def test_a_purge_that_finds_no_old_command_makes_no_process_read_the_orders(opened: Open, admin: Admin) -> None:
    """The table's trigger counts each statement, even a statement that deletes no row."""
    ledger = opened()
    ledger.facts.command("me", "quiet", "ada")

    def version() -> int:
        return int(admin.execute("SELECT version FROM steadyworker_orders").fetchall()[0][0])

    before = version()
    ledger.purge()
    assert version() == before
    admin.execute("UPDATE steadyworker_commands SET at = at - interval '2 days'")
    ledger.purge()
    assert version() == before + 1
    assert not ledger.orders("me").commands


def test_a_run_whose_job_an_older_version_took_over_has_ended_as_lost(opened: Open, admin: Admin) -> None:
    """The older version does not write the end, so the row of the job shows it: the later claim."""
    ledger = opened()
    first = begun(ledger)
    (attempt,) = ledger.facts.attempts(JOB)
    assert (attempt.outcome, attempt.ended_at) == ("", None)
    admin.execute("UPDATE steadyworker_jobs SET fence = fence + 1, started_at = started_at + interval '7 s'")
    (attempt,) = ledger.facts.attempts(JOB)
    assert (attempt.fence, attempt.outcome) == (first.fence, "lost")
    row = seen(ledger)
    assert attempt.ended_at == row.started_at


def test_an_attempt_keeps_no_secret_of_a_checkpoint(opened: Open, admin: Admin) -> None:
    """The row of the job has the whole checkpoint, until the next checkpoint replaces it."""
    leave_a_checkpoint(opened(), SECRET_CHECKPOINT)
    kept = admin.execute("SELECT checkpoint_before, checkpoint_after FROM steadyworker_attempts ORDER BY number")
    assert kept.fetchall() == [(None, SAFE_CHECKPOINT), (SAFE_CHECKPOINT, None)]


def test_a_purge_deletes_a_depth_that_was_never_measured(opened: Open, admin: Admin) -> None:
    """A process that may measure can end before it has measured; the queue can be gone then."""
    ledger = opened()
    assert ledger.facts.may_measure("shop", "gone", 10)
    assert ledger.facts.may_measure("shop", "asked", 10)
    admin.execute("UPDATE steadyworker_depths SET asked_at = asked_at - interval '2 days' WHERE queue = 'gone'")
    ledger.purge()
    assert admin.execute("SELECT queue FROM steadyworker_depths").fetchall() == [("asked",)]


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


def test_jobs_in_an_unfinished_state_are_found_by_an_index(opened: Open, admin: Admin) -> None:
    """`jobs --state` reads the few rows that are not done, not the hundreds of thousands that are."""
    ledger = opened()
    ledger.ledger_id()
    admin.execute(ROWS)
    admin.execute(
        "INSERT INTO steadyworker_progress SELECT uid, 1, 1, 2, '', 1 FROM steadyworker_jobs WHERE number % 10 = 0"
    )
    admin.execute("ANALYZE")
    values = filter_values(JobFilter()) | {
        "states": None,
        "unfinished": True,
        "below": 1 << 62,
        "start": 0,
        "rows": 200,
    }
    steps = explained(admin, sql.PAGE, values | {"margin": 10.0, "lease": 60.0})
    assert "steadyworker_jobs_unfinished" in {step.get("Index Name") for step in steps}
    assert "steadyworker_jobs" not in {step["Relation Name"] for step in steps if step["Node Type"] == "Seq Scan"}
    values |= {"states": ["interrupted"]}
    steps = explained(admin, sql.PAGE, values | {"margin": 10.0, "lease": 60.0})
    assert {step.get("Index Name") for step in steps} >= {"steadyworker_jobs_unfinished"}
    dead = values | {"states": ["dead"], "unfinished": False}
    steps = explained(admin, sql.PAGE, dead | {"margin": 10.0, "lease": 60.0})
    assert "steadyworker_jobs_dead" in {step.get("Index Name") for step in steps}
    assert list(ledger.jobs(JobFilter(states=(State.INTERRUPTED,)))) == []
    needs = NeedsOf(None, None, overdue=3600.0, lost=2, stalled=3600.0, dead=3600.0)
    assert {need for _, _, need in ledger.needing(needs, 0, 100).jobs} == {Need.OVERDUE}
    assert ledger.needing(needs, 0, 100).number == 30


def test_a_search_for_rare_jobs_reads_a_part_of_the_rows_at_a_time(
    opened: Open, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that no job of a million has is not found within one call, but a call must end within its limit."""
    ledger = opened()
    ledger.ledger_id()
    admin.execute(ROWS)
    admin.execute("UPDATE steadyworker_jobs SET reason = 'needle' WHERE key IN ('k-29999', 'k-10002', 'k-2')")
    spans: list[tuple[int, int]] = []
    fetch = PostgresLedger._fetch

    def noted(self: PostgresLedger, statement: LiteralString, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        spans.extend([(values["start"], values["below"])] if statement == sql.PAGE else [])
        return fetch(self, statement, values)

    monkeypatch.setattr(PostgresLedger, "_fetch", noted)
    monkeypatch.setattr("steadyworker.ledger.postgres.ledger._SPAN", 10_000)
    found = [row.id.key for row, _ in ledger.jobs(JobFilter(grep="needle"))]
    assert found == ["k-29999", "k-10002", "k-2"]
    assert spans == [(20_001, 30_001), (10_001, 20_001), (1, 10_001), (0, 1)]


WAITING = """
    INSERT INTO steadyworker_jobs (namespace, queue, key, round, uid, state, fence, target, owner, lease_until, wake_at)
    SELECT 'shop', 'exports', 'k-' || n, 0, n, CASE WHEN n <= 10 THEN 'running' ELSE 'moved' END, n, 'retry',
        CASE WHEN n <= 10 THEN 'me' END, CASE WHEN n <= 10 THEN now() - interval '1 hour' END,
        CASE WHEN n > 10 THEN now() + interval '1 day' - CASE WHEN n <= 20 THEN interval '2 days' ELSE '0' END END
    FROM generate_series(1, 100000) AS n
"""
"""A hundred thousand jobs: ten of lost owners, ten whose retry did not come, and all others wait for their retry."""


def test_orphans_are_found_by_an_index_among_a_hundred_thousand_jobs_that_wait(opened: Open, admin: Admin) -> None:
    """Each worker process asks every 30 s, so the server reads only the rows that are late."""
    ledger = opened(times=Times())
    ledger.register("me", "host", ["shop/exports"])
    admin.execute("UPDATE steadyworker_attended SET trusted_from = 0")
    admin.execute(WAITING)
    admin.execute("INSERT INTO steadyworker_messages SELECT number, '', '' FROM steadyworker_jobs WHERE number % 2 = 1")
    admin.execute("ANALYZE")
    values = {"namespace": "shop", "queue": "exports", "name": "shop/exports", "owner": "me", "beat": 1, "margin": 30.0}
    statement = ORPHANS.replace("{now}", "ARRAY[NULL]::text[]")
    for stranded in (False, True):
        steps = explained(admin, statement, values | {"after": 60.0, "rows": 100, "stranded": stranded}, "ANALYZE, ")
        read = [step for step in steps if step.get("Relation Name") == "steadyworker_jobs"]
        assert [step["Index Name"] for step in read if "unfinished" in step["Index Name"]] == 2 * [
            "steadyworker_jobs_unfinished"
        ]
        assert "Seq Scan" not in {step["Node Type"] for step in read}
        assert sum(step.get("Rows Removed by Filter", 0) for step in read) == 10
        found = ledger.orphans("shop", "exports", 60.0, 100, stranded=stranded)
        assert sorted(int(orphan.row.id.key[2:]) for orphan in found) == list(range(1 + stranded, 21, 2))


def explained(
    admin: Admin, statement: LiteralString, values: Mapping[str, object], options: LiteralString = ""
) -> list[dict[str, Any]]:
    """Every step of the statement's plan, as the ledger runs it, with the values in the text; compiled by no plan."""
    with psycopg.ClientCursor(admin) as cursor:
        before, end, last = statement.rpartition(";")
        cursor.execute(f"{before}{end} EXPLAIN ({options}FORMAT JSON) {last}", values)
        while cursor.nextset():
            pass
        ((plan,),) = cursor.fetchall()
    assert "JIT" not in plan[0]
    return list(_steps(plan[0]["Plan"]))


def _steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield plan
    for below in plan.get("Plans", []):
        yield from _steps(below)
