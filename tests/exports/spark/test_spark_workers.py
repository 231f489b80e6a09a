"""Whole worker processes with Spark behind them: killed at each point, and what the next one on the host makes of it."""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from steadyworker.exports.rows import RowExport
from steadyworker.exports.spark.process import reap_folders
from steadyworker.exports.verifying import verify
from steadyworker.ledger.base import State
from tests.exports.kit import FakeServices
from tests.exports.spark.sparkkit import COLUMNS, SMALL_TASKS, payment
from tests.support.stage import Stage, WorkerProcess, eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TARGET = "tests.exports.spark.jobs:Payments"
QUEUE = "spark-payments"
ROWS = 60_000
LONG = 300.0
"""Seconds that a worker process may take to start, and to export."""


@pytest.fixture
def stage(tmp_path: Path, archive: Path, payments: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    (tmp_path / "payments").symlink_to(payments)
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The SHA-256 that the light path gives to the same rows."""
    folder = tmp_path_factory.mktemp("light")
    rows = sorted(map(payment, range(ROWS)), key=lambda row: (row[2], row[0]))
    return RowExport(rows, columns=COLUMNS).write(FakeServices(folder / "ledger"), folder / "out.csv").sha256


def worker(stage: Stage, kill_at: str = "") -> WorkerProcess:
    conf = ",".join(f"{key}={value}" for key, value in SMALL_TASKS.items())
    return stage.worker(TARGET, env={"KILL_AT": kill_at}, spark_conf=conf)


def hosts(stage: Stage) -> list[int]:
    """Processes of Spark that this stage's worker processes have started and that live."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (entry / "environ").read_bytes()
            if f"TMPDIR={stage.folder}/state/spark/hosts/".encode() in line:
                found.append(int(entry.name))
    return found


# Spark's parts are in the stage when one is joined; test_commit.py has what comes after it, without Spark.
@pytest.mark.parametrize("point", [pytest.param("Spark has begun", marks=pytest.mark.slow), "a part is joined"])
def test_a_worker_process_killed_in_an_export_leaves_one_file_and_no_java(
    stage: Stage, expected: str, point: str
) -> None:
    stage.send(QUEUE, {})
    first = worker(stage, point)
    first.ended(-signal.SIGKILL, within=LONG)
    died = time.monotonic()
    eventually(lambda: not hosts(stage), "no host and no JVM", 15.0)  # five times what is promised
    print(f"gone {time.monotonic() - died:.2f} s after the worker process")
    second = worker(stage)
    row = stage.reaches(QUEUE, State.DONE, within=LONG)
    stage.empties(QUEUE)
    assert row.counters.losses == 1
    assert stage.lines("starts") == ["job 1"] * 2, stage.logs()
    assert len(stage.lines("computed")) == 2, stage.logs()
    file = stage.folder / "out" / "job.csv"
    manifest = verify(file)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == manifest.sha256 == expected
    assert (manifest.uid, manifest.rows) == (row.uid, ROWS)
    assert sorted(path.name for path in file.parent.iterdir() if path.is_file()) == ["job.csv", "job.csv.manifest.json"]
    second.terminate()
    second.ended(0)
    hosts_folder = stage.folder / "state" / "spark" / "hosts"
    reap_folders(hosts_folder)  # as each worker process does when it starts
    assert not list(hosts_folder.glob("*/"))
    assert not list(file.parent.glob(".sw-stage/**/part-*"))
