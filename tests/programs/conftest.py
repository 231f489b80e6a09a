"""Worker processes whose jobs are programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.stage import Stage, WorkerProcess

Exec = Callable[..., WorkerProcess]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.fixture
def exec_(stage: Stage) -> Exec:
    """Start `steadyworker exec` on the queue `work`; the program is a shell script, or an own command line."""

    def start(script: str | list[str], *options: str, **settings: object) -> WorkerProcess:
        program = ["sh", "-c", script, "job"] if isinstance(script, str) else script
        limit = () if "--time-limit" in options else ("--time-limit", "60")
        given = {"delays": "1", "log_format": "json", **settings}
        return stage.command("exec", "--queue", "work", *limit, *options, "--", *program, **given)  # type: ignore[arg-type]

    return start
