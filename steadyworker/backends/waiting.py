"""What waits in each queue: the broker's numbers, as the ledger has them or as the broker reports them now; for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct

from steadyworker.adapter import Depth
from steadyworker.clock import Clock, SystemClock, Times
from steadyworker.ledger.base import Ledger, OwnerSeen
from steadyworker.ledger.facts import MeasuredDepth, Pause
from steadyworker.ledger.lease import attended, registered_name
from steadyworker.ledger.listing import STUCK_AFTER, Liveness, liveness

RECENT = 30.0
"""Seconds for which a depth that a worker process has recorded counts as the present depth."""


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
    """

    namespace: str
    queue: str
    depth: Depth
    running: int = 0
    workers: int = 0
    unexplained: int | None = None
    pause: Pause | None = None


def queues_now(
    ledger: Ledger,
    queues: Sequence[tuple[str, str]],
    measure: Callable[[str, str], Depth],
    times: Times | None = None,
    *,
    clock: Clock | None = None,
) -> Sequence[QueueNow]:
    """
    Return what waits in these queues, which are pairs of namespace and name.

    `measure` asks the broker for the depth of a queue; it is called if the ledger has no recent depth.
    """
    times, now = times or Times(), (clock or SystemClock()).wall()
    recorded = {(each.namespace, each.queue): each for each in ledger.facts.depths()}
    pauses = {(each.namespace, each.queue): each for each in ledger.facts.pauses()}
    running: Counter[tuple[str, str]] = Counter()
    for held in ledger.held(STUCK_AFTER):
        running[held.namespace, held.queue] += held.jobs
    owners = ledger.owners()
    consumed = Counter(
        name for each in owners if liveness(each, times) is not Liveness.GONE for name in attended(each.queues)
    )
    found = []
    for namespace, queue in queues:
        record = recorded.get((namespace, queue))
        recent = record if record is not None and record.age <= RECENT else None
        depth = measure(namespace, queue) if recent is None else recent.depth
        at_broker = MeasuredDepth(namespace, queue, depth, 0.0) if recent is None else recent
        name = registered_name(namespace, queue)
        found.append(
            QueueNow(
                namespace,
                queue,
                depth,
                running[namespace, queue],
                consumed[name],
                unexplained_now(ledger, at_broker, owners, now, times),
                pauses.get((namespace, queue)),
            )
        )
    return found


def unexplained_now(
    ledger: Ledger, measured: MeasuredDepth, owners: Sequence[OwnerSeen], now: float, times: Times
) -> int | None:
    """
    Return how many consumers in a measured depth are those of no worker process of this ledger; None if unknown.

    A worker process that ended since the measurement, or up to `ENDED_WITHIN` before it, explains its consumers, too.
    `owners` are the registered worker processes, and `now` is the wall clock.
    """
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
