"""Processes of SteadyWorker start in any folder: what lies there never stands for a module of the standard library."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from steadyworker.system.interpreter import command

pytestmark = pytest.mark.processes

SHADOWED = ("ctypes", "json", "queue", "select", "signal", "socket", "struct", "subprocess", "threading", "typing")


@pytest.mark.parametrize(
    ("module", "bare"),
    [
        ("steadyworker.slots.child", False),
        ("steadyworker.slots.guard_process", True),
        ("steadyworker.exports.spark.host", False),
    ],
)
def test_each_program_starts_beside_modules_of_such_names(tmp_path: Path, module: str, bare: bool) -> None:
    """Without arguments each of them fails in its first lines."""
    for name in (*SHADOWED, "steadyworker"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('the user`s own {name}.py')\n", encoding="utf-8")
    ended = subprocess.run(command(module, bare=bare), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "IndexError: list index out of range" in ended.stderr
    assert "the user`s own" not in ended.stderr
