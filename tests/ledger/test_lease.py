"""The keeper of leases: how often it asks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import Ledger, Renewal, Token
from steadyworker.ledger.lease import Keeper
from tests.conftest import Eventually


class Granting:
    """A ledger that renews whatever it is asked for."""

    def renew(self, tokens: Sequence[Token]) -> Sequence[Renewal]:
        return [Renewal(granted=True, cancel_reason=None) for _ in tokens]

    def register(self, *_: Any) -> None:
        """Noted by nobody."""


class Impatient:
    """A holder whose other writes fail: whenever it hears that the ledger is there, it wants to hear it again."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.turns: list[float] = []
        self.keeper: Keeper | None = None

    def tokens(self) -> Sequence[Token]:
        return ()

    def renewed(self, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        del began, answers
        assert self.keeper is not None
        self.turns.append(self.clock.monotonic())
        self.keeper.hurry()

    def ledger_lost(self, cause: str) -> None:
        raise AssertionError(cause)


def test_whoever_hurries_all_the_time_gets_fifteen_turns_for_one(eventually: Eventually) -> None:
    """Renewals land and the record does not, on a server with a full disk: nobody may spin meanwhile."""
    holder, times = Impatient(), Times(renew=3.0)
    keeper = holder.keeper = Keeper(cast(Ledger, Granting()), "me", "host", [], [holder], holder.clock, times)
    thread = threading.Thread(target=keeper.run)
    thread.start()
    try:
        eventually(lambda: len(holder.turns) >= 5)
    finally:
        keeper.end()
        thread.join()
    assert all(later - before >= 0.19 for before, later in zip(holder.turns, holder.turns[1:], strict=False))
