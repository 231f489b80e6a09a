"""The SQLite ledger keeps the promises of every ledger."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from steadyworker.clock import Times
from steadyworker.ledger.base import JobId, Ledger
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance import LedgerSuite
from steadyworker.testing.conformance.ledger_fixtures import JOB, claimed


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestSqliteLedger(LedgerSuite):
    def make_ledger(self, place: Path, clock: FakeClock, times: Times) -> Ledger:
        return SqliteLedger(place / "ledger.db", clock=clock, times=times)


def test_what_is_settled_is_committed_with_the_next_claim_or_at_the_close(tmp_path: Path, clock: FakeClock) -> None:
    """Nobody waits for it: another process sees it a commit later, who wrote it at once."""
    mine, theirs = (SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times()) for _ in range(2))
    first, second = (replace(JOB, key=key) for key in ("first", "second"))
    for job in (first, second):
        token = claimed(mine, job).token
        assert mine.done(token)
        mine.settled(token, known=True)
    assert [settled(theirs, job) for job in (first, second)] == ["confirmed", "unknown"]
    assert settled(mine, second) == settled(theirs, second) == "confirmed"

    token = claimed(mine).token
    assert mine.done(token)
    mine.settled(token, known=True)
    mine.close()
    mine.close()
    assert settled(theirs, JOB) == "confirmed"
    theirs.close()


def test_a_settlement_that_cannot_be_committed_holds_nobody_up(tmp_path: Path, clock: FakeClock) -> None:
    """The ledger is gone when it is closed: the row is only kept longer."""
    ledger = SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())
    token = claimed(ledger).token
    assert ledger.done(token)
    ledger.settled(token, known=True)
    (tmp_path / "ledger.db").rename(tmp_path / "elsewhere.db")
    ledger.close()


def test_rows_that_sqlite_has_numbered_are_in_no_claims_way(tmp_path: Path, clock: FakeClock) -> None:
    """As the version before left the numbers of jobs that were cancelled unseen to it: one above the highest."""
    path = tmp_path / "ledger.db"
    with closing(SqliteLedger(path, clock=clock, times=Times())) as ledger:
        first = claimed(ledger, replace(JOB, key="first"))
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.executemany(
                "INSERT INTO jobs (namespace, queue, key, round, uid, state, cancel_reason, created_at) "
                "VALUES ('n', 'q', ?, 0, ?, 'interrupted', '', 0)",
                [(f"c-{number}", f"uid-{number}") for number in range(3)],
            )
        assert ledger.cancel(replace(JOB, key="unseen"), "") is None
        second = claimed(ledger, replace(JOB, key="second"))
        assert second.fence > first.fence


def test_a_ledger_of_the_first_schema_never_gives_a_fence_twice(tmp_path: Path, clock: FakeClock) -> None:
    """It drew fences by a statement of its own; the file is brought up to date when it is opened."""
    path = tmp_path / "ledger.db"
    made = SqliteLedger(path, clock=clock, times=Times())
    last = [claimed(made, replace(JOB, key=f"old-{number}")).fence for number in range(3)][-1]
    made.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for name in ("first", "again"):
            db.execute(f"DROP TRIGGER fence_is_drawn_{name}")
        db.execute("UPDATE meta SET schema = 1, next_fence = 1")
    clock.step_wall(-3600)

    ledger = SqliteLedger(path, clock=clock, times=Times())
    fences = [claimed(ledger, replace(JOB, key=f"new-{number}")).fence for number in range(20)]
    ledger.close()

    assert fences == sorted(set(fences))
    assert fences[0] > last
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT schema FROM meta").fetchone() == (2,)


def settled(ledger: Ledger, job: JobId) -> str:
    row = ledger.read(job)
    assert row is not None
    return row.settled
