"""The Worker of the first page, and commands about its deployment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.examples.pages import Page

BROKER, LEDGER = "amqps://broker.example:5671", "postgresql://ledger.example:5432/jobs"
"""The places for which `deploy/kubernetes` was printed."""

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with the first page's programs."""
    for name, text in Page("README.md").files().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def command(desk: Path) -> Command:
    """Run `steadyworker` with these arguments at the desk."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "steadyworker", *arguments], cwd=desk, capture_output=True, text=True, check=False
        )

    return run
