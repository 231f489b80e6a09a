"""What waits in each queue: the broker's numbers, as the ledger has them or as the broker reports them now; for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct

from steadyworker.adapter import Depth
from steadyworker.clock import Clock, SystemClock, Times
from steadyworker.ledger.base import Ledger, OwnerSeen
from steadyworker.ledger.facts import MeasuredDepth, Pause
from steadyworker.ledger.fleet import QUIET_STAGE
from steadyworker.ledger.hang import STUCK_AFTER
from steadyworker.ledger.lease import attended, registered_name
from steadyworker.ledger.listing import Liveness, liveness
from steadyworker.text.redaction import redact

QUIET_ORDER = "quiet worker"
"""What the log of actions has for an order to a worker process to be quiet."""

RECENT = 30.0
"""Seconds for which a depth that a worker process has recorded counts as the present depth."""


_UNMEASURED = "no worker process of this ledger has measured it within a day"

ENDED_WITHIN = 60.0
"""
Seconds before the measurement of a depth from which the end of a worker process explains a consumer in this depth.

A broker can notice the end of a consumer late, and the wall clocks of the hosts differ.
"""


class QueueNow(Struct, frozen=True):
    """
    A queue.

    Attributes:
        namespace, queue: The queue; the namespace is empty if the ledger does not know the queue.
        depth: The broker's numbers; each can be None, and `depth.why` then has the reason.
        running: The number of its jobs that a worker process holds.
        workers: The number of living worker processes that consume it, quiet and paused ones included.
        unexplained: The number of consumers at the broker that no worker process of this ledger explains; None if unknown.
        pause: Its pause, or None.
        receiving: The number of those worker processes that are not quiet; those that a pause made quiet count after its end.
        age: Seconds since the measurement of the broker's numbers.
        quiet: If all of its worker processes have an order to be quiet, this as a clause; otherwise empty.
    """

    namespace: str
    queue: str
    depth: Depth
    running: int = 0
    workers: int = 0
    unexplained: int | None = None
    pause: Pause | None = None
    receiving: int = 0
    age: float = 0.0
    quiet: str = ""

    @property
    def waits(self) -> bool:
        """True if messages are ready, and no worker process receives them now, or after a pause."""
        return bool(self.depth.ready) and not self.receiving and self.pause is None


def queues_now(
    ledger: Ledger,
    queues: Sequence[tuple[str, str]],
    measure: Callable[[str, str], Depth] | None = None,
    times: Times | None = None,
    *,
    clock: Clock | None = None,
) -> Sequence[QueueNow]:
    """
    Return what waits in these queues, which are pairs of namespace and name.

    `measure` asks the broker for the depth of a queue; it is called if the ledger has no recent depth.
    Without `measure`, the depth is the last one that the ledger has, however old.
    """
    times, now = times or Times(), (clock or SystemClock()).wall()
    recorded = {(each.namespace, each.queue): each for each in ledger.facts.depths()}
    pauses = {(each.namespace, each.queue): each for each in ledger.facts.pauses()}
    running: Counter[tuple[str, str]] = Counter()
    for held in ledger.held(STUCK_AFTER):
        running[held.namespace, held.queue] += held.jobs
    owners = ledger.owners()
    living = [each for each in owners if liveness(each, times) is not Liveness.GONE]
    consumed = Counter(name for each in living for name in attended(each.queues))
    receiving = Counter(name for each in living for name in attended(each.queues) if _receives(each, name))
    found = []
    for namespace, queue in queues:
        record = recorded.get((namespace, queue))
        if measure is not None and (record is None or record.age > RECENT):
            record = MeasuredDepth(namespace, queue, measure(namespace, queue), 0.0)
        elif record is None:
            record = MeasuredDepth(namespace, queue, Depth.unknown(_UNMEASURED), 0.0)
        name = registered_name(namespace, queue)
        found.append(
            QueueNow(
                namespace,
                queue,
                record.depth,
                running[namespace, queue],
                consumed[name],
                unexplained_now(ledger, record, owners, now, times),
                pauses.get((namespace, queue)),
                receiving[name],
                record.age,
                quiet_clause(ledger, namespace, queue, living),
            )
        )
    return found


def _receives(owner: OwnerSeen, name: str) -> bool:
    """Return whether a worker process consumes a queue, or consumes it again within seconds after the end of a pause."""
    report = owner.report
    if _quiet(owner):  # with a run, it still is registered as a consumer
        return False
    paused = report is not None and report.stage == "running" and name in report.queues and report.queues[name].paused
    return paused or name in owner.queues


def _quiet(owner: OwnerSeen) -> bool:
    return owner.report is not None and owner.report.stage == QUIET_STAGE


def quiet_clause(ledger: Ledger, namespace: str, queue: str, living: Sequence[OwnerSeen]) -> str:
    """Return the clause that all worker processes of a queue are quiet, by whose order; empty if another one, or none, is there."""
    name = registered_name(namespace, queue)
    found = [each for each in living if name in attended(each.queues)]
    reports = {f"{each.host}:{each.report.pid}": each.report for each in found if each.report is not None}
    if not found or not all(_quiet(each) for each in found):
        return ""
    orders = ledger.facts.actions(min(report.started_at for report in reports.values()))
    who: dict[str, str] = {}
    for order in orders:
        if order.what == QUIET_ORDER and order.detail in reports:
            who.setdefault(order.detail, order.who)  # the newest
    by = f" of {redact(', '.join(dict.fromkeys(who.values())))}" if who else ""
    if len(found) == 1:
        return f"its only worker process, {next(iter(reports))}, starts no new jobs, by order{by}"
    return f"its {len(found):,} worker processes start no new jobs, by order{by}"


def unexplained_now(
    ledger: Ledger, measured: MeasuredDepth, owners: Sequence[OwnerSeen], now: float, times: Times
) -> int | None:
    """
    Return how many consumers in a measured depth are those of no worker process of this ledger; None if unknown.

    It is unknown for a depth that is not recent, because the worker processes of that time are unknown.

    A worker process that ended since the measurement, or up to `ENDED_WITHIN` before it, explains its consumers, too.
    `owners` are the registered worker processes, and `now` is the wall clock.
    """
    if measured.age > RECENT:
        return None
    name = registered_name(measured.namespace, measured.queue)
    living = [each for each in owners if liveness(each, times) is not Liveness.GONE]
    found = unexplained_consumers(measured.depth, name, living)
    if not found:
        return found
    within = measured.age + ENDED_WITHIN
    gone = [each for each in owners if each not in living and each.seen_ago <= within]
    died = {
        (each.host, each.queues): each for each in gone
    }.values()  # in a crash loop, each one replaces the one before
    registered = {each.owner for each in owners}
    stopped = sum(
        event.event == "draining" and event.queue == measured.queue and event.owner not in registered
        for event in ledger.facts.link_events(now - within)
    )
    return max(0, (unexplained_consumers(measured.depth, name, [*living, *died]) or 0) - stopped)


def unexplained_consumers(depth: Depth, name: str, living: Sequence[OwnerSeen]) -> int | None:
    """
    Return how many consumers of a queue at the broker are not those of these worker processes; None if unknown.

    `name` is the queue's registered name; a process that is quiet or paused can still be a consumer at the broker.
    """
    if depth.consumers is None:
        return None
    explained = sum(each.queues.count(name) or int(name in attended(each.queues)) for each in living)
    return max(0, depth.consumers - explained)
