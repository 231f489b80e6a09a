"""
The ledger in this process's memory: for tests, the simulation and the Harness.

This ledger keeps every promise of `Ledger` except durability, and is fast enough for a hundred thousand simulated histories.
"""

from __future__ import annotations

import copy
import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from threading import Lock

from typing_extensions import override

from steadyworker.clock import Clock, Times
from steadyworker.errors import Finding
from steadyworker.ledger import retention
from steadyworker.ledger.base import (
    EVERY_ROW,
    REPLAYED,
    Claimed,
    Ending,
    HeldJobs,
    Hindrance,
    JobFilter,
    JobId,
    JobsPage,
    KeptMessage,
    Ledger,
    Moving,
    Need,
    NeedsOf,
    Orders,
    Orphan,
    OwedCall,
    OwnerSeen,
    Progress,
    Renewal,
    Row,
    State,
    Token,
    Verdict,
)
from steadyworker.ledger.facts import Facts, OwnerReport
from steadyworker.ledger.facts_rows import safe_report
from steadyworker.ledger.lease import attended, registered_name
from steadyworker.ledger.shared import Retentions
from steadyworker.outcome import Counters, JobState
from steadyworker.testing.memory_facts import MemoryFacts
from steadyworker.testing.memory_job import HELD, MemoryJob, fits
from steadyworker.text.versions import version

_ENDED = (State.DONE, State.DEAD)


