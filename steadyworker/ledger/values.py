"""The named parameters of SQL statements, the same in every ledger that uses SQL."""

from __future__ import annotations

from typing import Any

from steadyworker.ledger.base import JobId, Row, Token
from steadyworker.outcome import Counters

Values = dict[str, Any]


def pk_values(id: JobId) -> Values:
    """Return the primary key of a job's row."""
    return {"namespace": id.namespace, "queue": id.queue, "key": id.key, "round": id.round}


def mine_values(token: Token) -> Values:
    """Return what identifies the row of a token; it matches no row once the token's claim has ended."""
    return pk_values(token.id) | {"uid": token.uid, "fence": token.fence, "owner": token.owner}


def seen_values(row: Row) -> Values:
    """Return what identifies the row that was read; it matches no row once a claim or a change of state came between."""
    return pk_values(row.id) | {"uid": row.uid, "fence": row.fence, "state": row.state.value}


def counters_values(counters: Counters) -> Values:
    """Return the four counters and the time of the first failure."""
    return {
        "attempts": counters.attempts,
        "crashes": counters.crashes,
        "losses": counters.losses,
        "interruptions": counters.interruptions,
        "first_failed_at": counters.first_failed_at,
    }
