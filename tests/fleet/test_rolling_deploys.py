"""Deploys under load: ten worker processes are replaced while their jobs run, three times."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from steadyworker.ledger.base import State, Wanted
from tests.fleet.kit import Fleet
from tests.support.stage import WorkerProcess, eventually

LONG = "tests.fleet.jobs:Long"
WORKERS, DEPLOYS, JOBS = 10, 3, 40


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_workers_are_replaced_three_times_and_no_job_is_lost_or_begins_anew(fleet: Fleet) -> None:
    """
    Each job takes 40 s, and a stop 28 s: half of the jobs end in the stop, and the others continue at their checkpoints.

    As with `maxSurge: 1`, a new worker process consumes before an old one is stopped.
    """
    jobs = [f"job-{number:02}" for number in range(JOBS)]
    fleet.send_all({job: {"steps": 80} for job in jobs})
    workers: list[WorkerProcess] = [fleet.worker(LONG).started() for _ in range(WORKERS)]
    fleet.notes("starts", WORKERS)
    for _ in range(DEPLOYS):
        old, workers = workers, []
        for process in old:
            workers.append(fleet.worker(LONG).started())
            process.terminate()
            time.sleep(1)  # as a platform, which does not wait for the end of the old one
        for process in old:
            process.ended(0, 40)
    eventually(lambda: len(fleet.lines("ends")) >= JOBS, f"{JOBS} ends", 240, fleet.logs)
    fleet.empties()
    for process in workers:
        process.terminate()
    for process in workers:
        process.ended(0)

    assert Counter(fleet.lines("ends")) == Counter(jobs)
    rows = {row.id.key: row for row, _ in fleet.ledger.jobs(Wanted(queue=fleet.queue))}
    assert {key: row.state for key, row in rows.items()} == dict.fromkeys(jobs, State.DONE)
    assert {(row.counters.attempts, row.counters.crashes, row.counters.losses) for row in rows.values()} == {(0, 0, 0)}
    begun: dict[str, list[int]] = {job: [] for job in jobs}
    for line in fleet.lines("starts"):
        job, position = line.split()
        begun[job].append(int(position))
    # One start, and one more for each interruption, which the ledger counted; each of those began further on.
    assert {job: len(starts) for job, starts in begun.items()} == {
        job: 1 + row.counters.interruptions for job, row in rows.items()
    }
    for starts in begun.values():
        assert starts[0] == 0
        assert starts == sorted(set(starts))
    assert sum(row.counters.interruptions for row in rows.values()) >= DEPLOYS
