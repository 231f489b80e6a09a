"""What waits in each queue: the broker's numbers, as the ledger has them or as the broker reports them now; for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct

from steadyworker.adapter import Depth
from steadyworker.clock import Times
from steadyworker.ledger.base import JobFilter, Ledger, OwnerSeen, State
from steadyworker.ledger.facts import Pause
from steadyworker.ledger.lease import attended, registered_name
from steadyworker.ledger.listing import Liveness, liveness

RECENT = 30.0
"""Seconds for which a depth that a worker process has recorded counts as the present depth."""


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
) -> Sequence[QueueNow]:
    """
    Return what waits in these queues, which are pairs of namespace and name.

    `measure` asks the broker for the depth of a queue; it is called if the ledger has no recent depth.
    """
    times = times or Times()
    recorded = {(each.namespace, each.queue): each for each in ledger.facts.depths()}
    pauses = {(each.namespace, each.queue): each for each in ledger.facts.pauses()}
    held = JobFilter(states=(State.RUNNING, State.MOVING))
    running = Counter((row.id.namespace, row.id.queue) for row, _ in ledger.jobs(held))
    living = [each for each in ledger.owners() if liveness(each, times) is not Liveness.GONE]
    found = []
    for namespace, queue in queues:
        record = recorded.get((namespace, queue))
        depth = record.depth if record is not None and record.age <= RECENT else measure(namespace, queue)
        name = registered_name(namespace, queue)
        found.append(
            QueueNow(
                namespace,
                queue,
                depth,
                running[namespace, queue],
                sum(name in attended(each.queues) for each in living),
                unexplained_consumers(depth, name, living),
                pauses.get((namespace, queue)),
            )
        )
    return found


def unexplained_consumers(depth: Depth, name: str, living: Sequence[OwnerSeen]) -> int | None:
    """
    Return how many consumers of a queue at the broker are not those of these worker processes; None if unknown.

    `name` is the queue's registered name; a process that is quiet or paused can still be a consumer at the broker.
    """
    if depth.consumers is None:
        return None
    explained = sum(each.queues.count(name) or int(name in attended(each.queues)) for each in living)
    return max(0, depth.consumers - explained)
