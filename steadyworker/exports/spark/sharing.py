"""
Checks, before the query, that Spark's executors can write parts, and that this host can read them.

One task writes one row, as the tasks of an export write theirs, and the host reads this row.
Without this check, the missing parts would be noticed only at the end of the job.
"""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportRejected
from steadyworker.exports.spark.parts import BUCKET, parts_folder, rows_of
from steadyworker.exports.spark.protocol import ExportPlan
from steadyworker.exports.spark.query import WRITE, first_line

_PATIENCE = 5.0  # seconds; a network file system can list a new file late
_POLL = 0.1
_SHARED = (
    "export to a file system that Spark's executors share with the worker process, or set spark_stage to a folder "
    "that both reach, such as s3a://bucket/tmp"
)
_ENDPOINTS = "give the worker process the endpoint that Spark has in spark.hadoop.fs.s3a.endpoint (AWS_ENDPOINT_URL_S3), and the same bucket"
_JARS = (
    "name hadoop-aws of Spark's Hadoop version, with the AWS SDK's bundle, in spark.jars.packages of spark_conf, "
    "because pyspark does not have them"
)
_RIGHTS = (
    "give Spark's executors the right to read, write and delete there; for a bucket, their credentials are those of "
    "Hadoop: spark.hadoop.fs.s3a.* in spark_conf, or the executors' own environment"
)
_FINAL = {
    "S3AFileSystem not found": _JARS,
    "NoClassDefFoundError": _JARS,
    "UnknownStoreException": "create the bucket, or correct spark_stage and spark.hadoop.fs.s3a.endpoint in spark_conf",
    "AccessDeniedException": _RIGHTS,
    "Permission denied": _RIGHTS,
    "Mkdirs failed": _RIGHTS,
}
"""What is in the errors that each attempt would meet again, each with its remedy."""


def probe(session: SparkSession, plan: ExportPlan) -> None:
    """
    Let a task write a row beside the folder of the parts, and return when this process has read it.

    Raises:
        ExportRejected: The row cannot be written or is not here, so a retry cannot succeed.
        ExportError: The bucket refused the worker's request, or did not respond.
        Exception: Spark's error, if the task fails for another reason.
    """
    folder, clock = parts_folder(f"{plan.parts}-probe"), SystemClock()
    try:
        try:
            session.range(0, 1, 1, 1).write.options(**WRITE).parquet(folder.url)
        except Exception as error:
            remedy = next((remedy for sign, remedy in _FINAL.items() if sign in str(error)), None)
            if remedy is None:
                raise
            raise ExportRejected(
                f"Expected Spark to write to {folder.url}, got {first_line(error)}: {remedy}. The query has not begun."
            ) from error
        until = clock.monotonic() + _PATIENCE
        while not (parts := folder.parts()):
            if clock.monotonic() > until:
                remedy = _ENDPOINTS if folder.url.startswith(BUCKET) else _SHARED
                raise ExportRejected(
                    f"Expected a folder that Spark's executors share with the worker process, got {folder.url.rpartition('/')[0].removeprefix('file://')}: "
                    f"a file that a task wrote there is not visible here. The query has not begun; {remedy}."
                )
            time.sleep(_POLL)
        rows_of(folder, *parts)
    finally:
        folder.remove()
