"""Spark's rows in a bucket: a worker process that is killed in the middle, and the bytes that a local file has."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steadyworker.exports.formats import Csv
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.rows import RowExport
from steadyworker.exports.verifying import verify
from steadyworker.ledger.base import State
from tests.exports.kit import FakeServices
from tests.exports.s3.store import Store
from tests.exports.spark.archives import archive
from tests.exports.spark.sparkkit import COLUMNS, SMALL_TASKS, payment, payments_folder
from tests.support.stage import Stage

__all__ = ["archive"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TARGET, QUEUE = "tests.exports.s3.jobs:SparkUploads", "spark-uploads"
ROWS = 20_000
LONG = 300.0


@pytest.fixture
def stage(tmp_path: Path, archive: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    payments_folder(tmp_path / "payments", ROWS)
    yield made
    made.close()


def light(folder: Path, **options: Any) -> Manifest:
    """The same rows in a local file or folder, without Spark."""
    rows = sorted(map(payment, range(ROWS)), key=lambda row: (row[2], row[0]))
    services = FakeServices(folder / "ledger")
    return RowExport(rows, columns=COLUMNS).write(services, folder / "light", format=Csv(), **options)


@pytest.mark.parametrize(
    "more", [pytest.param({}, id="object"), pytest.param({"split_rows": 6_000}, id="folder", marks=pytest.mark.slow)]
)
def test_a_worker_process_killed_in_its_upload_leaves_the_bytes_of_a_local_file(
    store: Store, stage: Stage, tmp_path: Path, more: dict[str, int]
) -> None:
    stage.send(QUEUE, {"to": f"s3://{store.bucket}/out/payments", **more})
    conf = ",".join(f"{key}={value}" for key, value in SMALL_TASKS.items())
    stage.worker(TARGET, spark_conf=conf).ended(-signal.SIGKILL, within=LONG)
    assert not {"out/payments", "out/payments/_manifest.json"} & {*store.names()}, "a reader sees nothing yet"

    second = stage.worker(TARGET, spark_conf=conf)
    row = stage.reaches(QUEUE, State.DONE, within=LONG)
    stage.empties(QUEUE)
    second.terminate()
    second.ended(0)

    assert stage.lines("starts") == ["job"] * 2, stage.logs()
    made, expected = verify(store.at("out/payments")), light(tmp_path, **more)
    assert (made.uid, made.rows, made.sha256) == (row.uid, ROWS, expected.sha256)
    keys: dict[str, str | None] = {"out/payments": expected.sha256, "out/payments.manifest.json": None}
    if expected.files is not None:
        keys = {f"out/payments/{file.name}": file.sha256 for file in expected.files}
        keys["out/payments/_manifest.json"] = None
    assert (sorted(store.names()), store.uploads()) == (sorted(keys), [])
    for key, digest in keys.items():
        assert digest in (None, hashlib.sha256(store.read(key)).hexdigest()), key
    scratch = tmp_path / f"steadyworker-{os.geteuid()}"
    assert [path for path in scratch.rglob("*") if path.is_file()] == []
