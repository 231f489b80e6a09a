"""
What a job that ends well costs the ledger: exact counts, so that a new index, table or commit is seen.

`python -m tests.benchmarks.bench_ledger` measures times.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from steadyworker.clock import Times
from steadyworker.errors import LedgerUnavailable
from steadyworker.events import JobEnded
from steadyworker.ledger.base import Began, Claimed, Ending, KeptMessage, Ledger
from steadyworker.ledger.facts import OwnerReport
from steadyworker.ledger.lease import Keeper
from steadyworker.ledger.postgres import statements
from steadyworker.ledger.postgres.session import LedgerConnection
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.service.fact_batch import FactBatch
from steadyworker.testing.clock import FakeClock
from tests.conftest import Eventually
from tests.ledger.pgkit import JOB, Open, seen

MESSAGE = KeptMessage(b"17", b"{}")
WELL = Ending("done", peak_memory=1 << 20)


def first_claim(number: int) -> Claimed:
    """The claim of a new job, with its message."""
    return Claimed(
        replace(JOB, key=f"k-{number}"), None, "me", 0, b"\x01" * 32, Counters(), MESSAGE, Began(0, "new", 1)
    )


def job(ledger: Ledger, number: int) -> None:
    """Claim a new job, end it, and note that the broker has confirmed its settlement."""
    row = ledger.claim(first_claim(number))
    assert row is not None
    assert ledger.done(row.token, WELL)
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


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every message that a PostgreSQL ledger sends from now on; each is one transaction."""
    sent: list[str] = []
    execute = LedgerConnection.execute

    def noted(self: LedgerConnection, query: Any, *rest: Any, **options: Any) -> Any:
        sent.append(query)
        return execute(self, query, *rest, **options)

    monkeypatch.setattr(LedgerConnection, "execute", noted)
    return sent


def test_a_job_writes_ten_pages_in_two_commits_to_a_sqlite_ledger(tmp_path: Path) -> None:
    """
    A claim writes the pages of the row, its key, its owner, its message and its attempt.
    `done` writes those of row, owner, message, purge and attempt.

    The marks of all settlements since the last flush are one more commit.
    """
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=FakeClock(), times=Times())) as ledger:
        ledger.ledger_id()
        before = len(transactions(tmp_path / "ledger.db-wal"))
        for number in range(6):
            job(ledger, number)
        ledger.flush()
        assert transactions(tmp_path / "ledger.db-wal")[before:] == [*[5, 5] * 6, 2]


def test_a_turn_is_one_commit_of_a_sqlite_ledger(tmp_path: Path) -> None:
    """Eight jobs end, and eight others begin: their rows share pages."""
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=FakeClock(), times=Times())) as ledger:
        rows, _ = ledger.record([first_claim(number) for number in range(8)], [])
        before = len(transactions(tmp_path / "ledger.db-wal"))
        ledger.record([first_claim(number) for number in range(8, 16)], [(row.token, WELL) for row in rows if row])
        (pages,) = transactions(tmp_path / "ledger.db-wal")[before:]
        assert pages <= 13


def test_a_turn_that_a_sqlite_ledger_cannot_commit_leaves_nothing(tmp_path: Path) -> None:
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=FakeClock(), times=Times().scaled(100))) as ledger:
        rows, _ = ledger.record([first_claim(0)], [])
        assert rows[0] is not None
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerUnavailable):
                ledger.record([first_claim(1), first_claim(2)], [(rows[0].token, WELL)])
            other.execute("ROLLBACK")
        assert [row.id.key for row, _ in ledger.jobs()] == ["k-0"]
        assert ledger.done(rows[0].token)


def test_a_job_takes_three_messages_and_two_commits_that_wait_for_the_disk_to_a_postgresql_ledger(
    opened: Open, sent: list[str]
) -> None:
    """The draw of the fence commits without the disk; the claim also marks the last job as settled."""
    ledger = opened()
    job(ledger, 0)
    sent.clear()
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


def test_a_turn_is_two_messages_to_a_postgresql_ledger(opened: Open, sent: list[str]) -> None:
    """The draw of all fences, and one transaction with all claims, all ends, and the marks of settled jobs."""
    ledger = opened()
    rows, _ = ledger.record([first_claim(number) for number in range(4)], [])
    job(ledger, 17)
    sent.clear()
    ledger.record([first_claim(number) for number in range(4, 8)], [(row.token, WELL) for row in rows if row])
    assert [statements.CLAIM_MANY in query and statements.DONE_MANY in query for query in sent] == [False, True]
    assert "'off'" not in sent[1]
    assert seen(ledger, replace(JOB, key="k-17")).settled == "confirmed"
    assert len(sent) == 3, "the read of the row"


