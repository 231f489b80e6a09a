"""A hundred jobs on a PostgreSQL ledger, while clocks differ or the network is bad all the time: each runs once, and none is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta

import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import State, Wanted
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.outcome import Counters
from tests.faults.proxy import Proxy
from tests.support.stage import Stage, each_once, eventually

STEPS = "tests.support.jobs:Steps"
KEYS = [f"job-{number}" for number in range(100)]
SLOW = 10_000.0
"""Bytes a second: a claim and its answer take about 0.2 s."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def fleet(stage: Stage, database: str) -> Iterator[Stage]:
    """A stage whose ledger is in PostgreSQL, with a hundred messages in its queue."""
    stage.ledger.close()
    stage.urls["ledger"] = database
    stage.ledger = PostgresLedger(lambda: database, owners_dir=stage.folder, clock=SystemClock(), times=Times())
    for key in KEYS:
        stage.send("steps", {"steps": 2}, key=key)
    with closing(stage.ledger):
        yield stage


def all_done(fleet: Stage) -> None:
    """Wait for the hundredth job, and count."""
    done = Wanted(states=(State.DONE,))
    eventually(lambda: len(list(fleet.ledger.jobs(done))) == len(KEYS), "all done", 300, fleet.logs)
    fleet.empties("steps")
    assert each_once(fleet.lines("starts"), [f"{key} 1 0" for key in KEYS])
    assert each_once(fleet.lines("effects"), [f"{key} {n}" for key in KEYS for n in range(2)])
    assert {row.counters for row, _ in fleet.ledger.jobs()} == {Counters()}


@pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime was not found: apt-get install faketime")
def test_worker_processes_whose_clocks_differ_by_twenty_minutes(fleet: Stage) -> None:
    """The server's clock judges leases; a worker process whose clock is ahead takes no job of the other over."""
    for offset in ("+10m", "-10m"):
        fleet.worker(STEPS, around=("faketime", "-f", offset), concurrency=3, stop_within=60)
    all_done(fleet)
    assert all(process.lines("job_started") for process in fleet.processes), "both took part"
    ahead, behind = (
        datetime.fromisoformat(process.lines("worker_started")[0]["timestamp"]) for process in fleet.processes
    )
    assert timedelta(minutes=19) < ahead - behind < timedelta(minutes=21)


def test_a_slow_network_and_stalls_between_worker_and_ledger(fleet: Stage, database: str) -> None:
    """A stall shorter than a call delays it; a longer one is an outage of the ledger, which costs no job anything."""
    with Proxy(database) as proxy:
        proxy.slow(SLOW)
        process = fleet.worker(STEPS, ledger=proxy.url, concurrency=8).started()
        for count in (15, 35, 55):
            fleet.notes("starts", count, 300)
            proxy.stall()
            if count == 35:
                process.says("not_ready", part="steps: ledger")
            proxy.resume()
            proxy.slow(SLOW)
        all_done(fleet)
