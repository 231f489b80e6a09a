"""
The kill points around each write that makes a job outlive its message; the broker then loses what it has of the job.

The times are a twentieth of the real ones, so a job whose owner is dead is an orphan after about ten seconds.
"""

from __future__ import annotations

import hashlib
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Moving, Row, State, Verdict
from steadyworker.ledger.lease import registered_name
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters as Counted
from tests.support.stage import Stage, WorkerProcess

PLAIN = "tests.killpoints.jobs:Plain"
SCALE = 20
NAMESPACE = "here"
JOB = JobId(NAMESPACE, "plain", "job")
BODY = b"{}"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def worker(stage: Stage, point: str = "") -> WorkerProcess:
    """A worker process with short times, which dies at this point."""
    return stage.worker(PLAIN, script={"point": point, "scale": SCALE}, namespace=NAMESPACE, stop_within=10)


def dies(stage: Stage, point: str) -> None:
    worker(stage, point).ended(-signal.SIGKILL)


def ends(stage: Stage, state: State) -> WorkerProcess:
    """A second worker process goes on, without any message."""
    second = worker(stage)
    stage.reaches("plain", state)
    stage.empties("plain")
    second.terminate()
    second.ended(0)
    return second


def ghost(stage: Stage, **claimed: Any) -> Row:
    """The row of a job whose owner died just now, with its message; the broker has nothing of it."""
    with_short_times = SqliteLedger(stage.ledger_path, clock=SystemClock(), times=Times().scaled(SCALE))
    with_short_times.register("ghost", "host", [registered_name(NAMESPACE, "plain")])
    message = KeptMessage(BODY, b'{"headers":{"sw-job-key":"job"}}')
    values: dict[str, Any] = {
        "hop": 0,
        "body_sha256": hashlib.sha256(BODY).digest(),
        "counters": Counted(),
        "message": message,
    }
    row = with_short_times.claim(Claimed(JOB, None, "ghost", **(values | claimed)))
    with_short_times.close()
    assert row is not None
    return row


def fates(process: WorkerProcess) -> list[str]:
    return [str(line["fate"]) for line in process.lines("message_lost")]


CLAIM_AND_DONE = [
    # point, starts
    ("ledger.claim:after:1", 1),
    pytest.param("ledger.done:before:1", 2, marks=pytest.mark.slow),
]


@pytest.mark.long
@pytest.mark.parametrize(("point", "starts"), CLAIM_AND_DONE)
def test_a_claim_keeps_the_message_of_its_job(stage: Stage, point: str, starts: int) -> None:
    stage.send("plain", {})
    dies(stage, point)
    stage.lose("plain")

    assert fates(ends(stage, State.DONE)) == ["runs"]
    assert len(stage.lines("starts")) == starts, stage.logs()
    assert Counter(stage.lines("effects")) == {f"job {position}": 1 for position in range(10)}
    assert stage.ledger.message(JOB) is None


@pytest.mark.slow
def test_done_deletes_the_message_in_one_commit(stage: Stage) -> None:
    stage.send("plain", {})
    dies(stage, "ledger.done:after:1")

    assert stage.row("plain").state is State.DONE  # type: ignore[union-attr]
    assert stage.ledger.message(JOB) is None


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [
        "ledger.moved:after:1",
        *(
            pytest.param(point, marks=pytest.mark.slow)
            for point in ("ledger.moving:after:1", "adapter.publish:after:1", "ledger.moved:before:1")
        ),
    ],
)
def test_a_retry_comes_though_its_copy_is_lost(stage: Stage, point: str) -> None:
    stage.send("plain", {"fail": 1})
    dies(stage, point)
    stage.lose("plain")
    ends(stage, State.DONE)

    attempts = Counter(line.split()[1] for line in stage.lines("starts"))
    assert attempts == {"1": 1, "2": 1}, stage.logs()
    assert stage.row("plain").counters.attempts == 1  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["ledger.moving:after:3", "adapter.publish:after:3", "ledger.moved:before:3"])
