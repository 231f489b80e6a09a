"""The jobs of a fleet: they wait, fail and save their position as their messages say, and note each step in a file."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tenacity import wait_fixed

from steadyworker import Job, Reject, Retry, RetryPolicy, Worker
from tests.support.jobs import is_open, note

QUEUE = os.environ.get("FLEET_QUEUE", "fleet")
"""The broker's name of the work queue, which the test says."""


class Apart(Worker[dict[str, Any]]):
    """
    In a child process; a crash is tried again at once.

    `gate`: waits for that file, and hears no shutdown meanwhile if it is `deaf`. `delays`: so many attempts fail, each asking for its delay.
    `busy`: keeps the processor busy for so many seconds. `dies`: kills the process.
    While there is a file `broken`, its `setup` fails.
    """

    queue = QUEUE
    time_limit = 600
    retry = RetryPolicy(wait=wait_fixed(0.2))

    def setup(self) -> None:
        if is_open("broken"):
            raise ConnectionError("no database")

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {job.attempt}")
        note("times", f"{job.key} {time.monotonic()}")
        if job.payload.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        until = time.monotonic() + job.payload.get("busy", 0)
        while time.monotonic() < until:
            sum(range(10_000))
        while "gate" in job.payload and not is_open(job.payload["gate"]):
            if not job.payload.get("deaf"):
                job.check()
            time.sleep(0.05)
        delays = job.payload.get("delays", [])
        if job.attempt <= len(delays):
            raise Retry("as asked", delay=delays[job.attempt - 1])
        note("ends", job.key)


class Light(Apart):
    """The same in a thread of the worker process."""

    isolation = "thread"


class Brief(Worker[dict[str, Any]]):
    """In a thread: takes `seconds`; notes each start with process and time, and its end."""

    queue = QUEUE
    isolation = "thread"
    time_limit = 600
    retry = RetryPolicy(max_losses=50)

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {os.getpid()} {time.monotonic()}")
        time.sleep(job.payload["seconds"])
        note("ends", job.key)


class Ordered(Light):
    """The sender's own header names the job; until there is a file `mended`, each retry ends in a rejection."""

    key_header = "orderKey"

    def handle(self, job: Job[dict[str, Any]]) -> None:
        if job.attempt > 1 and not is_open("mended"):
            raise Reject("not mended")
        note("keys", f"{job.attempt} {len(job.headers['orderKey'])} {job.headers['orderKey'][-1]}")
        super().handle(job)


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


class Long(Worker[dict[str, Any], int]):
    """In a child: counts to `steps`, one each 0.5 s, and saves each position; notes its starts with the position, and its end."""

    queue = QUEUE
    time_limit = 600

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        note("starts", f"{job.key} {job.last_checkpoint or 0}")
        for position in range(job.last_checkpoint or 0, job.payload["steps"]):
            time.sleep(0.5)
            job.checkpoint(position + 1)
        note("ends", job.key)
