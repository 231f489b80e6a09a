"""The SQLite ledger keeps the promises of every ledger."""

from __future__ import annotations

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


def settled(ledger: Ledger, job: JobId) -> str:
    row = ledger.read(job)
    assert row is not None
    return row.settled
