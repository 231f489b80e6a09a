"""`on_dead` in whole worker processes: once for each job that was given up, whatever ends the process that calls it."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from steadyworker import Client
from steadyworker.ledger.base import State
from tests.brokers.rabbitmq import Vhost
from tests.support.stage import Stage, eventually, processes_at

pytestmark = pytest.mark.processes

HERE = "tests.service.alerting"
MAIN = Path(__file__).with_name("alerting.py")
LINE = "job no such table 1 17"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    made.main = MAIN
    yield made
    made.close()


def dies(stage: Stage, key: str = "job", **asked: Any) -> None:
    """Send a job that the Worker gives up."""
    stage.send("alerts", {"of": 1, **asked}, key=key)


def owed(stage: Stage) -> int:
    """How many calls the ledger still owes."""
    with closing(sqlite3.connect(stage.ledger_path, timeout=20)) as ledger:
        return int(ledger.execute("SELECT count(*) FROM owed_calls").fetchone()[0])


def nothing_is_owed(stage: Stage) -> None:
    eventually(lambda: owed(stage) == 0, "no call is owed", report=stage.logs)


@pytest.mark.parametrize("worker", ["Alerts", "ThreadAlerts", "AsyncAlerts"])
def test_each_job_that_was_given_up_has_one_call(stage: Stage, worker: str) -> None:
    process = stage.worker(f"{HERE}:{worker}").started()
    dies(stage, "a")
    stage.send("alerts", {"done": True}, key="b")
    dies(stage, "c")
    stage.reaches("alerts", State.DONE, "b")
    stage.notes("finished", 2)
    nothing_is_owed(stage)
    with Client(**stage.urls) as client:
        assert [client.status("alerts", key).result for key in ("a", "b")] == [None, {"rows": 17}]
    assert sorted(stage.lines("dead")) == ["a no such table 1 17", "c no such table 1 17"]
    process.terminate()
    process.ended(0)
    assert [line["key"] for line in process.lines("on_dead_called")] == ["a", "c"]


def test_a_payload_that_does_not_decode_is_none(stage: Stage) -> None:
    stage.worker(f"{HERE}:Alerts").started()
    with Client(**stage.urls) as client:
        client.send("alerts", b"[1]", key="job")
    (line,) = stage.notes("dead", 1)
    assert line == "job bad-payload: $: expected object, got array None None"


def test_a_request_of_a_job_that_has_ended_is_refused(stage: Stage) -> None:
    """The call ends as one that raised; the checkpoint stays that of the last run."""
    process = stage.worker(f"{HERE}:Alerts").started()
    dies(stage, asks=True)
    process.reports("on_dead_given_up")
    assert stage.lines("dead") == [LINE] * 5
    assert stage.lines("finished") == []


def test_a_call_that_fails_is_repeated_and_given_up_after_five_tries(stage: Stage) -> None:
    process = stage.worker(f"{HERE}:Alerts").started()
    dies(stage, fails=9)
    line = process.reports("on_dead_given_up")
    assert (line["reason"], line["tries"], line["level"]) == ("ValueError: the chat is away", 5, "error")
    assert len(process.lines("on_dead_again")) == 4
    assert {each["explain"] for each in process.lines("on_dead_failed")} == {"steadyworker.on-dead-failed"}
    nothing_is_owed(stage)
    assert stage.lines("dead") == [LINE] * 5
    assert not process.lines("job_failed")


@pytest.mark.parametrize(
    ("point", "calls"),
    [
        ("ledger.moving:after:1", 1),
        ("adapter.publish:after:1", 1),
        ("ledger.moved:before:1", 1),
        ("ledger.moved:after:1", 1),
        ("ledger.message:after:1", 1),
        ("ledger.end_call:before:1", 2),
        ("ledger.end_call:after:1", 1),
    ],
)
def test_a_killed_process_costs_no_call(stage: Stage, point: str, calls: int) -> None:
    first = stage.worker(f"{HERE}:Alerts", script={"point": point})
    dies(stage)
    first.ended(-signal.SIGKILL)
    stage.worker(f"{HERE}:Alerts").started()
    stage.notes("finished", calls)
    nothing_is_owed(stage)
    assert stage.lines("dead") == [LINE] * calls


def test_a_process_that_is_killed_in_a_call_leaves_it_to_a_quiet_one(stage: Stage) -> None:
    """A quiet process receives no message, but makes calls."""
    first = stage.worker(f"{HERE}:Alerts").started()
    dies(stage, gate="gate")
    stage.notes("dead", 1)
    second = stage.worker(f"{HERE}:Alerts").started()
    second.send_signal(signal.SIGUSR1)
    second.reports("stage_changed", stage="quiet")
    first.kill()
    stage.open()
    assert stage.notes("dead", 2) == [LINE] * 2
    second.reports("on_dead_called")
    nothing_is_owed(stage)


def test_max_jobs_waits_for_the_call_of_its_last_job(stage: Stage) -> None:
    process = stage.worker(f"{HERE}:Alerts", max_jobs=1)
    dies(stage)
    process.ended(0)
    assert stage.lines("finished") == ["job"]
    assert owed(stage) == 0


def test_a_draining_process_waits_for_its_call(stage: Stage) -> None:
    process = stage.worker(f"{HERE}:Alerts").started()
    dies(stage, gate="gate")
    stage.notes("dead", 1)
    process.terminate()
    process.reports("stage_changed", stage="draining")
    stage.open()
    process.ended(0)
    assert stage.lines("finished") == ["job"]
    assert owed(stage) == 0


def test_a_call_that_outlasts_the_stop_is_repeated_by_another_process(stage: Stage) -> None:
    process = stage.worker(f"{HERE}:Alerts", stop_within=5).started()
    dies(stage, gate="gate")
    stage.notes("dead", 1)
    process.terminate()
    process.wait(60)
    stage.open()
    stage.worker(f"{HERE}:Alerts").started()
    stage.notes("finished", 1)
    nothing_is_owed(stage)
    assert stage.lines("dead") == [LINE] * 2


def test_a_cancelled_job_has_no_call(stage: Stage) -> None:
    with stage_worker_made_ledger(stage) as client:
        client.cancel("alerts", "job", "wrong month")
        dies(stage)
        stage.reaches("alerts", State.DEAD)
        assert owed(stage) == 0
    assert stage.lines("dead") == []


def stage_worker_made_ledger(stage: Stage) -> Client:
    """Start a worker process, and return a client that knows its queue."""
    stage.worker(f"{HERE}:Alerts").started()
    stage.send("alerts", {"done": True}, key="first")
    stage.reaches("alerts", State.DONE, "first")
    return Client(**stage.urls)


def test_a_worker_without_on_dead_owes_no_call(stage: Stage) -> None:
    process = stage.worker(f"{HERE}:NoAlerts").started()
    dies(stage)
    stage.reaches("alerts", State.DEAD)
    assert owed(stage) == 0
    process.terminate()
    process.ended(0)


def test_a_dead_job_of_rabbitmq_has_one_call(tmp_path: Path, vhost: Vhost) -> None:
    with processes_at(f"{vhost.url}?management=off", tmp_path) as place:
        place.main = MAIN
        process = place.worker(f"{HERE}:Alerts", ledger_reach="host").started()
        place.send("alerts", {"of": 1})
        place.notes("finished", 1)
        place.send("alerts", {"done": True}, key="b")
        place.reaches("alerts", State.DONE, "b")
        with Client(**place.urls) as client:
            assert client.status("alerts", "b").result == {"rows": 17}
        process.reports("on_dead_called")
        process.terminate()
        process.ended(0)
        assert place.lines("dead") == [LINE]
