"""What a job that does nothing makes a worker process do, counted exactly: how long it takes is for the benchmarks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from steadyworker import Client
from tests.benchmarks.embedded import ROOT
from tests.brokers.rabbitmq_place import RabbitmqPlace

JOBS = 15
"""An odd number: the median leaves out what timers do, which falls into few of these jobs."""

A_JOB = {
    "posted to the runner: Delivered": 1,
    "posted to the runner: Ended": 1,
    "posted to the runner: PlanResult": 1,
    "commits of the ledger": 2,
    "log: job_started": 1,
    "log: job_settled": 1,
}
BY_KIND = {"Processes": {"frames to the child": 1, "frames from the child": 1}, "Threads": {}}
ON_RABBITMQ = {"posted to the I/O thread": 1}


def counts(kind: str, broker: str, folder: Path) -> dict[str, float]:
    """Return the counts of one job; each job is sent when the one before is settled."""
    log = folder / "log"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STEADYWORKER_")}
    environ |= {"STEADYWORKER_BROKER": broker, "STEADYWORKER_STATE_DIR": str(folder), "STEADYWORKER_LOG_FORMAT": "json"}
    command = [sys.executable, "-m", "tests.benchmarks.counted", kind]
    with (
        Client(broker) as client,
        log.open("w") as errors,
        subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            found = []
            for _ in range(1 + JOBS):
                client.send("noop", {})
                found.append(Counter(json.loads(process.stdout.readline())))
        finally:
            process.terminate()
    del found[0]  # the start of the worker process
    medians = {name: median(each[name] for each in found) for name in {name for each in found for name in each}}
    lines = map(json.loads, log.read_text().splitlines())
    events = Counter(f"log: {line['event']}" for line in lines if "key" in line)
    per_job = {event: number / (1 + JOBS) for event, number in events.items()}
    return {name: number for name, number in medians.items() if number} | per_job


@pytest.mark.processes
@pytest.mark.parametrize("kind", BY_KIND)
def test_a_job_on_the_embedded_queue(kind: str, tmp_path: Path) -> None:
    assert counts(kind, f"sqlite:{tmp_path}/broker.db", tmp_path) == A_JOB | BY_KIND[kind]


@pytest.mark.processes
@pytest.mark.parametrize("kind", BY_KIND)
def test_a_job_on_rabbitmq(kind: str, rabbitmq_place: RabbitmqPlace, tmp_path: Path) -> None:
    assert counts(kind, rabbitmq_place.url(), tmp_path) == A_JOB | ON_RABBITMQ | BY_KIND[kind]
