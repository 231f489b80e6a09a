"""
The Workers that are killed: each start, each effect and each export leaves a line in a file, so that they can be counted.

`KILL_IN_CHILD` names what the child kills itself (`child`) or its worker process (`worker`) at; the parent's points are `tests/support/main.py`'s.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tenacity import wait_fixed

from steadyworker import Job, Retry, RetryPolicy, Worker
from steadyworker.exports import RowExport

FOLDER = Path(os.environ.get("STAGE_FOLDER", "."))
ROWS = 500


def note(file: str, line: str) -> None:
    """Append a line, in one write."""
    with (FOLDER / file).open("a") as out:
        out.write(f"{line}\n")


def struck(point: str) -> None:
    """Kill whoever is named, the first time that this point is reached."""
    where, _, whom = os.environ.get("KILL_IN_CHILD", "").partition("/")
    if where != point:
        return
    try:
        (FOLDER / "struck").open("x").close()
    except FileExistsError:
        return
    if whom == "worker":
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()  # the parent's death ends us
    os.kill(os.getpid(), signal.SIGKILL)


class Plain(Worker[dict[str, Any], int]):
    """Counts to ten, saving each position; may fail first."""

    queue = "plain"
    time_limit = 60
    retry = RetryPolicy(max_attempts=3, wait=wait_fixed(0.2))

    def handle(self, job: Job[dict[str, Any], int]) -> None:
        note("starts", f"{job.key} {job.attempt} {job.last_checkpoint or 0}")
        if job.payload.get("fail", 0) >= job.attempt:
            raise ValueError("as asked")
        for position in range(job.last_checkpoint or 0, 10):
            note("effects", f"{job.key} {position}")
            job.checkpoint(position + 1)
            struck(f"mid-job:{position + 1}")
        struck("returning")


class Patient(Worker[dict[str, Any]]):
    """Fails once, and then waits for long."""

    queue = "patient"
    time_limit = 60

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {job.attempt} 0")
        if job.attempt == 1:
            raise Retry("not yet", delay=30.0)


class Exports(Worker[dict[str, Any]]):
    """Exports 500 rows, and says when it computes them."""

    queue = "exports"
    time_limit = 60
    retry = RetryPolicy(max_attempts=3, wait=wait_fixed(0.2))

    def setup(self) -> None:
        real = os.link

        def link(source: Any, target: Any, **options: Any) -> None:
            which = "manifest" if str(target).endswith(".json") else "data"
            struck(f"before-link:{which}")
            real(source, target, **options)
            struck(f"after-link:{which}")

        os.link = link  # type: ignore[assignment]

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("starts", f"{job.key} {job.attempt} 0")
        job.export(RowExport(computed(job.key), columns=("id", "amount")), to=FOLDER / "out" / f"{job.name}.csv")
        struck("returning")


def computed(key: str) -> Iterator[tuple[int, str]]:
    """The rows; their first says that an export is computed."""
    note("computed", key)
    for number in range(ROWS):
        yield number, f"{number}.50"
