"""
What can be known of a job at a Spark Connect server: what the server tells, and what lies in the folder of its parts.

| | from | when |
|---|---|---|
| tasks, done and in flight | the server's progress messages | every two seconds in which one began or ended |
| bytes on their way into a part | the folder | while a task writes |
| a part that is whole | the folder: committed by one `rename` (`query.py`) | once it was the same in two looks |
| rows | nobody: they are counted when their part is joined | |

Nothing is told from inside a task that reads or sorts.
So more stillness is granted here than where Spark's own books can be read (`tasks.py`), and four times more again each time
that it was too little: what was not stuck but slow is not ended for ever, and repeated.
While the server has begun no task, it may have other things to do, and nothing is counted; but for a job that was stuck
before, whose own tasks may still hold the cores that it waits for.

An executor that dies between the commit of a part and the end of its task has its task begun again, and the part is another
file then (Spark's `OutputCommitCoordinator` lets it; read in 4.3.0).
Whoever has joined the first one has to begin anew: `replaced` knows.
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
from steadyworker.exports.spark.protocol import Run
from steadyworker.exports.spark.query import FEW, Estimate
from steadyworker.exports.spark.tasks import index_of, size_of

_UNSEEN = 10.0  # times as much stillness as where it is known what happens inside a task
_AGAIN = 4.0  # times as much as the last time
_SHARES = 1_000_000  # what `pace` takes for rows: millionths of the work
_SIZE = re.compile(r"sizeInBytes=([\d.]+(?:E[+-]?\d+)?) ([KMGTPE]i)?B")
_UNITS = {prefix: 1 << 10 * power for power, prefix in enumerate((None, "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}


class _Part(NamedTuple):
    """A file; a second one of its name differs in something."""

    path: str
    size: int
    inode: int
    modified: int

    @classmethod
    def of(cls, path: str) -> _Part | None:
        """None for one that cannot be seen; opened, so that a network's file system asks its server."""
        try:
            with Path(path).open("rb") as file:
                found = os.fstat(file.fileno())
        except OSError:  # of a network's, too: it is asked for again
            return None
        return cls(path, found.st_size, found.st_ino, found.st_mtime_ns)


class RemoteTasks:
    """
    One job; `told` is called by the client's thread, all else by the one that watches.

    Attributes:
        done: Completed tasks.
        total: Tasks known so far; grows while Spark plans, stage after stage.

    Args:
        run: The job, with the seconds that a job on Spark of our own would be granted.
        ratio: What the exports before it have taught about their pace.
    """

    def __init__(self, run: Run, ratio: Ratio, clock: Clock | None = None) -> None:
        self._parts, self._clock = Path(run.plan.parts), clock or SystemClock()
        self._pace = Pace(ratio)
        self._still = Stillness(self._clock.monotonic(), run.stuck_after * _UNSEEN * _AGAIN**run.stuck_before)
        self._waits = not run.stuck_before
        self._stages: Mapping[int, tuple[int, int]] = {}
        self._ends: tuple[tuple[int, int], ...] = ()
        self._running = 0
        self._bytes = 0
        self._fresh: dict[int, _Part] = {}
        self._whole: dict[int, _Part] = {}
        self._new: list[int] = []
        self._sorted, self._measured = -1, False
        self.done = self.total = 0

    @property
    def left(self) -> float | None:
        """Seconds until all parts are written; None while that cannot be told."""
        return self._pace.left(self._clock.monotonic())

    def told(self, stages: Iterable[Any], running: int) -> None:
        """The server tells of its stages; one that it skips never has a task that completes, and never counts."""
        known, found = dict(self._stages), list(stages)
        for stage in found:
            if stage.num_completed_tasks:
                before = known.get(stage.stage_id, (0, 0))[0]
                done = min(stage.num_completed_tasks, stage.num_tasks)  # it counts those that failed, too
                known[stage.stage_id] = max(before, done), stage.num_tasks
        self._stages, self._running = known, running
        self._ends = tuple(sorted((stage.stage_id, stage.num_completed_tasks) for stage in found)) or self._ends

    def look(self) -> bool:
        """See what there is; answers whether anything has moved."""
        now, stages, running = self._clock.monotonic(), self._stages, self._running
        self.done = sum(done for done, _ in stages.values())
        self.total = sum(of for _, of in stages.values())
        self._list()  # after the counts were read: a task that is counted has its part there, unless the folder lies far away
        # All ends of tasks are movement, those of a stage that is run again, too, which has had as many as it has tasks.
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
            # The first stage is Spark's sample of what is to be sorted, or a query has more to come: no measure for the rest.
            self._measured = newest > min(stages)
            self._pace.sorting(now, newest, (done, of), _SHARES * done // of if self._measured else 0)
            return
        if not self._measured:  # the sort has come and gone between two looks
            self._measured = True
            if done == of or done > written:
                self._sorted = newest
            self._pace.sorting(now, self._sorted + 1, (1, 1), _SHARES)
        # What the server tells is some seconds old, and may still be of the stage before.
        self._pace.writing(now, _SHARES * min(written, of) // of if newest != self._sorted else 0)

    def complete(self) -> Iterator[tuple[int, str, int]]:
        """
        (index, file, bytes) of the parts that `look` has found whole and that were not told of before.

        A task without rows has none, which only the end tells: the parts behind it wait for that.
        """
        new, self._new = self._new, []
        for index in new:
            yield index, self._whole[index].path, self._whole[index].size

    def _list(self) -> None:
        seen: dict[int, _Part] = {}
        for index, path in self._listed():
            if index not in self._whole and (part := _Part.of(path)) is not None:
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
        except OSError:  # Spark has not made the folder yet, or a network has its moments
            return

    def replaced(self) -> bool:
        """Whether a part that was found whole is another file now."""
        return any(_Part.of(part.path) != part for part in self._whole.values())

    def stuck(self) -> str:
        """For how long nothing has moved, if that is too long; otherwise empty."""
        seconds = self._still.seconds(self._clock.monotonic())
        limit = self._still.limit(self._still.longest)
        if seconds < limit:
            return ""
        return (
            f"nothing has moved for {seconds:.0f} s, neither a task nor a byte, with {self.done} of {self.total} tasks "
            f"complete and {self._running} in flight; the limit is {limit:.0f} s (from {_UNSEEN:.0f} times spark_stuck_after "
            "on, because a Spark Connect server tells nothing from inside a task, or five times its longest stillness before)"
        )

    def ended(self) -> None:
        """All parts are written."""
        self._pace.ended(self._clock.monotonic())


def estimate(result: DataFrame) -> Estimate:
    """The bytes that Spark thinks a result has, as EXPLAIN COST shows them."""
    frame: Any = result
    match = _SIZE.search(frame._explain_string(mode="cost"))  # noqa: SLF001 - `explain` only prints it
    return Estimate(int(float(match[1]) * _UNITS[match[2]]) if match else FEW)
