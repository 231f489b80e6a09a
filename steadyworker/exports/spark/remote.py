"""
The progress of a job at a Spark Connect server: the ends of tasks, and bytes in the folder of the parts.

The server reports its tasks every two seconds, if a task began or ended, and nothing from inside a task.
So the limit of time without progress is longer here than with Spark's own counters (`tasks.py`).
Each time that the job is begun again, its limit becomes four times longer, so that a slow job is not ended again and again.
The time before the server begins a task of the job does not count, because the server can have other jobs.
For a job that was begun before, this time counts, because the job's own old tasks can still hold the cores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from steadyworker.clock import Clock, SystemClock
from steadyworker.exports.spark.pace import Stillness
from steadyworker.exports.spark.protocol import RunExport
from steadyworker.exports.spark.query import FEW, Estimate
from steadyworker.exports.spark.tasks import size_of

_UNSEEN = 10.0  # factor of the limit without progress, because the server reports nothing from inside a task
_AGAIN = 4.0  # factor of the limit for each earlier beginning of the job
_SIZE = re.compile(r"sizeInBytes=([\d.]+(?:E[+-]?\d+)?) ([KMGTPE]i)?B")
_UNITS = {prefix: 1 << 10 * power for power, prefix in enumerate((None, "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}


class RemoteTasks:
    """
    The tasks of one job; the client's thread calls `record`, and the job's watcher calls all other methods.

    Attributes:
        done: The number of complete tasks.
        total: The number of tasks known so far; it grows while Spark plans one stage after another.

    Args:
        run: The job; its `stuck_after` is the limit for a job in the host's own JVM.
    """

    def __init__(self, run: RunExport, clock: Clock | None = None) -> None:
        self._parts, self._clock = Path(run.plan.parts), clock or SystemClock()
        self._still = Stillness(self._clock.monotonic(), run.stuck_after * _UNSEEN * _AGAIN**run.stuck_before)
        self._waits = not run.stuck_before
        self._stages: Mapping[int, tuple[int, int]] = {}
        self._ends: tuple[tuple[int, int], ...] = ()
        self._running = 0
        self.done = self.total = 0

    def record(self, stages: Iterable[Any], running: int) -> None:
        """Record the server's stages; a stage without a complete task does not count, because the server can skip it."""
        known, found = dict(self._stages), list(stages)
        for stage in found:
            if stage.num_completed_tasks:
                before = known.get(stage.stage_id, (0, 0))[0]
                done = min(stage.num_completed_tasks, stage.num_tasks)  # the count includes failed tasks
                known[stage.stage_id] = max(before, done), stage.num_tasks
        self._stages, self._running = known, running
        self._ends = tuple(sorted((stage.stage_id, stage.num_completed_tasks) for stage in found)) or self._ends

    def poll(self) -> bool:
        """Read the counts and the folder; return whether the job has made progress."""
        now, stages, running = self._clock.monotonic(), self._stages, self._running
        self.done = sum(done for done, _ in stages.values())
        self.total = sum(of for _, of in stages.values())
        # Each end of a task is progress, also in a repeated stage, whose count in `done` is complete already.
        moved = self._still.saw(now, (self._ends, running, size_of(self._parts)))
        if not running and self._waits:
            self._still.rest(now)
        return moved

    def stuck(self) -> str:
        """Return a message if the job has been without progress for too long, otherwise an empty text."""
        seconds = self._still.seconds(self._clock.monotonic())
        limit = self._still.limit(self._still.longest)
        if seconds < limit:
            return ""
        return (
            f"nothing has moved for {seconds:.0f} s, neither a task nor a byte, with {self.done} of {self.total} tasks "
            f"complete and {self._running} in flight; the limit is {limit:.0f} s: {_UNSEEN:.0f} times spark_stuck_after, "
            "or five times the longest pause of this export so far, because a Spark Connect server reports nothing from inside a task"
        )


def estimate(result: DataFrame) -> Estimate:
    """Return Spark's estimate of a result's size in bytes, as in EXPLAIN COST."""
    frame: Any = result
    match = _SIZE.search(frame._explain_string(mode="cost"))  # noqa: SLF001 - `explain` only prints it
    return Estimate(int(float(match[1]) * _UNITS[match[2]]) if match else FEW)
