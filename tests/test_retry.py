"""`decide`: four values in, one settlement out; and the policy that is checked before the first job."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenacity import wait_chain, wait_exponential, wait_fixed, wait_none, wait_random

from steadyworker.errors import LONGEST_DELAY, ConfigError
from steadyworker.outcome import (
    Ack,
    Counters,
    Crashed,
    Done,
    Failed,
    Interrupted,
    Later,
    Outcome,
    Rejected,
    Release,
    Settlement,
    Snoozed,
    ToDeadLetter,
)
from steadyworker.retry import RetryPolicy, count, decide, drawn_delay

POLICY = RetryPolicy(max_attempts=5, max_crashes=3)
NOW = 1_700_000_000.0

# outcome, counters that include it, delay drawn → settlement
DECISIONS: list[tuple[Outcome, Counters, Settlement]] = [
    (Done(), Counters(), Ack()),
    (Done(), Counters(attempts=9, crashes=9), Ack()),
    (Snoozed(60.0), Counters(attempts=9), Later(60.0)),
    (Rejected("no such merchant"), Counters(), ToDeadLetter("no such merchant")),
    (Interrupted(), Counters(interruptions=99), Release()),
    (Failed("odd"), Counters(attempts=1), Later(7.0)),
    (Failed("odd"), Counters(attempts=4), Later(7.0)),
    (Failed("odd"), Counters(attempts=5), ToDeadLetter("exhausted")),
    (Failed("odd", delay=0.0), Counters(attempts=1), Later(0.0)),
    (Failed("odd", delay=90.0), Counters(attempts=1), Later(90.0)),
    (Failed("odd", delay=90.0), Counters(attempts=5), ToDeadLetter("exhausted")),
    (Failed("odd"), Counters(attempts=1, crashes=9), Later(7.0)),
    (Crashed("SIGSEGV"), Counters(crashes=1), Later(7.0)),
    (Crashed("SIGSEGV"), Counters(crashes=2, attempts=9), Later(7.0)),
    (Crashed("SIGKILL"), Counters(crashes=3), ToDeadLetter("crash-loop: SIGKILL")),
]


@pytest.mark.parametrize(("outcome", "counters", "settlement"), DECISIONS)
def test_each_decision(outcome: Outcome, counters: Counters, settlement: Settlement) -> None:
    assert decide(outcome, counters, POLICY, 7.0) == settlement


@pytest.mark.parametrize(
    ("outcome", "after"),
    [
        (Done(), Counters(2, 2, 2, 2)),
        (Snoozed(1.0), Counters(2, 2, 2, 2)),
        (Rejected("no"), Counters(2, 2, 2, 2)),
        (Failed("odd"), Counters(3, 2, 2, 2, NOW)),
        (Crashed("SIGSEGV"), Counters(2, 3, 2, 2, NOW)),
        (Interrupted(), Counters(2, 2, 2, 3)),
    ],
)
def test_no_two_counters_are_ever_mixed(outcome: Outcome, after: Counters) -> None:
    assert count(outcome, Counters(2, 2, 2, 2), NOW) == after


def test_the_first_failure_is_remembered() -> None:
    once = count(Failed("odd"), Counters(), NOW)
    twice = count(Crashed("SIGSEGV"), once, NOW + 60)

    assert (once.first_failed_at, twice.first_failed_at) == (NOW, NOW)


def test_a_crash_waits_as_attempt_number_crashes() -> None:
    policy = RetryPolicy(wait=wait_exponential(multiplier=5))
    counters = Counters(attempts=4, crashes=2)

    assert drawn_delay(Failed("odd"), counters, policy) == 40.0
    assert drawn_delay(Crashed("SIGSEGV"), counters, policy) == 10.0
    assert drawn_delay(Snoozed(3.0), counters, policy) == 0.0


@pytest.mark.parametrize(
    ("wait", "third"),
    [
        (wait_none(), 0.0),
        (wait_fixed(2), 2.0),
        (wait_fixed(2) + wait_fixed(3), 5.0),
        (wait_chain(wait_fixed(1), wait_fixed(2), wait_fixed(9)), 9.0),
        (lambda state: state.attempt_number * 10, 30.0),
    ],
)
def test_any_of_tenacitys_strategies_will_do(wait: Any, third: float) -> None:
    assert RetryPolicy(wait=wait).delay(3) == third


def test_a_random_wait_is_drawn_anew() -> None:
    policy = RetryPolicy(wait=wait_random(0, 1000))

    assert len({policy.delay(1) for _ in range(20)}) > 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"max_attempts": 0}, "Expected max_attempts as a whole number of at least 1, got 0"),
        ({"max_attempts": "5"}, "Expected max_attempts as a whole number of at least 1, got '5'"),
        ({"max_crashes": -1}, "Expected max_crashes as a whole number of at least 1, got -1"),
        ({"max_losses": 0}, "Expected max_losses as a whole number of at least 1, got 0"),
        ({"max_losses": 2.5}, "Expected max_losses as a whole number of at least 1, got 2.5"),
        ({"dont_retry_on": "ValueError"}, "Expected exception types in dont_retry_on, got 'ValueError'"),
        (
            {"dont_retry_on": [ValueError, KeyError("k")]},
            "Expected exception types in dont_retry_on, got KeyError('k')",
        ),
        ({"dont_retry_on": (ValueError, (KeyError,))}, "Expected exception types in dont_retry_on, got (<class"),
        ({"dont_retry_on": int}, "Expected exception types in dont_retry_on, got <class 'int'>"),
        (
            {"wait": "soon"},
            "Expected wait as a delay, or one of tenacity's wait strategies: Expected a delay of 0 seconds",
        ),
        ({"wait": -1}, "or a text such as '1h 30m', got -1"),
        ({"wait": lambda state: "soon"}, "Expected `wait` to return 0 seconds or more, got 'soon'"),
        ({"wait": lambda state: -1}, "Expected `wait` to return 0 seconds or more, got -1"),
        ({"wait": lambda state: float("nan")}, "Expected `wait` to return 0 seconds or more, got nan"),
        ({"wait": lambda state: 1 / 0}, "it raised ZeroDivisionError"),
        ({"wait": lambda: 5}, "it raised TypeError"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_made(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        RetryPolicy(**arguments)

    assert told in str(raised.value)


@pytest.mark.parametrize("wait", [60, 60.0, "60s", timedelta(minutes=1), wait_fixed(60), lambda _state: 60])
def test_a_wait_is_a_duration_or_a_strategy(wait: Any) -> None:
    assert RetryPolicy(wait=wait).delay(3) == 60.0


@pytest.mark.parametrize("types", [ValueError, (ValueError,), [ValueError], {ValueError}])
def test_types_that_are_not_retried_may_be_one_or_several(types: Any) -> None:
    policy = RetryPolicy(dont_retry_on=types)
    assert policy.dont_retry_on == (ValueError,)
    assert replace(policy, max_attempts=2).dont_retry_on == (ValueError,)


def test_no_wait_is_longer_than_a_ledger_can_express() -> None:
    """PostgreSQL has no time after the year 294276; a strategy without a maximum passes it in its 44th attempt."""
    assert RetryPolicy(wait=wait_exponential()).delay(50) == LONGEST_DELAY


OUTCOMES = st.one_of(
    st.builds(Done),
    st.builds(Interrupted),
    st.builds(Snoozed, st.floats(0, 1e6)),
    st.builds(Rejected, st.text()),
    st.builds(Failed, st.text(), delay=st.none() | st.floats(0, 1e6)),
    st.builds(Crashed, st.text()),
)


@given(st.lists(OUTCOMES, max_size=60))
def test_no_job_is_tried_for_ever(outcomes: list[Outcome]) -> None:
    """Whatever happens to a job: at most five failures and three crashes before it is a dead letter."""
    counters, failed, crashed = Counters(), 0, 0
    for outcome in outcomes:
        counters = count(outcome, counters, NOW)
        failed += isinstance(outcome, Failed)
        crashed += isinstance(outcome, Crashed)
        settlement = decide(outcome, counters, POLICY, 1.0)
        if isinstance(settlement, ToDeadLetter | Ack):
            break

    assert failed <= POLICY.max_attempts
    assert crashed <= POLICY.max_crashes
