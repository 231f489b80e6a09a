"""The connection of one worker process to a ledger, which a test can cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import Ledger


class FlakyLedger:
    """
    A connection to the ledger, which passes every call on.

    After `cut`, calls do nothing and raise LedgerUnavailable, until `mend`.
    After `lose_answer`, the ledger carries out the call, but the caller gets LedgerUnavailable.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._away: str | None = None
        self._lost: list[str] = []

    def cut(self, cause: str = "the ledger is away") -> None:
        """Make every call raise LedgerUnavailable until `mend`."""
        self._away = cause

    def mend(self) -> None:
        """Pass calls to the ledger again."""
        self._away = None

    def lose_answer(self, call: str) -> None:
        """Make the next call of this name (`claim`, `done` …) take effect, and then raise LedgerUnavailable."""
        self._lost.append(call)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._ledger, name)
        if name == "facts":
            return _FlakyFacts(self, real)
        return self.relayed(name, real) if callable(real) else real

    def relayed(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that passes each call on to `real`, as long as the connection is not cut."""

        def call(*arguments: Any, **options: Any) -> Any:
            if self._away is not None:
                raise LedgerUnavailable(f"Expected a reply to {name}, but {self._away}: call mend().")
            answer = real(*arguments, **options)
            if name in self._lost:
                self._lost.remove(name)
                raise LedgerUnavailable(f"Expected the ledger's reply to {name}, but it was lost.")
            return answer

        return call


class _FlakyFacts:
    """The facts of a ledger, on the same connection."""

    def __init__(self, line: FlakyLedger, facts: Any) -> None:
        self._line = line
        self._facts = facts

    def __getattr__(self, name: str) -> Any:
        return self._line.relayed(name, getattr(self._facts, name))
