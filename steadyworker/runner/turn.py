"""
The writes of one turn of the runner: first claims, and ends of jobs, which the ledger records in one commit.

A turn handles all events that are in the inbox.
With several slots, one turn can have several deliveries of new jobs, and several jobs that are done.
The runner begins runs and acknowledges messages after the commit, because only then the ledger has granted the writes.
If the ledger does not respond, the runner decides again on each delivery and each run, as after a single write.
A turn with one write calls the ledger as if there were no turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from steadyworker.errors import LedgerUnavailable
from steadyworker.ledger.base import Claimed, Ending, Ledger, Row, Token

_MOST = 64
"""The largest number of writes in one commit, so that no other process waits long for the ledger."""

_MOST_BYTES = 256 << 10
"""
The number of bytes in the messages and results of one commit that makes it full, for the same reason.

So a commit has less than this number of bytes, and one more message or result.
"""

Begin = Callable[[Row | LedgerUnavailable | None], None]
"""Receives the result of a claim: the row, None if the ledger refused the claim, or the error."""

Granted = bool | LedgerUnavailable
"""The result of an end: True, False if the ledger refused it, or the error."""


class TurnWrites:
    """
    The writes that wait for the commit of this turn.

    1. While the turn is `open`, `claim` and `end` keep a write, and the function that receives the write's result.
    2. `commit` closes the turn, records all writes, and passes their results on: first the ends, so that messages are acknowledged soon.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.open = False
        self._ledger = ledger
        self._claims: list[tuple[Claimed, Begin]] = []
        self._ends: list[tuple[Token, Ending | None, Callable[[Granted], None]]] = []
        self._bytes = 0

    @property
    def full(self) -> bool:
        """True if the turn must commit before it keeps another write."""
        return len(self._claims) + len(self._ends) >= _MOST or self._bytes >= _MOST_BYTES

    def claim(self, claim: Claimed, begin: Begin) -> None:
        """Keep the claim of a job that seems to be new."""
        self._claims.append((claim, begin))
        if claim.message is not None:
            self._bytes += len(claim.message.body) + len(claim.message.facts)

    def end(self, token: Token, ending: Ending | None, end: Callable[[Granted], None]) -> None:
        """Keep the change of a run's job to `done`."""
        self._ends.append((token, ending, end))
        if ending is not None and ending.result is not None:
            self._bytes += len(ending.result)

    def commit(self) -> None:
        """Record the writes that wait, and pass the results on; do nothing without writes."""
        self.open = False
        claims, self._claims = self._claims, []
        ends, self._ends = self._ends, []
        self._bytes = 0
        if not claims and not ends:
            return
        rows: Sequence[Row | LedgerUnavailable | None]
        ended: Sequence[Granted]
        try:
            rows, ended = self._record([claim for claim, _ in claims], [(token, ending) for token, ending, _ in ends])
        except LedgerUnavailable as error:
            rows, ended = [error] * len(claims), [error] * len(ends)
        for (*_, end), granted in zip(ends, ended, strict=True):
            end(granted)
        for (_, begin), row in zip(claims, rows, strict=True):
            begin(row)

    def _record(
        self, claims: Sequence[Claimed], ended: Sequence[tuple[Token, Ending | None]]
    ) -> tuple[Sequence[Row | None], Sequence[Granted]]:
        if len(claims) + len(ended) > 1:
            return self._ledger.record(claims, ended)
        return [self._ledger.claim(claim) for claim in claims], [self._ledger.done(*end) for end in ended]
