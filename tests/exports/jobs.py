"""A Worker whose file has the name that its message says: two jobs may mean the same one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from steadyworker import Job, Reject, Worker
from steadyworker.exports import RowExport

FOLDER = Path(os.environ.get("STAGE_FOLDER", "."))


class Named(Worker[dict[str, Any]]):
    """Exports so many rows to that name; may be a dead letter after it has."""

    queue = "named"
    time_limit = 60

    def handle(self, job: Job[dict[str, Any]]) -> None:
        asked = job.payload
        rows = [(number, f"{number}.50") for number in range(asked["rows"])]
        job.export(RowExport(rows, columns=("id", "amount")), to=FOLDER / "out" / asked.get("to", f"{job.name}.csv"))
        if asked.get("reject") and not job.name.endswith(".r1"):
            raise Reject("as asked")
