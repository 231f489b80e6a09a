"""What a person at a shell sees of worker processes: commands in this process, and the lines that they print."""

from __future__ import annotations

import json
import re
from typing import Any

from click.testing import CliRunner, Result

from steadyworker.cli import verbs
from tests.support.stage import Processes, eventually


def steadyworker(processes: Processes, *arguments: str) -> Result:
    """Run a command with the broker and the ledger of these worker processes; its output is no terminal."""
    return CliRunner().invoke(verbs, arguments, env=processes.environment())


def screen(processes: Processes, *arguments: str) -> str:
    """Return what a command prints; it must succeed."""
    done = steadyworker(processes, *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def records(processes: Processes, *arguments: str) -> list[Any]:
    """Return the records that a command prints with `--json`."""
    return [json.loads(line) for line in screen(processes, *arguments, "--json").splitlines()]


def waits(processes: Processes, queue: str, **expected: int | None) -> Any:
    """Wait until `queues` shows these numbers of the queue, and return its record."""

    def found() -> Any:
        (record,) = (each for each in records(processes, "queues") if each["queue"] == queue)
        return record

    def as_expected() -> Any:
        record = found()
        return record if {name: record[name] for name in expected} == expected else None

    return eventually(as_expected, f"{queue}: {expected}", report=lambda: f"{found()}\n{processes.logs()}")


def assert_lines(text: str, *patterns: str) -> None:
    """Each pattern is the whole of exactly one line."""
    for pattern in patterns:
        assert sum(re.fullmatch(pattern, line) is not None for line in text.splitlines()) == 1, f"{pattern}\n{text}"
