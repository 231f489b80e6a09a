"""
The dependencies of one runner (`Deps`), the runs and deliveries that the runner holds (`RunnerState`), its inbox and its timers.

Only the runner's own thread changes the state; every other thread posts an event.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from msgspec import Struct

from steadyworker.adapter import Adapter
from steadyworker.clock import Clock, SystemClock, Times
from steadyworker.delivery import Delivery
from steadyworker.errors import NotPublished, PublishFailed
from steadyworker.events import Listener
from steadyworker.ledger.base import JobId, KeptMessage, Ledger, Progress, Renewal, Row, Token
from steadyworker.ledger.facts import LinkChange, Pause
from steadyworker.lifecycle import Stage
from steadyworker.outcome import Outcome
from steadyworker.runner.causes import BROKER, HOST, LEDGER, Cause
from steadyworker.runner.envelope import Envelope, kept
from steadyworker.runner.settlement_plan import Incoming, SettlementPlan
from steadyworker.slots.base import Asked, JobService, PolledSlot, ServiceCall, Slot
from steadyworker.spec import WorkerSpec
from steadyworker.telemetry.logs import get_logger
from steadyworker.telemetry.run_span import RunSpan

EventOf = TypeVar("EventOf")

_STEP = 0.05
"""Seconds between two checks whether the thread that serves the inbox has ended."""

_RING = (1).to_bytes(8, sys.byteorder)
"""The 8 bytes that an eventfd counts as one."""

_CHUNK = 1 << 16


class Quota:
    """The number of jobs that this process may still begin (`--max-jobs`); all runners of the process share one quota."""

    def __init__(self, limit: int | None = None) -> None:
        self._lock = threading.Lock()
        self._left = limit

    def spend(self) -> bool:
        """Count one job, and return True; return False when the limit is reached."""
        with self._lock:
            if self._left is None:
                return True
            if self._left == 0:
                return False
            self._left -= 1
            return True

    def give_back(self) -> None:
        """Undo one `spend`, because its job did not begin."""
        with self._lock:
            if self._left is not None:
                self._left += 1

    @property
    def spent(self) -> bool:
        """True when no other job may begin."""
        return self._left == 0


@dataclass(frozen=True, slots=True)
class Deps:
    """
    The dependencies of a runner.

    `worker` names this process in events and dead letters.
    `submit` runs a callable on another thread, because a settlement can wait for the broker; the simulation runs it at once.
    `hurry` asks the keeper to call the ledger now instead of at the next renewal.
    `note_link` records an event of the link to the broker, with the connection's epoch (None for the last epoch) and the cause, for people.
    `remember_folder` records a folder in which an export has a staging folder; a later purge then removes what a job left there.
    Without `adoption`, the runner defers each redelivery of its own runs' messages.
    Adoption saves time; correctness does not depend on it.
    With `stop_on_ledger_loss`, the runner ends a run whose lease ended without a renewal.
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
    hurry: Callable[[], None] = lambda: None
    quota: Quota = field(default_factory=Quota)
    services: Mapping[str, JobService] = field(default_factory=dict)
    remember_folder: Callable[[bytes], None] = lambda _folder: None
    note_link: Callable[[LinkChange, int | None, str], None] = lambda _event, _epoch, _why: None
    max_body: int = 1 << 20
    adoption: bool = True
    stop_on_ledger_loss: bool = False

    def to_keep(self, envelope: Envelope) -> KeptMessage | None:
        """Return the message for the ledger to keep; None if the Worker keeps no messages, or this message is too large or already in the ledger."""
        delivery, keeps = envelope.delivery, self.spec.keep_message and not envelope.from_ledger
        return kept(delivery) if keeps and delivery.size <= self.max_body else None


class Phase(Enum):
    """
    The phase of a run; the phase follows from the run's outcome, from the plan, and from whether the run was dropped.

    ::

        RUNNING ──→ ENDED ──→ SETTLING ──→ removed
           │          │           │
           └──────────┴───────────┴──→ DROPPED ──→ removed, once its slot is free
    """

    RUNNING = "running"
    ENDED = "ended"
    SETTLING = "settling"
    DROPPED = "dropped"


