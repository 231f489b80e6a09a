"""Whose file it is: no job is ever answered with another's, whatever its key, and whoever put it there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from steadyworker.exports.manifest import Manifest
from steadyworker.exports.stage import manifest_path
from steadyworker.exports.verifying import verify
from steadyworker.ledger.base import State
from tests.support.stage import Stage

NAMED = "tests.exports.jobs:Named"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def purge(stage: Stage) -> None:
    """What the ledger does when a row's time has come."""
    with closing(sqlite3.connect(stage.ledger_path, isolation_level=None, timeout=10)) as ledger:
        ledger.execute("DELETE FROM jobs")


def replay(stage: Stage) -> None:
    assert stage.command("dead", "replay", "named", "job").wait(60) == 0, stage.logs()


def known(file: Path) -> tuple[int, bytes, Manifest]:
    """Which file it is, and what is in it."""
    return file.stat().st_ino, file.read_bytes(), verify(file)


@pytest.mark.parametrize("rows", [3, 4], ids=["the same request", "another request"])
def test_a_new_job_with_the_key_of_one_that_is_forgotten_is_not_answered_with_its_file(stage: Stage, rows: int) -> None:
    """Its row was purged: the key is new to the ledger, and the file of its name another job's."""
    file = stage.folder / "out" / "job.csv"
    worker = stage.worker(NAMED).started()
    stage.send("named", {"rows": 3})
    first = stage.reaches("named", State.DONE)
    before = known(file)
    assert before[2].uid == first.uid
    assert (before[2].namespace, before[2].queue, before[2].key) == (first.id.namespace, "named", "job")
    stage.empties("named")
    purge(stage)
    stage.send("named", {"rows": rows})
    second = stage.reaches("named", State.DEAD)
    assert second.uid != first.uid
    assert second.reason.startswith(
        f"target exists: {file} was made by job {first.uid} of key 'job' in queue 'named'; "
        f"this job, job {second.uid} of key 'job' in queue 'named', did not make it."
    )
    assert known(file) == before

    file.unlink()
    manifest_path(file).unlink()
    replay(stage)
    third = stage.reaches("named", State.DONE)
    assert third.id.round == 1
    made = verify(stage.folder / "out" / "job.r1.csv")
    assert (made.uid, made.rows) == (third.uid, rows)
    worker.terminate()
    worker.ended(0)


@pytest.mark.parametrize("to", [None, "fixed.csv"], ids=["its own name", "a fixed name"])
def test_a_replay_is_a_job_of_its_own(stage: Stage, to: str | None) -> None:
    """What it replays had made a file before it became a dead letter: that one stays what it is."""
    worker = stage.worker(NAMED).started()
    stage.send("named", {"rows": 3, "reject": True} | ({"to": to} if to else {}))
    first = stage.reaches("named", State.DEAD)
    assert first.reason == "as asked"
    file = stage.folder / "out" / (to or "job.csv")
    before = known(file)
    assert before[2].uid == first.uid
    replay(stage)
    if to is None:
        second = stage.reaches("named", State.DONE)
        made = verify(stage.folder / "out" / "job.r1.csv")
        assert made.uid == second.uid != first.uid
    else:
        worker.reports("job_settled", times=2)
        second = stage.reaches("named", State.DEAD)
        assert second.reason.startswith(f"target exists: {file} was made by job {first.uid}")
    assert second.id.round == 1
    assert known(file) == before
    worker.terminate()
    worker.ended(0)
