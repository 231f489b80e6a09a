"""
Whether all consumers of a queue share our ledger (contract §4, Reach): only among those that do is a job run once.

Worker processes register in the ledger, and a network broker counts the consumers of a queue.
More consumers than living owners means that somebody takes our messages and asks another ledger, or none.

::

               a surplus            for longer than is tolerated          and a look later
    in reach ────────────→ suspect ─────────────────────────────→ not ready ─────────────→ lasting: exit 78
        ↑                     │                                       │
        └─────────────────────┴───────────── no surplus ──────────────┘

A peer that just died or froze has a consumer until its heartbeats are missed: that long, and a minute, a surplus is nothing.

Who is not ready has left the queue, and the ledger is told so: peers see the same surplus at the same time, and leave it too.
Were those still counted as consumers, the foreign one alone would look like one of them, and bring all of them back, for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from steadyworker.adapter import Adapter
from steadyworker.clock import Clock
from steadyworker.errors import BrokerUnavailable, LedgerUnavailable
from steadyworker.ledger.base import Ledger
from steadyworker.telemetry.logs import get_logger

LOOK_EVERY = 60.0
_SPARE = 60.0
_SEEN_WITHIN = 300.0
"""Seconds of silence after which an owner is not counted on: its broker has long forgotten it."""


def registered_name(namespace: str, queue: str) -> str:
    """What an owner calls a queue in the ledger: two brokers may each have one of that name."""
    return f"{namespace}/{queue}"


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The word on one queue: why it is beyond our ledger's reach, or None; `lasting` when no waiting will heal it."""

    cause: str | None = None
    lasting: bool = False


class ConsumerAudit:
    """
    Compares the consumers of one queue with the owners that the ledger knows; used by one thread.

    Args:
        name: The queue's `registered_name`.
        owner: Who we are in the ledger.
        adapter: Says how many consumers the queue has: at most one for each worker process.
        ledger: Says which owners live.
        clock: Says how long a surplus lasts.
        tell_left: Called with the name, and whether we leave the queue or come back to it: the ledger is to know.
    """

    def __init__(
        self,
        name: str,
        owner: str,
        adapter: Adapter,
        ledger: Ledger,
        clock: Clock,
        tell_left: Callable[[str, bool], None],
    ) -> None:
        self._name = name
        self._owner = owner
        self._tell_left = tell_left
        self._adapter = adapter
        self._ledger = ledger
        self._clock = clock
        self._tolerated = adapter.capabilities.forgets_consumers_within + _SPARE
        self._since: float | None = None
        self._said = AuditResult()

    def look(self) -> AuditResult:
        """Count once; a broker or a ledger that does not answer changes nothing."""
        try:
            consumers = self._adapter.consumers() or 0
            peers = self._peers()
        except (BrokerUnavailable, LedgerUnavailable):
            self._since = None  # what is counted right after an outage are consumers that nobody has missed yet
            return self._said
        if self._said.cause is not None:
            # Our own consumer has left the queue, and a surplus is to be seen without it.
            self._say(replace(self._said, lasting=True) if consumers > peers else AuditResult())
        elif consumers <= (known := peers + 1):
            self._since = None
        elif self._lasts(consumers, known):
            cause = (
                f"the queue has {consumers} consumers, our ledger knows {known} of them: the others may run the same jobs. "
                "Give every worker one ledger (--ledger postgresql://…), "
                "or say that what consumes here is none of ours to know (--ledger-reach host)"
            )
            self._since = None
            self._say(AuditResult(cause))
        return self._said

    def _say(self, said: AuditResult) -> None:
        self._said = said
        self._tell_left(self._name, said.cause is not None)

    def _lasts(self, consumers: int, known: int) -> bool:
        """Whether this surplus has been there for longer than is tolerated."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
            get_logger("steadyworker.runner").warning(
                "surplus_consumers", queue=self._name, consumers=consumers, known=known
            )
        return now - self._since > self._tolerated

    def _peers(self) -> int:
        """Other owners that live and consume this queue."""
        living = (seen for seen in self._ledger.owners() if not seen.dead and seen.seen_ago <= _SEEN_WITHIN)
        return sum(self._name in seen.queues for seen in living if seen.owner != self._owner)


class AuditThread:
    """
    Looks at every queue once a minute, in a thread of its own: brokers and ledgers take their time to answer.

    `run` looks until `end`; each word goes to whom the Reach was given for.
    """

    def __init__(self, audits: Mapping[ConsumerAudit, Callable[[AuditResult], None]]) -> None:
        self._audits = audits
        self._ended = threading.Event()

    def run(self) -> None:
        """Look at once, and then every minute, until `end`."""
        while self._audits:
            for audit, tell in self._audits.items():
                tell(audit.look())
            if self._ended.wait(LOOK_EVERY):
                return

    def end(self) -> None:
        """Let `run` return; a look that is under way is not waited for."""
        self._ended.set()
