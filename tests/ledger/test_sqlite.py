"""The SQLite ledger keeps the promises of every ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from steadyworker.clock import Times
from steadyworker.ledger.base import JobId, Ledger
from steadyworker.ledger.owners import OwnerLock, lock_path, new_owner_id
from steadyworker.ledger.sqlite import schema as sql
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance import LedgerSuite
from steadyworker.testing.conformance.ledger_fixtures import JOB, claimed, seen


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class TestSqliteLedger(LedgerSuite):
    def make_ledger(self, place: Path, clock: FakeClock, times: Times) -> Ledger:
        return SqliteLedger(place / "ledger.db", clock=clock, times=times)

    def saved(self, ledger: Ledger, place: Path) -> Callable[[], object]:
        """Into the same file, which the ledger has open: its inode stays."""
        copy, file = sqlite3.connect(":memory:"), place / "ledger.db"
        with closing(sqlite3.connect(file)) as source:
            source.backup(copy)

        def restore() -> None:
            with closing(copy), closing(sqlite3.connect(file)) as target:
                copy.backup(target)

        return restore


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


def test_a_deferred_message_is_written_with_the_next_registration(tmp_path: Path, clock: FakeClock) -> None:
    """Nobody waits for it: this process sees it at once, and another one before the job can be an orphan."""
    mine, theirs = (SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times()) for _ in range(2))

    def seen_by(ledger: Ledger) -> int:
        return len(ledger.orphans(JOB.namespace, JOB.queue, 0.0, 10, stranded=True))

    for ledger, owner in ((mine, "mine"), (theirs, "theirs")):
        ledger.register(owner, "host", [f"{JOB.namespace}/{JOB.queue}"])
    assert mine.interrupted(claimed(mine).token, Counters())
    clock.advance(1)
    mine.deferred(JOB, Times().renew + 1)
    assert seen_by(theirs) == 1
    mine.register("mine", "host", [])
    assert (seen_by(theirs), seen_by(mine)) == (0, 0)
    mine.deferred(JOB, 100)
    clock.advance(50)
    assert seen_by(mine) == 0
    clock.advance(51)
    assert seen_by(mine) == 1
    for ledger in (mine, theirs):
        ledger.close()


def test_the_rows_of_dead_owners_are_found_by_an_index(tmp_path: Path, clock: FakeClock) -> None:
    """A scan of a million rows would hold the ledger's lock for a tenth of a second, for each owner."""
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
        ledger.ledger_id()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        plan = [str(step[-1]) for step in db.execute(f"EXPLAIN QUERY PLAN {sql.HOLDING}", {"owners": "[]"})]
    assert any("USING COVERING INDEX jobs_held (owner=?)" in step for step in plan)
    assert not any(step.startswith("SCAN jobs") for step in plan)


def test_late_jobs_are_found_by_an_index(tmp_path: Path, clock: FakeClock) -> None:
    """`jobs --overdue` reads the few rows that can be late, not the hundreds of thousands that are done, nor each page twice."""
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
        ledger.ledger_id()
    names = ("namespace", "queue", "states", "boot", "boottime", "now", "late_by", "kept", "below", "rows")
    values: dict[str, None] = dict.fromkeys(names)
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        plan = [str(step[-1]) for step in db.execute(f"EXPLAIN QUERY PLAN {sql.LATE_PAGE}", values)]
    assert "SEARCH jobs USING INDEX jobs_waiting (<expr>=? AND rowid<?)" in plan
    assert not any(step.startswith(("SCAN jobs", "SCAN later", "USE TEMP B-TREE")) for step in plan)


def test_orphans_are_found_by_indexes(tmp_path: Path, clock: FakeClock) -> None:
    """Each worker process asks every 30 s: it reads the few rows that are held, and of those that wait the few that are late."""
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
        ledger.ledger_id()
    names = ("namespace", "queue", "boot", "boottime", "now", "after", "margin", "trusted_from", "stranded", "rows")
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        plan = [str(step[-1]) for step in db.execute(f"EXPLAIN QUERY PLAN {sql.ORPHANS}", dict.fromkeys(names))]
    held, waiting = [step for step in plan if " jobs " in step]
    assert held == "SEARCH jobs USING INDEX jobs_held (owner>?)"
    assert waiting.startswith("SEARCH jobs USING INDEX jobs_to_wake (namespace=? AND queue=? AND ")
    assert waiting.endswith("wake_at<?)")
    assert "SEARCH messages USING INTEGER PRIMARY KEY (rowid=?)" in plan
    assert not any(step.startswith(("SCAN jobs", "SCAN messages")) for step in plan)


def test_a_purge_removes_the_locks_of_dead_owners_that_hold_no_job(tmp_path: Path, clock: FakeClock) -> None:
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
        needed, free = new_owner_id(), new_owner_id()
        claimed(ledger, owner=needed)
        for owner in (needed, free):
            OwnerLock(ledger.owners_dir, owner).release()
        ledger.purge()
        assert list(ledger.owners_dir.iterdir()) == [lock_path(ledger.owners_dir, needed)]


def test_an_owner_that_ends_in_good_order_removes_its_lock_unless_it_still_holds_a_job(
    tmp_path: Path, clock: FakeClock
) -> None:
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
        holding, idle = new_owner_id(), new_owner_id()
        claimed(ledger, owner=holding)
        for owner in (holding, idle):
            lock = OwnerLock(ledger.owners_dir, owner)
            ledger.unregister(owner)
            lock.release()
        assert list(ledger.owners_dir.iterdir()) == [lock_path(ledger.owners_dir, holding)]


def test_the_file_shrinks_when_old_rows_are_purged(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "ledger.db"
    with closing(SqliteLedger(path, clock=clock, times=Times())) as ledger:
        for number in range(400):
            token = claimed(ledger, replace(JOB, key=f"old-{number}")).token
            ledger.checkpoint(token, b"x" * 60_000)
            ledger.done(token)
        kept = claimed(ledger)
        clock.advance(15 * 86_400)
        assert ledger.purge() == 400
        assert seen(ledger).uid == kept.uid
    assert path.stat().st_size < 10 << 20, "of 24 MB"


def settled(ledger: Ledger, job: JobId) -> str:
    row = ledger.read(job)
    assert row is not None
    return row.settled


@pytest.mark.parametrize("step", [7200.0, -7200.0], ids=["forward", "back"])
@pytest.mark.parametrize("when", ["before the claim", "before a renewal", "before the end"])
def test_how_long_a_run_has_taken_survives_a_step_of_the_wall_clock(
    tmp_path: Path, clock: FakeClock, step: float, when: str
) -> None:
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
        ledger.renew([])
        if when == "before the claim":
            clock.step_wall(step)
        row = claimed(ledger)
        clock.advance(10)
        if when == "before a renewal":
            clock.step_wall(step)
        ledger.renew([row.token])
        running = seen(ledger)
        assert running.started_at is not None
        assert clock.wall() - running.started_at == pytest.approx(10)
        clock.advance(10)
        if when == "before the end":
            clock.step_wall(step)
        assert ledger.done(row.token)
        ended = seen(ledger)
        assert ended.ended_at is not None
        assert ended.ended_at == pytest.approx(clock.wall())
        assert ended.started_at is not None
        assert ended.ended_at - ended.started_at == pytest.approx(20)
