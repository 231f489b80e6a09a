"""Work that a worker process repeats: when it is done first, when again, and that it ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from steadyworker.service.repeating import Repeating


def test_the_work_is_done_at_once_and_again_after_the_wait_that_it_returned() -> None:
    done = threading.Semaphore(0)

    def work() -> float:
        done.release()
        return 0.01

    repeating = Repeating("test", work)
    repeating.start()
    assert all(done.acquire(timeout=30) for _ in range(3))
    repeating.end()
    repeating._thread.join(30)
    assert not repeating._thread.is_alive()


def test_work_that_raises_is_logged_and_done_again(caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected error, such as one of a client library, must not end the work for the life of the process."""
    done = threading.Semaphore(0)

    def work() -> float:
        done.release()
        raise KeyError("odd")

    with caplog.at_level("WARNING"):
        repeating = Repeating("depth meter", work, again_in=0.01)
        repeating.start()
        assert all(done.acquire(timeout=30) for _ in range(3))
        repeating.end()
        repeating._thread.join(30)
    lines: list[Any] = [record.msg for record in caplog.records]
    assert len(lines) >= 2
    assert all(
        line == {"event": "work_failed", "work": "depth meter", "exc_info": True, "explain": "steadyworker.work-failed"}
        for line in lines
    )
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_work_that_is_not_due_yet_is_never_done_after_the_end() -> None:
    done: list[None] = []

    def work() -> float:
        done.append(None)
        return 0.0

    repeating = Repeating("test", work, first_in=3600)
    repeating.start()
    repeating.end()
    repeating._thread.join(30)
    assert not repeating._thread.is_alive()
    assert done == []
