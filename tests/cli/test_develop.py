"""The loop of a developer: a Worker in a file, changed while it runs, stopped at a breakpoint."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.ledger.base import State
from tests.support.stage import WITHIN, Stage, eventually

APP = """
import time
from pathlib import Path

from steadyworker import Worker, run

class Steps(Worker):
    queue = "steps"
    time_limit = 60

    def handle(self, job):
        with Path("starts").open("a") as starts:
            starts.write(f"{job.key} VERSION\\n")
        while job.key == "long" and not Path("gate").exists():
            time.sleep(0.02)
"""

GUARDED = 'if __name__ == "__main__":\n    run(Steps, max_jobs=1)\n'
UNGUARDED = "run(Steps, max_jobs=1)\n"
INLINE = """
import time
from steadyworker import Worker

class Paused(Worker):
    queue = "paused"
    time_limit = 1
    concurrency = 4

    def handle(self, job):
        answer = 42
        breakpoint()
        time.sleep(1.5)
        print("went on with", answer)
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def write(stage: Stage, text: str, version: str = "one", name: str = "app.py") -> None:
    (stage.folder / name).write_text(text.replace("VERSION", version))


def script(stage: Stage) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "app.py"]
    return subprocess.run(
        command, cwd=stage.folder, env=stage.environment(), capture_output=True, text=True, timeout=60, check=False
    )


def test_a_worker_is_run_by_its_file(stage: Stage) -> None:
    (stage.folder / "src").mkdir()
    write(stage, APP, name="src/app.py")
    stage.send("steps", {}, key="k")
    stage.command("run", "src/app.py:Steps", max_jobs=1).ended(0)
    assert stage.lines("starts") == ["k one"]


def test_a_worker_in_the_file_that_is_executed_runs_in_child_processes(stage: Stage) -> None:
    write(stage, APP + GUARDED)
    stage.send("steps", {}, key="k")
    done = script(stage)
    assert done.returncode == 0, done.stderr
    assert stage.lines("starts") == ["k one"]


def test_a_run_that_each_child_would_repeat_is_refused_with_what_to_do(stage: Stage) -> None:
    write(stage, APP + UNGUARDED)
    stage.send("steps", {}, key="k")
    done = script(stage)
    assert done.returncode == 70
    assert "put the call of run below `if __name__ == '__main__':`" in done.stdout + done.stderr
    assert stage.lines("starts") == []


def test_a_changed_file_is_run_after_the_job_that_is_under_way(stage: Stage) -> None:
    """The process id stays, so that a terminal and a container notice nothing."""
    write(stage, APP)
    stage.send("steps", {}, key="long")
    process = stage.command("run", "app.py:Steps", "--reload", log_format="json")
    stage.notes("starts", 1)
    write(stage, APP, "two, and longer")
    process.reports("stage_changed", stage="quiet", reason="--reload: app.py changed")
    stage.send("steps", {}, key="next")
    assert stage.lines("starts") == ["long one"]
    stage.open()
    assert stage.notes("starts", 2) == ["long one", "next two, and longer"]
    assert stage.reaches("steps", State.DONE, "long").counters.interruptions == 0
    process.terminate()
    process.ended(0)


def test_a_file_that_is_broken_for_a_while_ends_nothing(stage: Stage) -> None:
    write(stage, APP)
    process = stage.command("run", "app.py:Steps", "--reload", log_format="json").started()
    write(stage, "def broken(:\n")
    eventually(lambda: "Waiting for a change below" in process.log_end(), "a message", WITHIN, process.log_end)
    assert "app.py:1" in process.log_end()
    stage.send("steps", {}, key="k")
    write(stage, APP, "three")
    assert stage.notes("starts", 1) == ["k three"]
    process.terminate()
    process.ended(0)


def test_a_breakpoint_works_in_the_worker_process_itself(stage: Stage) -> None:
    """Also for longer than the time limit, and with one job at a time."""
    write(stage, INLINE)
    stage.send("paused", {}, key="k")
    command = [sys.executable, "-m", "steadyworker", "run", "app.py:Paused", "--inline", "--max-jobs", "1"]
    done = subprocess.run(
        command,
        cwd=stage.folder,
        env={**stage.environment(), "PYTHONUNBUFFERED": "1"},
        input="p answer\nc\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\(Pdb\) 42\b", done.stdout)
    assert "went on with 42" in done.stdout
    assert stage.reaches("paused", State.DONE, "k").counters.attempts == 0
