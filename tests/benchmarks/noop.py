"""Workers whose jobs do nothing; this module imports nothing else, because each child imports it, too."""

from __future__ import annotations

from steadyworker import Job, Worker


class Noop(Worker[dict[str, int]]):
    time_limit = 60

    def handle(self, job: Job[dict[str, int]]) -> None:
        """Nothing."""


class Threads(Noop):
    queue = "noop"
    isolation = "thread"


class Processes(Noop):
    queue = "noop"
