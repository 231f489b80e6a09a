"""
Jobs that do nothing, taken from one queue in three ways: `python -c "import noop; noop.main()" bare|thread|process JOBS`.

(Imported, because a child has to import the Worker's module, too.)

Each prints the seconds from the first job to the settlement of the last one.
`bare` is what the queue itself costs: receive and acknowledge, without ledger, slots and logs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from queue import SimpleQueue

from steadyworker import Job, Worker, config, run
from steadyworker.adapter import Delivered, Signal
from steadyworker.clock import SystemClock
from steadyworker.delivery import Settle
from steadyworker.events import Event, JobSettled, JobStarted
from steadyworker.opening import open_adapter_for

_CLOCK = SystemClock()
SLOTS = 2


class Noop(Worker[dict[str, int]]):
    time_limit = 60
    concurrency = SLOTS

    def handle(self, job: Job[dict[str, int]]) -> None:
        """Nothing."""


class Threads(Noop):
    queue = "noop"
    isolation = "thread"


class Processes(Noop):
    queue = "noop"


class Watch:
    """A listener that measures from the first start to the last settlement."""

    def __init__(self) -> None:
        self.first = self.last = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case JobStarted():
                self.first = self.first or _CLOCK.monotonic()
            case JobSettled():
                self.last = _CLOCK.monotonic()


def bare(jobs: int) -> float:
    """Receive and acknowledge, with as many deliveries at a time as there are slots elsewhere."""
    adapter = open_adapter_for(Threads.queue, config.load({}, os.environ, Path.cwd()))
    signals: SimpleQueue[Signal] = SimpleQueue()
    adapter.start(signals.put)
    adapter.credits(SLOTS)
    done, first = 0, 0.0
    while done < jobs:
        match signals.get(timeout=30):
            case Delivered(delivery=delivery):
                first = first or _CLOCK.monotonic()
                adapter.settle(delivery, Settle.ACK)
                done += 1
            case _:
                pass
    seconds = _CLOCK.monotonic() - first
    adapter.stop(5)
    return seconds


def runtime(worker: type[Threads | Processes], jobs: int) -> float:
    """The same by a whole worker process."""
    watch = Watch()
    code = run(worker, max_jobs=jobs, listeners=[watch])
    if code:
        sys.exit(code)
    return watch.last - watch.first


def main() -> None:
    """Measure one way, and print it."""
    how, jobs = sys.argv[1], int(sys.argv[2])
    print(bare(jobs) if how == "bare" else runtime(Threads if how == "thread" else Processes, jobs))
