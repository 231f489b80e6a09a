"""
The state of a job at a Spark Connect server, from the server's progress messages and from the folder of its parts.

The server sends a message every two seconds, if a task began or ended.
The server reports nothing from inside a task, so the limit of time without progress is longer here than in the host's own JVM (`tasks.py`).
Each time that a job was stuck, its limit becomes four times longer, so that a slow job is not ended again and again.
The time before the server begins a task of the job does not count, because the server can have other jobs.
For a job that was stuck before, this time counts, because the job's own old tasks can still hold the cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from steadyworker.clock import Clock, SystemClock
from steadyworker.exports.spark.pace import Movement
from steadyworker.exports.spark.protocol import RunExport
from steadyworker.exports.spark.tasks import size_of

_UNSEEN = 10.0  # factor of the limit without progress, because the server reports nothing from inside a task
_AGAIN = 4.0  # factor of the limit for each time that the job was stuck


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
        limit = run.stuck_after * _UNSEEN * _AGAIN**run.stuck_before
        self._movement = Movement(self._clock.monotonic(), limit)
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
        moved = self._movement.saw(now, (self._ends, running, size_of(self._parts)))
        if not running and self._waits:
            self._movement.rest(now)
        return moved

    def stuck(self) -> str:
        """Return a message if the job has been without progress for too long, otherwise an empty text."""
        if (still := self._movement.still(self._clock.monotonic())) is None:
            return ""
        return (
            f"nothing has moved for {still[0]:.0f} s, neither a task nor a byte, with {self.done} of {self.total} tasks "
            f"complete and {self._running} in flight; the limit is {still[1]:.0f} s: {_UNSEEN:.0f} times spark_stuck_after, "
            "or five times the longest pause of this export so far, because a Spark Connect server reports nothing from inside a task"
        )
