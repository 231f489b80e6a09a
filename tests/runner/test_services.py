"""A service that refuses a request fails only the call of its job: the runner lives, and the job gets the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from steadyworker import Job, RetryPolicy, Worker
from steadyworker.slots.base import ServiceCall
from steadyworker.testing import Harness


class Refusing:
    """A service that raises."""

    def open(
        self, request: Mapping[str, Any], uid: str, fence: int, emit: Callable[[Mapping[str, Any]], None]
    ) -> ServiceCall:
        raise ValueError("no such plan")

    def stop(self, within: float) -> None: ...


class Asking(Worker[str]):
    queue = "asking"
    time_limit = 60
    isolation = "thread"
    retry = RetryPolicy(max_attempts=1)

    def handle(self, job: Job[str]) -> None:
        list(job._link.call(job.payload, {}))


def test_an_unknown_service_is_named(harness: Callable[..., Harness]) -> None:
    made = harness(Asking)
    key = made.send(Asking, "sparkle")
    made.wait(key)
    row = made.job(key)
    assert row is not None
    assert "'sparkle'" in row.error_text
    after = made.send(Asking, "sparkle")
    made.wait(after)
    assert made.starts(after) == 1


def test_a_service_that_raises_fails_the_job_and_not_the_runner(harness: Callable[..., Harness]) -> None:
    made = harness(Asking)
    services = made.processes[0].runners[0].deps.services
    services["odd"] = Refusing()  # type: ignore[index]
    key = made.send(Asking, "odd")
    made.wait(key)
    row = made.job(key)
    assert row is not None
    assert "no such plan" in row.error_text
    made.wait(made.send(Asking, "odd"))
