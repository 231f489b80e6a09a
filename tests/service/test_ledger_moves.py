"""Two versions on one ledger, a deploy that migrates it, and one fleet that moves from one ledger to another, as deploy/README.md describes it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.metadata import version

import psycopg
import pytest
from psycopg import sql

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import State
from steadyworker.ledger.postgres.ledger import PostgresLedger
from tests.support.stage import WITHIN, Stage, eventually

STEPS = "tests.support.jobs:Steps"
VERSION_BEFORE = {"schema": 8}
FOREIGN = ("jobs", "meta", "owners", "progress", "bindings")
"""The tables of another program, beside those of the ledger."""


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, stage: Stage) -> str:
    """The URL of a ledger of each kind; the stage reads it."""
    if request.param == "sqlite":
        return stage.urls["ledger"]
    stage.ledger.close()
    url = str(request.getfixturevalue("database"))
    stage.ledger = PostgresLedger(lambda: url, owners_dir=stage.folder, clock=SystemClock(), times=Times())
    return url


def test_a_version_that_the_ledger_is_too_new_for_ends_with_78_and_the_others_go_on(
    stage: Stage, ledger_url: str
) -> None:
    """It takes no message, it changes nothing, and `check` has reported it."""
    older = {"schema": 1}
    stage.send("steps", {"gate": "gate", "at": 3})
    worker = stage.worker(STEPS, ledger=ledger_url, concurrency=2).started()
    stage.notes("waiting", 1)
    stage.send("steps", {}, key="later")
    stage.reaches("steps", State.DONE, "later")
    check = stage.worker("check", STEPS, ledger=ledger_url, script=older)
    check.ended(78)
    refused = stage.worker(STEPS, ledger=ledger_url, script=older)
    refused.ended(78)
    what = refused.reports("startup_refused")["what"]
    assert "Expected a ledger of schema 1" in what
    assert " ".join(what.split()) in " ".join(check.log_end().split())
    stage.send("steps", {}, key="last")
    stage.reaches("steps", State.DONE, "last")
    stage.open()
    stage.empties("steps")
    assert sorted(stage.lines("starts")) == ["job 1 0", "last 1 0", "later 1 0"]
    worker.terminate()
    worker.ended(0)


def test_a_rolling_deploy_over_a_migration(stage: Stage) -> None:
    """The old worker process ends its job; killed and started again, it is refused, and its other job is taken over."""

    def schema() -> tuple[int, int]:
        with closing(sqlite3.connect(stage.ledger_path, timeout=WITHIN)) as ledger:
            counted = "SELECT schema, (SELECT count(*) FROM jobs WHERE state = 'done') FROM meta"
            found: tuple[int, int] = ledger.execute(counted).fetchone()
            return found

    old = stage.worker(STEPS, script=VERSION_BEFORE, concurrency=2).started()
    stage.send("steps", {}, key="early")
    eventually(lambda: schema() == (8, 1), "the first job, on the old tables", report=stage.logs)
    stage.send("steps", {"steps": 4, "gate": "gate", "at": 3}, key="ends")
    stage.send("steps", {"steps": 4, "gate": "other", "at": 2}, key="moves")
    stage.notes("waiting", 2)
    check = stage.command("check", STEPS)
    check.ended(0)
    assert "[ledger.older]" in check.log_end()
    jobs = stage.command("jobs")
    jobs.ended(78)
    assert "start a worker of SteadyWorker" in " ".join(jobs.log_end().split())
    assert schema() == (8, 1)

    new = stage.worker(STEPS, concurrency=2).started()
    assert schema() == (9, 1)
    stage.open()
    stage.reaches("steps", State.DONE, "ends")

    old.kill()
    old.wait()
    again = stage.worker(STEPS, script=VERSION_BEFORE)
    again.ended(78)
    what = again.reports("startup_refused")["what"]
    assert "Expected a ledger of schema 8" in what
    assert f"install SteadyWorker {version('steadyworker')} or newer" in what
    stage.notes("starts", 4)
    stage.open("other")
    row = stage.reaches("steps", State.DONE, "moves")
    assert row.counters.crashes == 0
    stage.empties("steps")
    assert sorted(stage.lines("starts")) == ["early 1 0", "ends 1 0", "moves 1 0", "moves 1 2"]
    assert sorted(stage.lines("effects")) == sorted(
        [*(f"early {at}" for at in range(10)), *(f"{key} {at}" for key in ("ends", "moves") for at in range(4))]
    )
    new.terminate()
    new.ended(0)


def test_a_ledger_among_the_tables_of_other_programs(stage: Stage, database: str) -> None:
    """In a schema of the URL's, whose tables have the names that ours have in SQLite: `check` and `run` leave them as they are."""
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA shop")
        for name in FOREIGN:
            admin.execute(
                sql.SQL("CREATE TABLE shop.{} AS SELECT 1 AS id, 'theirs' AS key").format(sql.Identifier(name))
            )
        stage.ledger.close()
        url = f"{database}?options=-csearch_path%3Dshop"
        stage.urls["ledger"] = url
        stage.ledger = PostgresLedger(lambda: url, owners_dir=stage.folder, clock=SystemClock(), times=Times())
        stage.send("steps", {"steps": 2})
        for _ in range(2):  # before the ledger's tables are there, and after
            check = stage.command("check", STEPS)
            check.ended(0)
            assert "No problems found" in check.log_end()
            stage.worker(STEPS, idle_exit=0.1).ended(0)
        assert stage.reaches("steps", State.DONE)
        assert stage.lines("starts") == ["job 1 0"]
        in_schema = admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'shop'").fetchall()
        ours = {name for (name,) in in_schema} - set(FOREIGN)
        assert ours
        assert all(name.startswith("steadyworker_") for name in ours)
        for name in FOREIGN:
            assert admin.execute(sql.SQL("TABLE shop.{}").format(sql.Identifier(name))).fetchall() == [(1, "theirs")]


