"""
Progress inside a job's tasks, by the counters of the job's query.

Spark updates the counters every two seconds while a task runs.

The counters are in Spark's SQL status store, which is not a public API.
If a later version of Spark changes the store, only the ends of tasks count as progress.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_RECENT = 20  # the number of executions among which the job's is searched; Spark keeps no more executions


class Live:
    """The counters of one job group's executions."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._found: tuple[int, int] | None = None
        self._readable = True

    def token(self, jobs: Sequence[int]) -> Hashable:
        """Return a value that changes with the progress of these jobs (Spark's job ids), or None without counters."""
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
    """Return the id of the execution to which this job belongs."""
    count = int(store.executionsCount())
    recent = store.executionsList(max(0, count - _RECENT), _RECENT)
    for index in reversed(range(int(recent.size()))):
        execution = recent.apply(index)
        if execution.jobs().contains(job):
            return int(execution.executionId())
    raise LookupError(job)
