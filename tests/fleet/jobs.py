"""The jobs of a fleet: they wait, fail and save their position as their messages say, and note each step in a file."""

from __future__ import annotations

import os
import time
from typing import Any

from steadyworker import Job, Retry, Worker
from tests.support.jobs import is_open, note

QUEUE = os.environ.get("FLEET_QUEUE", "fleet")
"""The broker's name of the work queue, which the test says."""


class Light(Worker[dict[str, Any]]):
    """
    In a thread of the worker process.

    `gate`: waits for that file. `delays`: so many attempts fail, each asking for its delay.
    """

    queue = QUEUE
    time_limit = 600
    isolation = "thread"

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {job.attempt}")
        note("times", f"{job.key} {time.monotonic()}")
        while "gate" in job.payload and not is_open(job.payload["gate"]):
            job.check()
            time.sleep(0.05)
        delays = job.payload.get("delays", [])
        if job.attempt <= len(delays):
            raise Retry("as asked", delay=delays[job.attempt - 1])
        note("ends", job.key)


class Steady(Worker[dict[str, Any], int]):
    """In a child: counts to 100, saves each position and notes it once it is saved; waits at 10 for the gate."""

    queue = QUEUE
    time_limit = 600

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        note("starts", f"{job.key} {job.last_checkpoint or 0}")
        for position in range(job.last_checkpoint or 0, 100):
            job.checkpoint(position + 1)
            note("saved", f"{job.fence} {position + 1}")
            if position + 1 == 10:
                note("waiting", job.key)
                while not is_open("gate"):
                    time.sleep(0.05)
        note("ends", job.key)
