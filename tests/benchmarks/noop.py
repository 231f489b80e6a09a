"""Workers whose jobs do nothing; this module imports little, because each child imports it, too."""

from __future__ import annotations

import time
from pathlib import Path

from steadyworker import Job, Worker


class Noop(Worker[dict[str, str]]):
    time_limit = 60

    def handle(self, job: Job[dict[str, str]]) -> None:
        """Nothing, but a job with a gate waits until this file is there."""
        while (gate := job.payload.get("gate")) and not Path(gate).exists():
            time.sleep(0.02)


class Threads(Noop):
    queue = "noop"
    isolation = "thread"


class Processes(Noop):
    queue = "noop"
