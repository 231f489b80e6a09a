"""A job that hands its export to Spark, and stands still where the test says."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from steadyworker import Job, Worker
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.stage import StagingDir
from tests.support.jobs import is_open, note

ROWS = 2000
QUERY = f"SELECT id, CAST(id * 7919 % 100003 AS DECIMAL(12,2)) AS amount FROM range({ROWS})"


class Handed(Worker[dict[str, Any]]):
    """Exports to `to`; the first run waits for a gate before its stage is complete."""

    queue = "handed"
    time_limit = 600

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {job.fence}")
        first = len((Path(os.environ["STAGE_FOLDER"]) / "starts").read_text().splitlines()) == 1
        if first:
            _hold()
        made = job.export(
            SparkExport(QUERY, tables={}, order_by=("id",)), to=job.payload["to"], totals={"amount": "sum"}
        )
        note("made", f"{job.fence} {made.fence} {made.rows} {made.sha256}")


def _hold() -> None:
    """Make this process wait before its stage is complete."""
    complete = StagingDir.complete

    def held(stage: StagingDir, manifest: Manifest) -> None:
        note("waiting", "staged")
        while not is_open("gate"):
            time.sleep(0.05)
        complete(stage, manifest)

    StagingDir.complete = held  # type: ignore[method-assign,assignment]
