"""
The worker processes of a ledger, and what each of them needs; for people.

A process unregisters itself at a normal end, so a registered process that no longer exists has died.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from steadyworker.clock import Times
from steadyworker.ledger.base import Ledger, OwnerSeen
from steadyworker.ledger.lease import attended, registered_name
from steadyworker.ledger.listing import STUCK_AFTER, Liveness, liveness

LOOP = 2
"""The number of predecessors of a worker process that died within `LOOP_WITHIN`, from which it counts as in a crash loop."""

LOOP_WITHIN = 3600.0


class Trouble(StrEnum):
    """
    The reason why a worker process needs a person.

    GONE: It died, and no living process of the same host consumes its queues.
    CRASH_LOOP: At least `LOOP` processes with its host and its queues died within the last hour.
    SILENT: It lives, or is frozen, but has missed renewals.
    DETACHED: It has no connection to the broker of one of its queues.
    STUCK: One of its runs has reported no progress for half an hour.
    NOT_READY: It reports that it is not ready, or a finding of the level error; a process that has just started is well.
    QUIET: It receives no messages, because it has an order to be quiet.
    """

    GONE = "gone"
    CRASH_LOOP = "crash loop"
    SILENT = "silent"
    DETACHED = "detached"
    STUCK = "stuck"
    NOT_READY = "not ready"
    QUIET = "quiet"


class WorkerNow(Struct, frozen=True):
    """
    A worker process.

    Attributes:
        seen: Its registration, with its last report.
        liveness: Whether it lives.
        troubles: What it needs, the most urgent first.
        runs: The number of jobs that it holds.
        stuck: The keys of its runs without progress.
        deaths: The number of its predecessors that died within the last hour.
        gone: The number of dead processes of its host and its queues, if no such process lives; otherwise 0.
        gone_for: Seconds since the first of these renewed its leases for the last time.
        forsaken: The registered names of its queues that no living worker process consumes.
    """

    seen: OwnerSeen
    liveness: Liveness
    troubles: tuple[Trouble, ...] = ()
    runs: int = 0
    stuck: tuple[str, ...] = ()
    deaths: int = 0
    forsaken: tuple[str, ...] = ()
    gone: int = 0
    gone_for: float = 0.0

    @property
    def names(self) -> Sequence[str]:
        """The registered names of its queues."""
        return attended(self.seen.queues)


def workers(ledger: Ledger, times: Times | None = None, *, every: bool = False) -> Sequence[WorkerNow]:
    """
    Return the worker processes, those in trouble first.

    Without `every`, leave out a dead process that holds no job, if a living process has the same host and the same queues.
    """
    times = times or Times()
    seen = ledger.owners()
    held: Counter[str] = Counter()
    stuck: dict[str, list[str]] = {}
    for each in ledger.held(STUCK_AFTER):
        held[each.owner] += each.jobs
        stuck.setdefault(each.owner, []).extend(each.stalled)
    lives = {each.owner: liveness(each, times) for each in seen}
    alike: dict[tuple[str, tuple[str, ...]], list[OwnerSeen]] = {}
    for owner in seen:
        alike.setdefault(_kind(owner), []).append(owner)
    kept = {name for owner in seen if lives[owner.owner] is not Liveness.GONE for name in attended(owner.queues)}
    found = [
        _worker(owner, alike[_kind(owner)], lives, kept, held[owner.owner], tuple(stuck.get(owner.owner, ())))
        for owner in seen
    ]
    shown = [each for each in found if every or each.runs or each.liveness is not Liveness.GONE or each.troubles]
    order = list(Trouble)
    return sorted(shown, key=lambda each: (_urgency(each, order), each.seen.host, each.seen.owner))


def of_namespace(ledger: Ledger, listed: Sequence[WorkerNow], namespace: str | None) -> Sequence[WorkerNow]:
    """Return the worker processes that consume a queue of this namespace, or all of them without a namespace."""
    if namespace is None:
        return listed
    # A namespace can have slashes, so the beginning of a registered name does not show the namespace.
    of = {registered_name(*pair): pair[0] for pair in ledger.bindings()}
    return [each for each in listed if any(of.get(name) == namespace for name in each.names)]


def _kind(owner: OwnerSeen) -> tuple[str, tuple[str, ...]]:
    return owner.host, tuple(attended(owner.queues))


def _urgency(worker: WorkerNow, order: Sequence[Trouble]) -> int:
    return min((order.index(trouble) for trouble in worker.troubles), default=len(order))


def _worker(
    owner: OwnerSeen,
    alike: Sequence[OwnerSeen],
    lives: Mapping[str, Liveness],
    kept: Collection[str],
    runs: int,
    stuck: tuple[str, ...],
) -> WorkerNow:
    """Return a worker process; `alike` are those of its host and queues, and `kept` the queues that a living one consumes."""
    now = lives[owner.owner]
    deaths = sum(lives[each.owner] is Liveness.GONE and each.seen_ago <= LOOP_WITHIN for each in alike)
    report = owner.report
    if now is Liveness.GONE:
        replaced = any(lives[each.owner] is not Liveness.GONE for each in alike)
        youngest = min(alike, key=lambda each: each.seen_ago).owner == owner.owner
        troubles = () if replaced or not youngest else (Trouble.GONE,)
        forsaken = tuple(name for name in attended(owner.queues) if name not in kept)
        gone_for = max(each.seen_ago for each in alike)
        gone = 0 if replaced else len(alike)
        return WorkerNow(owner, now, troubles, runs, forsaken=forsaken, gone=gone, gone_for=gone_for)
    starting = report is not None and report.starting
    signs = {
        Trouble.CRASH_LOOP: deaths >= LOOP,
        Trouble.SILENT: now is Liveness.SILENT,
        Trouble.DETACHED: report is not None
        and not starting
        and any(not queue.connected for queue in report.queues.values()),
        Trouble.STUCK: bool(stuck),
        Trouble.NOT_READY: report is not None
        and (not (report.ready or starting) or any(finding.level == "error" for finding in report.findings)),
        Trouble.QUIET: report is not None and report.stage == "quiet",
    }
    return WorkerNow(owner, now, tuple(trouble for trouble, is_so in signs.items() if is_so), runs, stuck, deaths)
