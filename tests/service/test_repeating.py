"""Work that a worker process repeats: when it is done first, when again, and that it ends."""

from __future__ import annotations

import threading

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
