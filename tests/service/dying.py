"""Workers whose jobs end for good at their first failure or crash."""

from __future__ import annotations

from typing import Any

from steadyworker import Job, RetryPolicy
from tests.slots.workers import AsyncFails, Modes
from tests.support.jobs import note

ONCE = RetryPolicy(max_attempts=1, max_crashes=1)


class Dying(Modes):
    """In a child process."""

    queue = "dying"
    memory_limit = "300 MiB"
    retry = ONCE

    def handle(self, job: Job[dict[str, Any], int]) -> object:
        note("starts", job.key)
        return super().handle(job)


class DyingThread(Modes):
    """In a thread of the worker process."""

    queue = "dying-thread"
    isolation = "thread"
    retry = ONCE


class DyingAsync(AsyncFails):
    """In a coroutine, in a child process."""

    queue = "dying-async"
    retry = ONCE