@dataclass(slots=True, eq=False)
class Run:
    """
    One execution of a job, from its claim to its settlement.

    Attributes:
        incoming: The record of the message that the run will settle; while the run is detached, the record has no delivery.
        renewed_at: The boot time of the start of the claim, or of the last granted renewal of the lease.
        dropped: True once the ledger has refused a write; the runner then only waits until the run's slot is free.
        stopped: True while the settlement waits for the ledger.
        saved: The checkpoint that the run has saved last; None if the run has saved none.
        waiting: Requests of the job that wait for the ledger.
        calls: Calls of services that are under way.
        traceback, peak_memory: What the slot has reported at the end of the run, for people.
        span: The span of the run, until it ends; None if nothing traces this process.
    """

    token: Token
    row: Row
    envelope: Envelope
    incoming: Incoming
    renewed_at: float
    started: float
    slot: Slot | None = None
    outcome: Outcome | None = None
    plan: SettlementPlan | None = None
    dropped: bool = False
    cancel_reason: str | None = None
    progress: Progress | None = None
    stopped: bool = False
    saved: bytes | None = None
    waiting: list[Asked] = field(default_factory=list)
    calls: dict[int, ServiceCall] = field(default_factory=dict)
    traceback: str = ""
    peak_memory: int | None = None
    span: RunSpan | None = None

    @property
    def phase(self) -> Phase:
        """The phase of the run."""
        if self.dropped:
            return Phase.DROPPED
        if self.plan is not None:
            return Phase.SETTLING
        return Phase.RUNNING if self.outcome is None else Phase.ENDED

    @property
    def checkpoint(self) -> bytes | None:
        """The checkpoint with which a run of the job would go on."""
        return self.row.checkpoint if self.saved is None else self.saved

    @property
    def delivery(self) -> Delivery | None:
        """The delivery that the run will settle; None while the run is detached."""
        return self.incoming.delivery

    def end_span(self, outcome: str, failure: str = "") -> None:
        """End the span of the run, if it has one that has not ended."""
        span, self.span = self.span, None
        if span is not None:
            span.end(outcome, failure)

    def cancel_call(self, id: int) -> None:
        """Cancel a call of a service that is under way; log an error of the service, which must not end the runner."""
        call = self.calls.pop(id, None)
        if call is None:
            return
        try:
            call.cancel()
        except Exception:  # a package of another author can raise anything
            about = {"key": self.token.id.key, "queue": self.token.id.queue, "fence": self.token.fence}
            log = get_logger("steadyworker.runner")
            log.exception("service_failed", **about, explain="steadyworker.service-failed")


