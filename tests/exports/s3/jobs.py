"""Workers that export to a bucket, and whose worker process dies the first time that their bytes have arrived there."""

from __future__ import annotations

from typing import Any

from tenacity import wait_fixed

from steadyworker import Job, RetryPolicy, Worker
from steadyworker.exports import SparkExport
from steadyworker.exports.formats import Csv
from steadyworker.exports.s3.upload import PartsUpload
from steadyworker.exports.stores.folder import FolderRun
from tests.exports.s3.store import wide
from tests.exports.spark.jobs import FOLDER, strike
from tests.exports.spark.sparkkit import ORDER, QUERY
from tests.support.jobs import note


class Uploads(Worker[dict[str, Any]]):
    """Exports rows to the address of its message: as an object, or as a folder with files of so many rows."""

    queue = "uploads"
    time_limit = 600
    retry = RetryPolicy(max_attempts=3, wait=wait_fixed(0.2))

    def setup(self) -> None:
        sync, put = PartsUpload.sync, FolderRun._put

        def synced(*arguments: Any) -> None:
            sync(*arguments)
            strike()

        def is_put(*arguments: Any) -> None:
            put(*arguments)
            strike()

        PartsUpload.sync = synced  # type: ignore[method-assign,assignment]
        FolderRun._put = is_put  # type: ignore[method-assign,assignment]

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", job.key)
        split = {"split_rows": job.payload["split_rows"]} if "split_rows" in job.payload else {}
        job.export(self.rows(), job.payload["to"], format=Csv(), **split)

    def rows(self) -> Any:
        return wide()


class SparkUploads(Uploads):
    """Exports the payments that are beside it."""

    queue = "spark-uploads"

    def rows(self) -> Any:
        return SparkExport(QUERY, tables={"payments": FOLDER / "payments"}, order_by=ORDER)
