"""
Each export has the rows since the last one: the watermark is in the manifest, so file and watermark are committed together.

The upper end is read before the rows, so a row that comes during the export belongs to the next one.
It is a checkpoint, so each run of a job exports the same range.
Start one job after the other (`concurrency = 1`, one worker process), because each begins where the last one ended.

With SQLite, no later row has a smaller id.
With PostgreSQL, a transaction can commit a smaller id or time later than a larger one.
There, take an upper end below which nothing changes any more, such as the time before the oldest open transaction (`pg_stat_activity.xact_start`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from steadyworker import Job, Worker
from steadyworker.exports import Manifest, RowExport

FOLDER = Path("exports/new-payments")


class NewPayments(Worker[dict[str, str], list[int]]):
    queue = "new-payments"
    time_limit = 3600

    def handle(self, job: Job[dict[str, str], list[int]]) -> None:
        after, last = job.last_checkpoint or [watermark(), newest()]
        job.checkpoint([after, last])

        def rows(start: int) -> Iterator[tuple[object, ...]]:
            query = "SELECT id, currency, cents FROM payments WHERE id > ? AND id <= ? ORDER BY id LIMIT -1 OFFSET ?"
            with closing(sqlite3.connect("shop.db")) as shop:
                yield from shop.execute(query, (after, last, start))

        export = RowExport(rows, columns=("id", "currency", "cents"), parameters={"after": after, "last": last})
        job.export(export, to=FOLDER / f"{job.name}.csv")


def watermark() -> int:
    """Return the last id that a committed export of this folder has; 0 before the first one."""
    manifests = map(Manifest.load, FOLDER.glob("*.manifest.json"))
    return max((made.parameters["last"] for made in manifests), default=0)


def newest() -> int:
    """Return the largest id in the database."""
    with closing(sqlite3.connect("shop.db")) as shop:
        (last,) = shop.execute("SELECT coalesce(max(id), 0) FROM payments").fetchone()
    return int(last)
