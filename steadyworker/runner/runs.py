"""
The back half of the runner: from a claim to the last word on it.

::

    start ──→ asked, progressed … ──→ ended ──→ decide ──→ hand over ──→ settled
                     │                   │                     │
                     └── refused: the run is dropped, and its delivery goes back through the table

What a job asks for waits while the ledger is away or the run has no trust; nothing is refused for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tenacity import wait_random_exponential

from steadyworker.delivery import Delivery
from steadyworker.errors import LedgerUnavailable, PublishFailed
from steadyworker.events import DeliveryLost, Fenced, JobEnded, JobStarted, TakenOver
from steadyworker.ledger.base import JobId, Progress, Row
from steadyworker.outcome import (
    CANCELLED,
    Done,
    Failed,
    Interrupted,
    Outcome,
    Rejected,
)
from steadyworker.retry import RetryPolicy
from steadyworker.runner import report, settlement_plan
from steadyworker.runner.envelope import Envelope, too_large
from steadyworker.runner.planning import finishing_plan, plan_for, task_of
from steadyworker.runner.settlement_plan import SettlementPlan
from steadyworker.runner.settler import Carrier, Refused
from steadyworker.runner.state import Deps, Phase, PlanResult, Run, Timers
from steadyworker.slots.base import Slot

_BACK_OFF = RetryPolicy(wait=wait_random_exponential(multiplier=0.5, max=30))
"""The waits between tries of a hand-over that cannot publish: full jitter, at most 30 s."""

_LIMITS = ("time-limit", "stalled")
"""What a run that waits for the ledger cannot help: such an end is an interruption, and free."""


class Runs:
    """
    The runs of one Worker in this process.

    1. `start` begins a run, `ended` takes its outcome, `hand` gives it to the ledger and the broker.
    2. `adrift` and `adopt` change what a run will settle, and nothing else.
    3. `drop` ends a run that the ledger refused.
    4. `pass_on` hands over what never was a run.
    """

    def __init__(
        self,
        deps: Deps,
        timers: Timers,
        post: Callable[[PlanResult], None],
        again: Callable[[Delivery], None],
        ledger_lost: Callable[[str], None],
    ) -> None:
        self.by_fence: dict[int, Run] = {}
        self.passing: list[SettlementPlan] = []
        self.settled_jobs = 0
        self.up: set[int] = set()
        self.ledger_away = False
        self.ledger_lost = ledger_lost
        self._failing: dict[SettlementPlan, str] = {}
        self._deps = deps
        self._timers = timers
        self._again = again
        self._carrier = Carrier(deps, post)

    # --- what there is ---------------------------------------------------------------------------------------------

    def free_slot(self) -> Slot | None:
        """A slot that can begin a run now."""
        busy = self._busy()
        return next((slot for slot in self._deps.slots if slot.warm and slot.id not in busy), None)

    def warming(self) -> bool:
        """Whether a slot that nobody has will be warm soon: its child is being replaced."""
        return bool(self.up - self._busy())

    def _busy(self) -> set[int]:
        return {run.slot.id for run in self.by_fence.values() if run.slot is not None}

    @property
    def missing(self) -> dict[str, str]:
        """The targets that a hand-over waits for, each with why."""
        return {plan.message.to.value: why for plan, why in self._failing.items() if plan.message is not None}

    def slots_detached(self) -> int:
        """How many slots are busy with runs that hold no valid delivery."""
        return sum(1 for run in self.by_fence.values() if run.slot is not None and run.delivery is None)

    def unreaped(self, id: JobId) -> bool:
        """Whether an earlier run of this job is still in a slot here."""
        return any(run.token.id == id and run.slot is not None for run in self.by_fence.values())

    def trusted(self, run: Run) -> bool:
        """Whether the ledger's last word on this run is young enough to commit on."""
        return self._deps.clock.boottime() < run.trusted_until

    # --- from claim to outcome -------------------------------------------------------------------------------------

    def start(self, row: Row, envelope: Envelope, slot: Slot, began: float, *, lost: bool, before: Row | None) -> None:
        """Begin the run that was claimed; one that was cancelled, or whose body is too large, ends before it begins."""
        trusted_until = began + self._deps.times.trust_for
        run = Run(row.token, row, envelope, envelope.delivery, trusted_until, self._deps.clock.monotonic(), slot)
        self.by_fence[row.fence] = run
        about = report.about(row.token, self._deps.clock)
        if lost:
            self._deps.emit(TakenOver(**about, losses=row.counters.losses))
        if row.cancel_reason is not None:
            run.slot = None
            self.ended(run, Rejected(f"{CANCELLED}{row.cancel_reason}"))
            return
        if (reason := too_large(envelope.delivery, self._deps.max_body)) is not None:
            run.slot = None
            self.ended(run, Rejected(reason))
            return
        slot.run(task_of(row, envelope, self._deps.spec))
        self._deps.emit(JobStarted(**about, attempt=row.counters.attempts + 1, why=report.why(before, lost=lost)))

    def finish(self, row: Row, envelope: Envelope, began: float) -> None:
        """Finish a hand-over that its owner left at `moving`, under the fence that was asked for at `began`; nothing runs."""
        clock, times = self._deps.clock, self._deps.times
        run = Run(row.token, row, envelope, envelope.delivery, began + times.trust_for, clock.monotonic())
        run.outcome = Failed(row.reason, row.error_class)
        run.phase = Phase.SETTLING
        run.plan = finishing_plan(row, envelope, self._deps.worker)
        self.by_fence[row.fence] = run
        self._carrier.carry(run.plan, run)

    def cancel(self, run: Run, reason: str) -> None:
        """The job was cancelled: its calls raise, and it is killed if it does not end by itself."""
        run.cancel_reason = reason
        if run.slot is None:
            return
        slot, fence = run.slot, run.token.fence
        slot.interrupt(fence, "cancelled", hard=True)
        self._timers.after(self._deps.times.cancel_grace, lambda: slot.kill(fence, Rejected(f"{CANCELLED}{reason}")))

    def slot_ended(self, fence: int, outcome: Outcome) -> None:
        """A slot says that this run is over and reaped."""
        run = self.by_fence.get(fence)
        if run is None:
            return
        run.slot = None
        if run.waiting and isinstance(outcome, Failed) and outcome.reason in _LIMITS:
            outcome = Interrupted()
        run.waiting.clear()
        for call in run.calls.values():
            call.cancel()
        run.calls.clear()
        if run.phase is Phase.DROPPED:
            del self.by_fence[fence]
        else:
            self.ended(run, outcome)

    def ended(self, run: Run, outcome: Outcome) -> None:
        """The run has its outcome; what follows is up to the policy and the ledger."""
        if run.cancel_reason is not None and not isinstance(outcome, Done):
            outcome = Rejected(f"{CANCELLED}{run.cancel_reason}")
        run.outcome = outcome
        run.phase = Phase.ENDED
        self.write_progress([run])  # the last one; those before it were written once a second
        seconds = round(self._deps.clock.monotonic() - run.started, 6)
        self.hand(run)
        self._deps.emit(
            JobEnded(
                **report.about(run.token, self._deps.clock),
                outcome=report.name(outcome),
                reason=report.reason(outcome),
                seconds=seconds,
            )
        )

    # --- from outcome to settlement --------------------------------------------------------------------------------

    def hand(self, run: Run) -> None:
        """Decide, and hand over; waits, untouched, for a renewal to restore trust."""
        if run.outcome is None or not self.trusted(run):
            return
        run.phase = Phase.SETTLING
        run.plan = plan_for(run, run.outcome, self._deps)
        self._carrier.carry(run.plan, run)

    def pass_on(self, plan: SettlementPlan) -> None:
        """Hand over what is not a run: a copy, an answer, a release."""
        self.passing.append(plan)
        self._carrier.carry(plan, None)

    def plan_returned(self, told: PlanResult) -> None:
        """A hand-over came to its end, or to what stopped it."""
        plan, run, error = told.plan, told.run, told.error
        self._failing.pop(plan, None)
        match error:
            case Refused():
                if run is not None:
                    self.drop(run, str(error))
            case LedgerUnavailable():
                if run is not None:
                    run.stopped = True
                self.ledger_lost(str(error))
            case PublishFailed():
                self._publish_later(plan, run, error)
            case _:
                self._carrier.note(plan)
                self._over(plan, run)

    def _publish_later(self, plan: SettlementPlan, run: Run | None, error: PublishFailed) -> None:
        """It keeps lease and delivery, and tries again; the process is not ready, by name of the target."""
        plan.failures += 1
        self._failing[plan] = str(error)
        self._timers.after(_BACK_OFF.delay(min(plan.failures, 10)), lambda: self.retry(plan, run))

    def retry(self, plan: SettlementPlan, run: Run | None) -> None:
        """Go on with a hand-over that was stopped, unless it was dropped meanwhile."""
        if run is None:
            if plan.delivery is None:
                self._failing.pop(plan, None)
                self.passing.remove(plan)
            else:
                self._carrier.carry(plan, None)
            return
        dropped = self.by_fence.get(run.token.fence) is not run or run.phase is not Phase.SETTLING
        if dropped:
            self._failing.pop(plan, None)
        elif plan.recorded or self.trusted(run):
            run.stopped = False
            self._carrier.carry(plan, run)

    def _over(self, plan: SettlementPlan, run: Run | None) -> None:
        if run is None:
            self.passing.remove(plan)
            return
        self.by_fence.pop(run.token.fence, None)
        if not isinstance(plan.record, settlement_plan.RecordInterrupted):
            self.settled_jobs += 1
        elif not run.saved:
            report.often_interrupted(run.token, plan.record.counters.interruptions)
        self._deps.emit(report.settled(run, plan, self._deps.clock))
        late = run.delivery
        if late is not None and late is not plan.settled_with:
            self._again(late)

    # --- what happens to a run -------------------------------------------------------------------------------------

    def detached(self, delivery: Delivery, cause: str) -> None:
        """This delivery can no longer be settled; whoever meant to settle it goes on without."""
        for plan in self.passing:
            if plan.delivery is delivery:
                plan.delivery = None
        for run in self.by_fence.values():
            if run.delivery is delivery:
                run.delivery = None
                if run.plan is not None:
                    run.plan.delivery = None
                self._deps.emit(DeliveryLost(**report.about(run.token, self._deps.clock), cause=cause))

    def adopt(self, run: Run, delivery: Delivery) -> None:
        """Bind a redelivery to the run that is under way; nothing restarts, and the job is not told."""
        run.delivery = delivery
        if run.plan is not None:
            run.plan.delivery = delivery

    def drop(self, run: Run, write: str) -> None:
        """The ledger refused a write: the run ends, and its delivery goes back through the table as if it had just arrived."""
        self._deps.emit(Fenced(**report.about(run.token, self._deps.clock), write=write))
        delivery, run.delivery = run.delivery, None
        if run.slot is not None:
            run.phase = Phase.DROPPED
            run.slot.kill(run.token.fence, Interrupted())
            waiting, run.waiting = run.waiting, []
            for asked in waiting:
                run.slot.reply(asked.fence, asked.id, None, refused="fenced")
        else:
            self.by_fence.pop(run.token.fence, None)
        if delivery is not None:
            self._again(delivery)

    def end_what_has_no_lease(self) -> None:
        """End what somebody else may have taken over by now (`on_ledger_loss = "stop"`)."""
        now, times = self._deps.clock.boottime(), self._deps.times
        for run in self.by_fence.values():
            if (
                now > run.trusted_until - times.trust_for + times.lease
                and run.phase is Phase.RUNNING
                and run.slot is not None
            ):
                run.slot.kill(run.token.fence, Interrupted())

    def remember(self, run: Run, done: float | None, total: float | None, note: str) -> None:
        """Progress, to be written with the next beats."""
        run.progress = Progress(done, total, note, self._deps.clock.wall())

    def write_progress(self, runs: Iterable[Run]) -> None:
        """Write what moved since the last time; lossy."""
        for run in runs:
            if run.progress is not None and not self.ledger_away:
                progress, run.progress = run.progress, None
                try:
                    self._deps.ledger.progress(run.token, progress)
                except LedgerUnavailable as error:
                    self.ledger_lost(str(error))
                    return
