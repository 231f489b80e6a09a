"""A hundred jobs on a PostgreSQL ledger, while clocks differ or the network is bad all the time: each runs once, and none is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial

import psycopg
import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import JobFilter, Ledger, State
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.outcome import Counters
from tests.brokers.install import faketime_program
from tests.brokers.postgres import Cluster
from tests.faults.proxy import Proxy
from tests.support.stage import Stage, each_once, eventually

STEPS = "tests.support.jobs:Steps"
KEYS = [f"job-{number}" for number in range(100)]
SLOW = 10_000.0
"""Bytes a second: a claim and its answer take about 0.2 s."""
CLAIM_WAITS = """
    SELECT 1 FROM pg_stat_activity
    WHERE wait_event = 'SyncRep' AND position('INSERT INTO steadyworker_jobs' IN query) > 0
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@contextmanager
def on_ledger(stage: Stage, url: str) -> Iterator[Stage]:
    """The stage, with its ledger at this URL, and a hundred messages in its queue."""
    stage.ledger.close()
    stage.urls["ledger"] = url
    stage.ledger = PostgresLedger(lambda: url, owners_dir=stage.folder, clock=SystemClock(), times=Times())
    for key in KEYS:
        stage.send("steps", {"steps": 2}, key=key)
    with closing(stage.ledger):
        yield stage


@pytest.fixture
def fleet(stage: Stage, database: str) -> Iterator[Stage]:
    """A stage whose ledger is in PostgreSQL, with a hundred messages in its queue."""
    with on_ledger(stage, database) as made:
        yield made


def all_done(fleet: Stage) -> None:
    """Wait for the hundredth job, and count."""
    done = JobFilter(states=(State.DONE,))
    eventually(lambda: len(list(fleet.ledger.jobs(done))) == len(KEYS), "all done", 300, fleet.logs)
    fleet.empties("steps")
    assert each_once(fleet.lines("starts"), [f"{key} 1 0" for key in KEYS])
    assert each_once(fleet.lines("effects"), [f"{key} {n}" for key in KEYS for n in range(2)])
    assert {row.counters for row, _ in fleet.ledger.jobs()} == {Counters()}


def test_worker_processes_whose_clocks_differ_by_twenty_minutes(fleet: Stage) -> None:
    """The server's clock judges leases; a worker process whose clock is ahead takes no job of the other over."""
    for offset in ("+10m", "-10m"):
        fleet.worker(STEPS, around=(str(faketime_program()), "-f", offset), concurrency=3, stop_within=60)
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
                process.reports("not_ready", part="steps: ledger")
            proxy.resume()
            proxy.slow(SLOW)
        all_done(fleet)


def test_a_distant_ledger(fleet: Stage, database: str) -> None:
    """Each message takes 200 ms, so that each call takes 400 ms; the calls of one worker process wait for each other."""
    with Proxy(database) as proxy:
        proxy.delay(0.2)
        for _ in range(4):
            fleet.worker(STEPS, ledger=proxy.url, concurrency=8)
        all_done(fleet)
    outages = [line for process in fleet.processes for line in process.lines("not_ready") if "ledger" in line["part"]]
    assert outages == []


@pytest.mark.parametrize("claim", ["has arrived", "is lost"])
def test_a_fail_over_to_a_synchronous_standby_in_mid_claim(
    stage: Stage, pair: tuple[Cluster, Cluster], claim: str
) -> None:
    """
    The primary dies while a claim waits for the standby, which has the claim or has it not: the claim was not answered.

    With `remote_apply`, the standby has each claim that was answered: so it knows each run that has begun.
    """
    primary, standby = pair
    url = primary.add_database()
    both = url.replace(f":{primary.port}/", f":{primary.port},127.0.0.1:{standby.port}/")
    with on_ledger(stage, both) as fleet:
        for _ in range(2):
            fleet.worker(STEPS, concurrency=3)
        fleet.notes("starts", 20, 120)
        if claim == "has arrived":
            stop_in_mid_claim(primary, standby.freeze, standby.thaw)
        else:
            with psycopg.connect(primary.url) as session:
                ((sender,),) = session.execute("SELECT pid FROM pg_stat_replication")
            stop_in_mid_claim(
                primary, partial(os.kill, sender, signal.SIGSTOP), partial(os.kill, sender, signal.SIGCONT)
            )
        primary.kill()
        standby.thaw()
        standby.promote()
        eventually(lambda: answers(fleet.ledger), "an answer of the standby", report=fleet.logs)
        all_done(fleet)


def stop_in_mid_claim(primary: Cluster, stop: Callable[[], None], go: Callable[[], None]) -> None:
    """Stop what confirms commits at a moment when a claim waits for it; the first try may meet another write."""
    with psycopg.connect(primary.url, autocommit=True) as session:

        def claim_waits() -> bool:
            stop()
            for _ in range(20):
                time.sleep(0.02)
                if session.execute(CLAIM_WAITS).fetchone():
                    return True
            go()
            return False

        eventually(claim_waits, "a claim that waits")


def answers(ledger: Ledger) -> bool:
    with suppress(LedgerUnavailable):
        ledger.owners()
        return True
    return False
