"""The SQLite ledger keeps the promises of every ledger."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from steadyworker.clock import Times
from steadyworker.ledger import retention
from steadyworker.ledger.base import Ending, JobFilter, JobId, Ledger, State
from steadyworker.ledger.owners import OwnerLock, lock_path, new_owner_id
from steadyworker.ledger.sqlite import schema as sql
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock
from steadyworker.testing.conformance import LedgerSuite
from steadyworker.testing.conformance.ledger_attempts import begun
from steadyworker.testing.conformance.ledger_fixtures import DEAD_END, JOB, claimed, in_state, seen
from tests.ledger.kit import SAFE_CHECKPOINT, SECRET_CHECKPOINT, leave_a_checkpoint


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


def test_what_is_settled_is_committed_with_a_later_claim_or_by_a_flush_or_a_read_or_the_close(
    tmp_path: Path, clock: FakeClock
) -> None:
    """The ledger commits 32 at once; another process reads them later, and the process that wrote them reads them at once."""
    mine, theirs = (SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times()) for _ in range(2))
    keys = [f"k-{number:02}" for number in range(1, 41)]

    def settle(keys: list[str]) -> None:
        for key in keys:
            token = claimed(mine, replace(JOB, key=key)).token
            assert mine.done(token)
            mine.settled(token, known=True)

    def known() -> list[str]:
        return sorted(row.id.key for row, _ in theirs.jobs() if row.settled == "confirmed")

    settle(keys[:32])
    assert known() == []
    settle(keys[32:33])
    assert known() == keys[:32]
    mine.flush()
    assert known() == keys[:33]
    settle(keys[33:34])
    assert settled(mine, replace(JOB, key=keys[33])) == "confirmed"
    assert known() == keys[:34]
    settle(keys[34:])
    mine.close()
    mine.close()
    assert known() == keys
    theirs.close()


def test_a_kill_loses_only_the_marks_of_the_last_settlements(tmp_path: Path, clock: FakeClock) -> None:
    """The rows are kept for 14 days instead of one."""
    killed = SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())
    token = claimed(killed).token
    assert killed.done(token)
    killed.settled(token, known=True)
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
        assert (seen(ledger).state, seen(ledger).settled) == (State.DONE, "unknown")
        clock.advance(13 * 86_400)
        assert ledger.purge() == 0
        clock.advance(86_400)
        assert ledger.purge() == 1


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


PLANS = {
    sql.HOLDING: ["SEARCH jobs USING COVERING INDEX jobs_held (owner=?)"],
    sql.ORDERS: ["SEARCH jobs USING INDEX jobs_held (owner=?)"],
    sql.HELD_NUMBERS: ["SEARCH jobs USING COVERING INDEX jobs_held (owner>?)"],
    sql.UNFINISHED_NUMBERS: ["SCAN jobs USING INDEX jobs_held"],
    sql.PAGE_OF_NUMBERS: [
        "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH progress USING PRIMARY KEY (namespace=? AND queue=? AND key=? AND round=?) LEFT-JOIN",
    ],
    sql.PAGE_OF_DEAD: [
        "SEARCH jobs USING INDEX jobs_dead (state=? AND rowid<?)",
        "SEARCH progress USING PRIMARY KEY (namespace=? AND queue=? AND key=? AND round=?) LEFT-JOIN",
    ],
    sql.PAGE: [
        "SEARCH jobs USING INTEGER PRIMARY KEY (rowid<?)",
        "SEARCH progress USING PRIMARY KEY (namespace=? AND queue=? AND key=? AND round=?) LEFT-JOIN",
    ],
    # Each run costs one search of its progress, though the order of the list names the need twice more.
    sql.RUNNING: [
        "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH jobs USING COVERING INDEX jobs_held (owner>?)",
        "SEARCH progress USING PRIMARY KEY (namespace=? AND queue=? AND key=? AND round=?)",
    ],
    sql.ORPHANS: [
        "SEARCH jobs USING INDEX jobs_held (owner>?)",
        "SEARCH jobs USING INDEX jobs_held (owner=? AND namespace=? AND queue=? AND wake_at>? AND wake_at<?)",
    ],
    sql.PURGE: [
        "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)",
        "SEARCH jobs USING COVERING INDEX jobs_to_purge (keep_until<?)",
    ],
    sql.ENDED: ["SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"],
    sql.DONE: ["SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"],
    sql.SETTLED_CONFIRMED: ["SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"],
    sql.FENCE: ["SEARCH jobs"],
}
"""How each statement that reads rows by something else than their key finds them."""


def test_each_index_has_its_readers_and_no_reader_scans_the_jobs_that_are_done(
    tmp_path: Path, clock: FakeClock
) -> None:
    """A scan of a million rows holds the ledger's lock for a third of a second."""
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
        ledger.ledger_id()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        found = {}
        for statement in PLANS:
            named = dict.fromkeys(re.findall(r":(\w+)", statement))
            values = named or (None,) * statement.count("?")
            steps = [str(step[-1]) for step in db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
            found[statement] = [step for step in steps if re.match(r"(SEARCH|SCAN) (jobs|progress)\b", step)]
        assert found == PLANS
        indexes = db.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL ORDER BY name")
        assert indexes.fetchall() == [
            ("jobs_dead",),
            ("jobs_held",),
            ("jobs_to_purge",),
            ("link_events_by_time",),
        ]


@pytest.mark.parametrize("state", State)
def test_the_index_has_each_job_that_is_not_done_or_dead(tmp_path: Path, clock: FakeClock, state: State) -> None:
    """A listing of such a state reads only this index; a cancel mark counts as interrupted."""
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
        in_state(ledger, state)
        ledger.cancel(replace(JOB, key="mark"), "in advance")
        ((number,),) = ledger._fetch("SELECT count(*) FROM jobs WHERE " + sql.UNFINISHED)
        assert number == 1 + (state not in (State.DONE, State.DEAD))
        listed = [row.id.key for row, _ in ledger.jobs(JobFilter(states=(state,)))]
        assert listed == (["mark", JOB.key] if state is State.INTERRUPTED else [JOB.key])


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


def test_an_attempt_keeps_no_secret_of_a_checkpoint(tmp_path: Path, clock: FakeClock) -> None:
    """The row of the job has the whole checkpoint, until the next checkpoint replaces it."""
    ledger = SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())
    leave_a_checkpoint(ledger, SECRET_CHECKPOINT)
    kept = ledger._fetch("SELECT checkpoint_before, checkpoint_after FROM attempts ORDER BY number")
    assert kept == [(None, SAFE_CHECKPOINT), (SAFE_CHECKPOINT, None)]


