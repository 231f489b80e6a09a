"""The wait before a job's next attempt, whatever a user's `wait` does, and when the system allows no further thread."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tenacity import wait_chain, wait_exponential_jitter, wait_fixed, wait_random

from steadyworker.outcome import Crashed, Failed, Outcome
from steadyworker.retry import RetryPolicy
from tests.runner.bench import Bench
from tests.runner.kit import worker
from tests.support.limits import no_further_thread

DEFAULT = RetryPolicy().delay(1)


def delays(bench: Bench, *outcomes: Outcome) -> list[float]:
    """The delay of each job's retry, when one job after the other ends like this."""
    for outcome in outcomes:
        bench.deliver(f"k{len(bench.adapter.published)}")
        bench.ended(0, outcome)
    return [message.delay for message in bench.adapter.published]


@pytest.mark.parametrize(
    ("wait", "least", "most"),
    [
        (7, 7, 7),
        (wait_fixed(2) + wait_random(0, 1), 2, 3),
        (wait_chain(wait_fixed(1), wait_fixed(3)), 1, 1),
        (wait_exponential_jitter(multiplier=4, jitter=1), 4, 5),
    ],
    ids=["a number", "a sum", "a chain", "exponential"],
)
def test_a_wait_of_tenacity_needs_no_thread(wait: Any, least: float, most: float) -> None:
    bench = Bench(worker(retry=RetryPolicy(wait=wait)))
    with no_further_thread():
        drawn = delays(bench, Failed("odd"), Crashed("SIGSEGV"))
    assert len(drawn) == 2
    assert all(least <= delay <= most for delay in drawn)


def mine(_state: Any) -> float:
    return 7


@pytest.mark.parametrize(
    "wait",
    [mine, wait_fixed(0) + mine, wait_chain(wait_fixed(0) + mine, wait_fixed(1))],  # type: ignore[operator]
    ids=["a function", "within a sum", "within a chain"],
)
def test_a_wait_of_a_user_is_drawn_in_a_thread_and_replaced_by_the_default_if_none_can_start(
    wait: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(worker(retry=RetryPolicy(wait=wait)))
    with no_further_thread():
        assert delays(bench, Failed("odd")) == [DEFAULT]
    assert "can't start new thread" in caplog.text
    assert delays(bench, Crashed("SIGSEGV")) == [DEFAULT, 7]


def test_a_wait_that_blocks_costs_the_worker_process_one_second_and_one_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    never, calls = threading.Event(), list[int]()

    def wait(state: Any) -> float:
        calls.append(state.attempt_number)
        if len(calls) > 1:  # the first call is of RetryPolicy itself
            never.wait()
        return 7

    bench = Bench(worker(retry=RetryPolicy(wait=wait)))
    before, began = threading.active_count(), time.monotonic()
    assert delays(bench, *[Failed("odd")] * 4) == [DEFAULT] * 4
    assert threading.active_count() == before + 1
    assert 1 <= time.monotonic() - began < 2
    assert caplog.text.count("it took more than 1 s") == 1
    assert len(calls) == 2
    never.set()
