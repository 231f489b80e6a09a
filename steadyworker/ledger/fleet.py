"""
The worker processes of a ledger, and what each of them needs; for people.

A process unregisters itself at a normal end, so a registered process that no longer exists has died.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from steadyworker.clock import Times
from steadyworker.ledger.base import Ledger, OwnerSeen
from steadyworker.ledger.facts import OwnerReport
from steadyworker.ledger.hang import STUCK_AFTER
from steadyworker.ledger.lease import attended, registered_name
from steadyworker.ledger.listing import Liveness, liveness

LOOP = 2
"""The number of predecessors of a worker process that died within `LOOP_WITHIN`, from which it counts as in a crash loop."""

LOOP_WITHIN = 3600.0

QUIET_STAGE = "quiet"
"""The stage of a worker process that receives no messages, by order."""


class Trouble(StrEnum):
    """
    The reason why a worker process needs a person.

    GONE: It died, and nothing was started in its place.
    CRASH_LOOP: At least `LOOP` processes in whose place it was started, one after another, died within the last hour.
    SILENT: It lives, or is frozen, but has missed renewals.
    DETACHED: It has no connection to the broker of one of its queues.
    STUCK: One of its runs may hang (`ledger.hang`).
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
        queues: The names of its queues, by their registered names.
        troubles: What it needs, the most urgent first.
        runs: The number of jobs that it holds.
        stuck: The queue and the key of each of its runs that may hang.
        deaths: The number of its predecessors that died within the last hour.
        predecessor: The dead process in whose place it was started, as `host:pid`; empty if there is none.
        successor: If it died, the process that was started in its place; empty if there is none.
        gone: If nothing was started in its place, the number of such dead processes of its host and its queues; otherwise 0.
        gone_for: Seconds since the first of these renewed its leases for the last time.
        forsaken: The names of its queues whose messages no living worker process receives.
    """

    seen: OwnerSeen
    liveness: Liveness
    queues: Mapping[str, str] = {}
    troubles: tuple[Trouble, ...] = ()
    runs: int = 0
    stuck: tuple[tuple[str, str], ...] = ()
    deaths: int = 0
    predecessor: str = ""
    successor: str = ""
    forsaken: tuple[str, ...] = ()
    gone: int = 0
    gone_for: float = 0.0

    @property
    def names(self) -> Sequence[str]:
        """The registered names of its queues."""
        return tuple(self.queues)


def workers(ledger: Ledger, now: float, times: Times | None = None, *, every: bool = False) -> Sequence[WorkerNow]:
    """
    Return the worker processes, those in trouble first; `now` is the wall clock.

    Without `every`, leave out a dead process that holds no job, if another process was started in its place.
    """
    times = times or Times()
    seen = ledger.owners()
    held: Counter[str] = Counter()
    stuck: dict[str, list[tuple[str, str]]] = {}
    for each in ledger.held(STUCK_AFTER):
        held[each.owner] += each.jobs
        stuck.setdefault(each.owner, []).extend((each.queue, key) for key in each.stalled)
    bound = bound_names(ledger)
    paused = {registered_name(each.namespace, each.queue) for each in ledger.facts.pauses()}
    lives = {each.owner: liveness(each, times) for each in seen}
    living = [each for each in seen if lives[each.owner] is not Liveness.GONE]
    # A process that is quiet receives the messages of a paused queue again, after the pause.
    kept = {name for each in living for name in each.queues} | paused & {
        name for each in living for name in attended(each.queues)
    }
    fates = _fates(seen, lives, now)
    found = []
    for owner in seen:
        fate = fates[owner.owner]
        queues = {name: queue_of(name, bound) for name in attended(owner.queues)}
        runs = tuple(stuck.get(owner.owner, ()))
        past = (fate.deaths, fate.predecessor, fate.successor)
        worker = WorkerNow(owner, lives[owner.owner], queues, (), held[owner.owner], runs, *past)
        if worker.liveness is not Liveness.GONE:
            found.append(replace(worker, troubles=_troubles(worker)))
            continue
        forsaken = tuple(queue for name, queue in queues.items() if name not in kept)
        troubles = (Trouble.GONE,) if fate.last else ()
        found.append(replace(worker, troubles=troubles, forsaken=forsaken, gone=fate.gone, gone_for=fate.gone_for))
    shown = [each for each in found if every or each.runs or each.liveness is not Liveness.GONE or each.troubles]
    order = list(Trouble)
    return sorted(shown, key=lambda each: (_urgency(each, order), each.seen.host, each.seen.owner))


def bound_names(ledger: Ledger) -> Mapping[str, tuple[str, str]]:
    """Return every bound pair of a namespace and a queue, by its registered name; both can have slashes."""
    return {registered_name(*pair): pair for pair in ledger.bindings()}


def queue_of(name: str, bound: Mapping[str, tuple[str, str]]) -> str:
    """Return the queue of a registered name, by the pairs of `bound_names`."""
    return bound[name][1] if name in bound else name.rpartition("/")[2]


def of_namespace(ledger: Ledger, listed: Sequence[WorkerNow], namespace: str | None) -> Sequence[WorkerNow]:
    """Return the worker processes that consume a queue of this namespace, or all of them without a namespace."""
    if namespace is None:
        return listed
    bound = bound_names(ledger)
    return [each for each in listed if any(name in bound and bound[name][0] == namespace for name in each.names)]


class _Fate(Struct):
    """What came before and after a worker process, as `WorkerNow` has it; `last` is true for the one that shows its trouble."""

    deaths: int = 0
    predecessor: str = ""
    successor: str = ""
    gone: int = 0
    gone_for: float = 0.0
    last: bool = False


def _fates(seen: Sequence[OwnerSeen], lives: Mapping[str, Liveness], now: float) -> Mapping[str, _Fate]:
    """Return the fate of each owner: who followed whom, and of each host and its queues, the last dead one without a successor."""
    fates = {each.owner: _Fate() for each in seen}
    alike: dict[tuple[str, tuple[str, ...]], list[OwnerSeen]] = {}
    newest: dict[tuple[str, str], tuple[float, str]] = {}
    for each in seen:
        names = tuple(attended(each.queues))
        alike.setdefault((each.host, names), []).append(each)
        if lives[each.owner] is not Liveness.GONE:
            # A process of an early version does not report its start, so it can have started after every death.
            began = math.inf if each.report is None else each.report.started_at
            for name in names:
                newest[each.host, name] = max(newest.get((each.host, name), (-math.inf, "")), (began, _name(each)))
    for (host, names), found in alike.items():
        dead = sorted((each for each in found if lives[each.owner] is Liveness.GONE), key=lambda each: -each.seen_ago)
        _follow(found, dead, fates, now)
        gone = []
        for each in dead:
            fate = fates[each.owner]
            # After a deploy, processes with other sets of queues can attend all of its queues.
            after = [newest.get((host, name), (-math.inf, "")) for name in names]
            if not fate.successor and after and min(after)[0] >= now - each.seen_ago:
                fate.successor = min(after)[1]
            if not fate.successor:
                gone.append(each)
        for each in gone:
            fate = fates[each.owner]
            fate.gone, fate.gone_for = len(gone), gone[0].seen_ago
        if gone:
            fates[min(gone, key=lambda each: each.seen_ago).owner].last = True
    return fates


def _follow(alike: Sequence[OwnerSeen], dead: Sequence[OwnerSeen], fates: Mapping[str, _Fate], now: float) -> None:
    """
    Give each process, in the order of their starts, the last dead one without a successor that had died before its start.

    `dead` are the dead ones of `alike`, in the order of their last signs of life.
    A sibling that died while a process ran is no predecessor of this process.
    """
    begun = [(each.report.started_at, each) for each in alike if each.report is not None]
    waiting, free = deque(dead), []
    for began, each in sorted(begun, key=lambda pair: pair[0]):
        while waiting and now - waiting[0].seen_ago <= began:
            free.append(waiting.popleft())
        last = (
            -2 if free and free[-1] is each else -1
        )  # its own start can seem to be after its death, because clocks differ
        if len(free) >= -last:
            before = free.pop(last)
            fates[before.owner].successor = _name(each)
            fates[each.owner].predecessor = _name(before)
            fates[each.owner].deaths = fates[before.owner].deaths + (before.seen_ago <= LOOP_WITHIN)


def _name(owner: OwnerSeen) -> str:
    return owner.host if owner.report is None else f"{owner.host}:{owner.report.pid}"


def unready(report: OwnerReport) -> Sequence[str]:
    """Return why a worker process is not ready; an order to be quiet is no reason."""
    return [why for why in report.not_ready if not why.removesuffix(".").endswith(f": stage: {QUIET_STAGE}")]


def _urgency(worker: WorkerNow, order: Sequence[Trouble]) -> int:
    return min((order.index(trouble) for trouble in worker.troubles), default=len(order))


def _troubles(worker: WorkerNow) -> tuple[Trouble, ...]:
    """Return the troubles of a worker process that lives."""
    report = worker.seen.report
    starting = report is not None and report.starting
    quiet = report is not None and report.stage == QUIET_STAGE
    signs = {
        Trouble.CRASH_LOOP: worker.deaths >= LOOP,
        Trouble.SILENT: worker.liveness is Liveness.SILENT,
        Trouble.DETACHED: report is not None
        and not starting
        and any(not queue.connected for queue in report.queues.values()),
        Trouble.STUCK: bool(worker.stuck),
        Trouble.NOT_READY: report is not None
        and (
            (not (report.ready or starting) and (bool(unready(report)) or not (report.not_ready or quiet)))
            or any(finding.level == "error" for finding in report.findings)
        ),
        Trouble.QUIET: quiet,
    }
    return tuple(trouble for trouble, is_so in signs.items() if is_so)
