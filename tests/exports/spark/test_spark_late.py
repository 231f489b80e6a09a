"""Parts that another machine wrote, and that a shared folder shows late: told when they are there, and asked for by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steadyworker.exports.spark.pace import Ratio
from steadyworker.exports.spark.tasks import Tasks


class Books:
    """Spark's, as far as they are read: one job of one stage, which writes."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        attempt = SimpleNamespace(
            numCompleteTasks=lambda: len(self.rows),
            numTasks=lambda: 9,
            outputBytes=lambda: 1,
            outputRecords=lambda: sum(self.rows.values()),
            attemptId=lambda: 0,
        )
        store = SimpleNamespace(lastStageAttempt=lambda _: attempt, taskList=lambda *_: None)
        mapper = SimpleNamespace(registerModule=lambda _: SimpleNamespace(writeValueAsString=lambda _: self._tasks()))
        jackson = SimpleNamespace(
            databind=SimpleNamespace(ObjectMapper=lambda: mapper),
            module=SimpleNamespace(scala=SimpleNamespace(DefaultScalaModule=lambda: None)),
        )
        tracker = SimpleNamespace(
            getJobIdsForGroup=lambda _: [0],
            getJobInfo=lambda _: SimpleNamespace(stageIds=[0]),
            getStageInfo=lambda _: SimpleNamespace(numActiveTasks=1, numCompletedTasks=len(self.rows), numTasks=9),
        )
        self.sparkContext: Any = SimpleNamespace(
            statusTracker=lambda: tracker,
            _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: store)),
            _jvm=SimpleNamespace(com=SimpleNamespace(fasterxml=SimpleNamespace(jackson=jackson))),
        )

    def _tasks(self) -> str:
        return json.dumps(
            [
                {"index": index, "status": "SUCCESS", "taskMetrics": {"outputMetrics": {"recordsWritten": rows}}}
                for index, rows in self.rows.items()
            ]
        )


def test_a_file_that_is_listed_late_is_reported_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books: Any = Books()
    tasks = Tasks(books, "group", tmp_path, 60.0, Ratio())

    def told() -> list[tuple[int, str | None, int]]:
        tasks.poll()
        return list(tasks.complete())

    def part(index: int) -> Path:
        return tmp_path / f"part-{index:05d}-a-b-c000.txt"

    assert told() == []
    books.rows = {0: 2, 1: 0, 2: 3}
    assert told() == [(1, None, 0)], "only this task has written nothing"
    part(2).write_text("abc")
    assert told() == [(2, str(part(2)), 3)]

    def stale(_: Path, pattern: str) -> Iterator[Path]:
        return iter([part(2)] if pattern == "part-*" else [])

    monkeypatch.setattr(Path, "glob", stale)
    part(0).write_text("ab")
    assert told() == [(0, str(part(0)), 2)], "found by its name, though no list has it"
    books.rows[3] = 1
    part(3).write_text("d")
    assert told() == [(3, str(part(3)), 1)]
    assert told() == []
