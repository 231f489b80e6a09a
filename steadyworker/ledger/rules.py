"""
The decision table as one pure function, which decides on a delivery by the row, the hop and the holder.

`action_for` has the lines of the table in `steadyworker.ledger`, in the same order; the first line that fits decides.
`action_for` reads no clock and calls no other part.
The row has a field for the end of its lease, and the caller passes the holder of the job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from steadyworker.ledger.base import Moving, Row, State
from steadyworker.outcome import Counters

EARLY = 1.0
"""The most seconds by which an accepted retry may be early; the runner defers a retry that is earlier."""


class HeldBy(Enum):
    """
    The holder of a `running` or `moving` row, as one worker process sees it.

    MINE: this process owns the row, and has a run or settlement with the row's fence, whose delivery is valid.
    DETACHED: this process owns the row, but the delivery of that run or settlement is no longer valid.
    LOST: this process owns the row, but has no run or settlement under the row's fence.
    ALIVE: another process owns the row, lease and margin are not over, and there is no proof that this other process is dead.
    GONE: the row has no owner, or its owner is another process that is proven dead, or whose lease and margin are over.
    """

    MINE = "mine"
    DETACHED = "detached"
    LOST = "lost"
    ALIVE = "alive"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Claim:
    """The action to run the job with these counters; `lost` is true if the previous run was lost with its owner."""

    counters: Counters
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Adopt:
    """The action to bind the delivery to this process's run of the job, because that run has lost its own delivery."""


@dataclass(frozen=True, slots=True)
class Defer:
    """
    The action to publish a delayed message with the same hop, wait for its confirm, and acknowledge the delivery; it runs nothing.

    The delay is the longest delay level of at most `delay` seconds; None stands for `Times.defer_delay`.
    """

    delay: float | None = None


@dataclass(frozen=True, slots=True)
class AckDuplicate:
    """
    The action to acknowledge the delivery and run nothing.

    The row shows that the job has ended, or that a retry has replaced this message.
    """

    state: State


@dataclass(frozen=True, slots=True)
class Finish:
    """The action to complete the settlement that the row's earlier owner left unfinished; it runs nothing."""


@dataclass(frozen=True, slots=True)
class LostTooOften:
    """The action to record a dead letter and complete its settlement, because the job lost its owners too often."""

    counters: Counters
    reason: str


@dataclass(frozen=True, slots=True)
class KeyConflict:
    """The action to make this delivery a dead letter, because a job with another body has its key; the row counts the conflict."""


@dataclass(frozen=True, slots=True)
class Replay:
    """
    The action to decide again on this delivery, as on a message of the next round.

    This message has hop 0, no counters, and no cause of a dead letter.
    The next round is the letter's own round plus 1, not the key's last round plus 1.
    So two copies of a letter lead to one replay.
    """


Action = Claim | Adopt | Defer | AckDuplicate | Finish | LostTooOften | KeyConflict | Replay


def action_for(  # noqa: PLR0911, C901 - one return per line of the table, in the table's order
    row: Row | None,
    hop: int,
    body_sha256: bytes,
    who: HeldBy,
    carried: Counters,
    max_losses: int,
    *,
    letter: bool = False,
) -> Action:
    """
    Return the action on a delivery of this hop and body.

    `carried` are the counters in the message's headers, which count only if the job has no row.
    `letter` is true for the job's own dead letter, which an operator moved unchanged to the work queue.
    While the ledger is unreachable, the runner holds the delivery and does not call this function.
    """
    if row is None:
        return Replay() if letter else Claim(carried)
    if row.body_sha256 is not None and row.body_sha256 != body_sha256:
        return KeyConflict()
    if letter and (row.state is State.DEAD or (row.state is State.MOVING and row.target is Moving.DEAD)):
        return Replay()
    if row.state in (State.DONE, State.DEAD):
        return AckDuplicate(row.state)
    ahead = hop - row.hop
    if ahead < 0:
        return AckDuplicate(row.state)
    if row.state is State.INTERRUPTED:
        return Claim(row.counters)
    if row.state is State.MOVED and ahead == 0:
        return AckDuplicate(row.state)
    retrying = row.state is State.MOVED or (row.state is State.MOVING and row.target is Moving.RETRY)
    if retrying and ahead >= 1:
        return Defer(row.due_in) if row.due_in > EARLY else Claim(row.counters)
    if who is HeldBy.DETACHED:
        return Adopt()
    if who in (HeldBy.MINE, HeldBy.ALIVE):
        return Defer()
    if row.state is State.MOVING:
        return Finish()
    if who is HeldBy.LOST:
        return Claim(row.counters)
    return _take_over(row, max_losses)


def _take_over(row: Row, max_losses: int) -> Action:
    saved = row.checkpoint_fence is not None and row.checkpoint_fence == row.fence
    losses = 1 if saved else row.counters.losses + 1
    counters = replace(row.counters, losses=losses)
    if losses >= max_losses:
        return LostTooOften(counters, f"owner lost ×{losses}")
    return Claim(counters, lost=True)