def test_a_dead_letter_is_made_though_its_message_is_lost(stage: Stage, point: str) -> None:
    stage.send("plain", {"fail": 99})
    dies(stage, point)
    stage.lose("plain")
    ends(stage, State.DEAD)

    assert Counter(line.split()[1] for line in stage.lines("starts")) == {"1": 1, "2": 1, "3": 1}, stage.logs()
    row = stage.row("plain")
    assert row is not None
    assert (row.reason, row.counters.attempts) == ("exhausted", 3)
    assert stage.ledger.message(row.id) is not None
    assert stage.depth("plain.dead") >= 1


@pytest.mark.slow
@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("point", ["ledger.deferred:before:1", "ledger.deferred:after:1"])
def test_a_deferral_that_is_recorded_or_not_loses_nothing(stage: Stage, point: str, lost: bool) -> None:
    stage.send("plain", {})
    ghost(stage)
    dies(stage, point)
    if lost:
        stage.lose("plain")
    second = ends(stage, State.DONE)

    assert fates(second) == (["runs"] if lost else [])
    assert len(stage.lines("starts")) == 1, stage.logs()


@pytest.mark.long
@pytest.mark.parametrize(
    ("point", "losses"),
    [("ledger.claim:after:1", 2), pytest.param("ledger.claim:before:1", 1, marks=pytest.mark.slow)],
)
def test_a_process_dies_while_it_takes_an_orphan(stage: Stage, point: str, losses: int) -> None:
    ghost(stage)
    dies(stage, point)

    assert fates(ends(stage, State.DONE)) == ["runs"]
    assert len(stage.lines("starts")) == 1, stage.logs()
    assert stage.row("plain").counters.losses == losses  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["ledger.take_over:before:1", "ledger.take_over:after:1", "adapter.publish:after:1"])
def test_a_process_dies_while_it_finishes_the_settlement_of_an_orphan(stage: Stage, point: str) -> None:
    assert stage.ledger.moving(ghost(stage).token, Verdict(Moving.DEAD, "as asked", Counted(attempts=1)))
    dies(stage, point)

    assert fates(ends(stage, State.DEAD)) == ["dead"]
    assert stage.lines("starts") == []
    assert stage.depth("plain.dead") == (2 if point.startswith("adapter") else 1)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["ledger.lose:before:1", "ledger.lose:after:1"])
def test_a_process_dies_while_it_gives_an_orphan_up(stage: Stage, point: str) -> None:
    ghost(stage, counters=Counted(losses=4))
    dies(stage, point)

    assert fates(ends(stage, State.DEAD)) == ["dead"]
    assert stage.lines("starts") == []
    assert stage.row("plain").reason == "owner lost ×5"  # type: ignore[union-attr]
    assert stage.depth("plain.dead") == 1


KILLED_REPLAY = """
import os, signal, sys
from steadyworker import cli
from steadyworker.ledger.sqlite.ledger import SqliteLedger
real, when = SqliteLedger.replay, sys.argv.pop(1)
def replay(*arguments):
    if when == "after":
        real(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
SqliteLedger.replay = replay
cli.verbs(prog_name="steadyworker")
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_replay_dies_between_its_row_and_its_message(stage: Stage, when: str) -> None:
    stage.send("plain", {"fail": 99})
    first = worker(stage)
    stage.reaches("plain", State.DEAD)
    stage.empties("plain")
    first.terminate()
    first.ended(0)
    (stage.folder / "starts").unlink()
    command = [sys.executable, "-c", KILLED_REPLAY, when, "dead", "replay", PLAIN, "job"]
    stage._started(command, stage.environment(namespace=NAMESPACE)).ended(-signal.SIGKILL)
    assert stage.depth("plain.dead") == 1, "the letter is still here"

    again = JobId(NAMESPACE, "plain", "job", 1)
    if when == "before":
        assert stage.ledger.read(again) is None
        return
    second = worker(stage)
    second.reports("message_lost", fate="runs")
    stage.notes("starts", 3)
    second.terminate()
    second.ended(0)
    row = stage.ledger.read(again)
    assert row is not None
    assert (row.state, row.counters.attempts) == (State.DEAD, 3)
    assert Counter(line.split()[1] for line in stage.lines("starts")) == {"1": 1, "2": 1, "3": 1}, stage.logs()
