"""The pytest plugin, as a project that installed SteadyWorker has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TEST = """
from steadyworker.worker import Worker

class Mails(Worker[bytes]):
    queue = "mails"
    time_limit = 60

    def handle(self, job):
        pass

def test_one(harness):
    h = harness(Mails)
    key = h.send(Mails, b"")
    h.wait(key, until="done")
    assert h.starts(key) == 1
"""


def test_the_fixture_is_there_without_any_import(tmp_path: Path) -> None:
    (tmp_path / "test_mails.py").write_text(TEST)

    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mails.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout


def test_loading_the_plugin_loads_nothing_else_of_ours() -> None:
    """Every pytest start in every project pays for it, and coverage would miss what it imports."""
    code = "import sys, steadyworker.testing.plugin; print(*sorted(m for m in sys.modules if m.startswith('steadyworker')))"

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.split() == ["steadyworker", "steadyworker.testing", "steadyworker.testing.plugin"]
