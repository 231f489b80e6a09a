"""
Whether Spark's executors share the folder of the parts: one task writes one row there, and this process looks for it.

Without this, a folder that is not shared is found only when the last part is missing, after all of the work.
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

_PATIENCE = 5.0  # seconds; a network's file system may list a new file late
_LOOK = 0.1


def probe(session: SparkSession, parts: str) -> None:
    """
    Return if a file that a task writes beside the folder of the parts is seen here.

    Raises:
        ExportRejected: It is not; no retry can help.
        Exception: What Spark raises when the task fails.
    """
    folder, clock = Path(f"{parts}-probe"), SystemClock()
    try:
        session.range(0, 1, 1, 1).selectExpr("CAST(id AS STRING)").write.options(**WRITE).text(f"file://{folder}")
        until = clock.monotonic() + _PATIENCE
        while not (folder.is_dir() and parts_in(folder)):
            if clock.monotonic() > until:
                raise ExportRejected(
                    f"Expected a folder that Spark's executors share with the worker process, got {folder.parent}: "
                    "a file that a task wrote there is not here. Export to a shared file system; the query has not begun."
                )
            time.sleep(_LOOK)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
