"""One row of the ledger in memory."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import asdict, replace

from steadyworker.ledger import retention
from steadyworker.ledger.base import (
    RATE_OVER,
    Began,
    Ending,
    JobFilter,
    JobId,
    KeptMessage,
    Moving,
    Progress,
    Row,
    State,
    Token,
    Verdict,
)
from steadyworker.ledger.facts import LOST, MOST_ATTEMPTS, Attempt
from steadyworker.ledger.facts_rows import safe_checkpoint
from steadyworker.ledger.hang import is_silent
from steadyworker.ledger.owners import host_of
from steadyworker.ledger.retention import Retention
from steadyworker.outcome import CANCELLED, SNOOZED, Counters

HELD = (State.RUNNING, State.MOVING)
"""The states in which a job has an owner."""
_NONE = Counters()


@dataclass(slots=True, eq=False)
class MemoryJob:
    """
    One row, which the ledger changes in place under its lock.

    `lease_until`, `due` and `wake_at` are readings of the boot clock; `attempts` has the last runs by their fences.
    `call_tries` is the number of tries of the job's owed call of `on_dead`, or None if no call is owed.
    `call_due` is the wall time of the call's next try.
    """

    id: JobId
    created_at: float
    uid: str = field(default_factory=partial(secrets.token_hex, 16))
    state: State = State.INTERRUPTED
    body_sha256: bytes | None = None
    hop: int = 0
    fence: int = 0
    owner: str | None = None
    lease_until: float = 0.0
    counters: Counters = _NONE
    target: Moving | None = None
    due: float = 0.0
    delay: float = 0.0
    reason: str = ""
    error_class: str = ""
    error_text: str = ""
    checkpoint: bytes | None = None
    checkpoint_fence: int | None = None
    export_state: bytes | None = None
    cancel_reason: str | None = None
    settled: str = "unknown"
    conflicts: int = 0
    keep_until: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    worker: str = ""
    progress: Progress | None = None
    progress_fence: int = 0
    sample: tuple[float, float] | None = None
    message: KeptMessage | None = None
    result: bytes | None = None
    call_tries: int | None = None
    call_due: float = 0.0
    wake_at: float | None = None
    attempts: dict[int, Attempt] = field(default_factory=dict)

    def held_by(self, token: Token, states: Collection[State]) -> bool:
        """
        Return whether this token still holds the job, and the job is in one of these states.

        Otherwise the ledger refuses the write.
        """
        named = self.fence == token.fence and self.uid == token.uid and self.owner == token.owner
        return named and self.state in states

    def unchanged(self, seen: Row) -> bool:
        """Return whether the job has had no claim and no change of state since the row was read."""
        return self.fence == seen.fence and self.uid == seen.uid and self.state is seen.state

    def moved_on(self, progress: Progress) -> None:
        """Record the progress of the present run; keep an earlier sample as well, if that sample is old enough."""
        before, sample, here = None, self.sample, None if progress.done is None else (progress.at, progress.done)
        if self.progress is None or self.progress_fence != self.fence or sample is None or progress.at < sample[0]:
            self.sample = here
        elif here is not None and progress.at - sample[0] >= RATE_OVER:
            before, self.sample = sample, here
        else:
            before = self.progress.before
        self.progress, self.progress_fence = replace(progress, before=before), self.fence

    def plan(self, verdict: Verdict, now: float) -> None:
        """Record this verdict for the job's settlement; `now` is a reading of the boot clock."""
        self.state = State.MOVING
        self.target = verdict.target
        self.reason = verdict.reason
        self.counters = verdict.counters
        self.delay = verdict.delay
        self.due = now + verdict.delay
        self.error_class = verdict.error_class
        self.error_text = verdict.error_text
        if verdict.owes_call and self.call_tries is None:
            self.call_tries = 0
        if not verdict.keep_checkpoint:
            self.checkpoint = self.checkpoint_fence = self.export_state = None

    def move(self, now: float, wall: float, wake_in: float, keep: Retention) -> None:
        """
        Change `moving` to `dead` if the target is `dead`, otherwise to `moved`.

        `now` is a reading of the boot clock.
        """
        if self.target is Moving.DEAD:
            self.end(
                State.DEAD, wall, keep.cancelled if self.reason == f"{CANCELLED}{self.cancel_reason}" else keep.dead
            )
        else:
            self.state = State.MOVED
            self.owner = None
            self.wake_at = now + wake_in
            self.keep_until = wall + max(0.0, self.due - now) + retention.MOVED

    def waits(self, delay: float, now: float, wall: float, wake_in: float) -> None:
        """Make a retry due in `delay` seconds; `now` is a reading of the boot clock, and `wall` of the wall clock."""
        self.due, self.delay = now + delay, delay
        self.move(now, wall, wake_in, retention.USUAL)

    def end(self, state: State, wall: float, keep: float) -> None:
        """Record that the job ended in this state, and keep the row for `keep` seconds; `wall` is the wall clock."""
        self.state = state
        self.owner = self.wake_at = None
        self.ended_at = wall
        self.keep_until = wall + keep

    def mark(self, reason: str, wall: float) -> None:
        """
        Set the cancel mark; `wall` is the wall clock.

        A row that was never claimed is kept for only 14 days.
        """
        self.cancel_reason = reason
        if self.fence == 0:
            self.keep_until = wall + retention.CANCEL_MARK

    @property
    def dies(self) -> bool:
        """
        True if the job moves to a dead letter.

        Such a job needs no message for that, and its handler does not run again.
        """
        return self.state is State.MOVING and self.target is Moving.DEAD

    def unseen_for(self, now: float, margin: float) -> float | None:
        """Return the seconds since a message of this job was due, or None if the job waits for no message."""
        moments = [self.lease_until + margin] if self.owner is not None else []
        if self.wake_at is not None:
            moments.append(self.wake_at)
        return now - max(moments) if moments else None

    def is_silent(self, now: float, stalled: float) -> bool:
        """Return whether the job runs, and has reported progress, but none for unusually long."""
        return self.state is State.RUNNING and is_silent(self.started_at, self.progress, now, stalled)

    def begin(self, run: Began | None, version: str) -> None:
        """Record this run as an attempt, end a lost one, and keep only the last attempts."""
        self.lose_attempt(self.started_at or 0.0)
        if run is None:
            return
        owner, started_at = self.owner or "", self.started_at or 0.0
        process = (owner, host_of(owner), os.getpid(), run.slot, version)
        before = safe_checkpoint(self.checkpoint)
        self.attempts[self.fence] = Attempt(
            self.fence, *process, run.because, run.epoch, started_at, checkpoint_before=before
        )
        for fence in list(self.attempts)[:-MOST_ATTEMPTS]:
            del self.attempts[fence]

    def lose_attempt(self, wall: float) -> None:
        """End an attempt that has no end yet as lost; `wall` is the wall clock."""
        for fence, attempt in self.attempts.items():
            if not attempt.outcome:
                self.attempts[fence] = replace(attempt, outcome=LOST, ended_at=wall)

    def end_attempt(self, end: Ending | None, wall: float) -> None:
        """Record the end of the present attempt, and the job's result; `wall` is the wall clock."""
        if end is None:
            return
        ended, attempt = asdict(end), self.attempts.get(self.fence)
        self.result = ended.pop("result")
        left = safe_checkpoint(ended.pop("checkpoint"))
        if attempt is not None:
            self.attempts[self.fence] = replace(attempt, **ended, ended_at=wall, checkpoint_after=left)

    def row(self, now: float, *, lease_over: bool) -> Row:
        """Return the row; `now` is the boot clock."""
        late = 0.0
        if self.state in HELD:
            late = now - self.lease_until
        elif self.state is State.MOVED:
            late = now - self.due
        return Row(
            id=self.id,
            uid=self.uid,
            state=self.state,
            body_sha256=self.body_sha256,
            hop=self.hop,
            fence=self.fence,
            owner=self.owner,
            lease_over=lease_over,
            counters=self.counters,
            target=self.target,
            due_in=self.due - now if self.due > now else 0.0,
            late_by=max(0.0, late),
            delay=self.delay,
            reason=self.reason,
            error_class=self.error_class,
            error_text=self.error_text,
            checkpoint=self.checkpoint,
            checkpoint_fence=self.checkpoint_fence,
            export_state=self.export_state,
            cancel_reason=self.cancel_reason,
            settled=self.settled,
            conflicts=self.conflicts,
            created_at=self.created_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
            worker=self.worker,
        )


def fits(row: Row, which: JobFilter, last_round: int, note: str) -> bool:
    """
    Return whether a row meets the conditions of a listing.

    This function does not check the condition that the ledger has the row's message.

    `last_round` is the last round of the row's key, and `note` is the note of the job's last progress.
    """
    texts = (row.id.key, row.reason, row.error_class, row.error_text, row.cancel_reason or "", note)
    return (
        which.namespace in (None, row.id.namespace)
        and which.queue in (None, row.id.queue)
        and (which.states is None or row.state in which.states)
        and (row.id.round == last_round or not (which.kept or which.last))
        and (which.snoozed is None or which.snoozed == (row.reason.startswith(SNOOZED) and not row.error_class))
        and (which.since is None or (row.ended_at or row.started_at or row.created_at) >= which.since)
        and (which.grep is None or any(which.grep.lower() in text.lower() for text in texts))
    )
