"""Two versions on one ledger, and one fleet that moves from one ledger to another, as deploy/README.md describes it."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import State
from steadyworker.ledger.postgres.ledger import PostgresLedger
from tests.support.stage import Stage, eventually

STEPS = "tests.support.jobs:Steps"
ANOTHER = {"schema": 99}
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


def test_a_version_with_other_tables_ends_with_78_and_the_old_one_goes_on(stage: Stage, ledger_url: str) -> None:
    """It takes no message, it changes nothing, and `check` has said so."""
    stage.send("steps", {"gate": "gate", "at": 3})
    old = stage.worker(STEPS, ledger=ledger_url, concurrency=2).started()
    stage.notes("waiting", 1)
    stage.send("steps", {}, key="later")
    stage.reaches("steps", State.DONE, "later")
    check = stage.worker("check", STEPS, ledger=ledger_url, script=ANOTHER)
    check.ended(78)
    new = stage.worker(STEPS, ledger=ledger_url, script=ANOTHER)
    new.ended(78)
    what = new.says("startup_refused")["what"]
    assert "to 99 at" in what
    assert " ".join(what.split()) in " ".join(check.said().split())
    stage.send("steps", {}, key="last")
    stage.reaches("steps", State.DONE, "last")
    stage.open()
    stage.empties("steps")
    assert sorted(stage.lines("starts")) == ["job 1 0", "last 1 0", "later 1 0"]
    old.terminate()
    old.ended(0)


def test_a_rolling_upgrade_migrates_the_ledger_and_stops_nobody(stage: Stage, ledger_url: str) -> None:
    """The old worker process works on with the migrated ledger; the new one continues its job; an old one is then refused."""
    stage.send("steps", {"gate": "gate", "at": 3})
    old = stage.worker(STEPS, ledger=ledger_url, concurrency=2).started()
    stage.notes("waiting", 1)
    check = stage.worker("check", STEPS, ledger=ledger_url, script={"migrates": True})
    check.ended(78)
    assert "which migrates the ledger in place" in " ".join(check.said().split())
    new = stage.worker(STEPS, ledger=ledger_url, script={"migrates": True}).started()
    sent: list[str] = []

    def both_have_run_some() -> bool:
        sent.append(f"after-{len(sent)}")
        stage.send("steps", {"steps": 2}, key=sent[-1])
        return len(old.lines("job_started")) > 1 and bool(new.lines("job_started"))

    eventually(both_have_run_some, "jobs of both", report=stage.logs)
    stage.notes("starts", 1 + len(sent))
    old.terminate()
    old.ended(0)
    stage.open()
    stage.empties("steps")
    assert sorted(stage.lines("starts")) == sorted(["job 1 0", "job 1 3", *(f"{key} 1 0" for key in sent)])
    late = stage.worker(STEPS, ledger=ledger_url)
    late.ended(78)
    assert "install SteadyWorker" in late.says("startup_refused")["what"]
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
            assert "No problems found" in check.said()
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
        assert '"key"' not in jobs.said()
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
