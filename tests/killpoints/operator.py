"""A command of `steadyworker` that SIGKILL ends before or after its first call of a step, which `KILL_AT` names."""

from __future__ import annotations

import os
import signal
from typing import Any

from steadyworker.cli import verbs
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker_sqlite.adapter import SqliteAdapter, SqliteDeadLetters

STEPS: dict[str, type[Any]] = {
    "replay": SqliteLedger,
    "publish": SqliteDeadLetters,
    "drop": SqliteDeadLetters,
    "forget": SqliteLedger,
    "reschedule": SqliteLedger,
    "send": SqliteAdapter,
}
NAMES = {"send": "publish"}
"""The name of the call, where a step has another name."""


def die() -> None:
    """Die as by the kernel."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    step, _, when = os.environ["KILL_AT"].partition(":")
    name = NAMES.get(step, step)
    real = getattr(STEPS[step], name)

    def killing(*arguments: Any, **options: Any) -> None:
        """Die before the call, or after it."""
        if when == "after":
            real(*arguments, **options)
        die()

    setattr(STEPS[step], name, killing)
    verbs(prog_name="steadyworker")
