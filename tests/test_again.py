"""What failed once is tried again, and forgiven only for three passes in a row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
RUNS = """
from pathlib import Path
import pytest

def runs(name):
    with Path(name).open("a+") as file:
        file.write("x")
        return file.tell()

@pytest.mark.parametrize("number", range({others}))
def test_other(number):
    runs("other")

def test_one():
    assert runs("one") in {passes}

@pytest.mark.parametrize("number", range({bad}))
def test_bad(number):
    assert runs("bad") > {bad}
"""


PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
"""Nothing else is needed, and fifteen runs of pytest start sooner."""


def _again(folder: Path, *, passes: set[int], bad: int = 0, workers: int = 0) -> tuple[int, str]:
    folder.joinpath("test_here.py").write_text(RUNS.format(others=3, passes=passes or "()", bad=bad))
    done = subprocess.run(
        [sys.executable, ROOT / "tests/again.py", "-n", str(workers)],
        cwd=folder,
        env={**os.environ, **PLUGINS},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def _runs(folder: Path, name: str) -> int:
    return len(folder.joinpath(name).read_text())


def test_a_green_run_is_run_once(tmp_path: Path) -> None:
    code, said = _again(tmp_path, passes={1})
    assert (code, _runs(tmp_path, "one"), _runs(tmp_path, "other")) == (0, 1, 3), said
    assert "UNSTEADY" not in said


def test_what_failed_once_and_then_passes_three_times_is_named(tmp_path: Path) -> None:
    """With xdist, as `make test` runs it."""
    code, said = _again(tmp_path, passes={2, 3, 4}, workers=2)
    assert (code, _runs(tmp_path, "one"), _runs(tmp_path, "other")) == (0, 4, 3), said
    assert "UNSTEADY test_here.py::test_one: failed once, then passed 3 times" in said


@pytest.mark.parametrize(("passes", "runs"), [(set(), 2), ({2}, 3), ({2, 3}, 4)])
def test_what_fails_again_fails(tmp_path: Path, passes: set[int], runs: int) -> None:
    code, said = _again(tmp_path, passes=passes)
    assert (code, _runs(tmp_path, "one")) == (1, runs), said
    assert "UNSTEADY" not in said


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    """They would all pass the second time."""
    code, said = _again(tmp_path, passes={1}, bad=13)
    assert (code, _runs(tmp_path, "bad")) == (1, 13), said
