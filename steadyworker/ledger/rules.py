"""
The decision table: what a worker does with a delivery, as one pure function of the row, the hop, and who runs the job.

`answer` is the whole of contract §4 in the order in which its lines are tried; the first line that fits decides.
It reads no clock and calls nothing: the ledger judged the clocks when it read the row, and the runner knows what it runs itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from steadyworker.ledger.base import Moving, Row, State
from steadyworker.outcome import Counters

EARLY = 1.0
"""A copy that comes more than this many seconds before it is due follows (contract §3, Delays)."""


class HeldBy(Enum):
    """
    Who holds a row that is `running` or `moving`, as seen by one worker process.

    MINE: I do, and its run or hand-over is in my table under the row's fence, with a valid delivery to settle.
    ADRIFT: I do, and its delivery is no longer valid.
    LOST: I do by name, but no such run is in my table.
    ALIVE: another does, its lease is not over, and there is no proof of its death.
    GONE: another did and is provably dead, or its lease is over, or nobody does.
    """

    MINE = "mine"
    DETACHED = "detached"
    LOST = "lost"
    ALIVE = "alive"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Claim:
    """Run it, with these counters; `losses` says that the run before it was lost with its owner."""

    counters: Counters
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Adopt:
    """Bind the delivery to my own run, which is adrift."""


@dataclass(frozen=True, slots=True)
class Defer:
    """Pass the delivery on, unrun: a copy with the same hop after at most `delay` seconds, confirmed, then ack."""

    delay: float | None = None


@dataclass(frozen=True, slots=True)
class AckDuplicate:
    """Acknowledge unrun: the record has the answer."""

    state: State


@dataclass(frozen=True, slots=True)
class Finish:
    """Finish the hand-over that its owner left half-way; run nothing."""


@dataclass(frozen=True, slots=True)
class LostTooOften:
    """Its owner vanished too often: a dead letter, and then the hand-over is finished."""

    counters: Counters
    reason: str


@dataclass(frozen=True, slots=True)
class KeyConflict:
    """The same key with another body: a dead letter of this delivery, the row untouched."""


Action = Claim | Adopt | Defer | AckDuplicate | Finish | LostTooOften | KeyConflict


def answer(  # noqa: PLR0911, C901 - one return per line of the table, in the table's order
    row: Row | None, hop: int, body_sha256: bytes, who: HeldBy, carried: Counters, max_losses: int
) -> Action:
    """
    What to do with a delivery of this hop and body; `carried` are the counters in its headers, for a row that is gone.

    A delivery with the ledger unreachable never comes here: it is held.
    """
    if row is None:
        return Claim(carried)
    if row.body_sha256 is not None and row.body_sha256 != body_sha256:
        return KeyConflict()
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
