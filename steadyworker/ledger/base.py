"""
The ledger's Protocol: the durable record of jobs.

Every write of an owner is one compare-and-set on (uid, fence, state), named by a `Token`; it answers True, or False when
the ledger *refused* it: someone else holds the job now, and the run must be dropped.
Every call may raise LedgerUnavailable; a write that raised it may or may not have landed.
Implementations are thread-safe.  Each promise has its test in `steadyworker.testing.conformance.LedgerSuite`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from steadyworker.errors import Finding
from steadyworker.outcome import CANCELLED, SNOOZED, Counters, JobState


class State(StrEnum):
    """Where a job is in its life (contract §4)."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    MOVING = "moving"
    MOVED = "moved"
    DONE = "done"
    DEAD = "dead"


class Moving(StrEnum):
    """Where a hand-over goes."""

    RETRY = "retry"
    DEAD = "dead"


class JobId(Struct, frozen=True):
    """The primary key of the ledger."""

    namespace: str
    queue: str
    key: str
    round: int = 0


class Token(Struct, frozen=True):
    """A claim that was granted: it names the row and the fence of one run, and every write of that run carries it."""

    id: JobId
    uid: str
    fence: int
    owner: str


class Row(Struct, frozen=True):
    """
    One job, as the ledger read it at one instant, judged by the ledger's own clock.

    Attributes:
        lease_over: The lease ended more than the margin ago, or nobody holds it.
        due_in: Seconds until `not_before`, by the ledger's clock; 0 when there is none or it has passed.
        late_by: Seconds since the lease ended (running, moving) or since the copy was due (moved); 0 while neither; for people.
        target: Of `moving`, `moved` and `dead`: where the hand-over goes or went.
        created_at, started_at, first_failed_at, ended_at: wall clock, for people only.
    """

    id: JobId
    uid: str
    state: State
    body_sha256: bytes | None = None
    hop: int = 0
    fence: int = 0
    owner: str | None = None
    lease_over: bool = True
    counters: Counters = Counters()
    target: Moving | None = None
    due_in: float = 0.0
    late_by: float = 0.0
    delay: float = 0.0
    reason: str = ""
    error_class: str = ""
    error_text: str = ""
    checkpoint: bytes | None = None
    checkpoint_fence: int | None = None
    export_state: bytes | None = None
    cancel_reason: str | None = None
    settled: str = "unknown"
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    worker: str = ""

    @property
    def token(self) -> Token:
        """What the row's present owner writes with."""
        return Token(self.id, self.uid, self.fence, self.owner or "")

    @property
    def job_state(self) -> JobState:
        """The state as users see it: `moving` and `moved` by what the job waits for, `dead` apart from cancelled."""
        match self.state:
            case State.MOVING | State.MOVED if self.target is not Moving.DEAD:
                return JobState.SCHEDULED if self.reason.startswith(SNOOZED) else JobState.RETRYING
            case State.MOVING | State.DEAD:
                by_cancel = self.cancel_reason is not None and self.reason.startswith(CANCELLED)
                return JobState.CANCELLED if by_cancel else JobState.DEAD
            case state:
                return JobState(state.value)


class Claimed(Struct, frozen=True):
    """
    What a claim writes, beside drawing a new fence.

    `seen` is the row that the decision was made on, or None when there was none: a claim is refused when the row has changed since.
    """

    id: JobId
    seen: Row | None
    owner: str
    hop: int
    body_sha256: bytes
    counters: Counters


class Verdict(Struct, frozen=True):
    """
    What a run hands over: where to, why, with which counters, and after how many seconds.

    Without `keep_checkpoint` the export_state is cleared, too: the next run starts from the beginning, its exports as well.
    """

    target: Moving
    reason: str
    counters: Counters
    delay: float = 0.0
    error_class: str = ""
    error_text: str = ""
    keep_checkpoint: bool = True


class Renewal(Struct, frozen=True):
    """The answer to one renewal: granted or refused, and the cancel mark, if the row has one."""

    granted: bool
    cancel_reason: str | None = None


class Progress(Struct, frozen=True):
    """The last progress of a run; lossy, never fsynced, for people."""

    done: float | None
    total: float | None
    note: str
    at: float


class OwnerSeen(Struct, frozen=True):
    """A worker process that the ledger knows: its owner id, its queues, and whether it is provably dead or was seen lately."""

    owner: str
    host: str
    queues: tuple[str, ...]
    seen_ago: float
    dead: bool


