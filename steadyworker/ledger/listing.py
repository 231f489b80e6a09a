"""
The order of a listing of jobs, the state of each job's worker process, and what a job needs; for people.

A listing begins with the jobs that need a person, except the dead ones, so an operator need only read its first page.
Then come running jobs, those that died within the last day, jobs that wait for a retry, snoozed jobs, interrupted jobs, and jobs that have ended.
Each group is newest first; if the job of a key has ended in several rounds, the group has only the last round.
Each group is one query, which reads a page at a time, so a listing of fifty jobs is as fast with a million rows.
Nothing here decides which process runs a job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import chain, islice

from msgspec import Struct
from msgspec.structs import replace

from steadyworker.clock import Times
from steadyworker.ledger.base import (
    JobFilter,
    JobId,
    JobsPage,
    Ledger,
    NeedsOf,
    Orphan,
    OwnerSeen,
    Progress,
    Row,
    State,
)
from steadyworker.ledger.base import Need as Need  # noqa: PLC0414 - the callers of a listing import its values from here
from steadyworker.ledger.facts import Pause, QueueReport
from steadyworker.ledger.hang import STUCK_AFTER, is_silent
from steadyworker.ledger.lease import attended, registered_name
from steadyworker.ledger.lost import OVERDUE, lost
from steadyworker.ledger.retention import DAY
from steadyworker.outcome import JobState

CRASHES = 2
"""The number of crashes and losses, since the last saved checkpoint, from which an unfinished job needs a person."""

MOST_LATE = 10_000
"""The largest numbers of stranded and of other late jobs of one queue whose hindrance a listing knows."""

SILENT_RENEWALS = 2
"""The number of missed renewals from which a worker process counts as silent."""

AT_ONCE = 500
"""The number of jobs that need a person which a listing reads at once."""

FEW = 3
"""The number of dead jobs of one queue and one reason that a short listing has."""

_LATE = (Need.STRANDED, Need.OVERDUE)
_NEEDLESS = frozenset({JobState.DONE, JobState.CANCEL_WAITING})
_WAITING = (State.MOVING, State.MOVED)
STATES: Mapping[JobState, tuple[State, ...]] = {
    JobState.RUNNING: (State.RUNNING,),
    JobState.INTERRUPTED: (State.INTERRUPTED,),
    JobState.RETRYING: _WAITING,
    JobState.SCHEDULED: _WAITING,
    JobState.DONE: (State.DONE,),
    JobState.CANCELLED: (State.MOVING, State.DEAD),
    JobState.CANCEL_WAITING: (State.INTERRUPTED,),
    JobState.DEAD: (State.MOVING, State.DEAD),
}
"""The possible states of a row, for each state that users see (`Row.job_state`)."""


class Liveness(StrEnum):
    """
    The state of the worker process that holds a job, as the ledger knows it.

    ALIVE: The process renewed its lease in time.
    SILENT: The process missed a renewal, but its lease and margin are not over: it can be frozen, or cut off from the ledger.
    GONE: The process is proven dead, or lease and margin are over.
    """

    ALIVE = "alive"
    SILENT = "silent"
    GONE = "gone"


class OwnerNow(Struct, frozen=True):
    """
    The worker process that holds a job.

    Attributes:
        liveness: Whether it lives.
        silent_for: Seconds since its last renewal; None if the ledger does not know the process.
        free_within: Seconds until other processes may take the job over, if no renewal comes; 0 if they may now.
        heirs: If the process is gone, the number of other living worker processes that consume the job's queue,
            or will consume it after its pause; otherwise 0.
        host, pid: Where it runs; empty and 0 if it does not report this.
        time_limit: The time limit of a run of this queue, in seconds; None without a limit, or if it does not report this.
        full: The number of the slots of those others, if all of these slots are busy; otherwise 0.
        connected: False if it reports no connection to the broker of this queue; a run goes on without a connection.
    """

    liveness: Liveness
    silent_for: float | None
    free_within: float
    heirs: int
    host: str = ""
    pid: int = 0
    time_limit: float | None = None
    connected: bool = True
    full: int = 0


class ListedJob(Struct, frozen=True):
    """
    A job of a listing: its row, its last progress, its `Orphan` if its message is late, its worker process, and its need.

    `pause` is the pause of the job's queue if the job waits for its end, otherwise None.
    `unsure` is true if the job is late, and its queue has too many late jobs to know its hindrance.
    """

    row: Row
    progress: Progress | None = None
    orphan: Orphan | None = None
    owner: OwnerNow | None = None
    need: Need | None = None
    pause: Pause | None = None
    unsure: bool = False


class ListedPart(Struct, frozen=True):
    """A part of a listing: its jobs, the number of all jobs of the listing, and the number of those before this part."""

    jobs: Sequence[ListedJob]
    number: int
    offset: int


class Wanted(Struct, frozen=True):
    """
    The conditions of a listing of jobs; a listed job fits all conditions, and every job fits a condition of None.

    Attributes:
        namespace, queue: Only jobs of this namespace, or of this queue.
        keys: Only jobs of these keys, in every round.
        states: Only jobs in these states, as users see them; None without keys leaves out cancels that wait for their job.
        since: Only jobs whose last end, or start, or creation is at or after this wall-clock time.
        grep: Only jobs with this text in key, reason, error, cancel reason or note; the case of ASCII letters does not matter.
        overdue: Only jobs with the need STRANDED or OVERDUE.
    """

    namespace: str | None = None
    queue: str | None = None
    keys: tuple[str, ...] | None = None
    states: frozenset[JobState] | None = None
    since: float | None = None
    grep: str | None = None
    overdue: bool = False

    def fits(self, row: Row) -> bool:
        """Return whether a row has one of the wanted states, and its last event is not too old."""
        if self.since is not None:
            at = next(at for at in (row.ended_at, row.started_at, row.created_at) if at is not None)
            if at < self.since:
                return False
        if self.states is not None:
            return row.job_state in self.states
        # Only an interrupted row can be a cancel that waits; the check saves most rows of a long listing the next one.
        if self.keys is not None or row.state is not State.INTERRUPTED:
            return True
        return row.job_state is not JobState.CANCEL_WAITING

    def query(self, *states: State) -> JobFilter:
        """Return the ledger's conditions for the rows in these states, or in all states if none is named."""
        wanted = None if self.states is None else {state for each in self.states for state in STATES[each]}
        named = states or tuple(State)
        chosen = named if wanted is None else tuple(state for state in named if state in wanted)
        return JobFilter(
            self.namespace,
            self.queue,
            None if wanted is None and not states else chosen,
            since=self.since,
            grep=self.grep,
        )


