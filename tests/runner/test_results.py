"""The result of a job: recorded with `done`, by the run that is done."""

from __future__ import annotations

from typing import Any

import pytest

from steadyworker.job import Job
from steadyworker.ledger.base import JobId
from steadyworker.retry import RetryPolicy
from steadyworker.testing.harness import Harness
from steadyworker.testing.plugin import MakeHarness
from steadyworker.testing.worker_process import NAMESPACE
from tests.runner.kit import QUEUE, Deed, Gate, nothing, raises, worker


def gives(value: object, then: Deed = nothing) -> Deed:
    """A deed that sets the job's result, and then goes on."""

    def deed(job: Job[Any, Any]) -> None:
        job.result(value)
        then(job)

    return deed


def result(h: Harness, key: str = "k") -> bytes | None:
    return h.ledger.facts.result(JobId(NAMESPACE, QUEUE, key, 0))


def test_a_result_is_recorded_with_done(harness: MakeHarness) -> None:
    exports = worker(gives({"rows": 17}))
    h = harness(exports)
    h.send(exports, {}, key="k")
    h.wait("k", until="done")
    assert result(h) == b'{"rows":17}'


def test_a_null_is_a_result_too(harness: MakeHarness) -> None:
    exports = worker(gives(None))
    h = harness(exports)
    h.send(exports, {}, key="k")
    h.wait("k", until="done")
    assert result(h) == b"null"


@pytest.mark.parametrize(("last", "expected"), [(gives(2), b"2"), (nothing, None)], ids=["own", "none"])
def test_a_run_that_failed_leaves_no_result(harness: MakeHarness, last: Deed, expected: bytes | None) -> None:
    exports = worker(gives(1, raises(ValueError("boom"))), last, retry=RetryPolicy(max_attempts=3, wait=1))
    h = harness(exports)
    h.send(exports, {}, key="k")
    h.wait("k", until="done")
    assert result(h) == expected


def test_a_dead_job_has_no_result(harness: MakeHarness) -> None:
    exports = worker(gives(1, raises(ValueError("boom"))), retry=RetryPolicy(max_attempts=1))
    h = harness(exports)
    h.send(exports, {}, key="k")
    h.wait("k", until="dead")
    assert result(h) is None


def test_after_a_take_over_the_result_is_that_of_the_last_run(harness: MakeHarness) -> None:
    gate = Gate()
    exports = worker(gives("of the killed process", gate), gives("of the take-over"))
    h = harness(exports)
    h.send(exports, {}, key="k")
    h.wait("k", until=gate.reached.is_set)
    h.kill("k")
    gate.open()
    h.wait("k", until="done")
    assert result(h) == b'"of the take-over"'
