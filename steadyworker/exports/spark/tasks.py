"""
The tasks of one job, by Spark's own counters: their counts are for the progress bar, their parts for the join.

The counts come from the public status tracker.
The complete tasks of the writing stage, their rows and their times are only in the status store, which is not a public API.
If a later version of Spark changes the store, parts are passed on only at the end of the job.
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
from steadyworker.exports.spark.planning import Planning

_NEWEST = 250  # the largest number of tasks in one poll; between two polls, fewer tasks end
_LIVE = 1.0  # seconds between two polls inside tasks; no such polls while tasks end
_PART = re.compile(r"part-(\d+)(-[^.]+.*)")


class _TaskOutput(msgspec.Struct, frozen=True):
    rows: int = msgspec.field(default=0, name="recordsWritten")


class _TaskMetrics(msgspec.Struct, frozen=True):
    output: _TaskOutput = msgspec.field(default=_TaskOutput(), name="outputMetrics")


class _SparkTask(msgspec.Struct, frozen=True):
    index: int
    status: str
    duration: int | None = None  # milliseconds
    metrics: _TaskMetrics | None = msgspec.field(default=None, name="taskMetrics")

    @property
    def rows(self) -> int:
        """The number of rows that the task wrote."""
        return self.metrics.output.rows if self.metrics else 0


_TASKS: msgspec.json.Decoder[list[_SparkTask]] = msgspec.json.Decoder(list[_SparkTask])


class Tasks:
    """
    The tasks of one job group.

    Attributes:
        done: The number of complete tasks.
        total: The number of tasks known so far; it grows while Spark plans one stage after another.
        rows: The number of rows that Spark has written to parts.

    Args:
        session: A session of the job's Spark.
        group: The job group of the write; only its tasks make parts.
        parts: The folder of the job's parts.
        stuck_after: Seconds without progress before which the job is never stuck.
        ratio: The ratio from the host's earlier exports.
        before: The job group of all work before the write: the reading of tables, and the user's function.
        planning: The processor time of the job's threads; None if it is not known.
    """

    def __init__(
        self,
        session: SparkSession,
        group: str,
        parts: Path,
        stuck_after: float,
        ratio: Ratio,
        clock: Clock | None = None,
        *,
        before: str = "",
        planning: Planning | None = None,
    ) -> None:
        self._context, self._group, self._parts = session.sparkContext, group, parts
        self._before, self._planning, self._computed = before, planning, 0
        self._earlier: set[int] = set()
        self._tracker = self._context.statusTracker()
        self._clock = clock or SystemClock()
        self._live = Live(session)
        self._pace = Pace(ratio)
        self._still = Stillness(self._clock.monotonic(), stuck_after)
        self._inside: Hashable = None
        self._read_inside = self._clock.monotonic()
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
        """The rows per second, or None while the speed is unknown."""
        return self._pace.rate

    @property
    def left(self) -> float | None:
        """The seconds until all parts are written, or None while the number of rows is unknown."""
        return self._pace.left(self._clock.monotonic())

    def poll(self, beside: Hashable = None) -> bool:
        """
        Read Spark's counters, and return whether the job has made progress.

        `beside` is a value from another source; a change of this value also counts as progress.
        """
        earlier = self._stages_of(self._before) if self._before else {}
        jobs = {**earlier, **self._stages_of(self._group)}
        for stages in jobs.values():
            for stage in stages:
                self._count(stage)
        self._earlier |= {stage for stages in earlier.values() for stage in stages}
        self.done = max(self.done, sum(done for done, _ in self._stages.values()))
        self.total = sum(total for _, total in self._stages.values())
        now, counts = self._clock.monotonic(), (self.done, self.total, self.rows, beside)
        if self._still.saw(now, (counts, self._inside)):
            return True
        if now < self._read_inside + _LIVE:
            return False
        self._read_inside = now
        planned, computed = (self._planning.planned(), self._planning.computed()) if self._planning else (0, 0)
        self._inside = self._live.token([*jobs]), size_of(self._parts), planned
        if self._still.saw(now, (counts, self._inside)):
            return True
        if computed != self._computed:
            self._computed = computed
            self._still.computes(now)
        return False

    def stuck(self) -> str:
        """Return a message if the job has been without progress for too long, otherwise an empty text."""
        seconds = self._still.seconds(self._clock.monotonic())
        if seconds < self._still.limit(0.0) or seconds < (limit := self._still.limit(self._slowest())):
            return ""
        return (
            f"nothing has moved for {seconds:.0f} s, neither a task nor a row nor a byte nor planning, with {self.done} of {self.total} "
            f"tasks complete; the limit is {limit:.0f} s (spark_stuck_after, or five times its slowest task)"
        )

    def ended(self) -> None:
        """Record that all parts are written."""
        self._pace.ended(self._clock.monotonic())

    def written_before(self) -> int:
        """
        Return how many bytes and rows tasks have written before the write, as far as Spark's store has recorded them.

        Any thread can call this method.
        """
        written = 0
        with suppress(Py4JError, TypeError):
            for stage in {stage for stages in self._stages_of(self._before).values() for stage in stages}:
                if self._tracker.getStageInfo(stage) is not None:
                    seen = self._store().lastStageAttempt(stage)
                    written += int(seen.outputBytes()) + int(seen.outputRecords())
        return written

    def _stages_of(self, group: str) -> dict[int, list[int]]:
        """Return the stages of each Spark job of a job group."""
        found = {job: self._tracker.getJobInfo(job) for job in self._tracker.getJobIdsForGroup(group)}
        return {job: list(info.stageIds) if info else [] for job, info in found.items()}

    def _count(self, stage: int) -> None:
        """Record a stage; a stage that never begins does not count (Spark skips a stage if its shuffle exists)."""
        known = self._tracker.getStageInfo(stage)
        if known and (known.numActiveTasks or known.numCompletedTasks):
            earlier = self._stages.get(stage, (0, 0))[0]
            self._stages[stage] = max(earlier, known.numCompletedTasks), known.numTasks

    def complete(self) -> Iterator[tuple[int, str | None, int]]:
        """
        Yield the index, file and size in bytes of each task of the writing stage that has completed since the last call.

        The file is None if the task wrote no rows.
        NFS can list a file of another machine late, so this method opens the file by its name.
        If the file is still missing, a later call yields the task, or the end of the job reports the task's part.
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
        """Return the file of a task and its size in bytes, or None if there is no file."""
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
        """
        Return the rows of each task that has completed since the last call, by index.

        Return nothing if Spark does not report the rows.
        """
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
            if stage in self._earlier or not seen.outputBytes():  # the stage is not the writing stage
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
        """Return the seconds of the slowest task that has ended, or 0 if Spark does not report it."""
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
        """Return a Scala list as JSON with one py4j call; reading field by field would take thousands of calls."""
        if self._mapper is None:
            jackson: Any = self._context._jvm.com.fasterxml.jackson  # type: ignore[union-attr] # noqa: SLF001
            self._mapper = jackson.databind.ObjectMapper().registerModule(jackson.module.scala.DefaultScalaModule())
        return str(self._mapper.writeValueAsString(tasks))


def parts_in(folder: Path) -> list[tuple[int, str, int]]:
    """Return the index, path and size in bytes of all parts in the folder, in order."""
    found = []
    for path in folder.iterdir():
        index = index_of(path.name)
        if index is not None:
            found.append((index, str(path), path.stat().st_size))
    return sorted(found)


def index_of(name: str) -> int | None:
    """Return the index of the task that wrote a file with this name, or None if the file is not a part."""
    match = _PART.fullmatch(name)
    return int(match[1]) if match else None


def size_of(folder: Path) -> int:
    """Return the total size in bytes of the files in a folder; files that disappear meanwhile do not count."""
    size = 0
    for inside, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(inside, name).stat().st_size
    return size