def test_a_purge_deletes_a_depth_that_was_never_measured(tmp_path: Path, clock: FakeClock) -> None:
    """A process that may measure can end before it has measured; the queue can be gone then."""
    ledger = SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())
    assert ledger.facts.may_measure("shop", "gone", 10)
    clock.advance(retention.DEPTHS - 1)
    assert ledger.facts.may_measure("shop", "asked", 10)
    clock.advance(2)
    ledger.purge()
    assert ledger._fetch("SELECT queue FROM depths") == [("asked",)]


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


def fill(ledger: Ledger, jobs: int) -> None:
    """Let this many jobs end, each with a result of 60,000 bytes; one more job of each kind stays unfinished or dead."""
    for number in range(jobs):
        token = begun(ledger, replace(JOB, key=f"k-{number:03}")).token
        assert ledger.done(token, Ending("done", result=b'"' + b"x" * 60_000 + b'"'))
    dead = begun(ledger, replace(JOB, key="dead")).token
    assert ledger.moving(dead, DEAD_END, Ending("failed", traceback="x" * 16_000))
    assert ledger.moved(dead)
    begun(ledger, replace(JOB, key="runs"))


def kept_results(ledger: Ledger, jobs: int) -> list[int]:
    ids = {number: replace(JOB, key=f"k-{number:03}") for number in range(jobs)}
    return [number for number, id in ids.items() if ledger.facts.result(id) is not None]


def test_above_its_limit_a_ledger_drops_what_guards_no_key_oldest_first(tmp_path: Path, clock: FakeClock) -> None:
    path, limit = tmp_path / "ledger.db", 12 << 20
    with closing(SqliteLedger(path, clock=clock, times=Times(), limit=limit)) as ledger:
        fill(ledger, 400)
        before = [(row.id.key, row.state, row.body_sha256, row.fence) for row, _ in ledger.jobs()]
        assert ledger.purge() == 0
        kept = kept_results(ledger, 400)
        assert 0 < len(kept) < 250
        assert kept == list(range(400))[-len(kept) :]
        assert [(row.id.key, row.state, row.body_sha256, row.fence) for row, _ in ledger.jobs()] == before
        assert [run.outcome for run in ledger.facts.attempts(replace(JOB, key="runs"))] == [""]
        assert [found.id for found in ledger.findings() if found.id == "ledger.too-large"] == []
    assert path.stat().st_size <= limit


def test_a_limit_that_only_rows_exceed_is_a_warning(tmp_path: Path, clock: FakeClock) -> None:
    """The rows of jobs protect their keys, and the messages are for a replay."""
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times(), limit=200_000)) as ledger:
        fill(ledger, 3)
        for number in range(400):
            token = claimed(ledger, replace(JOB, key=f"long-{number}")).token
            assert ledger.checkpoint(token, b"x" * 4_000)
        ledger.purge()
        (found,) = [each for each in ledger.findings() if each.id == "ledger.too-large"]
        assert found.level == "warning"
        assert "at most 195.3 KiB" in found.what
        assert len(list(ledger.jobs())) == 405
        assert kept_results(ledger, 3) == []
        assert [len(ledger.facts.attempts(replace(JOB, key=key))) for key in ("dead", "runs")] == [0, 1]


def test_without_a_limit_a_ledger_keeps_everything(tmp_path: Path, clock: FakeClock) -> None:
    with closing(SqliteLedger(tmp_path / "ledger.db", clock=clock, times=Times())) as ledger:
        fill(ledger, 20)
        ledger.purge()
        assert kept_results(ledger, 20) == list(range(20))
        assert "ledger.too-large" not in [found.id for found in ledger.findings()]


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
