"""The conversion between the ledger's values and the SQLite ledger's parameters and rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from steadyworker.clock import Clock, Times
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Moving, Row, State, Verdict
from steadyworker.ledger.shared import Values, verdict_values
from steadyworker.outcome import Counters


def settlement_values(verdict: Verdict, clock: Clock, boot: str) -> Values:
    """Return the parameters of a settlement; the delay of its retry begins now."""
    return verdict_values(verdict, storable) | due_values(verdict.delay, clock, boot)


def due_values(delay: float, clock: Clock, boot: str) -> Values:
    """Return the parameters of a time of this boot: the time after `delay` seconds."""
    return {"boot": boot, "due": clock.boottime() + delay, "not_before": clock.wall() + delay}


def kept_values(message: KeptMessage) -> Values:
    """Return the parameters of a message that the ledger keeps."""
    return {"body": message.body, "facts": message.facts}


def row_of(found: Sequence[Any], clock: Clock, times: Times, boot: str, is_dead: Callable[[str], bool]) -> Row:
    """
    Return the present row.

    The row's lease is over if lease and margin have passed by this boot's clock, or if the lease is of another boot.
    The lease is also over if `is_dead(owner)` is true.
    """
    # Columns are read by position, because a lookup of 35 columns by name takes longer than the read from the file.
    (
        namespace, queue, key, round_, uid, state, body_sha256, hop, fence, owner, lease_boot, lease_until,
        attempts, crashes, losses, interruptions, first_failed_at, target, due_boot, due, not_before, delay,
        reason, error_class, error_text, checkpoint, checkpoint_fence, export_state, cancel_reason, settled,
        conflicts, created_at, started_at, ended_at, worker,
    ) = found  # fmt: skip
    now = clock.boottime()
    # A lease of another boot ended with that boot at the latest; a retry recorded in another boot counts as due.
    lease_end = lease_until if lease_boot == boot else 0.0
    due_in = due - now if due_boot == boot and due is not None else 0.0
    late_by = 0.0
    if owner is not None:
        late_by = now - lease_end
    elif state == State.MOVED:
        late_by = clock.wall() - not_before
    return Row(
        id=JobId(namespace, queue, key, round_),
        uid=uid,
        state=State(state),
        body_sha256=body_sha256,
        hop=hop,
        fence=fence,
        owner=owner,
        lease_over=owner is None or lease_boot != boot or now > lease_end + times.margin or is_dead(owner),
        counters=Counters(attempts, crashes, losses, interruptions, first_failed_at),
        target=None if target is None else Moving(target),
        due_in=max(0.0, due_in),
        late_by=max(0.0, late_by),
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


def new_row(claim: Claimed, uid: str, fence: int, checkpoint: bytes | None, now: float, worker: str) -> Row:
    """Return the row that a claim has inserted; all its values are known, so this function needs no read."""
    return Row(
        id=claim.id,
        uid=uid,
        state=State.RUNNING,
        body_sha256=claim.body_sha256,
        hop=claim.hop,
        fence=fence,
        owner=claim.owner,
        lease_over=False,
        counters=claim.counters,
        checkpoint=checkpoint,
        created_at=now,
        started_at=now,
        worker=worker,
    )


def row_values(row: Row, boot: str, lease_until: float) -> tuple[Any, ...]:
    """Return the parameters of `CLAIM_NEW` for this new row; the lease ends at `lease_until` by this boot's clock."""
    id, counters = row.id, row.counters
    return (
        row.fence, id.namespace, id.queue, id.key, id.round, row.uid, row.body_sha256, row.hop, row.fence, row.owner,
        boot, lease_until, counters.attempts, counters.crashes, counters.losses, counters.interruptions,
        counters.first_failed_at, row.checkpoint, row.created_at, row.started_at, row.worker,
    )  # fmt: skip


def number_of(uid: str) -> int:
    """Return the number with which this uid begins: that of its row; 0 for a uid that is not of this ledger."""
    number, dash, _ = uid.partition("-")
    with suppress(ValueError):
        return int(number, 16) if dash else 0
    return 0


def storable(text: str) -> str:
    """Return text that SQLite can store, with escapes for characters that are not Unicode (undecodable bytes of a file name)."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
