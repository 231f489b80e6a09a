"""The jobs of a bad night: each of several queues has a Worker in threads, and a payload says what its job does."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from steadyworker import Job, Retry, RetryPolicy, Worker
from tests.fleet.jobs import QUEUE
from tests.support.jobs import folder, is_open, note


class Exports(Worker[dict[str, Any]]):
    """
    Runs until the gate is open.

    `fails`: raises this text instead. `dies`: so many runs kill their worker process.
    `pages`: reports one page, and no other. `moves`: reports one page after the other.
    """

    queue = "exports"
    isolation = "thread"
    time_limit = 600
    retry = RetryPolicy(max_attempts=1)

    def handle(self, job: Job[dict[str, Any]]) -> None:
        asked = job.payload
        note("starts", job.key)
        if "fails" in asked:
            raise ConnectionError(asked["fails"])
        starts = (folder() / "starts").read_text().splitlines().count(job.key)
        if starts <= asked.get("dies", 0):
            os.kill(os.getpid(), signal.SIGKILL)
        page = 1
        if "pages" in asked:
            job.progress(page, asked["pages"], "pages")
        while not is_open("gate"):
            if "moves" in asked:
                job.progress(page, asked["moves"], "pages")
                page = min(page + 1, asked["moves"])
            job.check()
            time.sleep(0.05)  # the work of a job that runs until it is interrupted


class Imports(Exports):
    queue = "imports"


class Invoices(Exports):
    queue = "invoices"


class Refunds(Exports):
    queue = "refunds"


class Reports(Exports):
    queue = "reports"


class Screened(Worker[dict[str, Any], int]):
    """In a thread: saves a checkpoint; then it ends well, fails for good (`fails`), or asks for a late retry (`delay`)."""

    queue = QUEUE
    isolation = "thread"
    time_limit = 600
    retry = RetryPolicy(dont_retry_on=(ConnectionError,))

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        job.progress(3, 10, "pages")
        job.checkpoint(3)
        if "fails" in job.payload:
            raise ConnectionError(job.payload["fails"])
        if "delay" in job.payload:
            raise Retry("as asked", delay=job.payload["delay"])
