"""
The runner: receive → claim → run → decide → settle, for one Worker in one worker process.

It is a step machine.
Everything that happens is an event in its inbox; `handle` takes one event to the end and never waits for a job or a broker;
`tick` does what has become due.  In production one thread does both for ever; the simulation calls them in any order it likes.

::

    adapter's I/O thread ── Connected, Delivered, Lost, Gone ──┐
    slots ── Ready, Unready, Progressed, Asked, Ended ─────────┤
    keeper ── Renewed, LedgerLost ─────────────────────────────┼──→ inbox ──→ handle
    lookout ── Reached ────────────────────────────────────────┤
    hand-overs ── HandedOver ──────────────────────────────────┤
    service ── Staged ─────────────────────────────────────────┘

`deliveries.py` is its front half, `runs.py` its back half, `requests.py` what jobs ask for.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from contextlib import suppress

from steadyworker.adapter import Blocked, Connected, Delivered, Lost, Signal, Unblocked, Unreachable
from steadyworker.delivery import Delivery
from steadyworker.ledger.base import Renewal, Token
from steadyworker.lifecycle import Stage
from steadyworker.outcome import Interrupted
from steadyworker.runner.consumer_audit import AuditResult
from steadyworker.runner.deliveries import Deliveries
from steadyworker.runner.requests import Requests
from steadyworker.runner.runs import Runs
from steadyworker.runner.slot_health import SlotHealth
from steadyworker.runner.state import Deps, LedgerLost, Phase, PlanResult, Renewed, ServiceSaid, Staged, Timers
from steadyworker.slots.base import Asked, Ended, Progressed, Ready, SlotEvent, Unready

RunnerEvent = Signal | SlotEvent | Renewed | LedgerLost | PlanResult | Staged | ServiceSaid | AuditResult

_PROGRESS_EVERY = 1.0
_LONGEST_WAIT = 5.0
"""The loop turns at least this often, so that the watchdog has evidence of an idle runner too."""


class Runner:
    """
    Runs one Worker's jobs.

    1. `start` opens slots and adapter; `run` drives the machine until `end`.
    2. `post` puts an event in the inbox, from any thread.
    3. `stage` is how a stop is asked for; `finished` says that nothing is left to wait for.
    4. `not_ready` says what is wrong with it, from any thread.
    """

    def __init__(self, deps: Deps) -> None:
        self.deps = deps
        self.timers = Timers(deps.clock)
        self.runs = Runs(deps, self.timers, self.post, self._again, self._ledger_lost)
        self.deliveries = Deliveries(deps, self.runs, self.timers)
        self.requests = Requests(deps, self.runs, self.post)
        self.stage = Stage.RUNNING
        self.final: str | None = None
        self.killed = False
        self._ended = False
        self.last_turn = deps.clock.monotonic()
        self._connection = "connecting"
        self._was_connected = False
        self._blocked: str | None = None
        self.audit_result = AuditResult()
        self.slot_health = SlotHealth(deps.clock)
        self._ledger_cause: str | None = None
        self._window = 0
        self._not_ready: Mapping[str, str] = self._causes()
        self._tokens: tuple[Token, ...] = ()
        self._inbox: queue.SimpleQueue[RunnerEvent] = queue.SimpleQueue()

    # --- driving ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the slots, then the adapter; messages come once a slot is warm."""
        for slot in self.deps.slots:
            slot.start(self.post)
        self.deps.adapter.start(self.post)
        self.timers.after(_PROGRESS_EVERY, self._write_progress)

    def run(self) -> None:
        """Drive the machine until `end`; the body of the runner's thread."""
        while not self._ended:
            wait = self.timers.next_in()
            with suppress(queue.Empty):
                self._take(self._inbox.get(timeout=_LONGEST_WAIT if wait is None else min(wait, _LONGEST_WAIT)))
                for _ in range(self._inbox.qsize()):
                    self._take(self._inbox.get())
            self.tick()

    def end(self) -> None:
        """Let `run` return, whatever is left; from any thread."""
        self._ended = True
        self.post(Staged(self.stage))

    def post(self, event: RunnerEvent) -> None:
        """Put an event in the inbox."""
        self._inbox.put(event)

    def drain_inbox(self) -> int:
        """Handle what is in the inbox now, and answer how much it was; for those who drive by hand."""
        handled = 0
        while not self._inbox.empty():
            self.handle(self._inbox.get())
            handled += 1
        return handled

    def tick(self) -> None:
        """Do what has become due."""
        self.timers.fire()
        self._settle_state()

    def handle(self, event: RunnerEvent) -> None:
        """Take one event to its end."""
        self._take(event)
        self._settle_state()

    def _take(self, event: RunnerEvent) -> None:  # noqa: C901, PLR0912 - one case per event
        match event:
            case Connected(epoch=epoch):
                self._connection = ""
                self._was_connected = True
                self.deliveries.connected(epoch)
            case Delivered(delivery=delivery):
                self.deliveries.arrived(delivery)
            case Lost(id=id_, cause=cause):
                if id_ is None:
                    self._connection = cause  # until the next Connected, which a broker may grant and take at once
                self.deliveries.lost(event)
            case Unreachable(cause=cause, final=final):
                self._connection = cause
                self.final = cause if final and not self._was_connected else self.final
            case Blocked(cause=cause):
                self._blocked = cause
            case Unblocked():
                self._blocked = None
            case AuditResult():
                self.audit_result = event
            case Ready(slot=number):
                self._slot_ready(number)
            case Unready():
                self._slot_unready(event)
            case Progressed(fence=fence, done=done, total=total, note=note):
                if (run := self.runs.by_fence.get(fence)) is not None:
                    self.runs.remember(run, done, total, note)
            case Asked():
                self.requests.asked(event)
            case ServiceSaid():
                self.requests.service_said(event)
            case Ended(fence=fence, outcome=outcome, killed=killed):
                self.killed = self.killed or (killed and self.stage >= Stage.DRAINING)
                self.runs.slot_ended(fence, outcome)
                self.deliveries.reconsider()
            case Renewed():
                self._renewed(event)
            case LedgerLost(cause=cause):
                self._ledger_lost(cause)
            case PlanResult():
                self._plan_returned(event)
            case Staged(stage=stage, kill=kill):
                self._staged(stage, kill=kill)

    def _settle_state(self) -> None:
        """What depends on everything else, once a turn: the window, and for other threads the keeper's tokens and the causes."""
        self._tokens = tuple(run.token for run in self.runs.by_fence.values() if run.phase is not Phase.DROPPED)
        if self.deliveries.shut:
            self._window, self.deliveries.shut = 0, False
        if (window := self._wanted_window()) != self._window:
            self._window = window
            self.deps.adapter.prefetch(window)
        self._not_ready = self._causes()
        self.last_turn = self.deps.clock.monotonic()

    # --- credits ---------------------------------------------------------------------------------------------------

    def _wanted_window(self) -> int:
        """Slots that work, less those whose run holds no valid delivery; a run adrift may offer its credit for a while."""
        if self.stage is not Stage.RUNNING or self.runs.ledger_away or self.deps.quota.spent or self.audit_result.cause:
            return 0
        detached = self.runs.slots_detached()
        offered = detached if self.deps.clock.monotonic() < self.deliveries.offers_end and self.deps.adoption else 0
        return max(0, len(self.runs.up) - detached + offered)

    # --- slots -----------------------------------------------------------------------------------------------------

    def _slot_ready(self, number: int) -> None:
        self.runs.up.add(number)
        self.slot_health.ready(number)
        self.deliveries.reconsider()

    def _slot_unready(self, told: Unready) -> None:
        """`setup` is not the job's fault: nothing is claimed, and after three failures in a row the process gives up."""
        self.runs.up.discard(told.slot)
        rest = self.slot_health.unready(told)
        if self.runs.up:
            self.deliveries.reconsider()
        else:
            self.deliveries.release_held()
        slot = next(each for each in self.deps.slots if each.id == told.slot)
        if self.stage < Stage.DRAINING:
            self.timers.after(rest, lambda: slot.start(self.post))

    # --- the ledger ------------------------------------------------------------------------------------------------

    def tokens(self) -> Sequence[Token]:
        """The claims to renew (Holder)."""
        return self._tokens

    def renewed(self, began: float, answers: Sequence[tuple[Token, Renewal]]) -> None:
        """The ledger answered a renewal (Holder)."""
        self.post(Renewed(began, answers))

    def ledger_lost(self, cause: str) -> None:
        """The ledger did not answer (Holder)."""
        self.post(LedgerLost(cause))

    def _ledger_lost(self, cause: str) -> None:
        if not self.runs.ledger_away:
            self.deps.hurry()
        self.runs.ledger_away, self._ledger_cause = True, cause
        if self.deps.stop_on_ledger_loss:
            self.runs.end_what_has_no_lease()

    def _renewed(self, told: Renewed) -> None:
        self.runs.ledger_away, self._ledger_cause = False, None
        for token, renewal in told.answers:
            run = self.runs.by_fence.get(token.fence)
            if run is None:
                continue
            if renewal.granted:
                run.trusted_until = max(run.trusted_until, told.began + self.deps.times.trust_for)
                if renewal.cancel_reason is not None and run.phase is Phase.RUNNING and run.cancel_reason is None:
                    self.runs.cancel(run, renewal.cancel_reason)
            elif run.phase in (Phase.RUNNING, Phase.ENDED) or run.stopped:
                self.runs.drop(run, "renew")
        self._go_on()

    def _go_on(self) -> None:
        """The ledger is back, or trust is: everything that waited for it goes on."""
        for run in list(self.runs.by_fence.values()):
            if run.phase is Phase.ENDED:
                self.runs.hand(run)
            elif run.phase is Phase.SETTLING and run.plan is not None and run.stopped:
                self.runs.retry(run.plan, run)
            self.requests.go_on(run)
        self.deliveries.reconsider()

    # --- hand-overs ------------------------------------------------------------------------------------------------

    def _plan_returned(self, told: PlanResult) -> None:
        self.runs.plan_returned(told)
        if told.error is None and (settled := told.plan.settled_with) is not None:
            self.deliveries.settled(settled)
        self.deliveries.reconsider()

    def _again(self, delivery: Delivery) -> None:
        self.deliveries.consider(delivery)

    # --- stopping --------------------------------------------------------------------------------------------------

    def _staged(self, stage: Stage, *, kill: bool) -> None:
        self.stage = self.deliveries.stage = stage
        for slot in self.deps.slots:
            if stage >= Stage.DRAINING:
                slot.stopping()
        for run in list(self.runs.by_fence.values()):
            if run.slot is None or run.phase is not Phase.RUNNING:
                continue
            if kill:
                run.slot.kill(run.token.fence, Interrupted())
            elif stage >= Stage.DRAINING:
                run.slot.interrupt(run.token.fence, "shutdown", hard=stage >= Stage.INTERRUPTING)
        self.deliveries.reconsider()

    @property
    def finished(self) -> bool:
        """Nothing is left to wait for: no run, no hand-over, nothing held."""
        return self.stage >= Stage.DRAINING and not (self.runs.by_fence or self.runs.passing or self.deliveries.held)

    @property
    def idle(self) -> bool:
        """Nothing is under way here."""
        return not (self.runs.by_fence or self.runs.passing or self.deliveries.valid)

    @property
    def waiting(self) -> bool:
        """Messages are taken, and there is none."""
        return self.idle and self._window > 0

    def _write_progress(self) -> None:
        self.runs.write_progress(list(self.runs.by_fence.values()))
        self.timers.after(_PROGRESS_EVERY, self._write_progress)

    # --- for people ------------------------------------------------------------------------------------------------

    def not_ready(self) -> Mapping[str, str]:
        """Why no message is taken, by the name of the part, as of the last turn; empty when all is well; from any thread."""
        return self._not_ready

    def _causes(self) -> Mapping[str, str]:
        causes = {
            **{f"{target} queue": why for target, why in self.runs.missing.items()},
            "broker": self._connection or None,
            "broker alarm": self._blocked,
            "ledger": self._ledger_cause,
            "consumers": self.audit_result.cause,
            "setup": next(iter(self.slot_health.causes.values()), None if self.runs.up else "not over yet"),
            "stage": None if self.stage is Stage.RUNNING else self.stage.name.lower(),
        }
        return {part: why for part, why in causes.items() if why is not None}
