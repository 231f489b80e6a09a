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
from steadyworker.ledger.base import Claimed, JobId, State
from steadyworker.ledger.owners import lock_path
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from tests.ledger.kit import Actor, line, tell

pytestmark = pytest.mark.processes

JOB = JobId("shop", "exports", "m-17")


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
    """Each version of the row is claimed once at most, and the versions make one line."""
    racers = [actor("race", path, name) for name in ("a", "b")]
    assert [line(racer) for racer in racers] == ["ready", "ready"]
    wins: list[list[tuple[int, int]]] = []
    for racer in racers:
        tell(racer, "go")
    for racer in racers:
        said, _ = racer.communicate(timeout=60)
        assert racer.returncode == 0
        wins.append([(int(seen), int(won)) for seen, won in map(str.split, said.splitlines())])
    assert all(wins), "both won some"
    versions = sorted(wins[0] + wins[1])
    assert [seen for seen, _ in versions] == [0, *(won for _, won in versions[:-1])]
    row = ledger.read(JOB)
    assert row is not None
    assert row.fence == versions[-1][1]


def test_a_sigkill_at_any_instant_loses_nothing_that_was_said(actor: Actor, path: Path, ledger: SqliteLedger) -> None:
    """What a call has answered is in the ledger, whichever instruction the kill hits, and the next process goes on."""
    said: dict[str, tuple[str, int]] = {}

    def note(words: str) -> None:
        key, state, fence = words.split()
        said[key] = (state, int(fence))

    order = list(State)
    for lines in (1, 2, 3, 5, 8, 13, 21, 34, 55, 4, 6, 7):
        process = actor("live", path)
        for _ in range(lines):
            note(line(process))
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        for words in process.stdout:  # `communicate` would begin behind what `readline` has read, within a line
            note(words)
        process.wait(30)
        for key, (state, fence) in said.items():
            row = ledger.read(replace(JOB, key=key))
            assert row is not None
            assert order.index(row.state) >= order.index(State(state))
            assert row.fence >= fence
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    highest = max(fence for _, fence in said.values())
    claimed = ledger.claim(Claimed(replace(JOB, key="next"), None, "me", 0, b"", Counters()))
    assert claimed is not None
    assert claimed.fence > highest


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
    assert not lock_path(ledger.owners_dir, owner).exists()
