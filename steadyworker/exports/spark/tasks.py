"""The tasks of one job, by Spark's public status tracker, and the files of its parts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pyspark import SparkContext

from steadyworker.clock import Clock, SystemClock
from steadyworker.exports.spark.pace import Movement
from steadyworker.system.procfs import tree_cpu

_READ_EVERY = 5.0  # seconds between two reads of the processor time, and of the folder while tasks move
_PART = re.compile(r"part-(\d+)-[^.]+.*")


class Tasks:
    """
    The tasks of one job's groups.

    Attributes:
        done: The number of complete tasks.
        total: The number of tasks known so far; it grows while Spark plans one stage after another.

    Args:
        context: The job's Spark.
        groups: The job groups of the job.
        parts: The folder of the job's parts.
        stuck_after: Seconds without progress before which the job is never stuck.
    """

    def __init__(
        self, context: SparkContext, groups: Sequence[str], parts: Path, stuck_after: float, clock: Clock | None = None
    ) -> None:
        self._tracker, self._groups, self._parts = context.statusTracker(), groups, parts
        self._clock = clock or SystemClock()
        self._movement = Movement(self._clock.monotonic(), stuck_after)
        self._stages: dict[int, tuple[int, int]] = {}
        self._read_at, self._bytes = 0.0, 0
        self.done = self.total = 0

    def poll(self) -> bool:
        """Read Spark's counters, and return whether the job has made progress."""
        for group in self._groups:
            for job in self._tracker.getJobIdsForGroup(group):
                info = self._tracker.getJobInfo(job)
                for stage in info.stageIds if info else ():
                    self._count(stage)
        self.done = max(self.done, sum(done for done, _ in self._stages.values()))
        self.total = sum(total for _, total in self._stages.values())
        now = self._clock.monotonic()
        if now >= self._read_at + _READ_EVERY:
            self._read_at, self._bytes = now, size_of(self._parts)
            self._movement.computed(now, tree_cpu(os.getpid()))
        return self._movement.saw(now, (self.done, self.total, self._bytes))

    def _count(self, stage: int) -> None:
        """Record a stage; a stage that never begins does not count (Spark skips a stage if its shuffle exists)."""
        known = self._tracker.getStageInfo(stage)
        if known and (known.numActiveTasks or known.numCompletedTasks):
            earlier = self._stages.get(stage, (0, 0))[0]
            self._stages[stage] = max(earlier, known.numCompletedTasks), known.numTasks

    def stuck(self) -> str:
        """Return a message if the job has been without progress for too long, otherwise an empty text."""
        if (still := self._movement.still(self._clock.monotonic())) is None:
            return ""
        return (
            f"nothing has moved for {still[0]:.0f} s, neither a task nor a byte, with {self.done} of {self.total} tasks complete; "
            f"the limit is {still[1]:.0f} s: spark_stuck_after, or five times the longest pause of this export so far"
        )


def parts_in(folder: Path) -> list[Path]:
    """Return the parts in the folder, in the order of the tasks that wrote them."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _PART.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def size_of(folder: Path) -> int:
    """Return the total size in bytes of the files in a folder; files that disappear meanwhile do not count."""
    size = 0
    for inside, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(inside, name).stat().st_size
    return size
