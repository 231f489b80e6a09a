"""
The consumer audit finds out whether all consumers of a queue share our ledger.

A consumer with another ledger, or without a ledger, is *foreign*: such a consumer could run our jobs again.

Worker processes register in the ledger, and a network broker counts the consumers of a queue.
If there are more consumers than living owners, a foreign consumer receives messages.

::

               a surplus            it lasts too long              it is still there later
    shared ──────────────→ suspect ───────────────────→ not ready ─────────────────────────→ lasting: exit 78
       ↑                      │                             │
       └──────────────────────┴──────── no surplus ─────────┘

::

               no number           no number again            still no number
    shared ──────────────→ suspect ───────────────→ not ready ────────────────→ lasting: exit 78, once no job is left
       ↑                      │                         │
       └──────────────────────┴──────── a number ───────┘

A broker can stop counting for us, for example after an operator took a right away, or replaced the broker.
If the ledger serves one host only, the audit then cannot exclude a foreign consumer, and the worker process must stop.
But nothing shows that there is a foreign consumer, so no job ends early: the worker process first finishes the jobs that it holds.
If all hosts share the ledger, the audit waits for a number, as it waits for a broker that does not respond.

If a worker process has just died or frozen, the broker counts the process's consumer until the consumer has missed its heartbeats.
So the audit ignores a surplus until the surplus has lasted for that time and one minute more.

When a worker process becomes not ready, the process stops consuming the queue, and the ledger records this.
All worker processes see the same surplus at about the same time, so all of them stop consuming.
If the audit still counted these worker processes, the surplus would be gone, and all worker processes would consume again.
For the same reason, a worker process registers as quiet if it is quiet, drains, or has no slot whose `setup` succeeded.

Some brokers count a worker process until the process has settled its last delivery (`Capabilities.counts_holders`).
So a process that holds a delivery counts itself, and registers as quiet only when it holds no delivery.

Some brokers can count one worker process as several consumers (`Capabilities.most_consumers`).
So the process registers the queue once for each of these consumers.
The audit allows that number, although the broker often counts fewer consumers.
A foreign consumer can then stay hidden for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from steadyworker.adapter import Adapter, Uncounted
from steadyworker.clock import Clock
from steadyworker.errors import BrokerUnavailable, LedgerUnavailable
from steadyworker.ledger.base import Ledger
from steadyworker.telemetry.logs import get_logger
from steadyworker.text.redaction import redact

AUDIT_EVERY = 60.0
_SPARE = 60.0
_SEEN_WITHIN = 90.0
"""
Seconds without a renewal after which the audit does not count an owner: the leases and margins of its jobs are then over.

