"""A SQLite ledger that goes back in time says so, whichever way an operator put the older copy in its place."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from steadyworker.clock import Times
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import Claimed, Hindrance, JobId, KeptMessage
from steadyworker.ledger.owners import sweep
from steadyworker.ledger.retention import ABSENCE, DAY
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock

JOB = JobId("shop", "exports", "job")
MESSAGE = KeptMessage(b"{}", b"{}")
NAMES = ["shop/exports"]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def opened(path: Path, clock: FakeClock) -> Iterator[Callable[[], SqliteLedger]]:
    """Opens the ledger as another worker process, and closes all of them."""
    ledgers: list[SqliteLedger] = []

    def open_one() -> SqliteLedger:
        ledgers.append(SqliteLedger(path, clock=clock, times=Times()))
        return ledgers[-1]

    yield open_one
    for ledger in ledgers:
        ledger.close()


def interrupt(ledger: SqliteLedger, key: str = "job") -> None:
    row = ledger.claim(Claimed(replace(JOB, key=key), None, "me", 0, b"\x01" * 32, Counters(), MESSAGE))
    assert row is not None
    assert ledger.interrupted(row.token, Counters())


def found(ledger: SqliteLedger, *, stranded: bool = False) -> dict[str, Hindrance | None]:
    orphans = ledger.orphans("shop", "exports", 100.0, 10, stranded=stranded)
    return {orphan.row.id.key: orphan.hindrance for orphan in orphans}


def copied(path: Path) -> Path:
    """A copy of the open ledger, as a backup tool makes it."""
    copy = path.with_name("backup.db")
    with closing(sqlite3.connect(path)) as ledger, closing(sqlite3.connect(copy)) as backup:
        ledger.backup(backup)
    return copy


def moved_back(copy: Path, path: Path) -> None:
    copy.replace(path)


def copied_over(copy: Path, path: Path) -> None:
    """`cp`: the file keeps its inode."""
    inode = path.stat().st_ino
    shutil.copy(copy, path)
    assert path.stat().st_ino == inode


def removed_first(copy: Path, path: Path) -> None:
    """The file system can give the copy the inode of the file that was removed."""
    path.unlink()
    shutil.copy(copy, path)


def with_its_folder(copy: Path, path: Path) -> None:
    """The folder of the locks is as old as the copy."""
    moved_back(copy, path)
    shutil.rmtree(path.with_name("ledger.db.owners"))


WAYS = [moved_back, copied_over, removed_first, with_its_folder]


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_is_put_back_while_no_process_runs(
    opened: Callable[[], SqliteLedger], path: Path, clock: FakeClock, way: Callable[[Path, Path], None]
) -> None:
    """The job is done, and the copy does not know it: the first process reports that, and no process runs the job by itself."""
    first = opened()
    assert first.register("first", "host", NAMES)
    interrupt(first)
    copy = copied(path)
    clock.advance(101)
    assert found(first) == {"job": None}
    first.unregister("first")
    first.close()
    way(copy, path)
    second = opened()
    assert not second.register("second", "host", NAMES)
    assert found(second) == {}
    assert found(second, stranded=True) == {"job": Hindrance.OLD_RECORD}
    assert second.register("second", "host", NAMES)
    third = opened()
    assert third.register("third", "host", NAMES)
    interrupt(third, "later")
    clock.advance(101)
    assert found(third) == found(second) == {"later": None}
    assert found(third, stranded=True) == {"job": Hindrance.OLD_RECORD}


def test_a_copy_is_put_back_under_a_living_process(
    opened: Callable[[], SqliteLedger], path: Path, clock: FakeClock
) -> None:
    """The process has the old file open, so it opens the copy first."""
    ledger = opened()
    assert ledger.register("me", "host", NAMES)
    interrupt(ledger)
    copy = copied(path)
    assert ledger.register("me", "host", NAMES)
    clock.advance(101)
    for log in ("-wal", "-shm"):  # what a restore has to remove, too
        path.with_name(path.name + log).unlink()
    moved_back(copy, path)
    with pytest.raises(LedgerUnavailable, match="removed, replaced or emptied: put it back"):
        ledger.register("me", "host", NAMES)
    assert found(ledger) == found(ledger, stranded=True) == {}, "until it has registered"
    assert not ledger.register("me", "host", NAMES)
    assert found(ledger, stranded=True) == {"job": Hindrance.OLD_RECORD}


def test_an_end_after_a_restore_hides_nothing(opened: Callable[[], SqliteLedger], path: Path, clock: FakeClock) -> None:
    """A process that ends, and one that registers, are two; the one that registers reports it."""
    ending, staying = opened(), opened()
    for ledger, name in ((ending, "ending"), (staying, "staying")):
        assert ledger.register(name, "host", NAMES)
    interrupt(ending)
    with closing(sqlite3.connect(":memory:")) as backup:
        with closing(sqlite3.connect(path)) as source:
            source.backup(backup)
        assert staying.register("staying", "host", NAMES)
        with closing(sqlite3.connect(path)) as target:
            backup.backup(target)
    ending.unregister("ending")
    clock.advance(101)
    assert found(staying) == {}
    assert not staying.register("staying", "host", NAMES)
    assert found(staying, stranded=True) == {"job": Hindrance.OLD_RECORD}


def test_a_queue_without_an_owner_for_an_hour(opened: Callable[[], SqliteLedger], clock: FakeClock) -> None:
    ledger = opened()
    ledger.register("me", "host", NAMES)
    interrupt(ledger)
    clock.advance(ABSENCE - 1)
    ledger.register("me", "host", [*NAMES, "shop/refunds"])
    assert found(ledger) == {"job": None}
    clock.advance(ABSENCE + 1)
    assert ledger.register("me", "host", ["shop/refunds"])
    assert ledger.register("me", "host", NAMES)
    assert found(ledger, stranded=True) == {"job": Hindrance.OLD_RECORD}


def test_a_process_that_slept_for_days_is_no_ledger_that_went_back(
    opened: Callable[[], SqliteLedger], clock: FakeClock
) -> None:
    """Another process has purged its registration."""
    asleep, awake = opened(), opened()
    assert asleep.register("asleep", "host", NAMES)
    clock.advance(2 * DAY)
    assert awake.register("awake", "host", NAMES)
    awake.purge()
    assert asleep.register("asleep", "host", NAMES)


def test_the_witness_is_private_and_no_lock(opened: Callable[[], SqliteLedger]) -> None:
    ledger = opened()
    ledger.register("me", "host", NAMES)
    (witness,) = ledger.owners_dir.iterdir()
    assert witness.stat().st_mode & 0o777 == 0o600
    ledger.purge()
    sweep(ledger.owners_dir, lambda _owners: ())
    assert list(ledger.owners_dir.iterdir()) == [witness]
    witness.write_bytes(b"")
    assert ledger.register("me", "host", NAMES), "a witness that says nothing is none"
