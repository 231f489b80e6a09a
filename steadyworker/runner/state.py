"""
What one runner is given, and what it has on its table: its runs, its valid deliveries, its timers.

Only the runner's own thread touches the table; everybody else posts an event.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from msgspec import Struct

from steadyworker.adapter import Adapter
from steadyworker.clock import Clock, Times
from steadyworker.delivery import Delivery
from steadyworker.events import Listener
from steadyworker.ledger.base import Ledger, Progress, Renewal, Row, Token
from steadyworker.lifecycle import Stage
from steadyworker.outcome import Outcome
from steadyworker.runner.envelope import Envelope
from steadyworker.runner.settlement_plan import SettlementPlan
from steadyworker.slots.base import Asked, JobService, ServiceCall, Slot
from steadyworker.spec import WorkerSpec


class Quota:
    """How many jobs this process may still begin (`--max-jobs`), shared by its runners; without a limit there is always one."""

    def __init__(self, limit: int | None = None) -> None:
        self._lock = threading.Lock()
        self._left = limit

    def take(self) -> bool:
        """Begin one more, if there is one left."""
        with self._lock:
            if self._left is None:
                return True
            if self._left == 0:
                return False
            self._left -= 1
            return True

    def give_back(self) -> None:
        """It was not begun after all."""
        with self._lock:
            if self._left is not None:
                self._left += 1

    @property
    def spent(self) -> bool:
        """Nothing more may begin."""
        return self._left == 0


def _nothing() -> None:
    """Nobody has to hurry."""


@dataclass(frozen=True, slots=True)
class Deps:
    """
    Everything that a runner is given.

    `submit` runs a callable off the runner's thread (a hand-over may wait for a broker); the simulation runs it at once.
    `worker` names this process for people.
    `hurry` asks the keeper to try the ledger now, because someone waits for it.
    `adoption` off sends every redelivery of our own runs on its way (R3): an optimisation that correctness does not rest on.
    `stop_on_ledger_loss` ends a run whose lease has run out unrenewed.
    """

    spec: WorkerSpec
    namespace: str
    owner: str
    worker: str
    ledger: Ledger
    adapter: Adapter
    slots: Sequence[Slot]
    clock: Clock
    times: Times
    emit: Listener
    submit: Callable[[Callable[[], None]], object]
    hurry: Callable[[], None] = _nothing
    quota: Quota = field(default_factory=Quota)
    services: Mapping[str, JobService] = field(default_factory=dict)
    max_body: int = 1 << 20
    adoption: bool = True
    stop_on_ledger_loss: bool = False


class Phase(Enum):
    """
    How far a run is.

    ::

        RUNNING ──→ ENDED ──→ HANDING ──→ (off the table)
           │          │           │
           └──────────┴───────────┴──→ DROPPED ──→ (off the table, once reaped)
    """

    RUNNING = "running"
    ENDED = "ended"
    SETTLING = "handing"
    DROPPED = "dropped"


@dataclass(slots=True, eq=False)
class Run:
    """
    One execution, from its claim to the last word on it; `delivery` None means adrift.

    `trusted_until` is boot time: until then the ledger's word that this run is the one may be relied on.
    `stopped` says that its hand-over waits for the ledger; `saved` that it has saved a checkpoint.
    """

    token: Token
    row: Row
    envelope: Envelope
    delivery: Delivery | None
    trusted_until: float
    started: float
    slot: Slot | None = None
    phase: Phase = Phase.RUNNING
    outcome: Outcome | None = None
    plan: SettlementPlan | None = None
    cancel_reason: str | None = None
    progress: Progress | None = None
    stopped: bool = False
    saved: bool = False
    waiting: list[Asked] = field(default_factory=list)
    calls: dict[int, ServiceCall] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Renewed:
    """The ledger answered a renewal that began at this boot time."""

    began: float
    answers: Sequence[tuple[Token, Renewal]]


@dataclass(frozen=True, slots=True)
class LedgerLost:
    """The ledger did not answer."""

    cause: str


class PlanResult(Struct, frozen=True):
    """A hand-over came to its end, or to the error that stopped it."""

    plan: SettlementPlan
    run: Run | None
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Staged:
    """The worker process entered this stage; `kill` ends what is still running."""

    stage: Stage
    kill: bool = False


@dataclass(frozen=True, slots=True)
class ServiceSaid:
    """A service has something to say to the job that called it."""

    fence: int
    id: int
    event: Mapping[str, Any]


class Timers:
    """Things to do later, by the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do it once, that many seconds from now."""
        heapq.heappush(self._heap, (self._clock.monotonic() + seconds, next(self._numbers), do))

    def next_in(self) -> float | None:
        """Seconds until the first is due (0 when it is), or None."""
        return max(0.0, self._heap[0][0] - self._clock.monotonic()) if self._heap else None

    def fire(self) -> None:
        """Do what is due."""
        while self._heap and self._heap[0][0] <= self._clock.monotonic():
            heapq.heappop(self._heap)[2]()