The broker can count the owner's consumer a little longer than the audit does.
This raises no alarm, because the audit tolerates a surplus for a longer time.
If the audit counted an owner that no longer consumes, a foreign consumer could stay hidden.
"""


def registered(ledger: Ledger, name: str, *, but: str = "", dead_for: float | None = None) -> int:
    """
    Return the largest number of consumers that the living owners of a queue can have; the owner with the id `but` is left out.

    With `dead_for`, owners that died in the last `dead_for` seconds count, too, because the broker can still count their consumers.
    Raises LedgerUnavailable.
    """
    within, dead = _SEEN_WITHIN + (dead_for or 0.0), dead_for is not None
    owners = (seen for seen in ledger.owners() if (dead or not seen.dead) and seen.seen_ago <= within)
    return sum(seen.queues.count(name) for seen in owners if seen.owner != but)


@dataclass(frozen=True, slots=True)
class AuditResult:
    """
    The result for one queue.

    Attributes:
        cause: The reason to suspect that a consumer does not share our ledger, or None.
        lasting: True if a later count did not end the cause, so that the worker process must stop.
        after_jobs: True if the worker process stops only when it holds no job, because nothing shows a foreign consumer.
    """

    cause: str | None = None
    lasting: bool = False
    after_jobs: bool = False


class ConsumerAudit:
    """
    The comparison of one queue's consumers with the owners in the ledger; only one thread uses it.

    Args:
        name: The queue's `ledger.lease.registered_name`.
        owner: The owner id of this worker process.
        adapter: Counts the consumers of the queue; a worker process counts as at most `most_consumers` consumers.
        ledger: Lists the living owners.
        clock: Measures the duration of a surplus.
        report_left: Receives the name, with True when this process stops consuming, and with False when this process consumes again.
        holds: Returns whether this process holds a delivery, so that the broker counts this process even with prefetch 0.
        local_ledger: True if the ledger serves this host only, so that only the broker's count shows consumers elsewhere.
    """

    def __init__(
        self,
        name: str,
        owner: str,
        adapter: Adapter,
        ledger: Ledger,
        clock: Clock,
        report_left: Callable[[str, bool], None],
        holds: Callable[[], bool] = lambda: False,
        *,
        local_ledger: bool = False,
    ) -> None:
        self._name = name
        self._owner = owner
        self._report_left = report_left
        self._adapter = adapter
        self._ledger = ledger
        self._clock = clock
        self._tolerated = adapter.capabilities.forgets_consumers_within + _SPARE
        self._holds = holds
        self._local_ledger = local_ledger
        self._held = False
        self._since: float | None = None
        self._uncounted = False
        self._result = AuditResult()

    def check(self) -> AuditResult:
        """Count once, and return the result; if the broker or the ledger does not respond, return the previous result."""
        held = {self._held, self._holds()}
        try:
            consumers = self._adapter.consumers()
            peers = registered(self._ledger, self._name, but=self._owner)
        except (BrokerUnavailable, LedgerUnavailable):
            self._since = None  # right after an outage the broker still counts consumers that are gone
            self._uncounted = False
            return self._result
        self._held = self._holds()
        if not isinstance(consumers, Uncounted):
            self._uncounted = False
            self._compare(consumers, peers, held | {self._held})
        else:
            self._since = None
            if self._local_ledger:
                self._miss_count(consumers)
        return self._result

    def _compare(self, consumers: int, peers: int, held: set[bool]) -> None:
        """Compare the consumers with the owners; `held` are the results of `holds` since the previous check."""
        most = self._adapter.capabilities.most_consumers
        if self._result.after_jobs:
            self._conclude(AuditResult())  # the broker counts again; a surplus is tolerated as after the start
        elif self._result.cause is not None:
            # This process does not consume now, so it counts as a consumer and as an owner only if it holds a delivery.
            # If this process has just settled its last delivery, the broker may or may not count this process: the next check decides.
            if len(held) == 1:
                known = peers + most * sum(held)
                self._conclude(replace(self._result, lasting=True) if consumers > known else AuditResult())
        elif consumers <= (known := peers + most):
            self._since = None
        elif self._lasts(consumers, known):
            cause = (
                f"the queue has {consumers} consumers, but the ledger lists only {known}: the others may run the same jobs. "
                "Give all workers the same ledger (--ledger postgresql://…), "
                "or state that all of them are on this host (--ledger-reach host)"
            )
            self._since = None
            self._conclude(AuditResult(cause))

    def _miss_count(self, found: Uncounted) -> None:
        """Note that the broker did not report the number of consumers, although only this number shows consumers on other hosts."""
        if self._result.after_jobs:
            self._conclude(replace(self._result, lasting=True))
        elif self._uncounted:
            cause = (
                f"it is unknown how many consumers the queue has ({redact(found.why)}), and the ledger serves this host only: "
                f"consumers on other hosts may run the same jobs. {found.remedy[:1].upper()}{found.remedy[1:]}; "
                "give all workers the same ledger (--ledger postgresql://…), "
                "or state that all of them are on this host (--ledger-reach host)"
            )
            self._conclude(AuditResult(cause, after_jobs=True))
        else:
            self._uncounted = True
            entry = "ledger.uncounted-consumers"
            get_logger("steadyworker.runner").warning(
                "consumers_uncounted", queue=self._name, why=redact(found.why), explain=entry
            )

    def _conclude(self, result: AuditResult) -> None:
        self._result = result
        self._report_left(self._name, result.cause is not None)

    def _lasts(self, consumers: int, known: int) -> bool:
        """Return whether the surplus lasts longer than the audit tolerates."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
            counts = {"queue": self._name, "consumers": consumers, "known": known}
            get_logger("steadyworker.runner").warning(
                "surplus_consumers", **counts, explain="steadyworker.foreign-consumers"
            )
        return now - self._since > self._tolerated


def audit_all(audits: Mapping[ConsumerAudit, Callable[[AuditResult], None]]) -> float:
    """Audit every queue, pass each result to the callable of its audit, and return the seconds until the next audit."""
    for audit, post in audits.items():
        post(audit.check())
    return AUDIT_EVERY
