"""
Checks that Spark's executors share the folder of the parts.

One task writes one row to this folder, and the host searches for the file with the row.

Without this check, the missing parts would be noticed only at the end of the job.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from pyspark.sql import SparkSession

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportRejected
from steadyworker.exports.spark.query import WRITE
from steadyworker.exports.spark.tasks import parts_in

_PATIENCE = 5.0  # seconds; a network file system can list a new file late
_POLL = 0.1


def probe(session: SparkSession, parts: str) -> None:
    """
    Let a task write a file beside the folder of the parts, and return when this process finds the file.

    Raises:
        ExportRejected: The file is not visible, so a retry cannot succeed.
        Exception: Spark's error, if the task fails.
    """
    folder, clock = Path(f"{parts}-probe"), SystemClock()
    try:
        session.range(0, 1, 1, 1).selectExpr("CAST(id AS STRING)").write.options(**WRITE).text(f"file://{folder}")
        until = clock.monotonic() + _PATIENCE
        while not (folder.is_dir() and parts_in(folder)):
            if clock.monotonic() > until:
                raise ExportRejected(
                    f"Expected a folder that Spark's executors share with the worker process, got {folder.parent}: "
                    "a file that a task wrote there is not visible here. Export to a shared file system; the query has not begun."
                )
            time.sleep(_POLL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