class MemoryLedger(Ledger):
    """
    A ledger that ends with its process.

    Args:
        clock: Its boot clock decides on leases and delays. Its wall clock gives fences and the ages of rows.
        times: Lease and margin.
        worker: The name of the worker process that claims through this ledger, for people.
        is_dead: A function that returns whether an owner is proven dead. It replaces the owner locks of a ledger on disk.
            By default, no owner is ever proven dead.
    """

    def __init__(
        self, clock: Clock, times: Times, worker: str = "", is_dead: Callable[[str], bool] = lambda _owner: False
    ) -> None:
        self._clock = clock
        self._times = times
        self._worker = worker
        self._version = version()
        self._is_dead = is_dead
        self._lock = Lock()
        self._id = secrets.token_hex(16)
        self._jobs: dict[JobId, MemoryJob] = {}
        self._fence = 0
        self._bindings: dict[tuple[str, str], str] = {}
        self._owners: dict[str, tuple[str, tuple[str, ...], float, OwnerReport | None]] = {}
        self._seen: dict[str, float] = {}
        self._trusted_from: dict[str, int] = {}
        self._set_back = False
        self._facts = MemoryFacts(clock, self._lock, lambda: self._jobs)
        self._retentions = Retentions()

    @property
    @override
    def url(self) -> str:
        return "memory:"

    @property
    @override
    def facts(self) -> Facts:
        return self._facts

    @override
    def ledger_id(self) -> str:
        return self._id

    @override
    def findings(self) -> Sequence[Finding]:
        return ()

    @override
    def bind(self, namespace: str, queue: str, identity: str) -> str:
        with self._lock:
            return self._bindings.setdefault((namespace, queue), identity)

    @override
    def queues(self, namespace: str) -> Sequence[str]:
        with self._lock:
            return [queue for bound, queue in self._bindings if bound == namespace]

    @override
    def bindings(self) -> Sequence[tuple[str, str]]:
        with self._lock:
            return list(self._bindings)

    @override
    def register(self, owner: str, host: str, queues: Sequence[str], report: OwnerReport | None = None) -> bool:
        with self._lock:
            whole, self._set_back = not self._set_back, False
            now = self._clock.wall()
            if not whole:
                self._distrust()
            for name in attended(queues):
                if now - self._seen.get(name, -math.inf) > retention.ABSENCE:
                    self._trusted_from[name] = self._next_fence()
                self._seen[name] = now
            self._owners[owner] = (host, tuple(queues), now, None if report is None else safe_report(report))
            return whole

    @override
    def unregister(self, owner: str) -> None:
        with self._lock:
            self._owners.pop(owner, None)

    @override
    def owners(self) -> Sequence[OwnerSeen]:
        with self._lock:
            now = self._clock.wall()
            return [
                OwnerSeen(owner, host, queues, max(0.0, now - seen_at), self._is_dead(owner), report)
                for owner, (host, queues, seen_at, report) in self._owners.items()
                if now - seen_at < retention.OWNERS
            ]

    @override
    def read(self, id: JobId) -> Row | None:
        with self._lock:
            job = self._jobs.get(id)
            return None if job is None else self._row(job)

    @override
    def message(self, id: JobId) -> KeptMessage | None:
        with self._lock:
            job = self._jobs.get(id)
            return None if job is None else job.message

    @override
    def orphans(
        self, namespace: str, queue: str, after: float, limit: int, *, stranded: bool = False
    ) -> Sequence[Orphan]:
        with self._lock:
            if self._set_back:
                return ()
            now = self._clock.boottime()
            theirs = [job for job in self._jobs.values() if (job.id.namespace, job.id.queue) == (namespace, queue)]
            late = [(job, unseen) for job in theirs if (unseen := job.unseen_for(now, self._times.margin)) is not None]
            found = [Orphan(self._row(job), unseen, self._hindrance(job)) for job, unseen in late if unseen > after]
            fitting = [orphan for orphan in found if (orphan.hindrance is not None) is stranded]
            return sorted(fitting, key=lambda orphan: -orphan.unseen_for)[:limit]

    def _hindrance(self, job: MemoryJob) -> Hindrance | None:
        this = job.id
        if any(
            (id.namespace, id.queue, id.key) == (this.namespace, this.queue, this.key) and id.round > this.round
            for id in self._jobs
        ):
            return None
        trusted_from = self._trusted_from.get(registered_name(job.id.namespace, job.id.queue))
        if trusted_from is None or job.fence < trusted_from:
            return Hindrance.OLD_RECORD
        return Hindrance.NO_MESSAGE if job.message is None and not job.dies else None

    @override
    def distrust(self) -> None:
        with self._lock:
            self._distrust()

    def _distrust(self) -> None:
        for name in tuple(self._trusted_from):
            self._trusted_from[name] = self._next_fence()

    @override
    def deferred(self, id: JobId, delay: float) -> None:
        with self._lock:
            job = self._jobs.get(id)
            if job is not None and job.fence > 0 and job.state not in _ENDED:
                job.wake_at = max(job.wake_at or 0.0, self._clock.boottime() + delay)

    @override
    def replay(
        self, id: JobId, message: KeptMessage, body_sha256: bytes, *, delay: float = 0.0, wake_in: float = 0.0
    ) -> bool:
        with self._lock:
            if id in self._jobs:
                return False
            job = self._jobs[id] = MemoryJob(id, self._clock.wall())
            before = self._jobs.get(JobId(id.namespace, id.queue, id.key, id.round - 1))
            job.checkpoint = None if before is None else before.checkpoint
            job.message, job.body_sha256, job.hop, job.target = message, body_sha256, -1, Moving.RETRY
            job.reason, job.due = REPLAYED, self._clock.boottime()
            job.fence = self._fence = self._next_fence()
            job.waits(delay, self._clock.boottime(), self._clock.wall(), wake_in)
            return True

    @override
    def reschedule(self, seen: Row, delay: float, wake_in: float) -> bool:
        with self._lock:
            job = self._jobs.get(seen.id)
            if job is None or job.state is not State.MOVED or not job.unchanged(seen) or job.hop != seen.hop:
                return False
            job.hop += 1
            job.waits(delay, self._clock.boottime(), self._clock.wall(), wake_in)
            return True

    @override
    def claim(self, claim: Claimed) -> Row | None:
        with self._lock:
            return self._claim(claim)

    @override
    def record(
        self, claims: Sequence[Claimed], ended: Sequence[tuple[Token, Ending | None]]
    ) -> tuple[Sequence[Row | None], Sequence[bool]]:
        with self._lock:
            return [self._claim(claim) for claim in claims], [self._done(token, end) for token, end in ended]

    def _claim(self, claim: Claimed) -> Row | None:
        job = self._jobs.get(claim.id)
        if claim.seen is None:
            if job is not None:
                return None
            job = self._jobs[claim.id] = MemoryJob(claim.id, self._clock.wall())
        elif job is None or not job.unchanged(claim.seen) or job.state in _ENDED:
            return None
        if job.fence == 0 and claim.id.round > 0:
            before = self._jobs.get(JobId(claim.id.namespace, claim.id.queue, claim.id.key, claim.id.round - 1))
            job.checkpoint = None if before is None else before.checkpoint
        job.state = State.RUNNING
        job.hop = max(job.hop, claim.hop)
        job.counters = claim.counters
        if job.body_sha256 is None:
            job.body_sha256 = claim.body_sha256
        job.target = None
        job.due = job.delay = 0.0
        job.settled = "unknown"
        job.keep_until = job.wake_at = None
        job.message = job.message or claim.message
        job.started_at = self._clock.wall()
        job.worker = self._worker
        row = self._own(job, claim.owner)
        job.begin(claim.run, self._version)
        return row

    @override
    def take_over(self, seen: Row, owner: str) -> Row | None:
        with self._lock:
            job = self._jobs.get(seen.id)
            if job is None or not job.unchanged(seen) or job.state is not State.MOVING:
                return None
            return self._own(job, owner)

    @override
    def lose(self, seen: Row, owner: str, verdict: Verdict) -> Row | None:
        with self._lock:
            job = self._jobs.get(seen.id)
            if job is None or not job.unchanged(seen) or job.state is not State.RUNNING:
                return None
            job.plan(verdict, self._clock.boottime())
            job.lose_attempt(self._clock.wall())
            return self._own(job, owner)

    @override
    def renew(self, tokens: Sequence[Token]) -> Sequence[Renewal]:
        with self._lock:
            return [self._renew(token, HELD) for token in tokens]

    @override
    def checkpoint(self, token: Token, value: bytes | None) -> bool:
        with self._lock:
            job = self._held(token, State.RUNNING)
            if job is None:
                return False
            job.checkpoint = value
            job.checkpoint_fence = None if value is None else job.fence
            return True

    @override
    def export_state(self, token: Token, value: bytes | None) -> bool:
        with self._lock:
            job = self._held(token, State.RUNNING)
            if job is None:
                return False
            job.export_state = value
            return True

    @override
    def may_commit(self, token: Token) -> Renewal:
        with self._lock:
            renewal = self._renew(token, (State.RUNNING,))
            return Renewal(renewal.granted and renewal.cancel_reason is None, renewal.cancel_reason)

    @override
    def done(self, token: Token, end: Ending | None = None) -> bool:
        with self._lock:
            return self._done(token, end)

    def _done(self, token: Token, end: Ending | None) -> bool:
        job = self._held(token, State.RUNNING)
        if job is None:
            return False
        job.reason = job.error_class = job.error_text = ""
        job.end_attempt(end, self._clock.wall())
        job.end(State.DONE, self._clock.wall(), self._retentions.unconfirmed(token.id))
        job.message = None
        return True

    @override
    def interrupted(self, token: Token, counters: Counters, end: Ending | None = None) -> bool:
        with self._lock:
            job = self._held(token, State.RUNNING)
            if job is None:
                return False
            job.state = State.INTERRUPTED
            job.counters = counters
            job.owner = None
            job.end_attempt(end, self._clock.wall())
            job.wake_at = max(job.wake_at or 0.0, self._clock.boottime())
            return True

    @override
    def moving(self, token: Token, verdict: Verdict, end: Ending | None = None) -> bool:
        with self._lock:
            job = self._held(token, *HELD)
            if job is None:
                return False
            job.plan(verdict, self._clock.boottime())
            job.end_attempt(end, self._clock.wall())
            return True

    @override
    def moved(self, token: Token, wake_in: float = 0.0) -> bool:
        with self._lock:
            job = self._held(token, State.MOVING)
            if job is None:
                return False
            job.move(self._clock.boottime(), self._clock.wall(), wake_in, self._retentions.of(token.id))
            return True

    @override
    def next_call(self, namespace: str, queue: str, lease: float) -> OwedCall | None:
        with self._lock:
            now = self._clock.wall()
            for job in self._jobs.values():
                theirs = (job.id.namespace, job.id.queue) == (namespace, queue) and job.state is State.DEAD
                if theirs and job.call_tries is not None and job.call_due <= now:
                    job.call_tries, job.call_due = job.call_tries + 1, now + lease
                    return OwedCall(job.id, job.call_tries)
            return None

    @override
    def end_call(self, call: OwedCall, again_in: float | None = None) -> None:
        with self._lock:
            job = self._jobs.get(call.id)
            if job is not None and job.call_tries == call.tries:
                job.call_tries = None if again_in is None else call.tries
                job.call_due = self._clock.wall() + (again_in or 0.0)

    @override
    def settled(self, token: Token, known: bool) -> None:
        with self._lock:
            job = self._jobs.get(token.id)
            if job is None or job.uid != token.uid or job.fence != token.fence or job.state in HELD:
                return
            if known:
                job.settled = "confirmed"
                if job.state is State.DONE:
                    job.keep_until = self._clock.wall() + self._retentions.of(token.id).done
            elif job.settled == "unknown":
                job.settled = "sent"

    @override
    def retain(self, namespace: str, queue: str, times: retention.Retention) -> None:
        self._retentions.set(namespace, queue, times)

    @override
    def flush(self) -> None:
        """Do nothing, because each call of this ledger writes at once."""

    @override
    def cancel(self, id: JobId, reason: str) -> State | None:
        with self._lock:
            job = self._jobs.get(id)
            if job is None:
                job = self._jobs[id] = MemoryJob(id, self._clock.wall())
                job.mark(reason, self._clock.wall())
                return None
            if job.state not in _ENDED:
                job.mark(reason, self._clock.wall())
            return job.state

    @override
    def uncancel(self, id: JobId) -> bool:
        with self._lock:
            job = self._jobs.get(id)
            if job is None or job.cancel_reason is None or job.state not in (State.INTERRUPTED, State.MOVED):
                return False
            if job.fence == 0:
                del self._jobs[id]
            job.cancel_reason = None
            return True

    @override
    def conflict(self, id: JobId) -> None:
        with self._lock:
            job = self._jobs.get(id)
            if job is not None:
                job.conflicts += 1

    @override
    def orders(self, owner: str) -> Orders:
        with self._lock:
            held = [job for job in self._jobs.values() if job.owner == owner]
            marks = {job.uid: job.cancel_reason for job in held if job.cancel_reason is not None}
        return Orders(marks, tuple(self._facts.pauses()), self._facts.commanded(owner))

    @override
    def clear_checkpoint(self, id: JobId) -> None:
        with self._lock:
            job = self._jobs.get(id)
            if job is not None and job.state not in HELD:
                job.checkpoint = job.checkpoint_fence = None

    @override
    def progress(self, token: Token, progress: Progress) -> None:
        with self._lock:
            job = self._jobs.get(token.id)
            if job is not None and job.fence == token.fence:
                job.moved_on(progress)

    @override
    def last_round(self, namespace: str, queue: str, key: str) -> int | None:
        with self._lock:
            wanted = (namespace, queue, key)
            return max((job.round for job in self._jobs if (job.namespace, job.queue, job.key) == wanted), default=None)

    @override
    def jobs(self, which: JobFilter = EVERY_ROW) -> Iterable[tuple[Row, Progress | None]]:
        with self._lock:
            listed = [
                (self._row(job), job.progress)
                for job in reversed(self._jobs.values())
                if job.message is not None or not which.kept
            ]
            every = sorted(self._jobs, key=lambda id: id.round)
        last = {(id.namespace, id.queue, id.key): id.round for id in every}
        return [
            (row, progress)
            for row, progress in listed
            if fits(row, which, last[row.id.namespace, row.id.queue, row.id.key], progress.note if progress else "")
        ]

    @override
    def held(self, stalled: float) -> Sequence[HeldJobs]:
        with self._lock:
            parts: dict[tuple[str, str, str], list[MemoryJob]] = {}
            for job in self._jobs.values():
                if job.owner is not None:
                    parts.setdefault((job.owner, job.id.namespace, job.id.queue), []).append(job)
            now = self._clock.wall()
            return [
                HeldJobs(
                    *part,
                    len(jobs),
                    sum(job.state is State.RUNNING for job in jobs),
                    tuple(job.id.key for job in jobs if job.is_silent(now, stalled)),
                )
                for part, jobs in parts.items()
            ]

    @override
    def needing(self, which: NeedsOf, offset: int, limit: int) -> JobsPage:
        with self._lock:
            last = {(id.namespace, id.queue, id.key): id.round for id in sorted(self._jobs, key=lambda id: id.round)}
            needs = []
            for job in self._listed(which.namespace, which.queue):
                need = self._need(job, which)
                is_last = last[job.id.namespace, job.id.queue, job.id.key] == job.id.round
                if need is not None and (is_last or need in (Need.NO_WORKER, Need.STUCK)):
                    needs.append((need, job))
            order = list(Need)
            needs.sort(key=lambda each: order.index(each[0]))
            return self._jobs_page(needs, offset, limit)

    def _need(self, job: MemoryJob, which: NeedsOf) -> Need | None:
        """Return the need of a job, or None."""
        now, wall = self._clock.boottime(), self._clock.wall()
        row = self._row(job)
        if row.state in _ENDED:
            dead = row.job_state is JobState.DEAD and (row.ended_at or 0.0) >= wall - which.dead
            return Need.DEAD if dead else None
        unseen = job.unseen_for(now, self._times.margin)
        by_itself = self._set_back or self._hindrance(job) is None or self._facts.is_paused(job.id)
        if row.state is State.INTERRUPTED and unseen is not None and unseen > which.overdue and not by_itself:
            return Need.STRANDED
        if row.late_by > which.overdue:
            return Need.OVERDUE
        if row.counters.crashes + row.counters.losses >= which.lost and row.job_state is not JobState.CANCELLED:
            return Need.DEAD if job.dies else Need.CRASHING
        over = row.state is State.RUNNING and (row.lease_over or row.owner in which.dead_owners)
        if over and (row.owner, row.id.namespace, row.id.queue) in which.alone:
            return Need.NO_WORKER
        return Need.STUCK if not over and job.is_silent(wall, which.stalled) else None

    @override
    def running(self, which: NeedsOf, offset: int, limit: int) -> JobsPage:
        with self._lock:
            listed = self._listed(which.namespace, which.queue)
            found = [(self._need(job, which), job) for job in listed if job.state is State.RUNNING]
            found.sort(key=lambda each: (each[0] is not Need.STUCK, each[0] is None))
            return self._jobs_page(found, offset, limit)

    @override
    def waiting(self, namespace: str | None, queue: str | None, offset: int, limit: int) -> JobsPage:
        with self._lock:
            found = [
                (None, job)
                for job in self._listed(namespace, queue)
                if job.state is State.MOVING or (job.owner is None and job.wake_at is not None)
            ]
            found.reverse()
            found.sort(key=lambda each: -math.inf if each[1].wake_at is None else each[1].wake_at)
            return self._jobs_page(found, offset, limit)

    def _listed(self, namespace: str | None, queue: str | None) -> list[MemoryJob]:
        """Return the jobs of a queue, or of all queues, newest first."""
        return [
            job
            for id, job in reversed(self._jobs.items())
            if namespace in (None, id.namespace) and queue in (None, id.queue)
        ]

    def _jobs_page(self, found: Sequence[tuple[Need | None, MemoryJob]], offset: int, limit: int) -> JobsPage:
        start = offset if offset < len(found) else 0
        jobs = [(self._row(job), job.progress, need) for need, job in found[start : start + limit]]
        return JobsPage(jobs, len(found), start)

    @override
    def ended(self, uids: Sequence[str]) -> frozenset[str]:
        asked = set(uids)
        with self._lock:
            return frozenset(job.uid for job in self._jobs.values() if job.state in _ENDED and job.uid in asked)

    @override
    def last_progress(self, id: JobId) -> Progress | None:
        with self._lock:
            job = self._jobs.get(id)
            return None if job is None else job.progress

    @override
    def forget(self, id: JobId) -> None:
        with self._lock:
            job = self._jobs.get(id)
            if job is None or job.state is not State.DEAD:
                return
            if job.checkpoint is None or JobId(id.namespace, id.queue, id.key, id.round + 1) in self._jobs:
                del self._jobs[id]

    @override
    def size(self) -> int | None:
        return None

    @override
    def purge(self) -> int:
        with self._lock:
            now = self._clock.wall()
            old = [job.id for job in self._jobs.values() if job.keep_until is not None and job.keep_until <= now]
            for job_id in old:
                del self._jobs[job_id]
            for id, job in self._jobs.items():
                kept = now - self._retentions.of(id).attempts
                for fence, run in list(job.attempts.items()):
                    if run.ended_at is not None and run.ended_at <= kept:
                        del job.attempts[fence]
        self._facts.purge()
        return len(old)

    @override
    def close(self) -> None:
        """Do nothing: the next worker process of a test uses the same object again."""

    def _row(self, job: MemoryJob) -> Row:
        now = self._clock.boottime()
        over = job.owner is None or now > job.lease_until + self._times.margin or self._is_dead(job.owner)
        return job.row(now, lease_over=over)

    def _own(self, job: MemoryJob, owner: str) -> Row:
        """Give the job to this owner under a fence that was never given before, and return its row."""
        now = self._clock.boottime()
        self._fence = job.fence = self._next_fence()
        job.owner = owner
        job.wake_at = None
        job.lease_until = now + self._times.lease
        return job.row(now, lease_over=False)

    def _next_fence(self) -> int:
        return max(self._fence + 1, int(self._clock.wall() * 1000))

    def saved(self) -> object:
        """Return a copy of everything, as a backup has it; `restore` receives this copy."""
        with self._lock:
            return copy.deepcopy((self._jobs, self._owners, self._seen, self._trusted_from))

    def restore(self, saved: object) -> None:
        """Set the ledger back to a copy, as if an operator restored a backup while the worker processes run."""
        with self._lock:
            self._jobs, self._owners, self._seen, self._trusted_from = copy.deepcopy(saved)  # type: ignore[misc]
            self._set_back = True

    def _held(self, token: Token, *states: State) -> MemoryJob | None:
        job = self._jobs.get(token.id)
        return job if job is not None and job.held_by(token, states) else None

    def _renew(self, token: Token, states: Sequence[State]) -> Renewal:
        job = self._held(token, *states)
        if job is None:
            return Renewal(granted=False)
        job.lease_until = self._clock.boottime() + self._times.lease
        return Renewal(granted=True, cancel_reason=job.cancel_reason)
