"""
What the tasks of one job have done, as Spark's own books say: counts for the progress bar, and which parts are complete.

Counts come from the public status tracker.
Which tasks of the writing stage are complete, and what they wrote, only the status store says, which is no public API:
where a later Spark has changed it, parts are passed on when the job is done instead of while it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark import SparkContext

_NEWEST = 250  # tasks that one look asks for; that many do not end between two looks
_PART = re.compile(r"part-(\d+)-[^.]+.*")


class _Task(msgspec.Struct, frozen=True):
    index: int
    status: str


_TASKS: msgspec.json.Decoder[list[_Task]] = msgspec.json.Decoder(list[_Task])


class Tasks:
    """
    The books of one job group.

    Attributes:
        done: Completed tasks.
        total: Tasks known so far; grows while Spark plans, stage after stage.
        rows: Rows in the parts of completed tasks.
    """

    def __init__(self, context: SparkContext, group: str, parts: Path) -> None:
        self._context, self._group, self._parts = context, group, parts
        self._tracker = context.statusTracker()
        self._stages: dict[int, tuple[int, int]] = {}
        self._writing_done = 0
        self._passed: set[int] = set()
        self._readable = True
        self._mapper: Any = None
        self.done = self.total = self.rows = 0

    def look(self) -> bool:
        """Read the books; answers whether anything has moved."""
        before = (self.done, self.total, self.rows)
        for job in self._tracker.getJobIdsForGroup(self._group):
            info = self._tracker.getJobInfo(job)
            for stage in info.stageIds if info else ():
                self._count(stage)
        self.done = max(self.done, sum(done for done, _ in self._stages.values()))
        self.total = sum(total for _, total in self._stages.values())
        return before != (self.done, self.total, self.rows)

    def _count(self, stage: int) -> None:
        """Note a stage; one that Spark skips, because its shuffle is there already, never begins and never counts."""
        known = self._tracker.getStageInfo(stage)
        if known and (known.numActiveTasks or known.numCompletedTasks):
            earlier = self._stages.get(stage, (0, 0))[0]
            self._stages[stage] = max(earlier, known.numCompletedTasks), known.numTasks

    def complete(self) -> Iterator[tuple[int, str | None, int]]:
        """(index, file or None, bytes) of the tasks of the writing stage that have completed since the last call."""
        for index in self._new():
            self._passed.add(index)
            path = next(self._parts.glob(f"part-{index:05d}-*"), None)
            yield index, str(path) if path else None, path.stat().st_size if path else 0

    def _new(self) -> list[int]:
        if not self._stages or not self._readable:
            return []
        stage = max(self._stages)
        try:
            context: Any = self._context._jsc  # noqa: SLF001 - see above
            store = context.sc().statusStore()
            seen = store.lastStageAttempt(stage)
            if not seen.outputBytes() or seen.numCompleteTasks() == self._writing_done:
                return []  # it is not the writing stage, or nothing is new
            self._writing_done = seen.numCompleteTasks()
            self.rows = max(self.rows, seen.outputRecords())
            tasks = _TASKS.decode(self._json(store.taskList(stage, seen.attemptId(), _NEWEST)))
        except (Py4JError, TypeError, msgspec.MsgspecError):
            self._readable = False
            return []
        return sorted({task.index for task in tasks if task.status == "SUCCESS"} - self._passed)

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
        match = _PART.fullmatch(path.name)
        if match:
            found.append((int(match[1]), str(path), path.stat().st_size))
    return sorted(found)
