"""A stop that its main thread does not keep is ended by another thread."""

from __future__ import annotations

import queue

from steadyworker.clock import SystemClock
from steadyworker.service.deadline import Deadline


def test_a_stop_that_is_over_in_time_ends_nothing() -> None:
    left: queue.SimpleQueue[str] = queue.SimpleQueue()
    deadline = Deadline(0.05, SystemClock(), lambda: left.put("left"))
    deadline.begin()
    deadline.begin()
    deadline.met()
    deadline._run()
    assert left.empty()


def test_a_process_that_never_stops_is_never_ended() -> None:
    left: queue.SimpleQueue[str] = queue.SimpleQueue()
    deadline = Deadline(0, SystemClock(), lambda: left.put("left"))
    deadline.met()
    deadline._run()
    assert left.empty()


def test_the_process_is_ended_when_the_budget_is_over_however_often_the_stop_begins() -> None:
    left: queue.SimpleQueue[str] = queue.SimpleQueue()
    deadline = Deadline(0.05, SystemClock(), lambda: left.put("left"))
    deadline.start()
    for _ in range(3):
        deadline.begin()
    assert left.get(timeout=10) == "left"
