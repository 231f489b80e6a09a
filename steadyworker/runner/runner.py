"""
The runner: receive → claim → run → decide → settle, for one Worker in one worker process.

The runner is a step machine: every input is an event in its inbox.
`handle` processes one event completely, and never waits for a job or a broker.
`tick` makes the calls that are due.
In production one thread calls both in a loop; the simulation calls them in any order.
This thread also serves the process slots, which have no threads: it polls their sockets together with the inbox.

::

    adapter's I/O thread ── Connected, Delivered, Lost, Unreachable ──┐
    slots ── Ready, Unready, Progressed, Asked, Ended ────────────────┤
    keeper ── Renewed, Cancelled, Paused, LedgerLost ─────────────────┼──→ inbox ──→ handle
    consumer audit ── AuditResult ────────────────────────────────────┤
    settler ── PlanResult ────────────────────────────────────────────┤
    worker process ── Staged, ServiceEvent ───────────────────────────┘

`deliveries.py` is the runner's front half, and `runs.py` the runner's back half; `unkeyed.py` handles messages without a key.
`orphans.py` runs the jobs whose message is lost, and `turn.py` records the writes of one turn in one commit.
`requests.py` serves running jobs, and `state.py` has the state that all these files share.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from steadyworker.adapter import Blocked, Connected, Delivered, Lost, Signal, Unblocked, Undelivered, Unreachable
from steadyworker.ledger.base import Renewal, Token
from steadyworker.ledger.facts import Pause
from steadyworker.lifecycle import Stage
from steadyworker.outcome import Interrupted
from steadyworker.runner import report
from steadyworker.runner.causes import ALARM, BROKER, CONSUMERS, HOST, LEDGER, SETUP, STAGE, Cause
from steadyworker.runner.consumer_audit import AuditResult
from steadyworker.runner.deliveries import Deliveries
from steadyworker.runner.orphans import Orphans
from steadyworker.runner.requests import Requests
from steadyworker.runner.runs import MOST_PARKED, Runs
from steadyworker.runner.slot_health import SlotHealth
from steadyworker.runner.state import (
    Cancelled,
    Deps,
    Inbox,
    LedgerLost,
    Paused,
    Phase,
    PlanResult,
    Renewed,
    RunnerState,
    ServiceEvent,
    Staged,
    Timers,
)
from steadyworker.runner.turn import TurnWrites
from steadyworker.slots.base import Asked, Ended, Progressed, Ready, SlotEvent, Unready
from steadyworker.telemetry.gauges import QueueReading
from steadyworker.telemetry.loss_reasons import REASONS, reason_of

RunnerEvent = (
    Signal | SlotEvent | Renewed | Cancelled | Paused | LedgerLost | PlanResult | Staged | ServiceEvent | AuditResult
)

_WRITES_EVERY = 1.0
"""
Seconds until the runner writes what may be lost: the progress of runs, and the settlements that the ledger has not yet committed.

If there is nothing to write, no timer wakes the runner.
"""

_LONGEST_WAIT = 5.0
"""The loop turns at least once in this many seconds, so that the watchdog sees that an idle runner is alive."""

_KNOWN_FOR = 30.0
"""Seconds without a turn after which the runner no longer knows whether broker and ledger respond: three slow calls of the ledger."""

_TURN_ENOUGH = 1.0
"""Seconds after which a turn leaves the other events to the next turn, so that a slow ledger does not keep limits and pings waiting."""

QUIET_AFTER = 60.0
"""
Seconds without consuming after which an owner registers as quiet; shorter pauses are common and end by themselves.

