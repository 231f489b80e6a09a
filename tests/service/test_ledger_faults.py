"""A ledger that is away while jobs run: shown in the log and to probes, held, nothing lost or burnt, and on by itself."""

from __future__ import annotations

import re
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

import pytest

from steadyworker.ledger.base import State
from steadyworker.outcome import Counters
from tests.support.probes import free_address, probe
from tests.support.stage import WITHIN, Stage, WorkerProcess

STEPS = "tests.support.jobs:Steps"
Fault = Callable[[Stage, WorkerProcess], AbstractContextManager[None]]


@contextmanager
def locked(stage: Stage, process: WorkerProcess) -> Iterator[None]:
    """Another process holds a write transaction for far longer than a call may take."""
    with stage.locked(stage.ledger_path):
        yield


@contextmanager
def full(stage: Stage, process: WorkerProcess) -> Iterator[None]:
    """No room: its log has grown beyond what the process may write, and a reader keeps it from shrinking."""
    with (
        closing(sqlite3.connect(stage.ledger_path, isolation_level=None, timeout=WITHIN)) as other,
        closing(sqlite3.connect(stage.ledger_path, isolation_level=None, timeout=WITHIN)) as reader,
    ):
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM meta").fetchall()
        other.execute("CREATE TABLE filler (it BLOB)")
        other.execute("INSERT INTO filler VALUES (randomblob(3000000))")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        yield
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        reader.execute("ROLLBACK")


@contextmanager
def gone(stage: Stage, process: WorkerProcess) -> Iterator[None]:
    """Its directory's content was moved away, and comes back."""
    with moved_away(stage):
        yield


@contextmanager
def garbage(stage: Stage, process: WorkerProcess) -> Iterator[None]:
    """Another file stands in its place."""
    with moved_away(stage):
        stage.ledger_path.write_bytes(b"shopping list\n" * 1000)
        yield
        stage.ledger_path.unlink()


@contextmanager
def moved_away(stage: Stage) -> Iterator[None]:
    away = stage.folder / "away"
    away.mkdir()
    for file in list(stage.folder.glob("ledger.db*")):
        if file.is_file():
            file.rename(away / file.name)
    yield
    for file in list(away.iterdir()):
        file.rename(stage.folder / file.name)


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        (locked, "locked"),
        (full, "I/O error|full"),
        (gone, "put it back"),
        (garbage, "put it back|not a SQLite database"),
    ],
    ids=["locked", "full", "gone", "garbage"],
)
def test_what_happens_to_the_ledger_costs_no_job_anything(stage: Stage, fault: Fault, shown: str) -> None:
    health = free_address()
    stage.send("steps", {"gate": "gate", "at": 3}, key="running")
    process = stage.worker(STEPS, script={"scale": 20}, health=health, concurrency=2)
    stage.notes("waiting", 1)
    with fault(stage, process):
        stage.send("steps", {}, key="waiting")
        stage.open()
        line = process.reports("not_ready", part="steps: ledger")
        assert re.search(shown, line["why"]), line
        status, body = probe(health, "readyz")
        assert status == 503
        assert "steps: ledger: " in body
        assert probe(health, "livez")[0] == 200, "a ledger that is away is nothing that a restart would heal"
        assert stage.lines("starts") == ["running 1 0"], "nothing is claimed"
        assert process.poll() is None
    for key in ("running", "waiting"):
        assert stage.reaches("steps", State.DONE, key, within=10).counters == Counters()
    process.reports("ready_again", part="steps: ledger")
    stage.empties("steps")
    assert stage.lines("starts") == ["running 1 0", "waiting 1 0"]
    assert sorted(stage.lines("effects")) == sorted(f"{key} {n}" for key in ("running", "waiting") for n in range(10))
    process.terminate()
    process.ended(0)


def test_an_outcome_waits_for_the_ledger(stage: Stage) -> None:
    """The handler returned while nobody could write it down: it is not run again."""
    stage.send("steps", {"gate": "gate", "steps": 1})
    process = stage.worker(STEPS, script={"scale": 20})
    stage.notes("waiting", 1)
    assert stage.row("steps") is not None
    with stage.locked(stage.ledger_path):
        stage.open()
        process.reports("not_ready", part="steps: ledger")
        assert stage.row("steps").state is State.RUNNING  # type: ignore[union-attr]
        assert stage.depth("steps") == 1
    assert stage.reaches("steps", State.DONE, within=10).counters == Counters()
    stage.empties("steps")
    assert stage.lines("starts") == ["job 1 0"]
    process.terminate()
    process.ended(0)


def test_a_stop_while_the_ledger_is_away_holds_its_budget(stage: Stage) -> None:
    """Nothing can be written down: the job's lease and its message are left to whoever comes next."""
    stage.send("steps", {"gate": "gate", "hears": True})
    process = stage.worker(STEPS, stop_within=5)
    stage.notes("waiting", 1)
    with stage.locked(stage.ledger_path):
        process.terminate()
        assert process.ended(143) < 6
    stage.open()
    second = stage.worker(STEPS)
    assert stage.reaches("steps", State.DONE).counters.attempts == 0
    assert stage.lines("starts") == ["job 1 0", "job 1 1"]
    second.terminate()
    second.ended(0)


def test_a_ledger_that_is_locked_at_the_start_is_waited_for(stage: Stage) -> None:
    stage.send("steps", {"steps": 1})
    stage.ledger.ledger_id()
    with stage.locked(stage.ledger_path):
        process = stage.worker(STEPS, script={"scale": 20})
        process.reports("backend_unreachable")
        assert process.poll() is None
    stage.reaches("steps", State.DONE)
    process.terminate()
    process.ended(0)


def test_a_ledger_that_is_none_is_refused_before_the_first_message(stage: Stage) -> None:
    stage.send("steps", {})
    stage.ledger_path.write_bytes(b"shopping list\n" * 1000)
    process = stage.worker(STEPS)
    process.ended(78)
    assert "not a SQLite database" in process.reports("startup_refused")["what"]
    assert stage.lines("starts") == []
    assert stage.ready("steps") == 1


def test_a_ledger_that_is_read_only_is_refused(stage: Stage) -> None:
    """In a mount of its own, because a mode does not bind root."""
    room = stage.folder / "room"
    room.mkdir()
    stage.ledger.ledger_id()
    stage.ledger.close()
    stage.ledger_path.rename(room / "ledger.db")
    around = ["unshare", "-rm", "sh", "-c", 'mount -o bind,ro "$0" "$0" && exec "$@"', str(room)]
    if not shutil.which("unshare") or subprocess.run([*around, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    process = stage.worker(STEPS, around=around, ledger=f"sqlite:{room / 'ledger.db'}")
    process.ended(78)
    assert "writable for this user" in process.reports("startup_refused")["what"]