def test_from_sqlite_to_postgres(stage: Stage, database: str) -> None:
    """Each job runs on one of the two ledgers; a key that was done protects no more; a replay starts from zero."""
    stage.send("steps", {"steps": 2}, key="plain")
    stage.send("steps", {"steps": 2, "fail": 1}, key="again")
    stage.send("steps", {"steps": 4, "fail": 3}, key="dead")
    old = stage.worker(STEPS)
    stage.reaches("steps", State.DONE, "plain")
    stage.reaches("steps", State.DONE, "again")
    stage.reaches("steps", State.DEAD, "dead")
    stage.empties("steps")
    for state in ("running", "interrupted", "retrying", "scheduled"):
        jobs = stage.command("jobs", "--json", "--state", state)
        jobs.ended(0)
        assert '"key"' not in jobs.log_end()
    old.terminate()
    old.ended(0)
    before = ["plain 1 0", "again 1 0", "again 2 1", "dead 1 0", "dead 2 1", "dead 3 2"]
    assert sorted(stage.lines("starts")) == sorted(before)

    stage.ledger.close()
    stage.ledger = PostgresLedger(lambda: database, owners_dir=stage.folder, clock=SystemClock(), times=Times())
    with closing(stage.ledger):
        new = stage.worker(STEPS, ledger=database).started()
        stage.send("steps", {"steps": 2}, key="new")
        stage.send("steps", {"steps": 2}, key="plain")
        for key in ("new", "plain"):
            stage.reaches("steps", State.DONE, key)
        stage.command("dead", "replay", STEPS, "dead", ledger=database).ended(0)
        stage.reaches("steps", State.DEAD, "dead")
        stage.empties("steps")
        new.terminate()
        new.ended(0)
    assert stage.lines("starts")[len(before) :] == ["new 1 0", "plain 1 0", "dead 1 0", "dead 2 1", "dead 3 2"]