class Listing:
    """
    The jobs of a ledger, in the order in which people need them.

    Args:
        ledger: The ledger.
        wanted: Which jobs.
        now: The wall clock.
        times: Lease and margin of the worker processes.
        few_dead: Of the jobs that died within the last day, list at most `FEW` for each reason of the newest `AT_ONCE`.
    """

    def __init__(
        self, ledger: Ledger, wanted: Wanted, now: float, times: Times | None = None, *, few_dead: bool = False
    ) -> None:
        self.left_out = 0
        """The number of dead jobs that `jobs` has left out, as soon as it has yielded the other dead jobs."""
        self._few_dead = few_dead
        self._ledger = ledger
        self._wanted = wanted
        self._now = now
        self._times = times or Times()
        self._owners = {each.owner: each for each in ledger.owners()}
        self._pauses = {(each.namespace, each.queue): each for each in ledger.facts.pauses()}
        self._bindings = [
            (namespace, queue)
            for namespace, queue in ledger.bindings()
            if wanted.namespace in (None, namespace) and wanted.queue in (None, queue)
        ]
        self._orphans: dict[tuple[str, str], Mapping[JobId, Orphan]] = {}
        self._too_many: set[tuple[str, str]] = set()

    def _orphans_of(self, namespace: str, queue: str) -> Mapping[JobId, Orphan]:
        """Return the jobs of a queue whose message is late; the ledger is asked once."""
        if (namespace, queue) not in self._orphans:
            found: dict[JobId, Orphan] = {}
            for stranded in (True, False):
                part = lost(self._ledger, namespace, queue, stranded=stranded, most=MOST_LATE)
                found |= {orphan.row.id: orphan for orphan in part}
                if len(part) == MOST_LATE:
                    self._too_many.add((namespace, queue))
            self._orphans[namespace, queue] = found
        return self._orphans[namespace, queue]

    def _orphan(self, row: Row) -> Orphan | None:
        late = row.state is State.INTERRUPTED or row.late_by > 0
        return self._orphans_of(row.id.namespace, row.id.queue).get(row.id) if late else None

    def needing(self, offset: int, limit: int) -> ListedPart:
        """Return a part of the jobs of these queues that need a person, whatever the other conditions are, the most urgent first."""
        return self._part(self._ledger.needing(self._needs, offset, limit))

    def count_dead(self) -> int:
        """Return the number of dead jobs of these queues that need a person."""
        part = self.needing(0, AT_ONCE)
        others = sum(job.need is not Need.DEAD for job in part.jobs)
        while others == part.offset + len(part.jobs) < part.number:
            part = self.needing(others, AT_ONCE)
            others += sum(job.need is not Need.DEAD for job in part.jobs)
        return part.number - others

    def running(self, offset: int, limit: int) -> ListedPart:
        """Return a part of the jobs of these queues that run: first those that may hang, then others in need, then the newest."""
        return self._part(self._ledger.running(self._needs, offset, limit))

    def waiting(self, offset: int, limit: int) -> ListedPart:
        """Return a part of the jobs of these queues that wait for their next run, in its order."""
        return self._part(self._ledger.waiting(self._wanted.namespace, self._wanted.queue, offset, limit))

    @cached_property
    def _needs(self) -> NeedsOf:
        dead = tuple(each.owner for each in self._owners.values() if each.dead)
        of_queues = (self._wanted.namespace, self._wanted.queue)
        return NeedsOf(*of_queues, OVERDUE, CRASHES, STUCK_AFTER, DAY, dead, tuple(self._alone()))

    def _part(self, page: JobsPage) -> ListedPart:
        jobs = []
        for row, progress, need in page.jobs:
            orphan = self._orphan(row)
            lost_for_good = need is Need.OVERDUE and orphan is not None and orphan.hindrance is not None
            jobs.append(self._job(row, progress, Need.STRANDED if lost_for_good else need))
        return ListedPart(jobs, page.number, page.offset)

    def _alone(self) -> Iterator[tuple[str, str, str]]:
        """Yield each owner that holds jobs of a queue which no other living owner consumes, or will consume after its pause."""
        living = {
            each.owner: each for each in self._owners.values() if liveness(each, self._times) is not Liveness.GONE
        }
        consume = Counter(name for each in living.values() for name in set(each.queues))
        attend = Counter(name for each in living.values() for name in attended(each.queues))
        for held in self._ledger.held(STUCK_AFTER):
            name, own = registered_name(held.namespace, held.queue), living.get(held.owner)
            paused = (held.namespace, held.queue) in self._pauses
            names = () if own is None else attended(own.queues) if paused else own.queues
            if (attend if paused else consume)[name] <= int(name in names):
                yield held.owner, held.namespace, held.queue

    def jobs(self) -> Iterator[ListedJob]:
        """Yield each job once; the reads stop where the caller stops."""
        if self._wanted.keys is not None:
            yield from self._of_keys(self._wanted.keys)
            return
        listed: set[JobId] = set()
        for job in self._ordered():
            if job.row.id not in listed and self._wanted.fits(job.row):
                listed.add(job.row.id)
                yield job
        if not self._wanted.overdue:
            ended = replace(self._wanted.query(State.DONE, State.DEAD), last=True)
            for query in (self._wanted.query(State.INTERRUPTED), ended):
                for row, progress in self._ledger.jobs(query):
                    known = row.id in listed or (self._few_dead and self._need_of_last(row) is Need.DEAD)
                    if self._wanted.fits(row) and not known:
                        yield self._job(row, progress)

    def _of_keys(self, keys: Collection[str]) -> Iterator[ListedJob]:
        """Yield the jobs of these keys, the last round first."""
        for key in dict.fromkeys(keys):
            for namespace, queue in self._bindings:
                last = self._ledger.last_round(namespace, queue, key)
                for round_ in range(-1 if last is None else last, -1, -1):
                    row = self._ledger.read(JobId(namespace, queue, key, round_))
                    if row is None or not self._wanted.fits(row):
                        continue
                    progress = self._ledger.last_progress(row.id)
                    need = self._need(row, progress, last=round_ == last)
                    late = need in _LATE
                    if self._has_text(row, progress) and (late or not self._wanted.overdue):
                        yield self._job(row, progress, need)

    def _ordered(self) -> Iterator[ListedJob]:
        """Yield the jobs that need a person, then those that run, are dead or wait; a job can come twice."""
        needs, dead = self._in_need(), None
        for job in needs:
            if job.need is Need.DEAD:
                dead = job
                break
            yield job
        if self._wanted.overdue:
            return
        wanted, read = self._wanted, self._ledger.jobs
        for row, progress in read(wanted.query(State.RUNNING)):
            yield self._job(row, progress)
        if dead is not None:
            yield from self._few(chain([dead], needs)) if self._few_dead else chain([dead], needs)
        for snoozed in (False, True):
            for row, progress in read(replace(wanted.query(*_WAITING), snoozed=snoozed)):
                yield self._job(row, progress)

    def _few(self, dead: Iterator[ListedJob]) -> Iterator[ListedJob]:
        seen: Counter[tuple[str, str, str]] = Counter()
        for job in islice(dead, AT_ONCE):
            id = job.row.id
            seen[id.namespace, id.queue, kind_of(job.row)] += 1
            if seen[id.namespace, id.queue, kind_of(job.row)] <= FEW:
                yield job
        self.left_out = self.count_dead() - sum(min(FEW, number) for number in seen.values())

    def _in_need(self) -> Iterator[ListedJob]:
        """Yield the jobs that need a person, the most urgent first; read no more of them than can fit."""
        wanted, offset, number = self._wanted, 0, 1
        if wanted.states is not None and wanted.states <= _NEEDLESS:
            return
        dead = wanted.states is None or JobState.DEAD in wanted.states
        while offset < number:
            part = self.needing(offset, AT_ONCE)
            number, offset = part.number, offset + max(1, len(part.jobs))
            for job in part.jobs:
                if (wanted.overdue and job.need not in _LATE) or (not dead and job.need is Need.DEAD):
                    return
                if self._has_text(job.row, job.progress):
                    yield job

    def _has_text(self, row: Row, progress: Progress | None) -> bool:
        note = progress.note if progress is not None else ""
        texts = (row.id.key, row.reason, row.error_class, row.error_text, row.cancel_reason or "", note)
        return self._wanted.grep is None or any(self._wanted.grep.lower() in text.lower() for text in texts)

    def _job(self, row: Row, progress: Progress | None, need: Need | None = None) -> ListedJob:
        pause = self._pauses.get((row.id.namespace, row.id.queue))
        owner = owner_now(row, self._owners, self._times, paused=pause is not None)
        goes_on = owner is not None and owner.liveness is not Liveness.GONE
        ended = row.state in (State.DONE, State.DEAD)
        orphan = self._orphan(row)
        unsure = (
            orphan is None
            and need in (Need.STRANDED, Need.OVERDUE)
            and (row.id.namespace, row.id.queue) in self._too_many
        )
        return ListedJob(row, progress, orphan, owner, need, None if goes_on or ended else pause, unsure)

    def _need(self, row: Row, progress: Progress | None, *, last: bool) -> Need | None:
        """Return the need of a row, which is the last round of its key or an earlier one."""
        return (self._need_of_last(row) if last else None) or self._need_of_run(row, progress)

    def _need_of_run(self, row: Row, progress: Progress | None) -> Need | None:
        paused = (row.id.namespace, row.id.queue) in self._pauses
        owner = owner_now(row, self._owners, self._times, paused=paused) if row.state is State.RUNNING else None
        if owner is None:
            return None
        if owner.liveness is Liveness.GONE:
            return None if owner.heirs else Need.NO_WORKER
        return Need.STUCK if is_silent(row.started_at, progress, self._now) else None

    def _need_of_last(self, row: Row) -> Need | None:
        orphan = self._orphan(row)
        if orphan is not None and orphan.hindrance is not None:
            return Need.STRANDED
        if row.late_by > OVERDUE:
            return Need.OVERDUE
        if row.job_state is JobState.DEAD:
            return Need.DEAD if row.ended_at is None or row.ended_at >= self._now - DAY else None
        ended = row.state in (State.DONE, State.DEAD) or row.job_state is JobState.CANCELLED
        return Need.CRASHING if not ended and row.counters.crashes + row.counters.losses >= CRASHES else None


