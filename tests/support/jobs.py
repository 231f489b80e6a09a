"""Workers for whole worker processes: each start and each effect leaves a line in a file, so that they can be counted."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenacity import wait_fixed

from steadyworker import Interrupt, Job, RetryPolicy, Worker
from tests.slots.workers import Modes


def folder() -> Path:
    """The folder of the test, read when it is needed: a test may have imported this module before it had one."""
    return Path(os.environ["STAGE_FOLDER"])


def note(file: str, line: str) -> None:
    """Append a line, in one write."""
    with (folder() / file).open("a") as out:
        out.write(f"{line}\n")


def is_open(gate: str) -> bool:
    return (folder() / gate).exists()


class Steps(Worker[dict[str, Any], int]):
    """
    Counts to `steps`, saving each position.

    `gate`: waits for that file at position `at` (default 1), or at each `every`-th one; hears a shutdown if `hears`.
    `fail`: so many attempts fail after their first position.
    """

    queue = "steps"
    time_limit = 120
    retry = RetryPolicy(max_attempts=3, wait=wait_fixed(0.2))

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        asked = job.payload
        note("starts", f"{job.key} {job.attempt} {job.last_checkpoint or 0}")
        for position in range(job.last_checkpoint or 0, asked.get("steps", 10)):
            note("effects", f"{job.key} {position}")
            job.checkpoint(position + 1)
            at = asked.get("every", 0)
            if "gate" in asked and (position + 1 == asked.get("at", 1) if not at else (position + 1) % at == 0):
                note("waiting", f"{job.key} {job.fence}")
                self._wait(job, asked)
            if asked.get("fail", 0) >= job.attempt:
                raise ValueError("as asked")

    def _wait(self, job: Job[dict[str, Any], int], asked: dict[str, Any]) -> None:
        while not is_open(asked["gate"]):
            if asked.get("hears"):
                job.check()
            time.sleep(0.01)


class Deaf(Worker[dict[str, Any]]):
    """Hears no signal and makes no Job call."""

    queue = "deaf"
    time_limit = 120

    def handle(self, job: Job[dict[str, Any]]) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note("starts", f"{job.key} {job.attempt} 0")
        while not is_open("gate"):
            time.sleep(0.05)


class Tidy(Worker[dict[str, Any]]):
    """Takes `seconds` to clean up when it hears a shutdown, or until it is killed."""

    queue = "tidy"
    time_limit = 120

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {job.attempt} 0")
        try:
            while True:
                job.progress()
                time.sleep(0.01)
        except Interrupt:
            note("heard", job.key)
            time.sleep(job.payload["seconds"])
            note("cleaned", job.key)
            raise


class PythonPrints(Worker[dict[str, Any]]):
    """Does what Python reports on standard error by itself."""

    queue = "python-prints"
    time_limit = 60

    def handle(self, job: Job[dict[str, Any]]) -> None:
        def fails(*_: object) -> None:
            raise ValueError("password=canary" if _ == () else "in a destructor")

        thread = threading.Thread(target=fails, name="own")
        thread.start()
        thread.join()
        type("Fails", (), {"__del__": fails})()
        warnings.warn("a warning of a library", UserWarning, stacklevel=1)


class Talkative(Worker[dict[str, Any]]):
    """Logs `lines` lines of so many `bytes` behind its gate, and one number in each."""

    queue = "talkative"
    time_limit = 60

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("waiting", job.key)
        while not is_open(job.payload["gate"]):
            time.sleep(0.01)
        for number in range(job.payload["lines"]):
            job.log.info("spoken", number=number, text="x" * job.payload["bytes"])


class Slow(Worker[dict[str, Any]]):
    """Its `setup` waits for a gate, or does what the environment says; so does its `teardown`."""

    queue = "slow"
    time_limit = 60

    def setup(self) -> None:
        note("setups", str(os.getpid()))
        match os.environ.get("SLOW"):
            case "raise":
                raise ValueError("no database")
            case "exit":
                sys.exit(1)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(60)
            case "gate":
                while not is_open("gate"):
                    time.sleep(0.01)
        note("warm", str(os.getpid()))

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {job.attempt} 0")

    def teardown(self) -> None:
        note("teardowns", str(os.getpid()))
        if os.environ.get("SLOW") == "hang in teardown":
            time.sleep(60)


class Hostile(Modes):
    """Does the worst that the payload's `do` says, and is a dead letter at its first failure or crash."""

    queue = "hostile"
    time_limit = 2
    retry = RetryPolicy(max_attempts=1, max_crashes=1)

    def handle(self, job: Job[dict[str, Any], int]) -> object:
        note("starts", f"{job.key} {job.attempt} 0")
        return super().handle(job)


class Hungry(Hostile):
    """Eats memory, which takes longer than the other's time limit when the machine is busy."""

    queue = "hungry"
    time_limit = 60
    memory_limit = "300 MiB"


class HostileAsync(Worker[dict[str, Any]]):
    """Blocks its event loop."""

    queue = "hostile-async"
    time_limit = 2
    retry = RetryPolicy(max_attempts=1, max_crashes=1)

    async def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {job.attempt} 0")
        if job.payload["do"] == "block":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)  # noqa: ASYNC251 - blocking is the point
        await asyncio.sleep(0)


@dataclass
class Export:
    merchant: str
    amount: int = 0


class Typed(Worker[Export]):
    """Takes an Export and nothing else."""

    queue = "typed"
    time_limit = 60
    retry = RetryPolicy(max_attempts=1)

    def handle(self, job: Job[Export]) -> None:
        note("starts", f"{job.key} {job.attempt} 0")


class Twin(Steps):
    """A second Worker on the queue of the first."""


class Threaded(Worker[dict[str, Any]]):
    """In a thread of the worker process."""

    queue = "threaded"
    time_limit = 60
    isolation = "thread"

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {job.attempt} 0")


class Stuck(Worker[dict[str, Any]]):
    """In a thread that nothing can end, beside a subprocess."""

    queue = "stuck"
    time_limit = 1
    isolation = "thread"

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {job.attempt} 0")
        note("subprocesses", str(subprocess.Popen(["sleep", "60"]).pid))
        while True:
            time.sleep(0.05)


class Greedy(Worker[dict[str, Any]]):
    """Holds the GIL of its child process for `seconds`, so that no thread of the child runs."""

    queue = "greedy"
    time_limit = 120

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {job.attempt} 0")
        library = ctypes.PyDLL(None)
        for _ in range(job.payload["seconds"]):
            library.sleep(1)


class Fails(Worker[dict[str, Any], int]):
    """Saves its attempt, and fails until the gate is open; two queues share its dead-letter queue."""

    queue = "fails"
    dead_letter_queue = "shared.dead"
    time_limit = 60
    retry = RetryPolicy(max_attempts=1)

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        note("starts", f"{self.queue} {job.name} {job.attempt} {job.last_checkpoint or 0}")
        job.checkpoint((job.last_checkpoint or 0) + 1)
        if not is_open("gate"):
            raise ValueError("as asked")


class FailsToo(Fails):
    """The other queue."""

    queue = "fails-too"


if "OWN_HANDLER" in os.environ:
    logging.getLogger().addHandler(
        logging.StreamHandler(os.fdopen(os.dup(1), "w"))
    )  # a handler of standard output would be replaced
