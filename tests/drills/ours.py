"""SteadyWorker: `steadyworker run tests.drills.ours:Drill`; run as a program it sends."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from tenacity import wait_fixed

from steadyworker import Client, Job, RetryPolicy, Worker
from tests.drills.bodies import QUEUE, note, perform


class Drill(Worker[dict[str, Any], int]):
    """As its defaults are, but that a crash is tried again after a second."""

    queue = QUEUE
    time_limit = 120
    retry = RetryPolicy(wait=wait_fixed(1))

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        """What `perform` does, and `count`: ten steps a second, each saved, so that it hears a shutdown."""
        if job.payload["do"] != "count":
            return perform(**job.payload)
        note("start", job.payload["id"])
        for step in range(job.last_checkpoint or 0, int(job.payload["seconds"]) * 10):
            note(f"step-{step}", job.payload["id"])
            job.checkpoint(step + 1)
            time.sleep(0.1)
        return note("end", job.payload["id"])


class Threads(Drill):
    """The same in threads of the worker process, which the benchmarks measure beside it."""

    isolation = "thread"


if __name__ == "__main__":
    with Client() as client:
        for line in sys.stdin:
            client.send(QUEUE, json.loads(line))
