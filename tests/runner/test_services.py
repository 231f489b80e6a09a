"""A service that refuses a request fails only the call of its job: the runner lives, and the job gets the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from steadyworker import Job, RetryPolicy, Worker
from steadyworker.delivery import Settle
from steadyworker.ledger.base import Renewal
from steadyworker.link import CancelCall, MayCommit
from steadyworker.outcome import Done
from steadyworker.runner.state import Renewed
from steadyworker.slots.base import Asked, Ended, ServiceCall
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


class Clinging:
    """A call of a service, whose cancel raises."""

    def cancel(self) -> None:
        raise RuntimeError("the host is gone")


def test_a_cancel_of_a_call_that_raises_is_logged_and_ends_neither_the_runner_nor_the_settlement(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.deliver("one")
    (run,) = bench.runner.state.by_fence.values()
    run.calls |= {1: Clinging(), 2: Clinging()}
    bench.handle(Asked(0, run.token.fence, 3, CancelCall(1)))
    assert [*run.calls] == [2]
    bench.handle(Ended(0, run.token.fence, Done()))
    assert [how for _, how in bench.adapter.settled] == [Settle.ACK]
    lines = [record.msg for record in caplog.records if "service_failed" in str(record.msg)]
    assert [(line["key"], line["exc_info"]) for line in lines] == [("one", True)] * 2  # type: ignore[index]
