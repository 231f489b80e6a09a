"""Whole worker processes on a PostgreSQL ledger: its password stays secret, and a server that dies, freezes or is back costs no job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import State
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.outcome import Counters
from tests.brokers.pgbouncer import Pooler
from tests.brokers.postgres import Cluster
from tests.support.stage import Stage

STEPS = "tests.support.jobs:Steps"


@pytest.fixture
def fleet(stage: Stage, database: str) -> Iterator[Stage]:
    """A stage whose ledger is in PostgreSQL; worker processes read its URL from a file."""
    ledger = PostgresLedger(lambda: database, owners_dir=stage.folder, clock=SystemClock(), times=Times())
    with closing(stage.ledger):
        stage.ledger = ledger
    (stage.folder / "secret").write_text(database + "\n")
    yield stage
    ledger.close()


def secret(stage: Stage) -> Path:
    return stage.folder / "secret"


def on(stage: Stage) -> dict[str, Any]:
    """The settings that name the ledger."""
    return {"ledger": "", "ledger_file": str(secret(stage))}


def test_run_and_check_and_the_password_is_in_no_line_of_theirs(fleet: Stage) -> None:
    fleet.send("steps", {})
    password = urlsplit(secret(fleet).read_text()).password
    assert password
    for check in (
        fleet.command("check", STEPS, **on(fleet)),
        fleet.command("check", STEPS, ledger=secret(fleet).read_text().strip()),
    ):
        check.ended(0)
    run = fleet.command("run", STEPS, **on(fleet), max_jobs=1, log_format="json", log_level="debug")
    run.ended(0)
    jobs = fleet.command("jobs", **on(fleet))
    jobs.ended(0)
    assert run.reports("worker_started")["ledger"].startswith("postgresql://steadyworker@127.0.0.1:")
    assert fleet.reaches("steps", State.DONE).counters == Counters()
    assert fleet.lines("starts") == ["job 1 0"]
    assert "done" in jobs.log_end()
    assert password not in fleet.logs()
    fleet.empties("steps")


def test_a_worker_behind_a_pooler_in_transaction_mode(fleet: Stage, pooler: Callable[..., Pooler]) -> None:
    """Six jobs, two at a time, through one session of the server; every statement of the runner and of the keeper."""
    secret(fleet).write_text(pooler(sessions=1).through(secret(fleet).read_text().strip()) + "\n")
    keys = [f"job-{number}" for number in range(6)]
    for number, key in enumerate(keys):
        fleet.send("steps", {"fail": number % 2, "steps": 3}, key=key)
    check = fleet.command("check", STEPS, **on(fleet))
    check.ended(0)
    process = fleet.worker(STEPS, script={"scale": 4}, **on(fleet), concurrency=2)
    for key in keys:
        fleet.reaches("steps", State.DONE, key)
    fleet.empties("steps")
    process.terminate()
    process.ended(0)
    assert sorted(fleet.lines("effects")) == sorted(f"{key} {n}" for key in keys for n in range(3))
    assert len(fleet.lines("starts")) == 6 + 3, "three jobs failed once"
    assert [line for line in process.lines("not_ready") if "ledger" in line["part"]] == []


def test_a_refused_login_ends_with_78_before_the_first_message(fleet: Stage) -> None:
    fleet.send("steps", {})
    secret(fleet).write_text(secret(fleet).read_text().replace("steadyworker:", "steadyworker:c4nary"))
    process = fleet.worker(STEPS, **on(fleet))
    process.ended(78)
    assert "password authentication failed" in process.reports("startup_refused")["what"]
    assert "c4nary" not in process.log_end()
    assert fleet.ready("steps") == 1


@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_server_that_is_away_for_a_while_costs_no_job_anything(
    fleet: Stage, postgres_cluster: Cluster, fault: str
) -> None:
    """A run holds what it has, nothing is claimed, and all goes on by itself: one start each, no counter moved."""
    fleet.send("steps", {"gate": "gate", "at": 3}, key="running")
    process = fleet.worker(STEPS, script={"scale": 4}, **on(fleet), concurrency=2)
    fleet.notes("waiting", 1)
    postgres_cluster.kill() if fault == "killed" else postgres_cluster.freeze()
    fleet.send("steps", {}, key="waiting")
    fleet.open()
    process.reports("not_ready", part="steps: ledger")
    assert fleet.lines("starts") == ["running 1 0"], "nothing is claimed"
    postgres_cluster.heal()
    fleet.ledger.close()
    process.reports("ready_again", part="steps: ledger")
    fleet.empties("steps")
    assert fleet.lines("starts") == ["running 1 0", "waiting 1 0"]
    assert sorted(fleet.lines("effects")) == sorted(f"{key} {n}" for key in ("running", "waiting") for n in range(10))
    process.terminate()
    process.ended(0)


def test_a_run_whose_lease_ran_out_is_ended_and_goes_on_where_it_was(fleet: Stage, postgres_cluster: Cluster) -> None:
    """Another host may have taken it over by then: no grace; nobody did, so it is an interruption, and free."""
    fleet.send("steps", {"gate": "gate", "at": 3})
    process = fleet.worker(STEPS, script={"scale": 20}, log_level="debug", **on(fleet))
    fleet.notes("waiting", 1)
    postgres_cluster.freeze()
    process.reports("job_ended", outcome="interrupted")
    fleet.open()
    postgres_cluster.heal()
    fleet.empties("steps")
    assert fleet.lines("starts") == ["job 1 0", "job 1 3"]
    assert fleet.lines("effects") == [f"job {n}" for n in range(10)]
    counters = fleet.reaches("steps", State.DONE).counters
    assert (counters.attempts, counters.crashes, counters.losses, counters.interruptions) == (0, 0, 0, 1)
    process.terminate()
    process.ended(0)


def test_a_row_that_is_locked_longer_than_a_lease_ends_its_own_run_and_no_other(fleet: Stage) -> None:
    """The run of the locked row may not go on without a lease; the other job of the process never notices."""
    for key in ("free", "locked"):
        fleet.send("steps", {"gate": key, "at": 3}, key=key)
    process = fleet.worker(STEPS, script={"scale": 12}, log_level="debug", **on(fleet), concurrency=2)
    fleet.notes("waiting", 2)
    with psycopg.connect(secret(fleet).read_text().strip()) as admin:
        admin.execute("SELECT 1 FROM steadyworker_jobs WHERE key = 'locked' FOR UPDATE")
        process.reports("lease_not_renewed", key="locked")
        process.reports("job_ended", key="locked", outcome="interrupted")
        fleet.open("free")
        fleet.reaches("steps", State.DONE, "free")
    fleet.open("locked")
    fleet.empties("steps")
    assert sorted(fleet.lines("starts")) == ["free 1 0", "locked 1 0", "locked 1 3"]
    assert sorted(fleet.lines("effects")) == sorted(f"{key} {n}" for key in ("free", "locked") for n in range(10))
    counters = fleet.reaches("steps", State.DONE, "locked").counters
    assert (counters.attempts, counters.crashes, counters.losses, counters.interruptions) == (0, 0, 0, 1)
    assert {line["key"] for line in process.lines("lease_not_renewed")} == {"locked"}
    process.terminate()
    process.ended(0)