def test_the_end_of_a_job_in_a_turn_waits_for_a_session_that_holds_its_row(
    opened: Open, sent: list[str], eventually: Eventually
) -> None:
    """The transaction of the turn leaves out the row, so it ends in no deadlock; the single write waits."""
    ledger, other = opened(), opened()
    rows, _ = ledger.record([first_claim(0)], [])
    assert rows[0] is not None
    sent.clear()
    with ThreadPoolExecutor(1) as pool:
        with other._record.connection() as db, db.transaction():
            db.execute("SELECT FROM steadyworker_jobs FOR UPDATE")
            recorded = pool.submit(ledger.record, [first_claim(1)], [(rows[0].token, WELL)])
            eventually(lambda: any(statements.DONE in query for query in sent))
        began, ended = recorded.result(30)
    assert (began[0] is not None, list(ended)) == (True, [True])


def test_a_read_of_orders_is_one_small_query_until_a_person_gives_an_order(opened: Open, sent: list[str]) -> None:
    """A worker process reads them every 2 s; a registration makes the next read a whole one, in case the ledger went back in time."""
    ledger, person = opened(), opened()
    row = ledger.claim(first_claim(0))
    assert row is not None
    person.ledger_id()
    ledger.register("me", "host", [])
    ledger.orders("me")
    orders: list[Callable[[], object]] = [
        lambda: None,
        lambda: person.facts.pause("shop", "exports", "ada", ""),
        lambda: person.cancel(row.id, "no"),
        lambda: person.facts.command("me", "quiet", "ada"),
        lambda: ledger.facts.commands("me"),
        lambda: person.facts.resume("shop", "exports"),
        lambda: ledger.register("me", "host", []),
        lambda: ledger.renew([row.token]),
        lambda: ledger.checkpoint(row.token, b"17"),
        lambda: job(ledger, 1),
    ]
    reads = []
    for order in orders:
        order()
        sent.clear()
        ledger.orders("me")
        asked = zip([statements.ORDERS_VERSION, statements.ORDERS], sent, strict=False)
        reads.append(all(text.endswith(each) for each, text in asked) and len(sent))
    assert reads == [1, 2, 2, 2, 2, 2, 2, 1, 1, 1]


def test_a_read_of_orders_is_one_pragma_until_another_process_writes_to_a_sqlite_ledger(tmp_path: Path) -> None:
    """What this process writes for its own jobs is no order."""
    path = tmp_path / "ledger.db"
    with (
        closing(SqliteLedger(path, clock=FakeClock(), times=Times())) as ledger,
        closing(SqliteLedger(path, clock=FakeClock(), times=Times())) as person,
    ):
        person.ledger_id()
        ledger.orders("me")
        assert ledger._file._connection is not None
        run: list[str] = []
        ledger._file._connection.set_trace_callback(run.append)
        orders: list[Callable[[], object]] = [
            lambda: None,
            lambda: job(ledger, 0),
            lambda: person.facts.pause("shop", "exports", "ada", ""),
            lambda: ledger.facts.resume("shop", "exports"),
            lambda: ledger.cancel(JOB, "no"),
        ]
        reads = []
        for order in orders:
            order()
            run.clear()
            ledger.orders("me")
            assert run[0] == "PRAGMA data_version"
            reads.append(len(run))
        assert reads == [1, 1, 2, 2, 2]


def test_a_turn_of_the_keeper_without_facts_is_one_commit_of_a_sqlite_ledger(tmp_path: Path) -> None:
    """The registration; facts are one more commit for each kind that there is."""
    clock = FakeClock()
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
        batch = FactBatch("me", {"exports": "shop"}, clock)
        keeper = Keeper(
            ledger, "me", "host", ["shop/exports"], [], clock, Times(), report=OwnerReport, write_facts=batch.write
        )
        keeper.turn()
        log = tmp_path / "ledger.db-wal"
        commits = [len(transactions(log))]
        keeper.turn()
        commits.append(len(transactions(log)))
        batch.link("exports", "connected", 1, "")
        batch(JobEnded(key="k", queue="exports", fence=1, at=0.0, outcome="done", reason="", seconds=1.0))
        assert len(transactions(log)) == commits[-1], "a job's end only changes numbers in memory"
        keeper.turn()
        commits.append(len(transactions(log)))
    assert [later - before for before, later in pairwise(commits)] == [1, 3]
