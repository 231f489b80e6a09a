"""
A slow export that reports its progress, for the web applications beside it; start its worker first.

    pip install 'steadyworker[exports]' fastapi uvicorn     # or: 'steadyworker[exports]' django
    steadyworker run web_exports:Exports
    uvicorn web_fastapi:app                         # or: python web_django.py runserver

`EXPORTS_QUEUE=payment-exports` before the last command starts the jobs of `payment_exports.py` instead.
"""

from __future__ import annotations

import os
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
        to = FOLDER / f"{job.name}.csv"
        job.export(export, to=to)
        job.result({"file": str(to.absolute())})

    def payments(self, job: Job[ExportRequest], start: int) -> Iterator[tuple[int, str, int]]:
        for number in range(start, ROWS):
            time.sleep(0.01)  # your database
            yield number, job.payload.merchant, number * 7 % 100


QUEUE = os.environ.get("EXPORTS_QUEUE", Exports.queue)
"""The queue of the exports; the result of a job in it is `{"file": path}`, or a link as `{"url": url, "ends_at": time}`."""


def new_exports(merchant: str) -> Iterator[NewJob[ExportRequest]]:
    """
    Yield the exports of a merchant and day: start the first one that has not `failed`.

    A user who starts an export twice gets the key of the same job.
    After a cancelled or failed export, the next start needs another key, because a job that has ended does not run again.
    """
    first = f"{merchant}-{datetime.now(UTC):%Y-%m-%d}"
    for number in count(1):
        yield NewJob(ExportRequest(merchant), key=first if number == 1 else f"{first}-{number}")


def failed(status: JobStatus) -> bool:
    return status.state in (JobState.CANCELLED, JobState.CANCEL_WAITING, JobState.DEAD)


def as_json(status: JobStatus) -> dict[str, object]:
    """What the page shows: your export is 40 % done."""
    percent = 100.0 if status.state is JobState.DONE else status.percent
    text = TEXTS.get(status.state, "Your export waits.")
    if status.state is JobState.RUNNING and percent is not None:
        text = f"Your export is {percent:.0f} % done."
    if status.state is JobState.DONE and "url" in status.result:
        text += f" The link to it works until {datetime.fromisoformat(status.result['ends_at']):%Y-%m-%d %H:%M} UTC."
    ended = failed(status) or status.state is JobState.DONE
    return {"key": status.key, "state": status.state, "percent": percent, "text": text, "ended": ended}
