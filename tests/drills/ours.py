"""SteadyWorker: `steadyworker run tests.drills.ours:Drill`; run as a program it sends."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from tenacity import wait_fixed

from steadyworker import Client, Job, Reject, Retry, RetryPolicy, Worker
from tests.drills.bodies import is_open, note, perform


class Drill(Worker[dict[str, Any], int]):
    """As its defaults are, but that a crash is tried again after a second."""

    queue = os.environ["DRILL_QUEUE"]
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


class Operated(Drill):
    """
    The jobs of D7, which wait for what the operator opens.

    | `do` | |
    |---|---|
    | `work` | a short job of the stream |
    | `call` | fails until the API is open, and then comes back after 30 s |
    | `look up` | is rejected until the merchant is known |
    | `go on` | saves five positions a second until the end |
    """

    time_limit = 900

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        """Note its start, do what it is for, note its end."""
        note("start", job.key)
        match job.payload["do"]:
            case "work":
                time.sleep(0.2)
            case "call" if not is_open("api"):
                raise Retry("the API is busy", delay=30)
            case "look up" if not is_open("merchant"):
                raise Reject("no such merchant")
            case "go on":
                position = job.last_checkpoint or 0
                while not is_open("end"):
                    position += 1
                    job.checkpoint(position)
                    job.check()
                    time.sleep(0.2)
        note("end", job.key)


if __name__ == "__main__":
    with Client() as client:
        for line in sys.stdin:
            client.send(Drill.queue, json.loads(line))
