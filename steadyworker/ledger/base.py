"""
The ledger's Protocol and its values.

Every write of an owner is one compare-and-set on uid, fence, owner and state, with the values of a `Token`.
The write returns True, or False if the ledger *refused* it: the run no longer holds the job, and the runner drops it.
Every call can raise LedgerUnavailable; then it is unknown whether the ledger carried out the write.
Implementations are thread-safe.
Each promise has its test in `steadyworker.testing.conformance.LedgerSuite`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from steadyworker.errors import Finding, LedgerUnavailable
from steadyworker.ledger.facts import Facts, OwnerReport, Pause
from steadyworker.ledger.job_id import JobId as JobId  # noqa: PLC0414 - the ledger's callers import its values from here
from steadyworker.ledger.retention import Retention
from steadyworker.outcome import CANCELLED, SNOOZED, Counters, JobState


class State(StrEnum):
    """The state of a row; the docstring of `steadyworker.ledger` shows the transitions."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    MOVING = "moving"
    MOVED = "moved"
    DONE = "done"
    DEAD = "dead"


class Moving(StrEnum):
    """The target of a settlement that publishes a message."""

    RETRY = "retry"
    DEAD = "dead"


class Token(Struct, frozen=True):
    """The proof of a granted claim: the row, fence and owner of one run; every write of the run carries its token."""

    id: JobId
    uid: str
    fence: int
    owner: str


class Row(Struct, frozen=True):
    """
    One job's row at one instant; the ledger's own clock judged its times.

    Attributes:
        lease_over: True if the lease ended more than the margin ago, the owner is proven dead, or the row has no owner.
        due_in: Seconds until the retry is due, by the ledger's clock; 0 if it is due, or if there is no retry.
        late_by: Seconds since the lease ended (running, moving) or since the retry was due (moved), otherwise 0; for people.
        target: The settlement's target, for `moving`, `moved` and `dead`.
        conflicts: The number of messages that have this key and another body, and became dead letters; for people.
        created_at, started_at, ended_at: Wall clock, for people only.
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
    conflicts: int = 0
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    worker: str = ""

    @property
    def token(self) -> Token:
        """The token for writes of the row's present owner."""
        return Token(self.id, self.uid, self.fence, self.owner or "")

    @property
    def job_state(self) -> JobState:
        """
        The job's state, as users see it.

        A job that waits for a retry is `retrying`; after a snooze it is `scheduled`.
        A job that becomes a dead letter is `dead`.
        A job that ended because of a cancel is `cancelled`, not `dead`.
        A cancel of a key that had no job is `cancel-waiting`.
        """
        match self.state:
            case State.MOVING | State.MOVED if self.target is not Moving.DEAD:
                snoozed = (
                    self.reason.startswith(SNOOZED) and not self.error_class
                )  # a failure always has an error class
                return JobState.SCHEDULED if snoozed else JobState.RETRYING
            case State.MOVING | State.DEAD:
                by_cancel = self.cancel_reason is not None and self.reason == f"{CANCELLED}{self.cancel_reason}"
                return JobState.CANCELLED if by_cancel else JobState.DEAD
            case State.INTERRUPTED if not self.fence and self.cancel_reason is not None:
                return JobState.CANCEL_WAITING
            case state:
                return JobState(state.value)


class KeptMessage(Struct, frozen=True):
    """
    A job's message, which the ledger keeps until the job is done: the body, and all other facts of the delivery as JSON.

    `steadyworker.runner.envelope` converts a delivery to a kept message, and back.
    """

    body: bytes
    facts: bytes


class Began(Struct, frozen=True):
    """
    The facts about the start of a run, for people (`steadyworker.ledger.facts.Attempt`).

    Attributes:
        slot: The number of the slot within the Worker.
        because: Why the run begins.
        epoch: The epoch of the connection in which the message came; None for a message from the ledger.
    """

    slot: int
    because: str
    epoch: int | None = None


