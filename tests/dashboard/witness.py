"""A Worker that writes each of its runs to a file."""

from __future__ import annotations

from typing import Any

from steadyworker import Job, Worker
from tests.support.jobs import note


class Witness(Worker[dict[str, Any]]):
    """Notes the key of each run."""

    queue = "exports"
    time_limit = 60

    def handle(self, job: Job[dict[str, Any]]) -> None:
        note("runs", job.key)
