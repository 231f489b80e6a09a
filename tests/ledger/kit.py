"""What the tests of both ledgers share: small worker processes that are told what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]

Actor = Callable[..., "subprocess.Popen[str]"]


def started(temporary: Path, part: str, *arguments: object) -> subprocess.Popen[str]:
    """Start an actor that plays this part, with a folder for its temporary files."""
    command = [sys.executable, str(Path(__file__).with_name("actors.py")), part, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line that this actor says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], words: str) -> None:
    """Tell this actor something."""
    assert process.stdin is not None
    process.stdin.write(f"{words}\n")
    process.stdin.flush()
