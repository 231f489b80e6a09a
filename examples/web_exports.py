"""
A slow export that reports its progress, for the web applications beside it; start its worker first.

    pip install steadyworker fastapi uvicorn        # or: steadyworker django
    steadyworker run web_exports:Exports
    uvicorn web_fastapi:app                         # or: python web_django.py runserver
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from steadyworker import Job, JobState, JobStatus, NewJob, Worker
from steadyworker.exports import RowExport

FOLDER = Path("out")
ROWS = 1_000
PAGE = Path(__file__).with_name("web_page.html")


@dataclass
class ExportRequest:
    merchant: str


class Exports(Worker[ExportRequest]):
    queue = "web-exports"
    time_limit = 3600

    def handle(self, job: Job[ExportRequest]) -> None:
        export = RowExport(lambda start: self.payments(job, start), columns=("id", "merchant", "cents"), expected=ROWS)
        job.export(export, to=file_of(job.key))

    def payments(self, job: Job[ExportRequest], start: int) -> Iterator[tuple[int, str, int]]:
        for number in range(start, ROWS):
            time.sleep(0.01)  # your database
            yield number, job.payload.merchant, number * 7 % 100


def new_export(merchant: str) -> NewJob[ExportRequest]:
    """One export for each merchant and day: whoever starts it again gets the key of the same job."""
    return NewJob(ExportRequest(merchant), key=f"{merchant}-{datetime.now(UTC):%Y-%m-%d}")


def file_of(key: str) -> Path:
    """A key in the ledger has neither slashes nor leading dots, so the file is always in the folder."""
    return FOLDER / f"{key}.csv"


def as_json(status: JobStatus) -> dict[str, object]:
    """What the page shows: your export is 40 % done."""
    percent = 100.0 if status.state is JobState.DONE else status.percent
    return {"key": status.key, "state": status.state, "percent": percent, "reason": status.reason}
