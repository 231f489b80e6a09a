"""Measures the calls of a ledger for `/metrics`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from steadyworker.clock import Clock
from steadyworker.ledger.base import Ledger
from steadyworker.ledger.facts import Facts


class Observe(Protocol):
    """A function that counts one call of the ledger."""

    def __call__(self, call: str, seconds: float, *, failed: bool) -> None:
        """Count one call of this name, which took `seconds`, and raised an error if `failed`."""
        ...


def timed(ledger: Ledger, clock: Clock, observe: Observe) -> Ledger:
    """Return a ledger that passes each call on to `ledger`, and then reports the call's name and duration to `observe`."""
    # Calls are passed on by name, so that a method that this Protocol gets later is measured, too.
    return cast(Ledger, _Timed(ledger, clock, observe))


class _Timed:
    def __init__(self, ledger: Ledger | Facts, clock: Clock, observe: Observe) -> None:
        self._ledger = ledger
        self._clock = clock
        self._observe = observe

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ledger, name)
        if name == "facts":
            value = _Timed(value, self._clock, self._observe)
            setattr(self, name, value)
        if not callable(value):
            return value
        method = self._measured(name, value)
        setattr(self, name, method)  # a worker process makes these calls many times for each job
        return method

    def _measured(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            began, failed = self._clock.monotonic(), True
            try:
                answer = method(*arguments, **options)
                failed = False
                return answer
            finally:
                self._observe(name, self._clock.monotonic() - began, failed=failed)

        return call
