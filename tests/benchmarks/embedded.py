"""A worker process on the embedded queue, and the lines that it logs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steadyworker import Client
from tests.benchmarks.usage import NAMED, NOTHING, Measured, per_job, usage

ROOT = Path(__file__).parents[2]
KINDS = ("Processes", "Threads")
"""Workers of `noop`: process slots, and thread slots."""


@contextmanager
def folder() -> Iterator[dict[str, str]]:
    """An environment with a state directory of its own."""
    with tempfile.TemporaryDirectory() as place:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STEADYWORKER_")}
        yield {**kept, "STEADYWORKER_STATE_DIR": place}


def send(environ: dict[str, str], jobs: int, **payload: str) -> None:
    """Queue no-op jobs with this payload."""
    with Client(f"sqlite:{environ['STEADYWORKER_STATE_DIR']}/broker.db") as client:
        for _ in range(jobs):
            client.send("noop", payload)


@contextmanager
def worker(
    environ: dict[str, str], kind: str = "Processes", module: str = "noop"
) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """A worker process, and the lines that it logs."""
    command = [sys.executable, "-m", "steadyworker", "run", f"tests.benchmarks.{module}:{kind}", "--log-format", "json"]
    with subprocess.Popen(command, env=environ, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process, iter(process.stderr)
        finally:
            process.terminate()
            process.communicate()


def wait_for(lines: Iterator[str], event: str) -> None:
    """Read until the worker has said it."""
    next(line for line in lines if f'"event":"{event}"' in line)


def measured(kind: str, slots: int, jobs: int, module: str = "noop") -> Measured:
    """Measure one worker process, whose slots wait until the jobs are queued."""
    with folder() as environ:
        gate = Path(environ["STEADYWORKER_STATE_DIR"], "gate")
        send(environ, slots, gate=str(gate))
        send(environ, jobs)
        with worker({**environ, **NAMED, "STEADYWORKER_CONCURRENCY": str(slots)}, kind, module) as (process, lines):
            for _ in range(slots):
                wait_for(lines, "job_started")
            before, began = usage(process.pid), time.monotonic()
            gate.touch()
            for _ in range(slots + jobs):
                wait_for(lines, "job_settled")
            seconds = time.monotonic() - began
            return Measured(jobs / seconds, per_job(before, usage(process.pid), slots + jobs), NOTHING)
