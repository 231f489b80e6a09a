"""Two versions on one ledger, and one fleet that moves from one ledger to another, as deploy/README.md describes it."""

from __future__ import annotations

from contextlib import closing

import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import State
from steadyworker.ledger.postgres.ledger import PostgresLedger
from tests.support.stage import Stage

STEPS = "tests.support.jobs:Steps"
ANOTHER = {"schema": 99}


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
    new = stage.worker(STEPS, ledger=ledger_url, script=ANOTHER)
    new.ended(78)
    assert "Expected a ledger of schema 99" in new.says("startup_refused")["what"]
    stage.send("steps", {}, key="last")
    stage.reaches("steps", State.DONE, "last")
    stage.open()
    stage.empties("steps")
    assert sorted(stage.lines("starts")) == ["job 1 0", "last 1 0", "later 1 0"]
    old.terminate()
    old.ended(0)


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
