"""The facts of a ledger in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from typing_extensions import override

from steadyworker.ledger.base import JobId
from steadyworker.ledger.facts import Attempt, Facts
from steadyworker.testing.memory_job import MemoryJob


class MemoryFacts(Facts):
    """The facts of the jobs that `jobs` returns; a MemoryLedger changes them under the lock."""

    def __init__(self, lock: Lock, jobs: Callable[[], Mapping[JobId, MemoryJob]]) -> None:
        self._lock = lock
        self._jobs = jobs

    @override
    def attempts(self, id: JobId) -> Sequence[Attempt]:
        with self._lock:
            job = self._jobs().get(id)
            return () if job is None else tuple(job.attempts.values())
