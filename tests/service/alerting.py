"""A worker process with Workers that have an `on_dead`, whose leases and waits are short, because a test waits for them."""

from __future__ import annotations

import sys
import time
from typing import Any
from unittest.mock import patch

from steadyworker import Job, Reject, RetryPolicy, Worker
from steadyworker.service import dead_calls
from tests.support.jobs import is_open, note
from tests.support.main import main


class Alerts(Worker[dict[str, Any], int]):
    """
    Fails unless its payload says `done`, and gives a result in both cases; each call of `on_dead` leaves a line in `dead`.

    `gate`: `on_dead` waits for that file, and leaves a line in `finished`; `fails`: the first so many calls raise.
    """

    queue = "alerts"
    time_limit = 60
    retry = RetryPolicy(max_attempts=1)

    def setup(self) -> None:
        self.calls = 0

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        job.checkpoint(17)
        job.result({"rows": 17})
        if not job.payload.get("done"):
            raise Reject("no such table")

    def on_dead(self, job: Job[dict[str, Any], int], reason: str) -> object:
        asked: dict[str, Any] = job.payload or {}
        note("dead", f"{job.key} {reason} {asked.get('of')} {job.last_checkpoint}")
        self.calls += 1
        if asked.get("asks"):
            job.checkpoint(18)
        while "gate" in asked and not is_open(asked["gate"]):
            time.sleep(0.01)  # the gate is a file that the test makes, which no event reports
        if self.calls <= asked.get("fails", 0):
            raise ValueError("the chat is away")
        note("finished", job.key)
        return None


class ThreadAlerts(Alerts):
    isolation = "thread"


class AsyncAlerts(Alerts):
    async def on_dead(self, job: Job[dict[str, Any], int], reason: str) -> None:
        super().on_dead(job, reason)


class NoAlerts(Alerts):
    on_dead = Worker.on_dead


if __name__ == "__main__":
    patch.object(dead_calls, "EVERY", 0.2).start()
    patch.object(dead_calls, "LEASE", 5.0).start()
    patch.object(dead_calls, "WAITS", (0.1, 0.1, 0.1, 0.1)).start()
    sys.exit(main())
