"""A folder with a Worker in it, and the `steadyworker` command in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.config.resolve import load
from tests.cli.kit import APP, Queues, Shell
from tests.support.ledgers import make_ledger


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "app.py").write_text(APP)
    return Shell(tmp_path)


@pytest.fixture
def queues(shell: Shell) -> Queues:
    """The state as a first worker process has left it, with a ledger."""
    options = load({"state_dir": str(shell.state)}, {}, shell.folder)
    make_ledger(options)
    return Queues(options)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
