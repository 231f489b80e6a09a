"""A real ledger that goes back in time under a worker process: a stand-by without the last commits, and a restored backup."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import State
from steadyworker.ledger.postgres.ledger import PostgresLedger
from tests.brokers.postgres import Cluster
from tests.service.test_postgres_trials import answers
from tests.support.stage import Stage, WorkerProcess, eventually

STEPS = "tests.support.jobs:Steps"


def is_one_error_and_no_take_over(stage: Stage, process: WorkerProcess) -> None:
    """The job `held` runs again because its record is gone; `done`, which the ledger has forgotten too, does not come again."""
    line = process.reports("ledger_lost_history", key="held")
    assert (line["level"], line["key"], line["lost"]) == ("error", "held", "the job's record")
    assert line["explain"] == "ledger.lost-history"
    assert "Every job that ran since then is unknown to it" in line["remedy"]
    fenced = process.reports("fenced")
    # Right after a fail-over, the row often cannot be read at once.
    assert fenced["write"] == "renew"
    assert fenced["explain"] in {"ledger.lost-history", "ledger.unreachable"}
    stage.notes("starts", 4)
    stage.open()
    stage.reaches("steps", State.DONE, "held")
    stage.empties("steps")
    assert sorted(stage.lines("starts")) == ["done 1 0", "early 1 0", "held 1 0", "held 1 0"]
    assert [line["why"] for line in process.lines("job_started")] == ["new", "new", "new", "after a lost record"]
    assert [line["key"] for line in process.lines("ledger_lost_history")] == ["held"]
    assert len(process.lines("ledger_replaced")) <= 1, (
        "a registration is lost, too, unless the backup is younger than it"
    )
    assert process.lines("taken_over") == []
    process.terminate()
    process.ended(0)


def test_a_standby_that_is_promoted_without_the_last_commits(stage: Stage, pair: tuple[Cluster, Cluster]) -> None:
    primary, standby = pair
    url = primary.add_database()
    # No commit waits for the stand-by, as with asynchronous replication.
    both = f"{url.replace(f':{primary.port}/', f':{primary.port},127.0.0.1:{standby.port}/')}?options=-csynchronous_commit%3Dlocal"
    stage.ledger.close()
    stage.urls["ledger"] = both
    stage.ledger = PostgresLedger(lambda: both, owners_dir=stage.folder, clock=SystemClock(), times=Times())
    process = stage.worker(STEPS, script={"scale": 4}).started()
    stage.send("steps", {"steps": 1}, key="early")
    stage.reaches("steps", State.DONE, "early")
    with psycopg.connect(url.replace(f":{primary.port}/", f":{standby.port}/"), autocommit=True) as there:
        is_done = "SELECT FROM steadyworker_jobs WHERE key = 'early' AND state = 'done'"
        eventually(lambda: there.execute(is_done).fetchone() is not None, "the first job at the stand-by")
    standby.kill()
    stage.send("steps", {"steps": 1}, key="done")
    stage.reaches("steps", State.DONE, "done")
    stage.send("steps", {"steps": 2, "gate": "gate"}, key="held")
    stage.notes("waiting", 1)
    primary.kill()
    standby.start()
    standby.promote()
    eventually(lambda: answers(stage.ledger), "an answer of the stand-by", report=stage.logs)
    is_one_error_and_no_take_over(stage, process)


def test_a_backup_that_is_restored_into_the_file(stage: Stage) -> None:
    process = stage.worker(STEPS, script={"scale": 4}).started()
    stage.send("steps", {"steps": 1}, key="early")
    stage.reaches("steps", State.DONE, "early")
    with closing(sqlite3.connect(stage.ledger_path)) as ledger, closing(sqlite3.connect(":memory:")) as backup:
        ledger.backup(backup)
        stage.send("steps", {"steps": 1}, key="done")
        stage.reaches("steps", State.DONE, "done")
        stage.send("steps", {"steps": 2, "gate": "gate"}, key="held")
        stage.notes("waiting", 1)
        backup.backup(ledger)
    is_one_error_and_no_take_over(stage, process)
