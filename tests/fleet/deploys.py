"""
Rolling deploys: ten worker processes are replaced, one a second, while their jobs run; again and again.

Each job takes 40 s, and a stop 28 s: half of the jobs end in the stop, and the others continue at their checkpoints.
As with Kubernetes' `maxSurge: 1`, a new worker process consumes before an old one is stopped.
`make test-all` has three deploys on each broker, and `make drills` twenty on RabbitMQ (D8).
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from steadyworker.ledger.base import JobFilter, State
from tests.fleet.kit import Fleet
from tests.support.stage import WITHIN, WorkerProcess, eventually

LONG = "tests.fleet.jobs:Long"
WORKERS = 10

BACKLOG = 30
"""Jobs that have not ended when a deploy begins: more than ten worker processes get done in one, on a slow machine too."""

STOP_WITHIN = 40
"""Seconds for a stop of 28 s, on a busy machine."""


@dataclass(frozen=True)
class Deployed:
    """
    What became of the jobs.

    Attributes:
        jobs: How many were sent.
        lost: Of these, those that did not end done, or not exactly once.
        causeless: Starts beyond the first one and one for each interruption that the ledger counted, and starts that
            did not begin behind the position of the start before.
        blamed: Jobs with a failure, a crash or a loss on their account: a deploy is none of these.
        interruptions: Of all jobs; without any, no deploy has met a job.
        codes: The exit codes of all worker processes that were told to stop.
    """

    jobs: int
    lost: int
    causeless: int
    blamed: int
    interruptions: int
    codes: Counter[int | None]


def deployed(fleet: Fleet, deploys: int) -> Deployed:
    """Replace all worker processes so often, let the jobs end, and count."""
    jobs: list[str] = []

    def send() -> None:
        fresh = [f"job-{len(jobs) + number:03}" for number in range(BACKLOG - len(jobs) + len(fleet.lines("ends")))]
        fleet.send_all({job: {"steps": 80} for job in fresh})
        jobs.extend(fresh)

    send()
    workers: list[WorkerProcess] = [fleet.worker(LONG).started() for _ in range(WORKERS)]
    fleet.notes("starts", WORKERS)
    stopped: list[WorkerProcess] = []
    for _ in range(deploys):
        send()
        old, workers = workers, []
        for process in old:
            workers.append(fleet.worker(LONG).started())
            process.terminate()
            time.sleep(1)  # as a platform, which does not wait for the end of the old one
        _all_end(old)
        stopped += old
    eventually(lambda: len(fleet.lines("ends")) >= len(jobs), f"{len(jobs)} ends", 4 * WITHIN, fleet.logs)
    fleet.empties()
    for process in workers:
        process.terminate()
    _all_end(workers)
    return _counted(fleet, jobs, Counter(process.returncode for process in [*stopped, *workers]))


def _all_end(workers: list[WorkerProcess]) -> None:
    """Wait until all of them have ended, with whatever exit code."""
    eventually(lambda: all(one.poll() is not None for one in workers), "their end", STOP_WITHIN)


def _counted(fleet: Fleet, jobs: list[str], codes: Counter[int | None]) -> Deployed:
    rows = {row.id.key: row for row, _ in fleet.ledger.jobs(JobFilter(queue=fleet.queue))}
    ends = Counter(fleet.lines("ends"))
    done = {key for key, row in rows.items() if row.state is State.DONE and ends[key] == 1}
    begun: dict[str, list[int]] = {job: [] for job in jobs}
    for line in fleet.lines("starts"):
        job, position = line.split()
        begun[job].append(int(position))
    causeless = 0
    for job, starts in begun.items():
        allowed = 1 + rows[job].counters.interruptions if job in rows else 0
        onward = sum(1 for before, after in pairwise([-1, *starts]) if after > before)
        causeless += max(len(starts) - min(allowed, onward), starts[:1] != [0])
    counters = [row.counters for row in rows.values()]
    return Deployed(
        jobs=len(jobs),
        lost=len(set(jobs) - done) + len(set(ends) - set(jobs)),
        causeless=causeless,
        blamed=sum(1 for one in counters if one.attempts or one.crashes or one.losses),
        interruptions=sum(one.interruptions for one in counters),
        codes=codes,
    )
