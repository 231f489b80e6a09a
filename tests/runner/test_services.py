"""A service that refuses a request fails only the call of its job: the runner lives, and the job gets the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from steadyworker import Job, RetryPolicy, Worker
from steadyworker.ledger.base import Renewal
from steadyworker.link import CancelCall, MayCommit
from steadyworker.runner.state import Renewed
from steadyworker.slots.base import Asked, ServiceCall
from steadyworker.testing import Harness
from tests.runner.bench import Bench


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


def test_a_dropped_run_gets_a_reply_to_each_request_but_the_end_of_a_call() -> None:
    bench = Bench()
    bench.deliver("one")
    (run,) = bench.runner.state.by_fence.values()
    bench.handle(Renewed(bench.clock.boottime(), [(run.token, Renewal(granted=False))]))
    bench.handle(Asked(0, run.token.fence, 1, MayCommit()), Asked(0, run.token.fence, 2, CancelCall(1)))
    assert bench.slots[0].replies == [(1, "fenced")]
