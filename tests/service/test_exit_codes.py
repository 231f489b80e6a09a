"""Why a worker process ends, and what its exit code means."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.ledger.base import State
from tests.support.stage import Stage, eventually

JOBS = "tests.support.jobs"
STEPS = f"{JOBS}:Steps"


def test_0_after_so_many_jobs_and_not_one_more(stage: Stage) -> None:
    for number in range(4):
        stage.send("steps", {"steps": 1}, key=f"job-{number}")
    stage.command("run", STEPS, "--max-jobs", "2").ended(0)
    assert len(stage.lines("starts")) == 2
    assert stage.ready("steps") == stage.depth("steps") == 2


def test_0_after_so_long_without_a_job(stage: Stage) -> None:
    stage.send("steps", {"steps": 1})
    process = stage.command("run", STEPS, "--idle-exit", "0.5")
    process.ended(0)
    assert stage.reaches("steps", State.DONE)
    assert process.reports("worker_stopped")["reasons"] == ["--idle-exit: idle for 0.5 s"]


def test_69_when_the_broker_is_away_for_too_long(stage: Stage) -> None:
    """It answers who it is, and takes no consumer."""
    stage.send("steps", {})
    with stage.locked(stage.broker):
        process = stage.command("run", STEPS, "--give-up-after", "1")
        process.ended(69)
    assert "the broker was unreachable for 1 s" in process.reports("worker_stopped")["reasons"][0]
    assert stage.lines("starts") == []


def test_75_when_the_worker_process_has_grown_too_large(stage: Stage) -> None:
    process = stage.command("run", STEPS, "--max-rss", "1 MiB")
    process.ended(75)
    assert "--max-rss" in process.reports("worker_stopped")["reasons"][0]


def test_78_for_a_setting_that_makes_no_sense(stage: Stage) -> None:
    process = stage.command("run", STEPS, stop_within="soon")
    process.ended(78)
    assert "STEADYWORKER_STOP_WITHIN" in process.log.read_text()


@pytest.mark.processes
def test_a_program_that_ends_with_run_has_the_exit_code_without_sys_exit(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(
        "from steadyworker import Worker\n"
        "class Exports(Worker[bytes]):\n"
        "    queue, time_limit = 'exports', 60\n"
        "    def handle(self, job): pass\n"
    )

    def ended(settings: str) -> int:
        program = f"from steadyworker import run; from jobs import Exports; run(Exports, {settings})"
        environ = {**os.environ, "STEADYWORKER_STATE_DIR": str(tmp_path / "state")}
        return subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environ, check=False).returncode

    assert ended("stop_within='soon'") == 78
    assert ended("idle_exit=0.1") == 0


def test_78_for_two_workers_on_one_queue(stage: Stage) -> None:
    process = stage.command("run", STEPS, f"{JOBS}:Twin")
    process.ended(78)
    assert "Expected one Worker for each queue" in process.log.read_text()


def test_78_for_a_broker_file_that_is_another_programs(stage: Stage) -> None:
    with closing(sqlite3.connect(stage.broker)) as other:
        other.execute("CREATE TABLE songs (name TEXT)")
    process = stage.command("run", STEPS)
    process.ended(78)
    assert "another program" in process.log.read_text()


def test_78_for_a_namespace_of_another_broker(stage: Stage) -> None:
    stage.command("run", STEPS, "--namespace", "shop", "--idle-exit", "0.1").ended(0)
    process = stage.command("run", STEPS, "--namespace", "shop", broker=f"sqlite:{stage.folder / 'another.db'}")
    process.ended(78)
    assert "to which namespace 'shop' and queue" in process.log.read_text()


def test_70_when_a_thread_does_not_end(stage: Stage) -> None:
    """A handler in a thread cannot be killed; the worker process goes instead, with all that it has started."""
    stage.send("stuck", {})
    process = stage.worker(f"{JOBS}:Stuck")
    process.ended(70)
    assert stage.row("stuck").counters.attempts == 1  # type: ignore[union-attr]
    assert stage.lines("starts") == ["job 1 0"]
    (subprocess,) = stage.lines("subprocesses")
    eventually(lambda: not psutil.pid_exists(int(subprocess)), "the guard ends its subprocess", within=10)


def test_a_broker_that_stays_away_is_reported_once(stage: Stage) -> None:
    """A retry repeats neither the check's finding nor the error: only what is new is news."""
    with stage.locked(stage.broker):
        process = stage.worker(STEPS, give_up_after=4)
        process.ended(69)
    assert len(process.lines("backend_unreachable")) == 1
    assert ["does not respond" in line["what"] for line in process.lines("check_warning")].count(True) == 1
