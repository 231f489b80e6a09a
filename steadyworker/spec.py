"""
The rules for a Worker's attributes: each turns what was written into what is used, or says what it expected.

A rule raises ValueError; `Check` puts the attribute's name before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from steadyworker.errors import ConfigError, seconds
from steadyworker.names import QUEUE_NAME
from steadyworker.retry import RetryPolicy
from steadyworker.system.procfs import cgroup_limit, parse_size

_AUTO_SHARE = 0.8


class Check:
    """Applies a rule to one attribute, and names both when it does not hold."""

    def __init__(self, owner: str) -> None:
        self._owner = owner

    def __call__(self, name: str, value: Any, rule: Callable[[Any], Any]) -> Any:
        """Apply the rule; raises ConfigError that names attribute, expectation and value."""
        try:
            return rule(value)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self._owner}.{name}: {error} Got {value!r}.") from None


def duration(value: Any) -> float | None:
    """Seconds above 0 from seconds or a timedelta; None is no limit."""
    number = seconds(value)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < float("inf"):
        raise ValueError("Expected seconds above 0, a timedelta, or None.")
    return float(number)


def at_least_one(value: Any) -> int:
    """A count."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("Expected a whole number of at least 1.")
    return value


def text(value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("Expected a text that is not empty.")
    return value


def queue_name(value: Any) -> str:
    """A name that every broker takes."""
    if problem := QUEUE_NAME.problem(text(value)):
        raise ValueError(problem)
    return str(value)


def one_of(*choices: str) -> Callable[[Any], Any]:
    """One of a few words."""

    def rule(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"Expected one of {', '.join(map(repr, choices))}.")
        return value

    return rule


def optional(rule: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The rule, or None."""
    return lambda value: None if value is None else rule(value)


def policy(ours: RetryPolicy, value: Any) -> RetryPolicy:
    """A RetryPolicy, or a table of a configuration file: its numbers over our policy."""
    if isinstance(value, RetryPolicy):
        return value
    if not isinstance(value, Mapping) or not set(value) <= {"max_attempts", "max_crashes", "max_losses"}:
        raise ValueError("Expected a RetryPolicy, or a table with some of max_attempts, max_crashes, max_losses.")
    return replace(
        ours,
        max_attempts=at_least_one(value.get("max_attempts", ours.max_attempts)),
        max_crashes=at_least_one(value.get("max_crashes", ours.max_crashes)),
        max_losses=at_least_one(value.get("max_losses", ours.max_losses)),
    )


def memory(value: Any, concurrency: int) -> int | None:
    """Bytes from a number or a size; `auto` is our share of the cgroup's limit, and None without one."""
    if value is None:
        return None
    if value == "auto":
        limit = cgroup_limit()
        return None if limit is None else int(limit * _AUTO_SHARE / concurrency)
    size = parse_size(value) if isinstance(value, str) else value
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError("Expected bytes, a size such as '2 GiB', 'auto' or None.")
    return size