class Ending(Struct, frozen=True):
    """
    How a run ended, for people (`steadyworker.ledger.facts.Attempt`); recognised secrets are removed from all texts except result and checkpoint.

    Attributes:
        outcome: The name of the outcome.
        reason, error_class, error_text: Why the run ended so.
        traceback: The traceback of a failure, at most 16 KiB.
        peak_memory: The peak of the run's resident memory in bytes, or None.
        result: The JSON text of the job's result; only a job that is done has a result.
        checkpoint: The checkpoint with which the run ended; the ledger records its beginning without recognised secrets.
    """

    outcome: str
    reason: str = ""
    error_class: str = ""
    error_text: str = ""
    traceback: str = ""
    peak_memory: int | None = None
    result: bytes | None = None
    checkpoint: bytes | None = None


class Claimed(Struct, frozen=True):
    """
    The values that a claim writes, besides a new fence.

    `seen` is the row from which the runner decided, or None if the job had no row.
    The ledger refuses the claim if the row has changed since the runner read it.
    The ledger keeps `message` with the row, unless the row has a message already.
    The ledger records the run `run` as an attempt of the job; without `run`, it records no attempt.
    """

    id: JobId
    seen: Row | None
    owner: str
    hop: int
    body_sha256: bytes
    counters: Counters
    message: KeptMessage | None = None
    run: Began | None = None


class Verdict(Struct, frozen=True):
    """
    The decision on a run that ends in a retry or a dead letter: target, reason, counters, and delay in seconds.

    Without `keep_checkpoint`, the ledger clears checkpoint and `export_state`, so that the next run starts from the beginning.
    With `owes_call`, the ledger also records that a call of the Worker's `on_dead` is owed (`Ledger.next_call`).
    """

    target: Moving
    reason: str
    counters: Counters
    delay: float = 0.0
    error_class: str = ""
    error_text: str = ""
    keep_checkpoint: bool = True
    owes_call: bool = False


class OwedCall(Struct, frozen=True):
    """A call of `on_dead` that one process makes now, for this dead job; `tries` is the number of the try, from 1."""

    id: JobId
    tries: int


class Renewal(Struct, frozen=True):
    """
    The ledger's reply to a renewal or to `may_commit`.

    Attributes:
        granted: True if the ledger granted the call; False if the ledger refused the call, or could not judge the call.
        cancel_reason: The row's cancel mark, if it has one.
        locked: True if the ledger could not judge a renewal, because another session kept the row locked.
    """

    granted: bool
    cancel_reason: str | None = None
    locked: bool = False


class Progress(Struct, frozen=True):
    """
    The last progress of a run, for people; a crash can lose this progress, because its write does not wait for the disk.

    `before` is an earlier sample of the same run, as (at, done), so that people can compute the rate of the last minutes.
    The earlier sample is at least 60 s older; as long as the run has no such sample, `before` is None.
    The ledger computes `before` from earlier samples, and ignores the value of `before` in a sample that it receives.
    """

    done: float | None
    total: float | None
    note: str
    at: float
    before: tuple[float, float] | None = None


RATE_OVER = 60.0
"""The least age of `Progress.before`, in seconds."""


class JobFilter(Struct, frozen=True):
    """
    The conditions of a listing; a listed row fits all conditions, and every row fits a condition of None.

    Attributes:
        namespace, queue: Only rows of this namespace, or of this queue.
        states: Only rows whose state is one of these.
        last: If True, only rows that are the last round of their key.
        kept: If True, only rows that are the last round of their key, and whose message the ledger has.
        snoozed: If True, only rows with the reason of a snooze; if False, only all other rows.
        since: Only rows whose last end is at or after this wall-clock time; if the row has no end, its last start, or its creation.
        grep: Only rows with this text in the key, reason, error, cancel reason or note; the case of ASCII letters does not matter.
    """

    namespace: str | None = None
    queue: str | None = None
    states: tuple[State, ...] | None = None
    kept: bool = False
    last: bool = False
    snoozed: bool | None = None
    since: float | None = None
    grep: str | None = None


EVERY_ROW = JobFilter()

REPLAYED = "replayed"
"""The reason of a `moved` row that waits for the first message of a replay."""


class Hindrance(StrEnum):
    """
    The reason for which no worker process runs an orphan by itself.

    NO_MESSAGE: The ledger has no copy of the job's message, so there is nothing to run.
    OLD_RECORD: Since the row's last claim, the ledger went back in time, or the row's queue had no owner for `retention.ABSENCE`.
        Another ledger may have done the job meanwhile.
    """

    NO_MESSAGE = "no message"
    OLD_RECORD = "old record"


