"""
A slow export that reports its progress, for the web applications beside it; start its worker first.

    pip install 'steadyworker[exports]' fastapi uvicorn     # or: 'steadyworker[exports]' django
    steadyworker run web_exports:Exports
    uvicorn web_fastapi:app                         # or: python web_django.py runserver
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from steadyworker import Job, JobState, JobStatus, NewJob, Worker
from steadyworker.exports import RowExport

TEXTS = {
    JobState.RUNNING: "Your export is running.",
    JobState.RETRYING: "Your export had a problem, and starts again by itself.",
    JobState.DONE: "Your export is ready.",
    JobState.CANCELLED: "Your export was cancelled.",
    JobState.CANCEL_WAITING: "Your export was cancelled.",
    JobState.DEAD: "Your export has failed. Please start it again, or ask us for help.",
}
"""What users read. A status has a `reason` for your operators: it can name files, tables and hosts."""

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


def new_exports(merchant: str) -> Iterator[NewJob[ExportRequest]]:
    """
    Yield the exports of a merchant and day: start the first one that has not `failed`.

    Whoever starts an export twice gets the key of the same job.
    After a cancelled or failed export, the next start needs another key, because a job that has ended does not run again.
    """
    first = f"{merchant}-{datetime.now(UTC):%Y-%m-%d}"
    for number in count(1):
        yield NewJob(ExportRequest(merchant), key=first if number == 1 else f"{first}-{number}")


def failed(status: JobStatus) -> bool:
    return status.state in (JobState.CANCELLED, JobState.CANCEL_WAITING, JobState.DEAD)


def file_of(key: str) -> Path:
    """A key in the ledger has neither slashes nor leading dots, so the file is always in the folder."""
    return FOLDER / f"{key}.csv"


def as_json(status: JobStatus) -> dict[str, object]:
    """What the page shows: your export is 40 % done."""
    percent = 100.0 if status.state is JobState.DONE else status.percent
    text = TEXTS.get(status.state, "Your export waits.")
    if status.state is JobState.RUNNING and percent is not None:
        text = f"Your export is {percent:.0f} % done."
    ended = failed(status) or status.state is JobState.DONE
    return {"key": status.key, "state": status.state, "percent": percent, "text": text, "ended": ended}
