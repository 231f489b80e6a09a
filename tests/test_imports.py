"""
What each kind of process imports before it does anything: nearly all the time that a start takes.

Each case is the modules of a fresh process after one import, and names those that it must do without.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

# The other half of the house: a child speaks frames, and knows neither the broker's side nor the command line.
_OURS = ("cli", "service", "runner", "events", "ledger", "backends", "config", "client", "deadletters")
_PARENTS_ONLY = {f"steadyworker.{name}" for name in _OURS} | {"click", "tomllib", "sqlite3", "http", "email"}
_JVM = {"pyspark", "py4j", "pyarrow"}


@pytest.mark.parametrize(
    ("imported", "without"),
    [
        # The first child is started here, before the rest is imported.
        (
            "steadyworker.cli.run",
            {"structlog", "asyncio", "rich", "tenacity", "sqlite3", "tomllib", "steadyworker.service.launch", *_JVM},
        ),
        (
            "steadyworker.service.launch",
            {"click", "steadyworker.cli", "steadyworker.client", "steadyworker.testing", *_JVM},
        ),
        ("steadyworker.slots.child", _PARENTS_ONLY | _JVM),
        ("steadyworker", {"msgspec", "structlog", "click", "dataclasses"}),
    ],
)
def test_a_start_imports_no_more_than_it_needs(imported: str, without: set[str]) -> None:
    code = f"import sys, {imported}; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    modules = set(said.stdout.split())
    assert imported in modules
    assert modules & without == set()