class Orphan(Struct, frozen=True):
    """
    An unfinished job whose message did not come in time: its row, and the seconds since the message had to come.

    `hindrance` is the reason for which no worker process runs the job by itself; None if a worker process may run it.
    """

    row: Row
    unseen_for: float
    hindrance: Hindrance | None = None


class OwnerSeen(Struct, frozen=True):
    """
    A registered worker process: its owner id, its host and its queues.

    `seen_ago` is the number of seconds since its last registration; `dead` is true if its death is proven.
    `report` is the state that it reported then; None if its version of SteadyWorker reports none.
    """

    owner: str
    host: str
    queues: tuple[str, ...]
    seen_ago: float
    dead: bool
    report: OwnerReport | None = None


class Need(StrEnum):
    """
    The reason why a job needs a person, the most urgent first.

    STRANDED: Its message is lost, and no worker process starts it by itself.
    OVERDUE: Its retry is more than an hour late, or the lease of its worker process ended more than an hour ago.
    CRASHING: Its process crashed, or its worker process was lost, twice or more (`listing.CRASHES`).
    NO_WORKER: Its worker process is gone, and no other worker process consumes its queue.
    STUCK: Its run may hang: it reported progress before, but has reported none for unusually long (`ledger.hang`).
    DEAD: It failed for good within the last day.
    """

    STRANDED = "stranded"
    OVERDUE = "overdue"
    CRASHING = "crashing"
    NO_WORKER = "no worker"
    STUCK = "stuck"
    DEAD = "dead"


class HeldJobs(Struct, frozen=True):
    """
    The jobs of one queue that one worker process holds, as numbers.

    Attributes:
        owner, namespace, queue: The worker process and the queue.
        jobs: The number of these jobs.
        running: The number of those that run; the others are in their settlement.
        stalled: The keys of the runs that reported progress, but none for unusually long (`ledger.hang`).
    """

    owner: str
    namespace: str
    queue: str
    jobs: int
    running: int
    stalled: tuple[str, ...] = ()


class NeedsOf(Struct, frozen=True):
    """
    The conditions from which an unfinished job, or a dead one, needs a person (`Need`).

    Attributes:
        namespace, queue: Only jobs of this namespace, or of this queue.
        overdue: Seconds from which a job is late.
        lost: The number of crashes and losses together.
        stalled: Seconds without progress after which a run may hang, for a run without usual steps (`ledger.hang`).
        dead: The greatest age of the end of a dead job, in seconds.
        dead_owners: The owners that are proven dead.
        alone: Each owner with a queue (owner, namespace, queue) that no other living owner consumes.
    """

    namespace: str | None
    queue: str | None
    overdue: float
    lost: int
    stalled: float
    dead: float
    dead_owners: tuple[str, ...] = ()
    alone: tuple[tuple[str, str, str], ...] = ()


class JobsPage(Struct, frozen=True):
    """
    A part of a list of jobs; from an offset beyond the end of the list, it is the first part.

    Attributes:
        jobs: The jobs, each with its last progress and its need.
        number: The number of all jobs of the list.
        offset: The number of jobs before this part.
    """

    jobs: Sequence[tuple[Row, Progress | None, Need | None]]
    number: int
    offset: int = 0


class Orders(Struct, frozen=True):
    """
    The orders of people that concern one worker process.

    Attributes:
        cancels: The cancel reasons of the jobs that the process holds, by uid.
        pauses: All pauses of queues.
        commands: True if a command waits, which `Facts.commands` returns.
    """

    cancels: Mapping[str, str]
    pauses: tuple[Pause, ...] = ()
    commands: bool = False


