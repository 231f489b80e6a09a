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

FOLDER = Path(os.environ.get("STAGE_FOLDER", "."))


def struck(point: str) -> None:
    """Kill the worker process, the first time that this point is reached."""
    if os.environ.get("KILL_AT") != point:
        return
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
        link, begin, add = os.link, SessionNames.began, FileWriting.add

        def linked(source: Any, target: Any, **options: Any) -> None:
            which = "manifest" if str(target).endswith(".json") else "file"
            struck(f"before the link of the {which}")
            link(source, target, **options)
            struck(f"after the link of the {which}")

        def begun(*arguments: Any) -> None:
            with (FOLDER / "computed").open("a") as out:
                out.write("started\n")
            begin(*arguments)
            struck("Spark has begun")

        def added(*arguments: Any) -> None:
            add(*arguments)
            struck("a part is joined")

        os.link = linked  # type: ignore[assignment]
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
        struck("the handler returns")
