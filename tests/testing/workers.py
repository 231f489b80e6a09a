"""Workers that a child process can import."""

from __future__ import annotations

import os
from typing import Any

from steadyworker.retry import RetryPolicy
from steadyworker.worker import Worker


class Exports(Worker[dict[str, str], int]):
    """Saves its position; its first run waits to be killed, every later one is done."""

    queue = "exports"
    time_limit = 600
    retry = RetryPolicy(max_crashes=2)

    def handle(self, job: Any) -> None:
        if job.last_checkpoint is None or job.payload.get("what") == "always":
            job.checkpoint(os.getpid())
            while True:
                job.check()