class Ledger(Protocol):
    """The durable record of jobs."""

    @property
    def url(self) -> str:
        """The URL of this ledger, without its password."""
        ...

    @property
    def facts(self) -> Facts:
        """The facts that people read, in the same ledger; they decide nothing."""
        ...

    def ledger_id(self) -> str:
        """Return the random id that this ledger received at its creation."""
        ...

    def findings(self) -> Sequence[Finding]:
        """Return the faults of this ledger's place (a network file system, no free space, read-only), each with its remedy."""
        ...

    def bind(self, namespace: str, queue: str, identity: str) -> str:
        """Bind (namespace, queue) to this broker if the pair has no broker yet; return the identity of the pair's broker."""
        ...

    def queues(self, namespace: str) -> Sequence[str]:
        """Return the queues that are bound in this namespace."""
        ...

    def bindings(self) -> Sequence[tuple[str, str]]:
        """Return every bound pair of a namespace and a queue."""
        ...

    def register(self, owner: str, host: str, queues: Sequence[str], report: OwnerReport | None = None) -> bool:
        """
        Record that this owner lives and consumes these queues; the record keeps their order and repetitions.

        The keeper calls this method at each renewal.
        `owners` then returns this report, which replaces an earlier report.
        Return False if the ledger went back in time: the ledger has lost the last registration, or is a restored copy.
        Older rows of a queue then become old records (`Hindrance`).
        They also become old records after an hour without an owner of the queue.
        """
        ...

    def unregister(self, owner: str) -> None:
        """Remove an owner that ended normally; if no row names the owner, also remove the owner's lock."""
        ...

    def owners(self) -> Sequence[OwnerSeen]:
        """Return every owner that registered within the last day."""
        ...

    def read(self, id: JobId) -> Row | None:
        """Return the job's present row, or None."""
        ...

    def message(self, id: JobId) -> KeptMessage | None:
        """Return the job's message, or None if the ledger has not kept it."""
        ...

    def orphans(
        self, namespace: str, queue: str, after: float, limit: int, *, stranded: bool = False
    ) -> Sequence[Orphan]:
        """
        Return unfinished jobs whose message is more than `after` seconds late, the latest first.

        A message of a `running` or `moving` job must come when lease and margin are over.
        A message of an `interrupted` job must come at once.
        A message of a `moved` job must come at the time that the call of `moved` recorded.
        After a call of `deferred`, the message must come at the time that this call recorded.
        With `stranded`, return only orphans with a hindrance, otherwise only orphans without a hindrance.
        Return at most `limit` orphans.
        A job that moves to a dead letter becomes `dead` even without a message, so a missing message is no hindrance.
        A job that was sent again has no hindrance: this round of the job does not run, because the next round replaces it.
        If the ledger lacks this process's last registration, the ledger went back in time, and this call returns no orphan.
        """
        ...

    def distrust(self) -> None:
        """Make every present row an old record, because a job has shown that the ledger went back in time."""
        ...

    def deferred(self, id: JobId, delay: float) -> None:
        """Record that a message of this unfinished job comes in `delay` seconds, so the job is no orphan before that time."""
        ...

    def replay(
        self, id: JobId, message: KeptMessage, body_sha256: bytes, *, delay: float = 0.0, wake_in: float = 0.0
    ) -> bool:
        """
        Insert the row of a dead job's next round; return False if the round has a row already.

        The row is `moved`, its retry is due in `delay` seconds, and it has this message.
        If the broker delivers in time, the message comes in `wake_in` seconds at the latest.
        The row's hop is -1, so the round's first message, with hop 0, is the retry for which a `moved` row waits.
        The row copies the checkpoint of the previous round.
        """
        ...

    def reschedule(self, seen: Row, delay: float, wake_in: float) -> bool:
        """
        Make the retry of a `moved` job due in `delay` seconds, and raise the row's hop by 1.

        So the message that was sent for this retry counts as a duplicate, and the job waits for a message with the next hop.
        If the broker delivers in time, that message comes in `wake_in` seconds at the latest.
        Return False if the row is not `moved`, or has changed since `seen` was read; the ledger then changes nothing.
        """
        ...

    def claim(self, claim: Claimed) -> Row | None:
        """
        Begin a run: give the row a new fence and this owner; return None if the ledger refuses the claim.

        The row's checkpoint and export_state stay.
        The ledger keeps the claim's message in the same transaction.
        The first claim of a round above 0 copies the checkpoint from the row of the previous round.
        The new fence is greater than every fence that this ledger gave before the call, and the lease begins now.
        An attempt of the job that has no end yet ends as `lost`.
        """
        ...

    def record(
        self, claims: Sequence[Claimed], ended: Sequence[tuple[Token, Ending | None]]
    ) -> tuple[Sequence[Row | None], Sequence[bool | LedgerUnavailable]]:
        """
        Make these claims of jobs without a row (`seen` is None), and change these `running` jobs to `done`, in one commit.

        Return the results of all claims and of all ends, in order, as `claim` and `done` return them.
        The later of two claims of one job is refused.
        The result of an end is LedgerUnavailable if only this write failed, for example because another session keeps its row locked.
        If this call raises LedgerUnavailable, it is unknown whether the ledger carried out the writes.
        """
        ...

    def take_over(self, seen: Row, owner: str) -> Row | None:
        """Take over a settlement (`moving`): set only a new fence, owner and lease; return None if the ledger refuses this."""
        ...

    def lose(self, seen: Row, owner: str, verdict: Verdict) -> Row | None:
        """
        Take over a job that was lost too often; return None if the ledger refuses this.

        The row changes to `moving`, with this verdict and a new fence; an attempt that has no end yet ends as `lost`.
        """
        ...

    def renew(self, tokens: Sequence[Token]) -> Sequence[Renewal]:
        """
        Renew these leases; return one result for each, in order.

        If another session keeps a row locked, the result for that row is `locked`; the other rows do not wait.
        """
        ...

    def checkpoint(self, token: Token, value: bytes | None) -> bool:
        """Store the checkpoint of a `running` job durably, before this call returns; None clears the checkpoint."""
        ...

    def export_state(self, token: Token, value: bytes | None) -> bool:
        """Store the export state of a `running` job durably, before this call returns; None clears the export state."""
        ...

    def may_commit(self, token: Token) -> Renewal:
        """
        Renew the lease now, and grant the commit if the job is still `running` under this fence and not cancelled.

        For a cancelled job, return the cancel reason instead of a grant, so that no commit begins after `cancel` has returned.
        The write is on disk (in SQLite: `synchronous=FULL`) when this call returns.
        So even after a power failure, the ledger knows under which fence an export was committed.
        """
        ...

    def done(self, token: Token, end: Ending | None = None) -> bool:
        """
        Change `running` to `done`, and delete the job's message.

        Record `end` as the end of the attempt, and keep its result with the row: `Facts.result` returns it.
        """
        ...

    def interrupted(self, token: Token, counters: Counters, end: Ending | None = None) -> bool:
        """
        Change `running` to `interrupted`, and remove the owner; checkpoint and export_state stay.

        Record `end` as the end of the attempt.
        """
        ...

    def moving(self, token: Token, verdict: Verdict, end: Ending | None = None) -> bool:
        """
        Change `running` to `moving`: the runner has decided on the settlement, and has published nothing yet.

        For a `moving` row, this verdict replaces the earlier verdict, because the broker has refused the earlier verdict's message.
        Record `end` as the end of the attempt; without `end`, the attempt stays as it is.
        """
        ...

    def moved(self, token: Token, wake_in: float = 0.0) -> bool:
        """
        Change `moving` to `moved`, or to `dead` if the target is `dead`, because the broker has confirmed the message.

        If the broker delivers in time, the retry comes in `wake_in` seconds at the latest.
        """
        ...

    def next_call(self, namespace: str, queue: str, lease: float) -> OwedCall | None:
        """
        Reserve an owed call of `on_dead` for `lease` seconds, and return it; return None if no call is due.

        A call is owed by a verdict with `owes_call`, and due as soon as the job is `dead`.
        No other caller gets the call during the lease; after the lease, it is due again, because its process may be dead.
        The call is owed until `end_call`, or until the ledger deletes the job's row.
        """
        ...

    def end_call(self, call: OwedCall, again_in: float | None = None) -> None:
        """
        Record that this call is no longer owed; with `again_in`, record that it is due again in so many seconds.

        Do nothing if a later try of the call has begun.
        """
        ...

    def settled(self, token: Token, known: bool) -> None:  # noqa: FBT001 - a flag of the Protocol
        """
        Record that the runner has acknowledged the original message.

        `known` is true if the broker has confirmed the acknowledgement, and false if the runner has only sent it.
        This value only decides how long the ledger keeps the row.
        An implementation may commit this write together with a later call, such as `flush`.
        If the process dies before this commit, the ledger only keeps the row longer.
        """
        ...

    def retain(self, namespace: str, queue: str, times: Retention) -> None:
        """
        Keep the ended jobs of this queue, and the records of their runs, for these times.

        A worker process calls this method before it runs jobs of the queue.
        The times apply to the later calls of this object only; without a call, they are `retention.USUAL`.
        """
        ...

    def flush(self) -> None:
        """
        Commit what earlier calls of `settled` and `deferred` have left for a later call.

        The runner calls this method every second.
        """
        ...

    def cancel(self, id: JobId, reason: str) -> State | None:
        """
        Set a cancel mark, and return the job's state, or None if the job had no row.

        A job without a row gets an `interrupted` row, which accepts a message with any body.
        `purge` deletes this row 14 days after the last cancel, if no message has claimed the row.
        A job that is `done` or `dead` stays as it is.
        """
        ...

    def uncancel(self, id: JobId) -> bool:
        """
        Remove the cancel mark of a job without a run: of an `interrupted` or `moved` job.

        A row that `cancel` inserted, and that no message has claimed, is deleted with its mark.
        Return False if the job has no mark, or if a worker process may have read the mark; the ledger then changes nothing.
        """
        ...

    def conflict(self, id: JobId) -> None:
        """Count a message with this job's key and another body; only the row's counter of conflicts changes."""
        ...

    def orders(self, owner: str) -> Orders:
        """
        Return the cancel marks of the jobs that this owner holds, all pauses, and whether a command waits for this owner.

        The call is one query, without a write.
        """
        ...

    def clear_checkpoint(self, id: JobId) -> None:
        """Delete the checkpoint of a job that no process runs (`replay --from-start`)."""
        ...

    def progress(self, token: Token, progress: Progress) -> None:
        """Record progress; the write may be lost."""
        ...

    def last_round(self, namespace: str, queue: str, key: str) -> int | None:
        """Return the highest round of this key, or None if the ledger has no row of this key."""
        ...

    def jobs(self, which: JobFilter = EVERY_ROW) -> Iterable[tuple[Row, Progress | None]]:
        """Return the rows that fit these conditions, newest first, each with the run's last progress; for people."""
        ...

    def held(self, stalled: float) -> Sequence[HeldJobs]:
        """Return the number of jobs that each owner holds of each queue, with the silent runs (`NeedsOf.stalled`); for people."""
        ...

    def needing(self, which: NeedsOf, offset: int, limit: int) -> JobsPage:
        """
        Return the jobs that need a person, the most urgent first, then the newest, from `offset` on, at most `limit`; for people.

        Each job has one need, the first that fits, in the order of `Need`.
        A dead job and a late one only count as the last round of their key.
        """
        ...

    def running(self, which: NeedsOf, offset: int, limit: int) -> JobsPage:
        """
        Return the jobs that run, each with its need, from `offset` on, at most `limit`; for people.

        Those that may hang come first, then others that need a person, then the rest; each group is newest first.
        """
        ...

    def waiting(self, namespace: str | None, queue: str | None, offset: int, limit: int) -> JobsPage:
        """
        Return the unfinished jobs that do not run, from `offset` on, at most `limit`; for people.

        Those in their settlement are first; the others are in the order in which their message must come.
        A cancel that waits for its job is left out.
        """
        ...

    def ended(self, uids: Sequence[str]) -> frozenset[str]:
        """Return the ids in `uids` whose jobs are `done` or `dead`; the caller may remove the staging folders of these jobs."""
        ...

    def last_progress(self, id: JobId) -> Progress | None:
        """Return the last progress of a job, or None."""
        ...

    def forget(self, id: JobId) -> None:
        """
        Delete the row of a dead letter that was replayed or dropped.

        A row with a checkpoint stays until the next round has a row, because the new row copies the checkpoint.
        """
        ...

    def size(self) -> int | None:
        """Return the number of bytes that the ledger takes on its disk, or None if the ledger cannot know it."""
        ...

    def purge(self) -> int:
        """Delete the rows and facts whose time is over (`steadyworker.ledger.retention`), and return the number of rows of jobs."""
        ...

    def close(self) -> None:
        """Close files and connections; a second call does nothing."""
        ...
