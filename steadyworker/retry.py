"""
The retry policy, and the one pure function that turns an Outcome into a Settlement.

A wait is one of tenacity's strategies, such as `wait_exponential(...)` or `wait_fixed(2) + wait_random(0, 1)`, or your own function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from tenacity import RetryCallState, Retrying, wait_chain, wait_combine, wait_exception, wait_exponential, wait_fixed
from tenacity.wait import wait_base

from steadyworker.errors import LONGEST_DELAY, ConfigError, delay_in_seconds
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

Wait = Callable[[RetryCallState], float]
Errors = type[BaseException] | Sequence[type[BaseException]]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """
    The rule for retries: their number, and the wait before each retry.

    Args:
        max_attempts: The number of failed attempts after which the job becomes a dead letter ("exhausted").
        wait: The time between attempts: seconds, a timedelta, a text such as "1m", a wait strategy of tenacity, or a callable.
            Your own callable runs in the worker process, and must return within one second; otherwise the default wait applies.
        dont_retry_on: An exception type, or several, that make the job a dead letter at once; the slot checks the exception's type.
        max_crashes: The number of crashes after which the job becomes a dead letter ("crash-loop").
        max_losses: The number of lost owners after which the job becomes a dead letter ("owner lost").
            If the lost run had saved a checkpoint, the count starts at 1 again.

    Raises:
        ConfigError: A number is below 1, `wait` does not return seconds, or `dont_retry_on` contains something that is no exception type.
    """

    max_attempts: int = 5
    wait: Wait | float | timedelta | str = field(default_factory=lambda: wait_exponential(multiplier=5, max=3600))
    dont_retry_on: Errors = ()
    max_crashes: int = 3
    max_losses: int = 5

    def __post_init__(self) -> None:
        for name in ("max_attempts", "max_crashes", "max_losses"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                msg = f"Expected {name} as a whole number of at least 1, got {value!r}: set 1 to have no retry."
                raise ConfigError(msg, id="config.worker")
        if not callable(self.wait):
            object.__setattr__(self, "wait", _fixed(self.wait))
        object.__setattr__(self, "dont_retry_on", _types(self.dont_retry_on))
        try:
            self.delay(1)
        except ConfigError:
            raise
        except Exception as error:
            msg = f"Expected `wait` to return seconds for attempt 1, but it raised {error!r}: use one of tenacity's wait strategies."
            raise ConfigError(msg, id="config.worker") from error

    def delay(self, attempt: int) -> float:
        """Return the wait in seconds after this attempt (from 1), drawn from the strategy."""
        assert callable(self.wait), "a number became a callable above"
        drawn = draw(self.wait, attempt)
        if not isinstance(drawn, (int, float)) or not 0 <= drawn < float("inf"):
            msg = f"Expected `wait` to return 0 seconds or more, got {drawn!r}: use one of tenacity's wait strategies."
            raise ConfigError(msg, id="config.worker")
        return min(float(drawn), LONGEST_DELAY)


def _fixed(wait: object) -> Wait:
    """Return the wait strategy for a fixed wait; raise ConfigError if `wait` is not a duration."""
    try:
        return wait_fixed(delay_in_seconds(wait))
    except ValueError as error:
        msg = f"Expected wait as a delay, or one of tenacity's wait strategies: {error}"
        raise ConfigError(msg, id="config.worker") from None


def _types(given: Any) -> tuple[type[BaseException], ...]:
    """Return the exception types as `isinstance` needs them; raise ConfigError for anything else."""
    types = given if isinstance(given, list | tuple | set | frozenset) else (given,)
    for each in types:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            msg = f"Expected exception types in dont_retry_on, got {each!r}: write for example dont_retry_on=(ValueError,)."
            raise ConfigError(msg, id="config.worker")
    return tuple(types)


def draw(wait: Callable[[RetryCallState], Any], attempt: int) -> Any:
    """Return the wait that a strategy draws for this attempt (from 1); strategies return seconds, but a user's own callable can return anything."""
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = attempt
    return wait(state)


def has_users_code(wait: object) -> bool:
    """Return whether this strategy can run code that is not tenacity's own; such code could block or fail."""
    if type(wait).__module__ != wait_base.__module__ or isinstance(wait, wait_exception):
        return True
    match wait:
        case wait_combine():
            return any(map(has_users_code, wait.wait_funcs))
        case wait_chain():
            return any(map(has_users_code, wait.strategies))
        case _:
            return False


def count(outcome: Outcome, counters: Counters, now: float) -> Counters:
    """Return the counters after this outcome; `now` is wall-clock time, for the first failure."""
    match outcome:
        case Failed():
            counters = replace(counters, attempts=counters.attempts + 1)
        case Crashed():
            counters = replace(counters, crashes=counters.crashes + 1)
        case Interrupted():
            return replace(counters, interruptions=counters.interruptions + 1)
        case _:
            return counters
    return counters if counters.first_failed_at is not None else replace(counters, first_failed_at=now)


def drawn_delay(outcome: Outcome, counters: Counters, policy: RetryPolicy) -> float:
    """
    Return the wait in seconds that the policy draws for this outcome.

    `counters` already count the outcome.
    The wait after crash number n is the wait after attempt number n.
    """
    match outcome:
        case Failed():
            return policy.delay(counters.attempts)
        case Crashed():
            return policy.delay(counters.crashes)
        case _:
            return 0.0


def decide(outcome: Outcome, counters: Counters, policy: RetryPolicy, delay: float) -> Settlement:  # noqa: PLR0911 - one return per line of the table
    """
    Return the settlement for an outcome.

    `counters` already count the outcome, and `drawn_delay` has drawn `delay` for the outcome.
    The function is pure: the same four values always give the same settlement.

    | outcome | settlement |
    |---|---|
    | `Done` | `Ack` |
    | `Snoozed` | `Later`, after the handler's delay |
    | `Rejected` | `ToDeadLetter`, with its reason |
    | `Interrupted` | `Release` |
    | `Failed` | `Later`, after the handler's delay; if the handler gave no delay, after `delay` |
    | `Failed`, at `max_attempts` | `ToDeadLetter` ("exhausted") |
    | `Crashed` | `Later`, after `delay` |
    | `Crashed`, at `max_crashes` | `ToDeadLetter` ("crash-loop") |
    """
    match outcome:
        case Done():
            return Ack()
        case Snoozed(delay=wanted):
            return Later(wanted)
        case Rejected(reason=reason):
            return ToDeadLetter(reason)
        case Interrupted():
            return Release()
        case Failed(delay=wanted):
            if counters.attempts >= policy.max_attempts:
                return ToDeadLetter("exhausted")
            return Later(delay if wanted is None else wanted)
        case Crashed(cause=cause):
            if counters.crashes >= policy.max_crashes:
                return ToDeadLetter(f"crash-loop: {cause}")
            return Later(delay)
