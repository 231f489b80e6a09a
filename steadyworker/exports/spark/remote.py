"""
The state of a job at a Spark Connect server, from the server's messages and from the folder of its parts.

| fact | source | time |
|---|---|---|
| tasks, done and in flight | the server's progress messages | every two seconds, if a task began or ended |
| bytes of an incomplete part | the folder | while a task writes |
| a complete part | the folder: committed by one `rename` (`query.py`) | when it is the same in two polls |
| rows | the join, which counts them in each part | after the part is joined |

The server reports nothing from inside a task that reads or sorts.
So the limit of time without progress is longer here than with Spark's own counters (`tasks.py`).
Each time that a job was stuck, its limit becomes four times longer, so that a slow job is not ended again and again.
The time before the server begins a task of the job does not count, because the server can have other jobs.
For a job that was stuck before, this time counts, because the job's own old tasks can still hold the cores.

If an executor dies between the commit of a part and the end of its task, Spark runs the task again.
The part is another file then (Spark's `OutputCommitCoordinator` allows this, in the classes of Spark 4.3.0).
If the child has joined the first file, it must join all parts again; `replaced` reports such a change.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from steadyworker.clock import Clock, SystemClock
from steadyworker.exports.spark.pace import Pace, Ratio, Stillness
from steadyworker.exports.spark.protocol import RunExport
from steadyworker.exports.spark.query import FEW, Estimate
from steadyworker.exports.spark.tasks import index_of, size_of

_UNSEEN = 10.0  # factor of the limit without progress, because the server reports nothing from inside a task
_AGAIN = 4.0  # factor of the limit for each time that the job was stuck
_SHARES = 1_000_000  # millionths of the work, which `pace` gets instead of rows
_SIZE = re.compile(r"sizeInBytes=([\d.]+(?:E[+-]?\d+)?) ([KMGTPE]i)?B")
_UNITS = {prefix: 1 << 10 * power for power, prefix in enumerate((None, "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}


class _RemotePart(NamedTuple):
    """A part's file; another file with the same name differs in at least one field."""

    path: str
    size: int
    inode: int
    modified: int

    @classmethod
    def of(cls, path: str) -> _RemotePart | None:
        """Return the file, or None if it cannot be opened; opening it makes a network file system ask its server."""
        try:
            with Path(path).open("rb") as file:
                found = os.fstat(file.fileno())
        except OSError:  # also an error of a network file system: the next poll tries again
            return None
        return cls(path, found.st_size, found.st_ino, found.st_mtime_ns)


class RemoteTasks:
    """
    The tasks of one job; the client's thread calls `record`, and the job's watcher calls all other methods.

    Attributes:
        done: The number of complete tasks.
        total: The number of tasks known so far; it grows while Spark plans one stage after another.

    Args:
        run: The job; its `stuck_after` is the limit for a job in the host's own JVM.
        ratio: The time for writing, divided by the time for sorting, in the host's earlier exports.
    """

    def __init__(self, run: RunExport, ratio: Ratio, clock: Clock | None = None) -> None:
        self._parts, self._clock = Path(run.plan.parts), clock or SystemClock()
        self._pace = Pace(ratio)
        self._still = Stillness(self._clock.monotonic(), run.stuck_after * _UNSEEN * _AGAIN**run.stuck_before)
        self._waits = not run.stuck_before
        self._stages: Mapping[int, tuple[int, int]] = {}
        self._ends: tuple[tuple[int, int], ...] = ()
        self._running = 0
        self._bytes = 0
        self._fresh: dict[int, _RemotePart] = {}
        self._whole: dict[int, _RemotePart] = {}
        self._new: list[int] = []
        self._sorted, self._measured = -1, False
        self.done = self.total = 0

    @property
    def left(self) -> float | None:
        """The seconds until all parts are written, or None while this time is unknown."""
        return self._pace.left(self._clock.monotonic())

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
        self._list()  # after the counts, so that the list has the part of each counted task (unless the network is slow)
        # Each end of a task is progress, also in a repeated stage, whose count in `done` is complete already.
        counts: Hashable = self._ends, running, len(self._whole), len(self._fresh)
        moved = self._still.saw(now, (counts, self._bytes))
        if not moved:
            self._bytes = size_of(self._parts)
            moved = self._still.saw(now, (counts, self._bytes))
        if not running and self._waits:
            self._still.rest(now)
        self._measure(now, stages)
        return moved

    def _measure(self, now: float, stages: Mapping[int, tuple[int, int]]) -> None:
        if not stages:
            return
        newest = max(stages)
        done, of = stages[newest]
        written = len(self._whole) + len(self._fresh)
        if not written and not self._bytes:
            self._sorted = newest
            # The first stage is not measured, because it is Spark's sample for the sort, or further stages follow.
            self._measured = newest > min(stages)
            self._pace.sorting(now, newest, (done, of), _SHARES * done // of if self._measured else 0)
            return
        if not self._measured:  # the sort began and ended between two polls
            self._measured = True
            if done == of or done > written:
                self._sorted = newest
            self._pace.sorting(now, self._sorted + 1, (1, 1), _SHARES)
        # The server's counts are some seconds old, and can still describe the stage before.
        self._pace.writing(now, _SHARES * min(written, of) // of if newest != self._sorted else 0)

    def complete(self) -> Iterator[tuple[int, str, int]]:
        """
        Yield the index, file and size in bytes of each part that `poll` has found complete since the last call.

        A task without rows has no part.
        This is known only at the end of the job, so later parts wait until then.
        """
        new, self._new = self._new, []
        for index in new:
            yield index, self._whole[index].path, self._whole[index].size

    def _list(self) -> None:
        seen: dict[int, _RemotePart] = {}
        for index, path in self._listed():
            if index not in self._whole and (part := _RemotePart.of(path)) is not None:
                seen[index] = part
        whole = [index for index in sorted(seen) if self._fresh.get(index) == seen[index]]
        self._whole |= {index: seen.pop(index) for index in whole}
        self._fresh, self._new = seen, self._new + whole

    def _listed(self) -> Iterator[tuple[int, str]]:
        try:
            with os.scandir(self._parts) as entries:
                for entry in entries:
                    if (index := index_of(entry.name)) is not None:
                        yield index, entry.path
        except OSError:  # Spark has not made the folder yet, or the network fails for a moment
            return

    def replaced(self) -> bool:
        """Return whether a part that was complete is another file now."""
        return any(_RemotePart.of(part.path) != part for part in self._whole.values())

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

    def ended(self) -> None:
        """Record that all parts are written."""
        self._pace.ended(self._clock.monotonic())


def estimate(result: DataFrame) -> Estimate:
    """Return Spark's estimate of a result's size in bytes, as in EXPLAIN COST."""
    frame: Any = result
    match = _SIZE.search(frame._explain_string(mode="cost"))  # noqa: SLF001 - `explain` only prints it
    return Estimate(int(float(match[1]) * _UNITS[match[2]]) if match else FEW)