An owner that has never consumed registers as quiet at once, because the Worker's `setup` can take long, or fail.
"""


class Runner:
    """
    The step machine that runs the jobs of one Worker.

    1. `start` opens slots and adapter; `run` drives the machine until `end`.
    2. `post` puts an event into the inbox, from any thread.
    3. The event `Staged` begins a stop; `finished` is True when every run, plan and held delivery has ended.
    4. `not_ready` returns the reasons why the runner accepts no message; any thread may call this method.
    """

    def __init__(self, deps: Deps) -> None:
        self.deps = deps
        self.timers = Timers(deps.clock)
        self.inbox: Inbox[RunnerEvent] = Inbox()
        self.state = RunnerState(deps)
        self.writes = TurnWrites(deps.ledger)
        self.runs = Runs(deps, self.state, self.timers, self.writes, self.post)
        self.deliveries = Deliveries(deps, self.state, self.runs, self.timers, self.writes)
        self.orphans = Orphans(deps, self.state, self.runs, self.deliveries, self.timers)
        self.requests = Requests(deps, self.state, self.runs, self.post)
        self.final: str | None = None
        self.killed = False
        self.audit_result = AuditResult()
        self.slot_health = SlotHealth(deps.clock)
        self.last_turn = deps.clock.monotonic()
        self._ended = False
        self._losses = Counter(dict.fromkeys(REASONS, 0))
        self._was_connected = False
        self._prefetch = 0
        self._idle_since: float | None = -math.inf
        self._held = False
        self._writes_wait = False
        self._tokens: tuple[Token, ...] = ()

    # --- driving ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the slots, then the adapter; the broker delivers messages once a slot is warm."""
        for slot in self.deps.slots:
            slot.start(self.post, self.inbox)
        self.deps.adapter.start(self.post)
        self.orphans.start()

    def run(self) -> None:
        """Drive the machine until `end`; the body of the runner's thread."""
        self.inbox.thread = threading.current_thread()
        try:
            while not self._ended:
                wait = self.timers.next_in()
                self.turn(_LONGEST_WAIT if wait is None else min(wait, _LONGEST_WAIT))
        finally:
            self.inbox.close()

    def turn(self, wait: float) -> None:
        """
        Wait at most this many seconds, give the slots their turns, handle the events that are in the inbox then, and `tick`.

        If an event raises, the ledger still records the writes of the events before it.
        """
        self.inbox.wait(wait)
        began = self.deps.clock.monotonic()
        try:
            for _ in range(len(self.inbox)):
                self._receive(self.inbox.pop())
                if self.deps.clock.monotonic() - began > _TURN_ENOUGH:
                    break
        except BaseException:
            self.writes.commit()
            raise
        self.tick()

    def end(self) -> None:
        """Make `run` return, even if runs or plans are left; any thread may call this."""
        self._ended = True
        self.post(Staged(self.state.stage))

    def post(self, event: RunnerEvent) -> None:
        """Put an event into the inbox."""
        self.inbox.post(event)

    def drain_inbox(self) -> int:
        """Handle the events that are in the inbox now, and return their number; for tests that drive the runner by hand."""
        handled = 0
        self.inbox.wait(0.0)
        while self.inbox:
            self.handle(self.inbox.pop())
            handled += 1
        return handled

    def tick(self) -> None:
        """Make the calls that are due, and end the turn."""
        self.writes.commit()
        self.timers.fire()
        self._end_turn()

    def handle(self, event: RunnerEvent) -> None:
        """Process one event completely, as one turn."""
        self._receive(event)
        self.writes.commit()
        self._end_turn()

    def _receive(self, event: RunnerEvent) -> None:  # noqa: C901, PLR0912, PLR0915 - one case per event
        causes = self.state.causes
        # The writes of these events wait for one commit; every other event can change what these writes rely on.
        waits = isinstance(event, Delivered | Ended | Progressed) or (isinstance(event, PlanResult) and not event.error)
        if not waits or self.writes.full:
            self.writes.commit()
        self.writes.open = waits
        match event:
            case Connected(epoch=epoch):
                causes.pop(BROKER, None)
                self.deps.note_link("connected", epoch, "")
                self._was_connected = True
                self.deliveries.connected(epoch)
            case Delivered(delivery=delivery):
                self.orphans.delivered()
                self.deliveries.arrived(delivery)
            case Lost(id=id_):
                if id_ is None:
                    self._disconnected(event)
                self.deliveries.lost(event)
            case Unreachable(cause=cause, final=final):
                causes[BROKER] = Cause(cause, event.explain)
                self.final = cause if final and not self._was_connected else self.final
            case Blocked(cause=cause):
                self.deps.note_link("blocked", None, cause)
                causes[ALARM] = Cause(cause, event.explain)
            case Unblocked():
                self.deps.note_link("unblocked", None, "")
                causes.pop(ALARM, None)
            case Undelivered(key=key, error=error, fate=fate):
                report.refused(self.deps.spec.queue, key, error, fate)
            case AuditResult():
                self.audit_result = event
            case Ready(slot=number):
                self.state.ready_slots.add(number)
                self.slot_health.ready(number)
                self.state.reconsider()
            case Unready():
                self._slot_unready(event)
            case Progressed(fence=fence, done=done, total=total, note=note):
                if (run := self.state.by_fence.get(fence)) is not None:
                    self.runs.remember(run, done, total, note)
                    self._write_later()
            case Asked():
                self.requests.serve(event)
            case ServiceEvent():
                self.requests.relay(event)
            case Ended(fence=fence, outcome=outcome, killed=killed):
                run = self.state.by_fence.get(fence)
                ours = run is not None and not run.dropped  # a dropped run is killed in any stage
                self.killed = self.killed or (ours and killed and self.state.stage >= Stage.DRAINING)
                if isinstance(outcome, Interrupted) and outcome.unfit:
                    causes[HOST] = Cause(outcome.unfit, "steadyworker.host-unfit")
                self.runs.slot_ended(event)
                self.state.reconsider()
            case Renewed():
                self._renewed(event)
            case Cancelled():
                self._cancelled(event)
            case Paused(pause=pause):
                self._pause(pause)
            case LedgerLost(cause=cause):
                self._leases(event)
                self.runs.ledger_lost(cause)
            case PlanResult():
                self.deliveries.plan_returned(event)
                self._write_later()
                self.state.reconsider()
            case Staged(stage=stage, kill=kill):
                self._staged(stage, kill=kill)

    def _disconnected(self, signal: Lost) -> None:
        self.state.causes[BROKER] = Cause(signal.cause, signal.explain)
        self._losses[reason_of(signal.cause)] += 1
        self.deps.note_link("lost", signal.epoch, signal.cause)

    def _end_turn(self) -> None:
        """End the turn: decide on held deliveries, set the prefetch, and update the values that other threads read."""
        state = self.state
        while state.recheck:
            state.recheck = False
            self.deliveries.reconsider()
        self._tokens = tuple(run.token for run in state.by_fence.values() if not run.dropped)
        if state.paused:
            self._prefetch, state.paused = 0, False
        closed = self._closed
        wanted = 0 if closed else self._wanted_prefetch()
        if wanted != self._prefetch:
            if wanted > 0 and self.quiet:
                self.deps.hurry()  # so that the ledger soon counts this process as a consumer again
            self._idle_since = None if wanted > 0 else self.deps.clock.monotonic()
            self._prefetch = wanted
            self.deps.adapter.prefetch(wanted)
        self.orphans.turn(wanted, able=not (closed or BROKER in state.causes or ALARM in state.causes))
        held, self._held = self._held, bool(state.valid)
        if wanted == 0 and held and not self._held and self.deps.adapter.capabilities.counts_holders:
            self.deps.hurry()  # so that the ledger soon stops counting this process, as the broker already does
        self.last_turn = self.deps.clock.monotonic()

    # --- prefetch --------------------------------------------------------------------------------------------------

    def _wanted_prefetch(self) -> int:
        """
        Return the allowed number of unsettled deliveries: one for each slot that can begin runs, plus the parked deliveries.

        A slot that is reserved for an orphan does not count.
        A slot with a detached run counts only for a while, in which the broker can deliver the run's message again.
        """
        state = self.state
        detached = state.slots_detached()
        offered = detached if self.deps.adoption and self.deps.clock.monotonic() < state.adopt_until else 0
        parked = min(state.parked_deliveries, MOST_PARKED)
        return max(0, len(state.ready_slots) - detached + offered - self.orphans.reserved) + parked

    @property
    def _closed(self) -> bool:
        """True while the runner may begin no job, even if slots are free."""
        state = self.state
        return state.closed or self.deps.quota.spent or state.ledger_away or bool(self.audit_result.cause)

    @property
    def quiet(self) -> bool:
        """True if the runner has consumed no messages for a while, or has never consumed; any thread may read this property."""
        since = self._idle_since
        return since is not None and self.deps.clock.monotonic() - since >= QUIET_AFTER

    def holds(self) -> bool:
        """
        Return whether this process holds a delivery for which the broker counts the process as a consumer, even if the prefetch is 0.

        The value dates from the runner's last turn; any thread may call this.
        """
        return self._held and self.deps.adapter.capabilities.counts_holders

    # --- slots -----------------------------------------------------------------------------------------------------

    def _slot_unready(self, event: Unready) -> None:
        """Start the slot again after a pause; the slot begins no job meanwhile, because a failed `setup` is not the fault of a job."""
        self.state.ready_slots.discard(event.slot)
        pause = self.slot_health.unready(event)
        if self.state.ready_slots:
            self.state.reconsider()
        else:
            self.deliveries.release_held()
        slot = next(each for each in self.deps.slots if each.id == event.slot)
        if self.state.stage < Stage.DRAINING:
            self.timers.after(pause, lambda: slot.start(self.post, self.inbox))

    # --- the ledger ------------------------------------------------------------------------------------------------

    def tokens(self) -> Sequence[Token]:
        """Return the claims to renew; the keeper calls this (`Holder`)."""
        return self._tokens

    def renewed(self, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        """Receive the ledger's replies to a renewal; the keeper calls this (`Holder`)."""
        self.post(Renewed(began, answers))

    def cancelled(self, marks: Mapping[str, str]) -> None:
        """Receive the cancel marks of jobs that run in this process; the keeper calls this (`Holder`)."""
        self.post(Cancelled(marks))

    def paused(self, pauses: Sequence[Pause]) -> None:
        """Receive all pauses of queues; the keeper calls this (`Holder`)."""
        queue = (self.deps.namespace, self.deps.spec.queue)
        self.post(Paused(next((pause for pause in pauses if (pause.namespace, pause.queue) == queue), None)))

    def ledger_lost(self, cause: str, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        """Note that the ledger did not respond; the keeper calls this (`Holder`)."""
        self.post(LedgerLost(cause, began, answers))

    def _renewed(self, event: Renewed) -> None:
        self.state.causes.pop(LEDGER, None)
        self.orphans.renewed(event.began, granted=self._leases(event))
        self._go_on()

    def _leases(self, event: Renewed | LedgerLost) -> bool:
        """Apply the ledger's replies to the runs; return False if a run lost its lease, or its row was locked."""
        granted = True
        for token, renewal in event.answers:
            run = self.state.by_fence.get(token.fence)
            if run is None:
                continue
            if renewal.locked:
                granted = False
                report.row_locked(token)
                self.runs.stop_without_lease([run])
            elif renewal.granted:
                run.renewed_at = max(run.renewed_at, event.began)
                if renewal.cancel_reason is not None:
                    self.runs.cancel(run, renewal.cancel_reason)
            elif run.phase in (Phase.RUNNING, Phase.ENDED) or run.stopped:
                # The outcome of any other run has just been recorded.
                granted = False
                self.runs.drop(run, "renew")
        return granted

    def _cancelled(self, event: Cancelled) -> None:
        for run in self.state.by_fence.values():
            if (reason := event.marks.get(run.token.uid)) is not None:
                self.runs.cancel(run, reason)

    def _pause(self, pause: Pause | None) -> None:
        """Begin or end the pause of this queue: the prefetch changes at the end of this turn, and no run ends."""
        before, self.state.pause = self.state.pause, pause
        if pause != before:
            report.paused(self.deps.spec.queue, pause)
            if pause is None:
                self.orphans.resumed()
            self.state.reconsider()

    def _go_on(self) -> None:
        """Continue everything that waited for the ledger, or for a run to be trusted again."""
        self.runs.explain_refusals()
        for run in list(self.state.by_fence.values()):
            if run.phase is Phase.ENDED:
                self.runs.settle(run)
            elif run.phase is Phase.SETTLING and run.plan is not None and run.stopped:
                self.runs.retry(run.plan, run)
            self.requests.go_on(run)
        self.state.reconsider()

    # --- stopping --------------------------------------------------------------------------------------------------

    def _staged(self, stage: Stage, *, kill: bool) -> None:
        if stage >= Stage.DRAINING > self.state.stage:
            self.deps.note_link("draining", None, "")
        self.state.stage = stage
        for slot in self.deps.slots:
            if stage >= Stage.DRAINING:
                slot.stopping()
        for run in list(self.state.by_fence.values()):
            if run.slot is None or run.phase is not Phase.RUNNING:
                continue
            if kill:
                run.slot.kill(run.token.fence, Interrupted())
            elif stage >= Stage.DRAINING:
                run.slot.interrupt(run.token.fence, "shutdown", hard=stage >= Stage.INTERRUPTING)
        self.state.reconsider()

    @property
    def finished(self) -> bool:
        """
        True when a stop has begun, and every run, plan and held delivery has ended.

        If a plan cannot publish its message, and the next delivery can finish the settlement, the plan is treated as ended.
        """
        state = self.state
        if state.stage < Stage.DRAINING or state.held:
            return False
        return not state.under_way(besides=state.left_to_others(blocked=ALARM in state.causes))

    @property
    def idle(self) -> bool:
        """True when no run, plan or valid delivery is left, except parked plans and their deliveries."""
        state = self.state
        return not state.under_way(besides=state.parked) and len(state.valid) == state.parked_deliveries

    @property
    def waiting(self) -> bool:
        """True when the runner is idle, and accepts messages, or would accept messages if its queue were not paused."""
        state = self.state
        pauses = state.pause is not None and state.stage is Stage.RUNNING and not state.ledger_away
        return self.idle and (self._prefetch > 0 or pauses)

    def _write_later(self) -> None:
        if not self._writes_wait:
            self._writes_wait = True
            self.timers.after(_WRITES_EVERY, self._write)

    def _write(self) -> None:
        self._writes_wait = False
        runs = list(self.state.by_fence.values())
        self.runs.write_progress(runs)
        self.runs.flush()
        if self.state.ledger_away or any(run.progress is not None for run in runs):
            self._write_later()

    # --- for people ------------------------------------------------------------------------------------------------

    def not_ready(self) -> Mapping[str, Cause]:
        """Return, by part, the reasons why the runner accepts no message; any thread may call this."""
        # Each table is copied in one step, because the runner's thread changes the tables.
        state, causes = self.state, dict(self.state.causes)
        for target, why in self.runs.missing.items():
            causes[f"{target} queue"] = Cause(why, "steadyworker.queue-refuses")
        if self.audit_result.cause is not None:
            causes[CONSUMERS] = Cause(self.audit_result.cause, "steadyworker.foreign-consumers")
        if failed := list(self.slot_health.causes.values()):
            causes[SETUP] = Cause(failed[0], "steadyworker.setup-failed")
        elif not state.ready_slots:
            causes[SETUP] = Cause("not over yet")
        if state.stage is not Stage.RUNNING:
            causes[STAGE] = Cause(state.stage.name.lower())
        return causes

    @property
    def pause(self) -> Cause | None:
        """The pause of this queue that the runner obeys, with the person and the reason, or None; any thread may read this."""
        pause = self.state.pause
        if pause is None:
            return None
        return Cause(f"by {pause.who}: {pause.reason}" if pause.reason else f"by {pause.who}")

    @property
    def busy(self) -> int:
        """The number of slots that have a run; any thread may read this."""
        runs = tuple(self.state.by_fence.values())  # copied in one step, because the runner's thread changes the table
        return sum(run.slot is not None for run in runs)

    def reading(self) -> QueueReading:
        """Return the runner's state for `/metrics`; any thread may call this."""
        not_ready, state = self.not_ready(), self.state
        runs = tuple(state.by_fence.values())  # copied in one step, because the runner's thread changes the table
        now = self.deps.clock.monotonic()
        return QueueReading(
            queue=self.deps.spec.queue,
            running=len(runs),
            slots=len(self.deps.slots),
            slots_ready=len(state.ready_slots),
            connected=BROKER not in not_ready,
            blocked=ALARM in not_ready,
            ledger_up=LEDGER not in not_ready,
            oldest=max((now - run.started for run in runs), default=0.0),
            time_limit=self.deps.spec.time_limit,
            losses=dict(self._losses),
            paused=state.pause is not None,
            known=now - self.last_turn <= _KNOWN_FOR,
        )
