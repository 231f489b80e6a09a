"""One worker process's line to a ledger, which a test can cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import Ledger


class LedgerLine:
    """
    Passes every call on to the ledger, unless a test says that there is no answer.

    `cut` and `mend` take the ledger away and bring it back; calls meanwhile do nothing and raise LedgerUnavailable.
    `lose_answer` does the one thing that is worse: the call lands, and its caller never hears of it.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._away: str | None = None
        self._lost: list[str] = []

    def cut(self, cause: str = "the ledger is away") -> None:
        """Answer nothing until `mend`."""
        self._away = cause

    def mend(self) -> None:
        """Answer again."""
        self._away = None

    def lose_answer(self, call: str) -> None:
        """The next call of this name (`claim`, `done` …) lands, and raises LedgerUnavailable."""
        self._lost.append(call)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._ledger, name)
        return self._relayed(name, real) if callable(real) else real

    def _relayed(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self._away is not None:
                raise LedgerUnavailable(f"Expected the ledger to answer {name}, but {self._away}.")
            answer = real(*arguments)
            if name in self._lost:
                self._lost.remove(name)
                raise LedgerUnavailable(f"Expected the ledger's answer to {name}, but it was lost.")
            return answer

        return call
