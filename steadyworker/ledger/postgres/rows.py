"""The conversion between the ledger's values and the PostgreSQL ledger's parameters and rows."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

from steadyworker.ledger.base import Claimed, Ending, JobId, KeptMessage, Moving, Row, State, Token, Verdict
from steadyworker.ledger.shared import Values, kept_checkpoint, verdict_values
from steadyworker.outcome import Counters

LONGEST_DELAY = 100 * 365.25 * 86_400.0
"""The longest delay in seconds, a century; a longer delay is cut, because PostgreSQL's timestamps have a largest value."""


def settlement_values(verdict: Verdict) -> Values:
    """Return the parameters of a settlement; the delay of its retry begins now."""
    return verdict_values(verdict, storable) | {"due_in": min(verdict.delay, LONGEST_DELAY)}


def message_values(message: KeptMessage | None) -> Values:
    """Return the parameters of a message, or NULLs without a message."""
    if message is None:
        return {"body": None, "facts": None}
    return {"body": b64encode(message.body).decode(), "facts": message.facts}


def claims_values(claims: Sequence[Claimed], drawn: int, uids: Sequence[str]) -> Values:
    """Return the parameters of several claims, with one array for each column; the fences begin with `drawn`."""
    counters = [claim.counters for claim in claims]
    messages = [message_values(claim.message) for claim in claims]
    return {
        "namespaces": [claim.id.namespace for claim in claims],
        "queues": [claim.id.queue for claim in claims],
        "keys": [claim.id.key for claim in claims],
        "rounds": [claim.id.round for claim in claims],
        "uids": list(uids),
        "bodies_sha256": [claim.body_sha256 for claim in claims],
        "hops": [claim.hop for claim in claims],
        "fences": list(range(drawn, drawn + len(claims))),
        "claimers": [claim.owner for claim in claims],
        "attempts": [each.attempts for each in counters],
        "crashes": [each.crashes for each in counters],
        "losses": [each.losses for each in counters],
        "interruptions": [each.interruptions for each in counters],
        "first_failed_at": [each.first_failed_at for each in counters],
        "bodies": [each["body"] for each in messages],
        "facts": [each["facts"] for each in messages],
        "slots": [None if claim.run is None else claim.run.slot for claim in claims],
        "becauses": [None if claim.run is None else claim.run.because for claim in claims],
        "epochs": [None if claim.run is None else claim.run.epoch for claim in claims],
    }


def tokens_values(tokens: Sequence[Token]) -> Values:
    """Return the parameters that identify the rows of these tokens, with one array for each column."""
    return {
        "uids": [token.uid for token in tokens],
        "fences": [token.fence for token in tokens],
        "owners": [token.owner for token in tokens],
    }


def ends_values(ended: Sequence[tuple[Token, Ending | None]]) -> Values:
    """Return the parameters of several ends of jobs, with one array for each column."""
    return {f"ended_{name}": values for name, values in tokens_values([token for token, _ in ended]).items()} | {
        "ended_outcomes": [None if end is None else end.outcome for _, end in ended],
        "ended_peaks": [None if end is None else end.peak_memory for _, end in ended],
        "ended_left": [None if end is None else kept_checkpoint(end.checkpoint) for _, end in ended],
        "ended_results": [None if end is None else end.result for _, end in ended],
    }


def row_of(found: Sequence[Any], is_dead: Callable[[str], bool]) -> Row:
    """Return the row; its lease is over if the server reports so, or if this host can prove the owner's death."""
    (
        namespace, queue, key, round_, uid, state, body_sha256, hop, fence, owner, lease_over,
        attempts, crashes, losses, interruptions, first_failed_at, target, due_in, late_by, delay,
        reason, error_class, error_text, checkpoint, checkpoint_fence, export_state, cancel_reason, settled,
        conflicts, created_at, started_at, ended_at, worker, *_of_the_statement,
    ) = found  # fmt: skip
    return Row(
        id=JobId(namespace, queue, key, round_),
        uid=uid,
        state=State(state),
        body_sha256=body_sha256,
        hop=hop,
        fence=fence,
        owner=owner,
        lease_over=lease_over or is_dead(owner),
        counters=Counters(attempts, crashes, losses, interruptions, first_failed_at),
        target=None if target is None else Moving(target),
        due_in=due_in,
        late_by=late_by,
        delay=delay,
        reason=reason,
        error_class=error_class,
        error_text=error_text,
        checkpoint=checkpoint,
        checkpoint_fence=checkpoint_fence,
        export_state=export_state,
        cancel_reason=cancel_reason,
        settled=settled,
        conflicts=conflicts,
        created_at=created_at,
        started_at=started_at,
        ended_at=ended_at,
        worker=worker,
    )


def storable(text: str) -> str:
    """Return text that PostgreSQL can store, with escapes for NUL and for non-Unicode characters (undecodable bytes of a file name)."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