class Ledger(Protocol):
    """The durable record of jobs."""

    @property
    def url(self) -> str:
        """Which ledger this is, without its password."""
        ...

    def ledger_id(self) -> str:
        """The random id that this ledger was given when it was created."""
        ...

    def findings(self) -> Sequence[Finding]:
        """What is wrong with this ledger's place (a network file system, no room, read-only), each with its remedy."""
        ...

    def bind(self, namespace: str, queue: str, identity: str) -> str:
        """Bind (namespace, queue) to the first broker that it meets; answers the identity it is bound to, ours or another's."""
        ...

    def register(self, owner: str, host: str, queues: Sequence[str]) -> None:
        """Say that this owner lives and consumes these queues; again at each renewal."""
        ...

    def unregister(self, owner: str) -> None:
        """The owner ended in good order."""
        ...

    def owners(self) -> Sequence[OwnerSeen]:
        """Every owner that was seen within a day."""
        ...

    def read(self, id: JobId) -> Row | None:
        """The job's row now, or None."""
        ...

    def claim(self, claim: Claimed) -> Row | None:
        """
        Begin a run: draw a fence, own the row, keep checkpoint and export_state; None when refused.

        A first claim of a round above 0 copies the checkpoint from the row of the round before it.
        The new row's fence is greater than every fence that this ledger ever gave, and its lease begins now.
        """
        ...

    def take(self, seen: Row, owner: str) -> Row | None:
        """Take over a hand-over (`moving`): new fence, new owner, everything else as it is; None when refused."""
        ...

    def lose(self, seen: Row, owner: str, verdict: Verdict) -> Row | None:
        """Take over a run that was lost too often: straight to `moving` with that verdict, under a new fence; None when refused."""
        ...

    def renew(self, tokens: Sequence[Token]) -> Sequence[Renewal]:
        """Renew these leases, all in one transaction; one answer each, in order."""
        ...

    def checkpoint(self, token: Token, value: bytes | None) -> bool:
        """Keep the position of a `running` job, durable before this returns; None clears it."""
        ...

    def export_state(self, token: Token, value: bytes | None) -> bool:
        """Keep the export_state of external work of a `running` job, durable before this returns."""
        ...

    def may_commit(self, token: Token) -> bool:
        """
        Renew now and say whether the job is still `running` under this fence.

        Durable (`synchronous=FULL`) before it returns: uid and fence are on disk before an export is linked.
        """
        ...

    def done(self, token: Token) -> bool:
        """`running` → `done`."""
        ...

    def interrupted(self, token: Token, counters: Counters) -> bool:
        """`running` → `interrupted`: nobody's, checkpoint and export_state kept."""
        ...

    def moving(self, token: Token, verdict: Verdict) -> bool:
        """`running` → `moving`: the hand-over is decided, nothing is published yet."""
        ...

    def moved(self, token: Token) -> bool:
        """`moving` → `moved` or `dead`, by its target: the copy is confirmed."""
        ...

    def settled(self, token: Token, known: bool) -> None:  # noqa: FBT001 - the contract's word
        """
        The original is acknowledged: `known` or only `written`; decides how long the row is kept (R9), and nothing else.

        May be committed with a later call: a process that dies before only leaves a row that is kept longer.
        """
        ...

    def cancel(self, id: JobId, reason: str) -> State | None:
        """
        Leave a cancel mark and answer the job's state before it; a job that has no row gets one (`interrupted`, any body).

        A job that is `done` or `dead` stays as it is.
        """
        ...

    def clear_checkpoint(self, id: JobId) -> None:
        """Forget the checkpoint of a job that nobody runs (`replay --from-start`)."""
        ...

    def progress(self, token: Token, progress: Progress) -> None:
        """Record progress; lossy."""
        ...

    def last_round(self, namespace: str, queue: str, key: str) -> int | None:
        """The highest round of this key, or None when the ledger knows none."""
        ...

    def jobs(self, namespace: str | None = None, queue: str | None = None) -> Iterable[tuple[Row, Progress | None]]:
        """The rows that are kept, newest first, each with its last beat; for people."""
        ...

    def ended(self, uids: Sequence[str]) -> frozenset[str]:
        """Which of these jobs are `done` or `dead`, by uid; their export stages may be reaped."""
        ...

    def last_progress(self, id: JobId) -> Progress | None:
        """The last progress of a job."""
        ...

    def forget(self, id: JobId) -> None:
        """A dead letter was replayed or dropped: its row may go."""
        ...

    def purge(self) -> int:
        """Remove what need not be kept any longer (R9); answers how many rows."""
        ...

    def close(self) -> None:
        """Release files and connections; safe twice."""
        ...
