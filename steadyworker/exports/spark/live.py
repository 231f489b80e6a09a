"""
Whether a job moves inside its tasks: the counters of its query, which Spark sends every two seconds while a task runs.

They are Spark's own books of SQL, and no public API: where a later Spark has changed them, only tasks that end are seen.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_RECENT = 20  # executions that are looked through for the one of a job; Spark keeps no more


class Live:
    """The counters of one job group's executions."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._found: tuple[int, int] | None = None
        self._readable = True

    def token(self, jobs: Sequence[int]) -> Hashable:
        """Something that changes when one of these jobs (Spark's numbers) has moved; None where nothing is told."""
        if not jobs or not self._readable:
            return None
        try:
            inner: Any = self._session._jsparkSession  # noqa: SLF001 - see above
            store = inner.sharedState().statusStore()
            newest = max(jobs)
            if self._found is None or self._found[0] != newest:
                self._found = newest, _execution(store, newest)
            return self._found, str(store.executionMetrics(self._found[1]))
        except (Py4JError, TypeError, LookupError):
            self._readable = False
            return None


def _execution(store: Any, job: int) -> int:
    """The execution that this job belongs to."""
    count = int(store.executionsCount())
    recent = store.executionsList(max(0, count - _RECENT), _RECENT)
    for index in reversed(range(int(recent.size()))):
        execution = recent.apply(index)
        if execution.jobs().contains(job):
            return int(execution.executionId())
    raise LookupError(job)
