"""A Worker that hands its export to Spark, and whose worker process is killed where the environment says."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tenacity import wait_fixed

from steadyworker import Job, RetryPolicy, Worker
from steadyworker.exports import SparkExport
from steadyworker.exports.spark.handle import SessionNames
from steadyworker.exports.writing import FileWriting
from tests.exports.spark.sparkkit import ORDER, QUERY
from tests.support.jobs import note

FOLDER = Path(os.environ.get("STAGE_FOLDER", "."))


def struck(point: str) -> None:
    """Kill the worker process, the first time that this point is reached."""
    if os.environ.get("KILL_AT") == point:
        strike()


def strike() -> None:
    """Kill the worker process, once."""
    try:
        (FOLDER / "struck").open("x").close()
    except FileExistsError:
        return
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()  # its death ends us


class Payments(Worker[dict[str, Any]]):
    """Exports the payments that are beside it; says when Spark begins."""

    queue = "spark-payments"
    time_limit = 600
    retry = RetryPolicy(max_attempts=3, wait=wait_fixed(0.2))

    def setup(self) -> None:
        begin, add = SessionNames.began, FileWriting.add

        def begun(*arguments: Any) -> None:
            with (FOLDER / "computed").open("a") as out:
                out.write("started\n")
            begin(*arguments)
            struck("Spark has begun")

        def added(*arguments: Any) -> None:
            add(*arguments)
            struck("a part is joined")

        SessionNames.began = begun  # type: ignore[method-assign,assignment]
        FileWriting.add = added  # type: ignore[method-assign,assignment]

    def handle(self, job: Job[dict[str, Any]]) -> None:
        with (FOLDER / "starts").open("a") as out:
            out.write(f"{job.key} {job.attempt}\n")
        job.export(
            SparkExport(QUERY, tables={"payments": FOLDER / "payments"}, order_by=ORDER),
            to=FOLDER / "out" / f"{job.name}.csv",
            totals={"amount": "sum"},
        )


class Rows(Worker[dict[str, Any]]):
    """Exports so many rows, with text that needs quotes."""

    queue = "spark-rows"
    time_limit = 3600

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", job.key)
        query = f"""
            SELECT id, xxhash64(id) AS h, CAST(pmod(hash(id), 10000000) / 100 AS DECIMAL(12,2)) AS amount,
                concat('said "no, ', id, '"') AS note FROM range({job.payload["rows"]})
        """
        job.export(
            SparkExport(query, tables={}, order_by=("h",)),
            to=FOLDER / "out" / f"{job.key}.csv",
            totals={"amount": "sum"},
        )
