"""A command of `steadyworker` that SIGKILL ends before or after its first call of a step, which `KILL_AT` names."""

from __future__ import annotations

import os
import signal
from typing import Any

from steadyworker.cli import verbs
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker_sqlite.adapter import SqliteDeadLetters

STEPS: dict[str, type[Any]] = {
    "replay": SqliteLedger,
    "publish": SqliteDeadLetters,
    "drop": SqliteDeadLetters,
    "forget": SqliteLedger,
}


def die() -> None:
    """Die as by the kernel."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    step, _, when = os.environ["KILL_AT"].partition(":")
    real = getattr(STEPS[step], step)

    def killing(*arguments: Any) -> None:
        """Die before the call, or after it."""
        if when == "after":
            real(*arguments)
        die()

    setattr(STEPS[step], step, killing)
    verbs(prog_name="steadyworker")
