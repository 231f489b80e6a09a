"""What statements are given, by name: the same words in every ledger that speaks SQL."""

from __future__ import annotations

from typing import Any

from steadyworker.ledger.base import JobId, Row, Token
from steadyworker.outcome import Counters

Values = dict[str, Any]


def pk_values(id: JobId) -> Values:
    """The row that a job has."""
    return {"namespace": id.namespace, "queue": id.queue, "key": id.key, "round": id.round}


def mine_values(token: Token) -> Values:
    """The row that a token names, for as long as it does."""
    return pk_values(token.id) | {"uid": token.uid, "fence": token.fence, "owner": token.owner}


def seen_values(row: Row) -> Values:
    """The row that was seen, for as long as nobody claims it or changes its state."""
    return pk_values(row.id) | {"uid": row.uid, "fence": row.fence, "state": row.state.value}


def counters_values(counters: Counters) -> Values:
    """The four counters, and the first failure."""
    return {
        "attempts": counters.attempts,
        "crashes": counters.crashes,
        "losses": counters.losses,
        "interruptions": counters.interruptions,
        "first_failed_at": counters.first_failed_at,
    }
