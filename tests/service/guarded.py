"""A Worker whose jobs start subprocesses that write until they are killed, and look first for those of the run before."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

from steadyworker import Job, RetryPolicy, Worker
from tests.support.jobs import folder, note

WRITES = 'while :; do echo "$1" >> writes; sleep 0.005; done'
SPAWNS = "import subprocess, sys; subprocess.run(['sh', '-c', sys.argv[1], 'sh', sys.argv[2]], process_group=0)"


class Writers(Worker[dict[str, Any], int]):
    """Starts its subprocesses in another way at each run: a group of their own, grandchildren, beside a held GIL."""

    queue = "writers"
    time_limit = 120

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        run = job.last_checkpoint or 0
        before = self.size()
        time.sleep(0.1)
        note("looks", f"{run} {self.size() - before}")
        job.checkpoint(run + 1)
        if run == job.payload["runs"]:
            return
        ways = [self.shell, self.own_group, self.grandchildren, self.held_gil]
        ways[run % len(ways)](str(run))

    def size(self) -> int:
        path = folder() / "writes"
        return path.stat().st_size if path.exists() else 0

    def shell(self, run: str) -> None:
        subprocess.run(["sh", "-c", WRITES, "sh", run], cwd=folder(), check=True)

    def own_group(self, run: str) -> None:
        subprocess.run(["sh", "-c", WRITES, "sh", run], cwd=folder(), check=True, process_group=0)

    def grandchildren(self, run: str) -> None:
        subprocess.run([sys.executable, "-c", SPAWNS, WRITES, run], cwd=folder(), check=True)

    def held_gil(self, run: str) -> None:
        subprocess.Popen(["sh", "-c", WRITES, "sh", run], cwd=folder(), process_group=0)
        ctypes.PyDLL(None).sleep(60)


class InThreads(Writers):
    """The same in a thread of the worker process, whose session it shares."""

    isolation = "thread"


class Waiting(Worker[dict[str, Any]]):
    """Needs the exit code of a subprocess."""

    queue = "waiting"
    time_limit = 60

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("codes", str(subprocess.run(["false"], check=False).returncode))


class Orphans(Worker[dict[str, Any]]):
    """Leaves processes behind whose parents are dead: one that ends, and one that is killed with this run."""

    queue = "orphans"
    time_limit = 60
    retry = RetryPolicy(max_crashes=1)

    def handle(self, job: Job[dict[str, Any]]) -> None:
        for seconds in ("0", "60"):
            subprocess.run(["sh", "-c", f"sleep {seconds} & echo $! >> orphans"], cwd=folder(), check=True)
        os.kill(os.getpid(), signal.SIGKILL)
