"""
What the tasks of one job have done, as Spark's own books say: counts for the progress bar, and which parts are complete.

Counts come from the public status tracker.
Which tasks of the writing stage are complete, what they wrote, and how long they took, only the status store says, which
is no public API: where a later Spark has changed it, parts are passed on when the job is done instead of while it runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from steadyworker.clock import Clock, SystemClock
from steadyworker.exports.spark.live import Live
from steadyworker.exports.spark.pace import Pace, Ratio, Stillness

_NEWEST = 250  # tasks that one look asks for; that many do not end between two looks
_LIVE = 1.0  # seconds between two looks inside of tasks; none while tasks end
_PART = re.compile(r"part-(\d+)(-[^.]+.*)")


class _Output(msgspec.Struct, frozen=True):
    rows: int = msgspec.field(default=0, name="recordsWritten")


class _Metrics(msgspec.Struct, frozen=True):
    output: _Output = msgspec.field(default=_Output(), name="outputMetrics")


class _Task(msgspec.Struct, frozen=True):
    index: int
    status: str
    duration: int | None = None  # milliseconds
    metrics: _Metrics | None = msgspec.field(default=None, name="taskMetrics")

    @property
    def rows(self) -> int:
        """That it wrote."""
        return self.metrics.output.rows if self.metrics else 0


_TASKS: msgspec.json.Decoder[list[_Task]] = msgspec.json.Decoder(list[_Task])


class Tasks:
    """
    The books of one job group.

    Attributes:
        done: Completed tasks.
        total: Tasks known so far; grows while Spark plans, stage after stage.
        rows: Rows in the parts of completed tasks.

    Args:
        session: A session of the job's Spark.
        group: The job group.
        parts: The folder that its parts go into.
        stuck_after: Seconds without any movement that are always granted.
        ratio: What the exports before it have taught about their pace.
    """

    def __init__(
        self,
        session: SparkSession,
        group: str,
        parts: Path,
        stuck_after: float,
        ratio: Ratio,
        clock: Clock | None = None,
    ) -> None:
        self._context, self._group, self._parts = session.sparkContext, group, parts
        self._tracker = self._context.statusTracker()
        self._clock = clock or SystemClock()
        self._live = Live(session)
        self._pace = Pace(ratio)
        self._still = Stillness(self._clock.monotonic(), stuck_after)
        self._inside: Hashable = None
        self._looked_inside = self._clock.monotonic()
        self._stages: dict[int, tuple[int, int]] = {}
        self._counted: dict[int, int] = {}
        self._passed: set[int] = set()
        self._waiting: dict[int, int] = {}
        self._suffix = ""
        self._readable = True
        self._mapper: Any = None
        self.done = self.total = self.rows = 0

    @property
    def rate(self) -> float | None:
        """Rows a second; None while there is no evidence."""
        return self._pace.rate

    @property
    def left(self) -> float | None:
        """Seconds until all parts are written; None while nobody knows how many rows there are."""
        return self._pace.left(self._clock.monotonic())

    def look(self, beside: Hashable = None) -> bool:
        """Read the books; answers whether anything has moved, `beside` among it, which is in none of them."""
        jobs = list(self._tracker.getJobIdsForGroup(self._group))
        for job in jobs:
            info = self._tracker.getJobInfo(job)
            for stage in info.stageIds if info else ():
                self._count(stage)
        self.done = max(self.done, sum(done for done, _ in self._stages.values()))
        self.total = sum(total for _, total in self._stages.values())
        now, counts = self._clock.monotonic(), (self.done, self.total, self.rows, beside)
        if self._still.saw(now, (counts, self._inside)):
            return True
        if now < self._looked_inside + _LIVE:
            return False
        self._looked_inside = now
        self._inside = self._live.token(jobs), size_of(self._parts)
        return self._still.saw(now, (counts, self._inside))

    def stuck(self) -> str:
        """For how long nothing has moved, if that is too long; otherwise empty."""
        seconds = self._still.seconds(self._clock.monotonic())
        if seconds < self._still.limit(0.0) or seconds < (limit := self._still.limit(self._slowest())):
            return ""
        return (
            f"nothing has moved for {seconds:.0f} s, neither a task nor a row nor a byte, with {self.done} of {self.total} "
            f"tasks complete; the limit is {limit:.0f} s (spark_stuck_after, or five times its slowest task)"
        )

    def ended(self) -> None:
        """All parts are written."""
        self._pace.ended(self._clock.monotonic())

    def _count(self, stage: int) -> None:
        """Note a stage; one that Spark skips, because its shuffle is there already, never begins and never counts."""
        known = self._tracker.getStageInfo(stage)
        if known and (known.numActiveTasks or known.numCompletedTasks):
            earlier = self._stages.get(stage, (0, 0))[0]
            self._stages[stage] = max(earlier, known.numCompletedTasks), known.numTasks

    def complete(self) -> Iterator[tuple[int, str | None, int]]:
        """
        (index, file or None, bytes) of the tasks of the writing stage that have completed since the last call.

        A file that another machine wrote may be listed late (NFS): it is opened by its name, which nobody has asked for before,
        and if it is not there for all that its task wrote, a later call tells of it, or the end.
        """
        self._waiting |= self._new()
        for index, rows in sorted(self._waiting.items()):
            found = self._part(index)
            if found or not rows:
                del self._waiting[index]
                self._passed.add(index)
                path, size = found or (None, 0)
                yield index, path, size

    def _part(self, index: int) -> tuple[str, int] | None:
        """The file of a task, and its bytes; None if there is none."""
        if not self._suffix:
            seen = next((match for path in self._parts.glob("part-*") if (match := _PART.fullmatch(path.name))), None)
            if seen is None:
                return None
            self._suffix = seen[2]
        path = self._parts / f"part-{index:05d}{self._suffix}"
        try:
            with path.open("rb") as file:
                return str(path), os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None

    def _new(self) -> dict[int, int]:
        """Index to rows of the tasks that have completed since the last call, as far as Spark tells."""
        if not self._stages or not self._readable:
            return {}
        stage = max(self._stages)
        try:
            store = self._store()
            seen = store.lastStageAttempt(stage)
            done = int(seen.numCompleteTasks())
            if done == self._counted.get(stage):
                return {}
            self._counted[stage] = done
            now = self._clock.monotonic()
            if not seen.outputBytes():  # it is not the writing stage
                self._pace.sorting(now, stage, (done, int(seen.numTasks())), int(seen.shuffleWriteRecords()))
                return {}
            self.rows = max(self.rows, seen.outputRecords())
            self._pace.writing(now, self.rows)
            tasks = _TASKS.decode(self._json(store.taskList(stage, seen.attemptId(), _NEWEST)))
        except (Py4JError, TypeError, msgspec.MsgspecError):
            self._readable = False
            return {}
        return {task.index: task.rows for task in tasks if task.status == "SUCCESS" and task.index not in self._passed}

    def _slowest(self) -> float:
        """Seconds of the slowest task that has ended; 0 where that is not told."""
        slowest = 0
        try:
            v1: Any = self._context._jvm.org.apache.spark.status.api.v1  # type: ignore[union-attr] # noqa: SLF001
            order = v1.TaskSorting.DECREASING_RUNTIME
            store = self._store()
            for stage in self._stages:
                attempt = store.lastStageAttempt(stage).attemptId()
                tasks = _TASKS.decode(self._json(store.taskList(stage, attempt, 0, _NEWEST, order, None)))
                slowest = max(slowest, *(task.duration or 0 for task in tasks if task.status == "SUCCESS"), 0)
        except (Py4JError, TypeError, msgspec.MsgspecError):
            return 0.0
        return slowest / 1000

    def _store(self) -> Any:
        context: Any = self._context._jsc  # noqa: SLF001 - see above
        return context.sc().statusStore()

    def _json(self, tasks: Any) -> str:
        """Scala's list in one crossing of the bridge; field by field it would be thousands."""
        if self._mapper is None:
            jackson: Any = self._context._jvm.com.fasterxml.jackson  # type: ignore[union-attr] # noqa: SLF001
            self._mapper = jackson.databind.ObjectMapper().registerModule(jackson.module.scala.DefaultScalaModule())
        return str(self._mapper.writeValueAsString(tasks))


def parts_in(folder: Path) -> list[tuple[int, str, int]]:
    """(index, path, bytes) of all parts that are in the folder, in order."""
    found = []
    for path in folder.iterdir():
        index = index_of(path.name)
        if index is not None:
            found.append((index, str(path), path.stat().st_size))
    return sorted(found)


def index_of(name: str) -> int | None:
    """Of the task that wrote a file of this name; None for what is no part."""
    match = _PART.fullmatch(name)
    return int(match[1]) if match else None


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder that others write into; what they take away meanwhile is passed over."""
    size = 0
    for inside, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(inside, name).stat().st_size
    return size
