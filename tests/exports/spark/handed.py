"""A job that hands its export to Spark, and stands still where the test says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steadyworker import Job, Worker
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.stage import StagingDir
from tests.support.jobs import is_open, note

ROWS = 2000
QUERY = f"SELECT id, CAST(id * 7919 % 100003 AS DECIMAL(12,2)) AS amount FROM range({ROWS})"


class Handed(Worker[dict[str, Any]]):
    """
    Exports to `to`.

    `at`: the first run waits for a gate there: `staged` (before its stage is complete), `leave` (before it asks leave)
    or `link` (when it has leave).
    """

    queue = "handed"
    time_limit = 600

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {job.fence}")
        first = len((Path(os.environ["STAGE_FOLDER"]) / "starts").read_text().splitlines()) == 1
        if first:
            _hold(job.payload["at"])
        made = job.export(
            SparkExport(QUERY, tables={}, order_by=("id",)), to=job.payload["to"], totals={"amount": "sum"}
        )
        note("made", f"{job.fence} {made.fence} {made.rows} {made.sha256}")


def _hold(point: str) -> None:
    """Make this process wait at a point of the commit protocol."""

    def waiting(real: Callable[..., Any], after: bool) -> Callable[..., Any]:
        def held(*arguments: Any, **options: Any) -> Any:
            answer = real(*arguments, **options) if after else None
            note("waiting", point)
            while not is_open("gate"):
                time.sleep(0.05)
            return answer if after else real(*arguments, **options)

        return held

    if point == "link":
        os.link = waiting(os.link, after=False)
    else:
        StagingDir.complete = waiting(StagingDir.complete, after=point == "leave")  # type: ignore[method-assign]
