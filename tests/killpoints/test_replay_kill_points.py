"""The steps of `dead replay`, with SIGKILL before and after each: whatever an operator does next, the job runs once more."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from steadyworker.backends.opening import open_adapter_for
from steadyworker.cli import verbs
from steadyworker.config.resolve import load
from steadyworker.ledger.base import JobFilter, State
from tests.support.stage import ROOT, Stage, eventually

POINTS = {f"{step}:{when}" for step in ("replay", "publish", "drop", "forget") for when in ("before", "after")}
"""Each of them is a letter's, and all but those of `drop` also those of a letter that is gone."""

GONE = "gone-"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def steadyworker(stage: Stage, *arguments: str) -> Result:
    return CliRunner().invoke(verbs, arguments, env=stage.environment())


def killed(stage: Stage, point: str, *arguments: str) -> int:
    """The exit code of this command, which dies at a point."""
    command = [sys.executable, "-m", "tests.killpoints.operator", *arguments]
    environment = stage.environment() | {"KILL_AT": point}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=60, check=False).returncode


def test_a_replay_that_dies_at_any_step_is_repeated_and_the_job_runs_once_more(stage: Stage) -> None:
    keys = {point.replace(":", "-"): point for point in POINTS}
    keys |= {f"{GONE}{key}": point for key, point in keys.items() if not point.startswith("drop")}
    for key in keys:
        stage.send("plain", {"fail": 99}, key=key)
    worker = stage.worker("tests.killpoints.jobs:Plain")
    for key in keys:
        stage.reaches("plain", State.DEAD, key=key)
    stage.empties("plain")
    worker.terminate()
    worker.ended(0)
    drop_letters(stage, {key for key in keys if key.startswith(GONE)})

    for key, point in keys.items():
        assert killed(stage, point, "dead", "replay", "plain", key) == -signal.SIGKILL, key
    for key, point in keys.items():
        said = steadyworker(stage, "dead", "replay", "plain", key)
        # Without its letter, a job whose next round is written has been replayed; `retry` sends a message that is missing.
        replayed = point in {"drop:after", "forget:before", "forget:after"} or (
            key.startswith(GONE) and point != "replay:before"
        )
        assert said.exit_code == int(replayed), (key, said.output)
        if replayed:
            assert f"`steadyworker retry plain {key}` sends it again" in said.output
            if point in {"replay:after", "publish:before"}:
                assert steadyworker(stage, "retry", "plain", key).exit_code == 0

    worker = stage.worker("tests.killpoints.jobs:Plain")
    eventually(lambda: ended(stage) == dict.fromkeys(keys, 1), "each has ended in round 1", report=stage.logs)
    stage.empties("plain")
    worker.terminate()
    worker.ended(0)
    starts = Counter(tuple(line.split()[:2]) for line in stage.lines("starts"))
    assert starts == {(key, str(attempt)): 2 for key in keys for attempt in (1, 2, 3)}, stage.logs()
    letters = steadyworker(stage, "dead", "list", "plain", "--json").output.splitlines()
    assert len(letters) == len(keys)


def ended(stage: Stage) -> dict[str, int]:
    """The last round of each key whose last round is dead."""
    rows = [row for row, _ in stage.ledger.jobs(JobFilter(queue="plain"))]
    last = {row.id.key: row for row in sorted(rows, key=lambda row: row.id.round)}
    return {key: row.id.round for key, row in last.items() if row.state is State.DEAD}


def drop_letters(stage: Stage, keys: set[str]) -> None:
    """Drop these letters as another tool does, which does not know of the ledger."""
    options = load({"broker": stage.urls["broker"], "state_dir": str(stage.folder / "state")}, {}, stage.folder)
    with open_adapter_for("plain", options).dead_letters() as held:
        for letter in held:
            if letter.headers["sw-job-key"] in keys:
                held.drop(letter)
