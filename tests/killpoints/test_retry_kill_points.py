"""The steps of `retry` and `reschedule`, with SIGKILL before and after each: the job runs once more, and the delayed message is a duplicate."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.ledger.base import State
from tests.killpoints.test_replay_kill_points import killed, steadyworker
from tests.support.stage import Stage

POINTS = ("reschedule:before", "reschedule:after", "send:before", "send:after")
WORKER = "tests.killpoints.jobs:Patient"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def test_a_retry_that_dies_at_any_step_is_repeated_and_the_job_runs_once_more(stage: Stage) -> None:
    """The first message of each retry is still delayed at that moment, and arrives after the job has run."""
    keys = {f"{verb}-{point.replace(':', '-')}": (verb, point) for verb in ("retry", "reschedule") for point in POINTS}
    for key in keys:
        stage.send("patient", {}, key=key)
    worker = stage.worker(WORKER)
    for key in keys:
        stage.reaches("patient", State.MOVED, key=key)
    worker.terminate()
    worker.ended(0)

    for key, (verb, point) in keys.items():
        more = ["--delay", "0.1"] if verb == "reschedule" else []
        assert killed(stage, point, verb, "patient", key, *more) == -signal.SIGKILL, key
        repeated = steadyworker(stage, verb, "patient", key, *more)
        assert repeated.exit_code == 0, (key, repeated.output)

    worker = stage.worker(WORKER)
    for key in keys:
        stage.reaches("patient", State.DONE, key=key)
    stage.empties("patient")
    worker.terminate()
    worker.ended(0)
    starts = Counter(tuple(line.split()[:2]) for line in stage.lines("starts"))
    assert starts == {(key, str(attempt)): 1 for key in keys for attempt in (1, 2)}, stage.logs()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_retry_that_nobody_repeats_runs_from_the_ledger(stage: Stage) -> None:
    """The command died between the ledger's write and the message; the delayed message counts as a duplicate."""
    stage.send("patient", {})
    worker = stage.worker(WORKER)
    stage.reaches("patient", State.MOVED)
    assert killed(stage, "reschedule:after", "retry", "patient", "job") == -signal.SIGKILL
    stage.reaches("patient", State.DONE, within=600.0)
    stage.empties("patient")
    worker.terminate()
    worker.ended(0)
    assert [line.split()[1] for line in stage.lines("starts")] == ["1", "2"]
