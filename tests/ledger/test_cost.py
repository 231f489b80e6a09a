"""
What a job that ends well costs the ledger: exact counts, so that a new index, table or commit is seen.

`python -m tests.benchmarks.bench_ledger` measures times.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from steadyworker.clock import Times
from steadyworker.ledger.base import Claimed, KeptMessage, Ledger
from steadyworker.ledger.postgres import statements
from steadyworker.ledger.postgres.session import LedgerConnection
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from tests.ledger.pgkit import JOB, Open, seen

MESSAGE = KeptMessage(b"17", b"{}")


def job(ledger: Ledger, number: int) -> None:
    """Claim a new job with its message, end it, and note that the broker has confirmed its settlement."""
    row = ledger.claim(Claimed(replace(JOB, key=f"k-{number}"), None, "me", 0, b"\x01" * 32, Counters(), MESSAGE))
    assert row is not None
    assert ledger.done(row.token)
    ledger.settled(row.token, known=True)


def transactions(log: Path) -> list[int]:
    """Return the number of pages that each transaction in a write-ahead log of SQLite has written."""
    data = log.read_bytes()
    size = int.from_bytes(data[8:12], "big")
    pages = [0]
    for start in range(32, len(data), size + 24):
        pages[-1] += 1
        if int.from_bytes(data[start + 4 : start + 8], "big"):  # this page ends a transaction
            pages.append(0)
    return pages[:-1]


def test_a_job_writes_eight_pages_in_two_commits_to_a_sqlite_ledger(tmp_path: Path) -> None:
    """
    A claim writes the pages of the row, its key, its owner and its message; `done` those of row, owner, message and purge.

    The first claim of a minute also writes the page of the fence.
    The marks of all settlements since the last flush are one more commit.
    """
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=FakeClock(), times=Times())) as ledger:
        ledger.ledger_id()
        before = len(transactions(tmp_path / "ledger.db-wal"))
        for number in range(6):
            job(ledger, number)
        ledger.flush()
        assert transactions(tmp_path / "ledger.db-wal")[before:] == [5, 4, *[4, 4] * 5, 2]


def test_a_job_takes_three_messages_and_two_commits_that_wait_for_the_disk_to_a_postgresql_ledger(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draw of the fence commits without the disk; the claim also marks the last job as settled."""
    sent: list[str] = []
    execute = LedgerConnection.execute

    def noted(self: LedgerConnection, query: Any, *rest: Any, **options: Any) -> Any:
        sent.append(query)
        return execute(self, query, *rest, **options)

    ledger = opened()
    job(ledger, 0)
    monkeypatch.setattr(LedgerConnection, "execute", noted)
    job(ledger, 1)
    parts = {
        "draw": statements.DRAW,
        "claim": statements.CLAIM_NEW,
        "settle": statements.SETTLE,
        "done": statements.DONE,
    }
    assert [[name for name, text in parts.items() if text in query] for query in sent] == [
        ["draw"],
        ["claim", "settle"],
        ["done"],
    ]
    assert ["'off'" in query for query in sent] == [True, False, False]
    sent.clear()
    ledger.flush()
    ledger.flush()
    assert [statements.FLUSH in query for query in sent] == [True]
    assert [seen(ledger, replace(JOB, key=f"k-{number}")).settled for number in (0, 1)] == ["confirmed"] * 2


def test_a_claim_that_marks_an_earlier_job_waits_for_no_other_row(opened: Open) -> None:
    """Another session holds the row of the earlier job: it stays unmarked, so it is kept longer."""
    ledger = opened()
    job(ledger, 0)
    other = opened()
    with other._record.connection() as db, db.transaction():
        db.execute("SELECT FROM steadyworker_jobs FOR UPDATE")
        job(ledger, 1)
        assert seen(ledger, replace(JOB, key="k-0")).settled == "unknown"
    assert seen(ledger, replace(JOB, key="k-1")).settled == "confirmed"
