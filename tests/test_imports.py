"""
What each kind of process imports before it does anything: nearly all the time that a start takes.

Each case is the modules of a fresh process after one import, and names those that it must do without.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

# The other half of the house: a child reads and writes frames, and knows neither the broker's side nor the command line.
_OURS = (
    "cli",
    "exports",
    "diagnosis",
    "service",
    "runner",
    "events",
    "ledger",
    "backends",
    "config",
    "client",
    "deadletters",
)
_PARENTS_ONLY = {f"steadyworker.{name}" for name in _OURS} | {"click", "tomllib", "sqlite3", "http", "email"}
_JVM = {"pyspark", "py4j", "pyarrow"}


@pytest.mark.parametrize(
    ("imported", "without"),
    [
        (
            "steadyworker.service.launch",
            {
                "click",
                *(f"steadyworker.{name}" for name in ("cli", "client", "testing", "exports", "diagnosis")),
                *("asyncio", "http.server", "structlog", "rich"),
                *_JVM,
            },
        ),
        ("steadyworker.slots.child", _PARENTS_ONLY | _JVM | {"asyncio", "structlog", "rich"}),
        ("steadyworker", {"msgspec", "structlog", "click", "dataclasses"}),
    ],
)
def test_a_start_imports_no_more_than_it_needs(imported: str, without: set[str]) -> None:
    code = f"import sys, {imported}; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    modules = set(said.stdout.split())
    assert imported in modules
    assert modules & without == set()


APP = """
import atexit
import os
import sys
from pathlib import Path

from steadyworker import Job, Worker


def write_modules(of: str) -> None:
    Path(f"modules-of-{of}").write_text(" ".join(sys.modules))


class Plain(Worker[bytes]):
    queue = "plain"
    time_limit = 60
    isolation = os.environ["ISOLATION"]

    def handle(self, job: Job[bytes]) -> None:
        job.checkpoint(1)
        write_modules(f"run-{os.getpid()}")


atexit.register(write_modules, f"end-{os.getpid()}")
"""

_LEFT_OUT = ("steadyworker.exports", "steadyworker.diagnosis", "opentelemetry")


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_sender_and_worker_process_import_no_side_house_and_no_tracing_that_they_do_not_need(
    tmp_path: Path, isolation: str
) -> None:
    """Neither the sender, nor the worker process at its end nor its child during a run; a retry's warnings would import the catalogue."""
    (tmp_path / "app.py").write_text(APP)
    environ = {**os.environ, "STEADYWORKER_STATE_DIR": str(tmp_path / "state"), "ISOLATION": isolation}
    for arguments in (["send", "app:Plain", "-"], ["run", "app:Plain", "--max-jobs", "1"]):
        command = [sys.executable, "-m", "steadyworker", *arguments]
        subprocess.run(command, cwd=tmp_path, env=environ, input=b"body", check=True, timeout=60)

    files = [path.name for path in tmp_path.glob("modules-of-*")]
    assert len([name for name in files if "run" in name]) == 1
    assert len([name for name in files if "end" in name]) == (3 if isolation == "process" else 2), (
        "sender, worker, child"
    )
    for path in tmp_path.glob("modules-of-*"):
        modules = path.read_text().split()
        assert "steadyworker.job" in modules
        assert [name for name in modules if name.startswith(_LEFT_OUT)] == []


def test_files_of_a_user_hide_no_library_that_is_imported_late(tmp_path: Path) -> None:
    (tmp_path / "ssl.py").write_text("raise SystemExit('imported the file of the user')")
    program = """
import sys
from steadyworker.telemetry.late_imports import libraries_first
sys.path.insert(0, sys.argv[1])
before = sys.path[:]
with libraries_first():
    import asyncio, ssl
assert sys.path == before
print(ssl.__file__.startswith(sys.argv[1]))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("False\n", "", 0)
