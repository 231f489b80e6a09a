"""
When a job is tried again, and the one pure function that turns an Outcome into a Settlement.

The waits are tenacity's strategies, as they are: `wait_exponential(...)`, `wait_fixed(2) + wait_random(0, 1)`, a user's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tenacity import RetryCallState, Retrying, wait_exponential

from steadyworker.errors import ConfigError
from steadyworker.outcome import (
    Ack,
    Counters,
    Crashed,
    DeadLetter,
    Done,
    Failed,
    Interrupted,
    Later,
    Outcome,
    Rejected,
    Release,
    Settlement,
    Snoozed,
)

Wait = Callable[[RetryCallState], float]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """
    How often, and after how long, a job is tried again.

    Args:
        max_attempts: Attempts that may fail before the job is a dead letter ("exhausted").
        wait: Any of tenacity's wait strategies, or a callable like them; seconds.
        dont_retry_on: Exception types that are a dead letter at once; judged where the handler runs.
        max_crashes: Crashes after which the job is a dead letter ("crash-loop").
        max_losses: Vanished owners in a row, without a new checkpoint, after which it is one ("owner lost").

    Raises:
        ConfigError: A number below 1, or a `wait` that does not answer seconds.
    """

    max_attempts: int = 5
    wait: Wait = field(default_factory=lambda: wait_exponential(multiplier=5, max=3600))
    dont_retry_on: tuple[type[BaseException], ...] = ()
    max_crashes: int = 3
    max_losses: int = 5

    def __post_init__(self) -> None:
        for name in ("max_attempts", "max_crashes", "max_losses"):
            if getattr(self, name) < 1:
                msg = f"Expected {name} of at least 1, got {getattr(self, name)}: 1 means that nothing is tried again."
                raise ConfigError(msg)
        try:
            self.delay(1)
        except ConfigError:
            raise
        except Exception as error:
            msg = f"Expected wait to answer seconds for attempt 1, but it raised {error!r}: use one of tenacity's wait strategies."
            raise ConfigError(msg) from error

    def delay(self, attempt: int) -> float:
        """Draw the wait after this attempt (from 1), in seconds."""
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = attempt
        drawn: Any = self.wait(state)
        if not isinstance(drawn, (int, float)) or not 0 <= drawn < float("inf"):
            msg = f"Expected wait to answer seconds from 0 up, got {drawn!r}: use one of tenacity's wait strategies."
            raise ConfigError(msg)
        return float(drawn)


def count(outcome: Outcome, counters: Counters, now: float) -> Counters:
    """The counters after this outcome; `now` is wall clock, for the first failure."""
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
    """The wait that the policy draws for this outcome; a crash waits as attempt number `crashes`; `counters` include the outcome."""
    match outcome:
        case Failed():
            return policy.delay(counters.attempts)
        case Crashed():
            return policy.delay(counters.crashes)
        case _:
            return 0.0


def decide(outcome: Outcome, counters: Counters, policy: RetryPolicy, delay: float) -> Settlement:  # noqa: PLR0911 - one return per line of the table
    """
    What follows from an outcome, for counters that include it and a delay that was drawn for it (contract §3).

    Pure: the same four values always give the same settlement.
    """
    match outcome:
        case Done():
            return Ack()
        case Snoozed(delay=wanted):
            return Later(wanted)
        case Rejected(reason=reason):
            return DeadLetter(reason)
        case Interrupted():
            return Release()
        case Failed(delay=wanted):
            if counters.attempts >= policy.max_attempts:
                return DeadLetter("exhausted")
            return Later(delay if wanted is None else wanted)
        case Crashed(cause=cause):
            if counters.crashes >= policy.max_crashes:
                return DeadLetter(f"crash-loop: {cause}")
            return Later(delay)