class RunnerState:
    """
    The runs, plans and deliveries that one runner holds; the runner's parts share them.

    Attributes:
        stage: The stage of the worker process.
        by_fence: The runs, by their fencing token.
        reserved: The slots of the claims that wait for the commit of this turn.
        plans_without_run: Settlement plans that belong to no run.
        valid: The records of the deliveries that can still be settled, by the epoch and id of the delivery.
        ready_slots: The numbers of the slots that can begin runs.
        causes: The reasons why the runner accepts no message, as events have reported them, by part.
        recheck: True if the runner must decide again on the held deliveries at the end of this turn.
        failing: The plans that could not publish, each with the error; the runner tries again after a while.
        parked: The plans with a message that the broker never accepts, each with the cause; their deliveries stop no other job.
        adopt_until: The monotonic time until which the slots of detached runs count in the prefetch.
        pause: The pause of this queue; None if the queue is not paused.
        paused: True if the prefetch is 0 until the end of this turn, so that a released message does not return at once.
    """

    def __init__(self, deps: Deps) -> None:
        self.stage = Stage.RUNNING
        self.by_fence: dict[int, Run] = {}
        self.reserved: set[int] = set()
        self.plans_without_run: list[SettlementPlan] = []
        self.valid: dict[tuple[int, str], Incoming] = {}
        self.ready_slots: set[int] = set()
        self.causes: dict[str, Cause] = {BROKER: Cause("connecting")}
        self.recheck = False
        self.failing: dict[SettlementPlan, PublishFailed] = {}
        self.parked: dict[SettlementPlan, str] = {}
        self.adopt_until = 0.0
        self.pause: Pause | None = None
        self.paused = False
        self._slots = deps.slots
        self._clock = deps.clock
        self._trust_for = deps.times.trust_for

    @property
    def ledger_away(self) -> bool:
        """True when the ledger did not respond to the last call."""
        return LEDGER in self.causes

    @property
    def unfit(self) -> bool:
        """True when a run has reported that this host cannot run the Worker's jobs."""
        return HOST in self.causes

    @property
    def closed(self) -> bool:
        """True while a stage, a report of a run, or a pause forbids that a job begins."""
        return self.stage is not Stage.RUNNING or self.unfit or self.pause is not None

    @property
    def parked_deliveries(self) -> int:
        """The number of valid deliveries that belong to parked plans; any thread may read this number."""
        return sum(1 for plan in tuple(self.parked) if self.is_valid(plan.delivery))

    def left_to_others(self, *, blocked: bool) -> AbstractSet[SettlementPlan]:
        """
        Return the plans that cannot publish, if a later delivery of their messages can finish them.

        If the broker is `blocked` by an alarm, it confirms no message, so also return each run's plan that publishes now.
        Any thread may call this: this method copies each table in one step, because the runner's thread changes the tables.
        """
        failing, runs = tuple(self.failing.items()), tuple(self.by_fence.values())
        sure = {plan for plan, error in failing if plan.token is not None or isinstance(error, NotPublished)}
        if blocked:
            sure |= {run.plan for run in runs if run.plan is not None and run.plan.publishing}
        return sure | {*tuple(self.parked)}

    def under_way(self, *, besides: Container[SettlementPlan | None]) -> bool:
        """Return whether the runner has any run or plan besides these plans and their runs; any thread may call this."""
        runs = any(run.plan not in besides for run in tuple(self.by_fence.values()))
        return runs or any(plan not in besides for plan in tuple(self.plans_without_run))

    # --- the deliveries --------------------------------------------------------------------------------------------

    def receive(self, delivery: Delivery) -> Incoming:
        """Begin the record of a delivery, and return it."""
        incoming = self.valid[delivery.epoch, delivery.id] = Incoming(delivery)
        return incoming

    def incoming(self, delivery: Delivery | None) -> Incoming:
        """Return the record of a delivery, or a new empty record if the delivery can no longer be settled."""
        found = self.valid.get((delivery.epoch, delivery.id)) if delivery is not None else None
        return found if found is not None and found.delivery is delivery else Incoming()

    def is_valid(self, delivery: Delivery | None) -> bool:
        """Return whether this delivery can still be settled."""
        return self.incoming(delivery).delivery is not None

    def bind(self, incoming: Incoming, delivery: Delivery) -> None:
        """Let a redelivery replace the lost delivery of this record; the run and the plan that share the record then settle the redelivery."""
        assert incoming.delivery is None, "only a lost delivery is replaced"
        if self.is_valid(delivery):
            incoming.delivery = delivery
            self.valid[delivery.epoch, delivery.id] = incoming

    def lose(self, delivery: Delivery) -> None:
        """Empty the record of a delivery that the broker no longer accepts."""
        self.valid.pop((delivery.epoch, delivery.id)).delivery = None

    def settled(self, delivery: Delivery | None) -> None:
        """Forget the record of a delivery that is settled, or that was lost before."""
        if delivery is not None and self.is_valid(delivery):
            del self.valid[delivery.epoch, delivery.id]

    def hold(self, delivery: Delivery) -> None:
        """Let a delivery wait until the next `reconsider`."""
        self.incoming(delivery).held = True

    @property
    def held(self) -> list[Delivery]:
        """The valid deliveries that wait, in the order of their arrival; any thread may read this list."""
        records = tuple(self.valid.values())
        return [each.delivery for each in records if each.held and each.delivery is not None]

    def pop_held(self) -> list[Delivery]:
        """End the wait of every held delivery, and return these deliveries."""
        held = self.held
        for delivery in held:
            self.incoming(delivery).held = False
        return held

    def reconsider(self, delivery: Delivery | None = None) -> None:
        """Decide again on all held deliveries, and on this delivery, at the end of this turn."""
        self.recheck = True
        if delivery is not None and self.is_valid(delivery):
            self.receive(delivery).held = True  # a new record, because the run or plan of the old record is over

    # --- runs and slots --------------------------------------------------------------------------------------------

    def trusted(self, run: Run) -> bool:
        """Return whether the last claim or renewal of this run is recent enough to allow a commit."""
        return self._clock.boottime() < run.renewed_at + self._trust_for

    def free_slot(self) -> Slot | None:
        """Return a slot that can begin a run now."""
        busy = self._busy()
        return next((slot for slot in self._slots if slot.warm and slot.id not in busy), None)

    def warming(self) -> bool:
        """Return whether an idle slot will be warm soon, because its child is being replaced."""
        return bool(self.ready_slots - self._busy())

    def slots_detached(self) -> int:
        """Return the number of slots that are busy with detached runs."""
        return sum(1 for run in self.by_fence.values() if run.slot is not None and run.delivery is None)

    def unreaped(self, id: JobId) -> bool:
        """Return whether an earlier run of this job still occupies a slot here."""
        return any(run.token.id == id and run.slot is not None for run in self.by_fence.values())

    def _busy(self) -> set[int]:
        return self.reserved | {run.slot.id for run in self.by_fence.values() if run.slot is not None}