_VARIES = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|[\w.@+-]*\d[\w.@+-]*""")

_LONG_KEY = 4
"""The number of characters from which a key in a reason is the key, and no part of a word."""


def kind_of(row: Row) -> str:
    """Return the class of a failure; without one, its reason without what varies: the key, quoted parts, and words with digits."""
    key, reason = row.id.key, row.reason
    return row.error_class or _VARIES.sub("…", reason.replace(key, "…") if len(key) >= _LONG_KEY else reason)


def owner_now(row: Row, owners: Mapping[str, OwnerSeen], times: Times, *, paused: bool = False) -> OwnerNow | None:
    """
    Return the state of the worker process that holds this job, or None if no process holds it.

    While the job's queue is `paused`, a process that has registered the queue as quiet counts as an heir.
    """
    if row.owner is None:
        return None
    seen = owners.get(row.owner)
    silent = times.lease + row.late_by if row.late_by else None
    if seen is not None:
        silent = max(seen.seen_ago, silent or 0.0)
    free_within = max(0.0, times.lease + times.margin - (silent or 0.0))
    name = registered_name(row.id.namespace, row.id.queue)
    lives = Liveness.ALIVE
    if row.lease_over or (seen is not None and seen.dead):
        lives = Liveness.GONE
    elif silent is not None and silent > SILENT_RENEWALS * times.renew:
        lives = Liveness.SILENT
    heirs: list[OwnerSeen] = []
    if (
        lives is Liveness.GONE
    ):  # only then is the list worth its time: there can be thousands of jobs and hundreds of processes
        heirs = [
            each
            for each in owners.values()
            if each.owner != row.owner
            and name in (attended(each.queues) if paused else each.queues)
            and liveness(each, times) is not Liveness.GONE
        ]
    found = OwnerNow(
        lives, silent, free_within, len(heirs), seen.host if seen is not None else "", full=_full(heirs, name)
    )
    report = seen.report if seen is not None else None
    if report is None:
        return found
    queue = report.queues.get(name, QueueReport(connected=True))
    connected = queue.connected or report.starting
    return replace(found, pid=report.pid, time_limit=queue.time_limit, connected=connected)


def _full(owners: Sequence[OwnerSeen], name: str) -> int:
    """Return the number of the slots of this queue, if these worker processes report that all of them are busy; otherwise 0."""
    reports = [each.report.queues.get(name) if each.report is not None else None for each in owners]
    if any(report is None or report.busy < report.slots for report in reports):
        return 0
    return sum(report.slots for report in reports if report is not None)


def liveness(owner: OwnerSeen, times: Times) -> Liveness:
    """Return whether a registered worker process lives, by its last renewal and the proof of its death."""
    if owner.dead or owner.seen_ago > times.lease + times.margin:
        return Liveness.GONE
    return Liveness.SILENT if owner.seen_ago > SILENT_RENEWALS * times.renew else Liveness.ALIVE


def time_left(progress: Progress | None, now: float) -> float | None:
    """
    Return the seconds until a run ends, by the rate of the last minutes of its progress; None if that is unknown.

    It is also unknown once these seconds are over.
    """
    if progress is None or progress.done is None or not progress.total or progress.before is None:
        return None
    at, done = progress.before
    if progress.done <= done or progress.at <= at:
        return None
    left = (progress.total - progress.done) * (progress.at - at) / (progress.done - done) - (now - progress.at)
    return left if left >= 0 else None
