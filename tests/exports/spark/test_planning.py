"""A thread that computes is told from one that waits, by the processor time that Linux keeps of it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from steadyworker.exports.spark.live import Live
from steadyworker.exports.spark.pace import Ratio
from steadyworker.exports.spark.planning import Planning
from steadyworker.exports.spark.tasks import Tasks
from tests.exports.spark.test_spark_late import Books


class Jvm:
    """This process as the JVM: its current thread has the name that it is given."""

    def __init__(self) -> None:
        thread = SimpleNamespace(setName=lambda name: Path("/proc/thread-self/comm").write_text(name))
        self.java = SimpleNamespace(lang=SimpleNamespace(Thread=SimpleNamespace(currentThread=lambda: thread)))


def compute(seconds: float) -> None:
    """Use so much of the processor in this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.mark.long
def test_only_what_a_job_s_own_threads_compute_is_its_progress() -> None:
    planning = Planning(os.getpid(), "sw-17")
    begun, computed, task_computed, ends = (threading.Event() for _ in range(4))

    def job() -> None:
        planning.begin(Jvm())
        begun.set()
        compute(0.5)
        computed.set()
        ends.wait(60)

    def task() -> None:
        Path("/proc/thread-self/comm").write_text("Executor task launch worker for task 0.0"[:15])
        compute(0.5)
        task_computed.set()
        ends.wait(60)

    thread = threading.Thread(target=job)
    thread.start()
    assert begun.wait(60)
    before = planning.planned()
    assert computed.wait(60)
    after = planning.planned()
    assert after - before >= 2
    other = threading.Thread(target=compute, args=(0.5,))
    other.start()
    other.join()
    assert planning.planned() == after, "another thread of the process computed, and this one waited"
    assert planning.computed() == 0
    tasks = threading.Thread(target=task)
    tasks.start()
    assert task_computed.wait(60)
    assert planning.computed() >= 2
    ends.set()
    for each in (thread, tasks):
        each.join()


def test_planning_is_progress_and_tasks_that_compute_put_off_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Live, "token", lambda *_: None)
    monkeypatch.setattr(Tasks, "_slowest", lambda _: 0.0)
    clock: Any = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    planning: Any = SimpleNamespace(planned=lambda: clock.planned, computed=lambda: clock.computed)
    clock.planned = clock.computed = 0
    books: Any = Books()
    tasks = Tasks(books, "group", tmp_path, 60.0, Ratio(), clock, planning=planning)

    def still(seconds: int) -> bool:
        """Look each second; return whether anything moved."""
        moved = False
        for _ in range(seconds):
            clock.now += 1
            moved = tasks.poll() or moved
        return moved

    assert still(3)
    assert not still(50)
    clock.planned += 1
    assert still(2)
    assert not still(58)
    assert tasks.stuck() == ""
    clock.computed += 1
    assert not still(50), "it is no progress"
    assert tasks.stuck() == "", "but perhaps it is this job's"
    assert not still(20)
    assert "nor planning" in tasks.stuck()