# --- Events of the runner's inbox, besides the events of adapter and slots -----------------------------------------------


@dataclass(frozen=True, slots=True)
class Renewed:
    """The ledger's reply to a renewal that began at this reading of the boot clock."""

    began: float
    answers: Sequence[tuple[Token, Renewal]]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The cancel marks of jobs that run here: the reasons, by the jobs' uids."""

    marks: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Paused:
    """A change of the pause of this queue; None if the pause is over."""

    pause: Pause | None


@dataclass(frozen=True, slots=True)
class LedgerLost:
    """A call to the ledger that got no response."""

    cause: str
    began: float = 0.0
    answers: Sequence[tuple[Token, Renewal]] = ()


class PlanResult(Struct, frozen=True):
    """A settlement plan that was carried out, or that an error stopped."""

    plan: SettlementPlan
    run: Run | None
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Staged:
    """The entry of the worker process into this stage; with `kill`, the slots kill the runs that still go on."""

    stage: Stage
    kill: bool = False


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """An event that a service sent to the job that called the service."""

    fence: int
    id: int
    event: Mapping[str, Any]


class Inbox(Generic[EventOf]):
    """
    The inbox of the runner's thread: events from any thread, and the turns of slots that have no thread (`SlotPoll`).

    `thread` is the thread that serves the inbox by `wait` and `pop`; without such a thread, a test serves the inbox by hand.
    The clock is the machine's own clock, because fake time does not reach a child process.
    """

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self._events: deque[EventOf] = deque()
        self._called: deque[PolledSlot] = deque()
        self._slots: list[PolledSlot] = []
        self._watched: dict[int, PolledSlot] = {}
        self._clock = SystemClock()
        self._poll = select.poll()
        self._asleep = False
        self._lock = threading.Lock()
        self._bell: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._events)

    def post(self, event: EventOf) -> None:
        """Add an event; any thread may call this."""
        self._events.append(event)
        self._ring()

    def pop(self) -> EventOf:
        """Remove the oldest event, and return it; raise IndexError if there is none."""
        return self._events.popleft()

    def wait(self, seconds: float) -> None:
        """Wait until there is an event, or for at most this many seconds; a turn of a slot also ends the wait."""
        if seconds > 0 and self._bell is None:
            self._hang_bell()
        self._asleep = True  # before the check of the events: an event that comes later rings the bell
        self._serve(0.0 if self._events else seconds)

    def close(self) -> None:
        """Close the descriptors; a second call does nothing."""
        with self._lock:
            bell, self._bell = self._bell, None
            if bell is not None:
                self._poll.unregister(bell[0])
            for descriptor in set(bell or ()):
                os.close(descriptor)

    # --- the turns of slots ----------------------------------------------------------------------------------------

    def add(self, slot: PolledSlot) -> None:
        """Give this slot a turn at each of its due times, until `remove`."""
        self._slots.append(slot)

    def watch(self, descriptor: int, slot: PolledSlot, *, send: bool = False) -> None:
        """Give this slot a turn while the descriptor can be read; with `send`, also while the descriptor accepts bytes."""
        self._watched[descriptor] = slot
        self._poll.register(descriptor, select.POLLIN | (select.POLLOUT if send else 0))

    def forget(self, descriptor: int) -> None:
        """End the watch of a descriptor, before it is closed; do nothing if it is not watched."""
        if self._watched.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def remove(self, slot: PolledSlot) -> None:
        """Give this slot no more turns, and end the watch of its descriptors."""
        self._slots = [each for each in self._slots if each is not slot]
        for descriptor in [each for each, owner in self._watched.items() if owner is slot]:
            self.forget(descriptor)

    def wake(self, slot: PolledSlot) -> None:
        """Give this slot a turn soon; any thread may call this."""
        self._called.append(slot)
        self._ring()

    def until(self, over: threading.Event, seconds: float) -> bool:
        """
        Return True when a turn has set this event; any thread may call this.

        Return False after this many seconds, or when the runner's thread has ended.
        """
        end = self._clock.monotonic() + seconds
        thread = self.thread
        if thread is not None and thread.ident is not None and thread is not threading.current_thread():
            while not over.wait(_STEP) and thread.is_alive() and self._clock.monotonic() < end:
                pass
            return over.is_set()
        with self._lock:
            while not over.is_set() and self._clock.monotonic() < end:
                self._serve(_STEP)
        return over.is_set()

    def ping_if_late(self) -> None:
        """Let each slot ping its child, if the Ping is overdue because the runner's thread is late; any thread may call this."""
        for slot in tuple(self._slots):
            slot.ping_if_late()

    def _serve(self, seconds: float) -> None:
        """Wait until a slot must have a turn or the bell rings, at most this many seconds, and give each such slot its turn."""
        if self._slots:
            due = min([slot.due for slot in self._slots])
            seconds = 0.0 if self._called else min(seconds, max(0.0, due - self._clock.monotonic()))
        ready = self._poll.poll(seconds * 1000) if seconds or self._watched else ()
        self._asleep = False
        turns: dict[PolledSlot, None] = {}
        for descriptor, _ in ready:
            if (slot := self._watched.get(descriptor)) is not None:
                turns[slot] = None
            elif self._bell is not None:
                with suppress(BlockingIOError):
                    os.read(self._bell[0], _CHUNK)
        while self._called:
            turns[self._called.popleft()] = None
        if self._slots:
            now = self._clock.monotonic()
            turns.update((slot, None) for slot in self._slots if slot.due <= now)
        for slot in turns:
            slot.turn()

    # --- the bell, by which other threads end the wait -------------------------------------------------------------

    def _hang_bell(self) -> None:
        if hasattr(os, "eventfd"):
            descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._bell = descriptor, descriptor
        else:  # macOS
            self._bell = os.pipe()
            for end in self._bell:
                os.set_blocking(end, False)
        self._poll.register(self._bell[0], select.POLLIN)

    def _ring(self) -> None:
        if self._asleep:
            self._asleep = False  # one ring is enough
            with self._lock, suppress(BlockingIOError):
                if self._bell is not None:
                    os.write(self._bell[1], _RING)


class Timers:
    """Calls at a later time, by the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Call `do` once, `seconds` from now."""
        heapq.heappush(self._heap, (self._clock.monotonic() + seconds, next(self._numbers), do))

    def next_in(self) -> float | None:
        """Return the seconds until the first call is due (0 if it is due now), or None if no call is planned."""
        return max(0.0, self._heap[0][0] - self._clock.monotonic()) if self._heap else None

    def fire(self) -> None:
        """Make every call that is due."""
        while self._heap and self._heap[0][0] <= self._clock.monotonic():
            heapq.heappop(self._heap)[2]()
