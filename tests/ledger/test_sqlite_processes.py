"""Real worker processes on one SQLite ledger: they race, are killed, and leave their children behind."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import Claimed
from steadyworker.ledger.owners import lock_path
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from tests.ledger.kit import JOB, Actor, Commits, line, one_wins_each_time, request

pytestmark = pytest.mark.processes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[SqliteLedger]:
    with closing(SqliteLedger(path, clock=SystemClock(), times=Times())) as ledger:
        yield ledger


def test_of_two_processes_that_claim_a_row_a_thousand_times_one_wins_each_time(
    actor: Actor, path: Path, ledger: SqliteLedger
) -> None:
    one_wins_each_time(actor, path, ledger)


def test_a_sigkill_at_any_instant_loses_nothing_that_was_answered(
    actor: Actor, path: Path, ledger: SqliteLedger
) -> None:
    """What a call has answered is in the ledger, whichever instruction the kill hits, and the next process goes on."""
    commits = Commits()
    for lines in (1, 2, 3, 5, 8, 13, 21, 34, 55, 4, 6, 7):
        process = actor("live", path)
        commits.read(process, lines)
        commits.kill(process)
        commits.are_in(ledger)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    claimed = ledger.claim(Claimed(replace(JOB, key="next"), None, "me", 0, b"", Counters()))
    assert claimed is not None
    assert claimed.fence > commits.highest


def test_an_owner_is_dead_when_its_last_child_is(
    actor: Actor, ledger: SqliteLedger, path: Path, eventually: Callable[[Callable[[], object]], object]
) -> None:
    """The child of a killed worker process may still write; only when it is gone too may its job be taken over."""
    process = actor("hold", path)
    owner, child = line(process).split()
    process.send_signal(signal.SIGKILL)
    process.wait(10)

    def judged() -> tuple[bool, bool]:
        row = ledger.read(JOB)
        assert row is not None
        assert row.owner == owner
        (seen,) = ledger.owners()
        return row.lease_over, seen.dead

    assert judged() == (False, False)
    os.kill(int(child), signal.SIGKILL)
    eventually(lambda: judged() == (True, True))
    assert ledger.purge() == 0
    assert judged() == (True, True), "the proof stays while a row needs it"
    row = ledger.read(JOB)
    assert row is not None
    taken = ledger.claim(Claimed(JOB, row, "me", 0, b"\x01" * 32, Counters(losses=1)))
    assert taken is not None
    ledger.purge()
    assert [seen.dead for seen in ledger.owners()] == [True], "the proof stays while the owner is listed"
    ledger.unregister(owner)
    assert not lock_path(ledger.owners_dir, owner).exists()


def test_a_sigkill_within_a_turn_leaves_all_of_its_writes_or_none(
    actor: Actor, ledger: SqliteLedger, path: Path
) -> None:
    """Before each statement from BEGIN to COMMIT nothing is left; after COMMIT, before any effect of the turn, all is."""

    def found() -> list[tuple[str, str]]:
        return sorted((row.id.key, row.state.value) for row, _ in ledger.jobs())

    process = actor("turn", path)
    request(process, "0")
    assert line(process) == "ended"
    before = found()
    assert before == [("m-0-1", "running"), ("m-0-2", "running")]
    deaths = 0
    while True:
        request(process, str(deaths + 1))
        if line(process) == "ended":
            break
        deaths += 1
        assert found() == before
    assert deaths == 8, "BEGIN, two claims of two statements, two ends, COMMIT"
    last = deaths + 1
    assert found() == [
        ("m-0-1", "done"), ("m-0-2", "done"), (f"m-{last}-1", "running"), (f"m-{last}-2", "running")
    ]  # fmt: skip
