"""
The back half of the runner: the life of a run, from its claim to its settlement.

::

    start ──→ requests, progress … ──→ ended ──→ settle ──→ settled
                      │                  │          │
                      └──────────────────┴──────────┴── the ledger refuses a write: the run is dropped,
                                                        and its delivery goes through the decision table again

While the ledger does not respond, or the run is not trusted, the requests of the job wait.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from tenacity import wait_random_exponential

from steadyworker.adapter import Lost
from steadyworker.delivery import Delivery, Settle, Settled, Target
from steadyworker.errors import LedgerUnavailable, MessageRefused, PublishFailed
from steadyworker.events import DeliveryLost, Fenced, JobEnded, JobStarted, TakenOver
from steadyworker.ledger.base import JobId, Progress, Row, Token
from steadyworker.outcome import CANCELLED, Done, Failed, Interrupted, Outcome, Rejected
from steadyworker.retry import draw
from steadyworker.runner import report
from steadyworker.runner.causes import LEDGER, Cause
from steadyworker.runner.envelope import BAD_PAYLOAD, Envelope, too_large
from steadyworker.runner.planning import (
    finishing_plan,
    message_for,
    moving,
    plan_for,
    refused_verdict,
    rejected,
    task_of,
)
from steadyworker.runner.settlement_plan import Incoming, RecordInterrupted, SettlementPlan, Step
from steadyworker.runner.settler import NotRejected, Settler, WriteRefused
from steadyworker.runner.state import Deps, Phase, PlanResult, Run, RunnerState, Timers
from steadyworker.runner.turn import Granted, TurnWrites
from steadyworker.runner.waits import Waits
from steadyworker.slots.base import Ended, Slot
from steadyworker.telemetry.run_span import begin_run
from steadyworker.telemetry.traces import API

_BACK_OFF = wait_random_exponential(multiplier=0.5, max=30)
"""The waits between attempts to publish: full jitter, at most 30 s."""

_PARKED_FOR = 600.0
"""Seconds between two tries to publish a message that the broker refuses; meanwhile, an operator can raise the broker's limit."""

MOST_PARKED = 16
"""The largest number of parked deliveries by which the prefetch grows; the number is limited because each delivery keeps its body in memory."""

_LIMITS = ("time-limit", "stalled")
"""
The reasons of failures that a wait for the ledger can cause.

If a run fails for one of these reasons while a request of its job waits, the run ends as interrupted.
No attempt is counted then.
"""


_SAME_LOSS = 60.0
"""
Seconds after which a sign of the same problem is a new error.

A sign is a job that shows that the ledger has gone back in time; each sign starts the seconds again.
"""


class Runs:
    """
    The runs of one Worker in this process.

    1. `start` begins a run, `ended` receives the run's outcome, `settle` plans the settlement and carries the plan out.
    2. `detached` and `adopt` only change the delivery that a run will settle.
    3. `drop` ends a run whose write the ledger refused.
    4. `carry_out` carries out plans that belong to no run.
    """

    def __init__(
        self, deps: Deps, state: RunnerState, timers: Timers, writes: TurnWrites, post: Callable[[PlanResult], None]
    ) -> None:
        self._deps = deps
        self._state = state
        self._timers = timers
        self._writes = writes
        self._post = post
        self._refused: list[tuple[Run, str, bool]] = []
        self._unrecorded: set[JobId] = set()
        self._quiet_until = 0.0
        self._waits = Waits(deps.spec)
        self._settler = Settler(deps.ledger, deps.adapter, deps.submit, post)

    @property
    def missing(self) -> dict[str, str]:
        """
        The targets to which a plan could not publish, each with the cause.

        Parked plans count only if the runner has too many of them (`MOST_PARKED`).
        Any thread may read this: each table is copied in one step, because the runner's thread changes the tables.
        """
        state = self._state
        plans = {plan: str(error) for plan, error in tuple(state.failing.items())}
        plans |= dict(state.parked) if state.parked_deliveries > MOST_PARKED else {}
        return {plan.message.to.value: why for plan, why in plans.items() if plan.message is not None}

    # --- from claim to outcome -------------------------------------------------------------------------------------

    def start(
        self, row: Row, envelope: Envelope, slot: Slot, began: float, *, lost: bool, before: Row | None, because: str
    ) -> None:
        """
        Begin the run of a claimed job; the run is detached if its delivery is not valid.

        A cancelled job, or a job whose body is too large, ends before its handler starts.
        `because` is the reason why the message came again, for the log.
        """
        incoming, clock = self._state.incoming(envelope.delivery), self._deps.clock
        run = Run(row.token, row, envelope, incoming, began, clock.monotonic(), slot)
        self._state.by_fence[row.fence] = run
        about = report.about(row.token, clock)
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
        attempt = row.counters.attempts + 1
        why = "after a lost record" if row.id in self._unrecorded else report.why(before, lost=lost)
        self._unrecorded.discard(row.id)
        if API in sys.modules:  # the user's code traces this process, or could
            facts: dict[str, str | int] = {"fence": row.fence, "attempt": attempt, "why": why}
            system = self._deps.adapter.capabilities.system
            run.span = begin_run(system, row.id.queue, envelope.delivery.headers, facts)
        slot.run(task_of(row, envelope, self._deps.spec, run.span))
        self._deps.emit(JobStarted(**about, attempt=attempt, why=why, redelivered_because=because))

    def finish(self, row: Row, envelope: Envelope, began: float) -> None:
        """
        Finish the settlement of a job that its former owner left in the state `moving`; no handler runs.

        `began` is the boot time at which this process asked for the new fence.
        """
        incoming, started = self._state.incoming(envelope.delivery), self._deps.clock.monotonic()
        run = Run(row.token, row, envelope, incoming, began, started)
        run.outcome = Failed(row.reason, row.error_class)
        run.plan = finishing_plan(row, envelope, run.incoming, self._deps.worker)
        self._state.by_fence[row.fence] = run
        self._settler.carry_out(run.plan, run)

    def cancel(self, run: Run, reason: str) -> None:
        """
        Cancel a run: the calls of the run's job raise Interrupt, and after the grace period the slot kills the run.

        If the run has ended, or is already cancelled, do nothing.
        """
        if run.phase is not Phase.RUNNING or run.cancel_reason is not None:
            return
        run.cancel_reason = reason
        if run.slot is None:
            return
        slot, fence = run.slot, run.token.fence
        slot.interrupt(fence, "cancelled", hard=True)
        self._timers.after(self._deps.times.cancel_grace, lambda: slot.kill(fence, Rejected(f"{CANCELLED}{reason}")))

    def slot_ended(self, ended: Ended) -> None:
        """Receive the end of a run whose slot is free again."""
        fence, outcome = ended.fence, ended.outcome
        run = self._state.by_fence.get(fence)
        if run is None or run.slot is None:  # a slot whose thread failed can report the end twice
            return
        run.slot, run.traceback, run.peak_memory = None, ended.traceback, ended.peak_memory
        if run.waiting and isinstance(outcome, Failed) and outcome.reason in _LIMITS:
            outcome = Interrupted()
        run.waiting.clear()
        for id in [*run.calls]:
            run.cancel_call(id)
        if run.dropped:
            del self._state.by_fence[fence]
        else:
            self.ended(run, outcome)

    def ended(self, run: Run, outcome: Outcome) -> None:
        """Receive the outcome of a run, and settle its message."""
        if run.cancel_reason is not None and not isinstance(outcome, Done):
            outcome = Rejected(f"{CANCELLED}{run.cancel_reason}")
        encoding = run.envelope.delivery.encoding
        if encoding is not None and isinstance(outcome, Rejected) and outcome.reason.startswith(BAD_PAYLOAD):
            reason = (
                f"{outcome.reason}; its sender's content encoding is {encoding[:40]!r}, and SteadyWorker decodes none"
            )
            outcome = Rejected(reason, outcome.error_class)
        run.outcome = outcome
        self.write_progress([run])
        if run.span is not None:
            run.end_span(report.name(outcome, run), report.failure(outcome, run))
        event = JobEnded(
            **report.about(run.token, self._deps.clock),
            outcome=report.name(outcome, run),
            reason=report.reason(outcome),
            seconds=round(self._deps.clock.monotonic() - run.started, 6),
        )
        if self._writes.open and isinstance(outcome, Done) and self._state.trusted(run):
            self._end_in_turn(run, outcome, event)
        else:
            self.settle(run)
            self._deps.emit(event)

    def _end_in_turn(self, run: Run, outcome: Done, event: JobEnded) -> None:
        """Let the commit of this turn record the end of a run, and then carry out the rest of its plan."""
        plan = run.plan = plan_for(run, outcome, self._deps, self._waits)
        assert plan.steps[plan.at] is Step.RECORD, "the ledger has the outcome before the broker deletes the message"

        def end(result: Granted) -> None:
            if result is True:
                plan.at += 1
                self._settler.carry_out(plan, run)
            else:
                self._post(PlanResult(plan, run, WriteRefused("record") if result is False else result))
            self._deps.emit(event)

        self._writes.end(run.token, plan.end, end)

    # --- from outcome to settlement --------------------------------------------------------------------------------

    def settle(self, run: Run) -> None:
        """Plan the settlement and carry the plan out; a run that is not trusted waits for a renewal."""
        if run.outcome is None or not self._state.trusted(run):
            return
        run.plan = plan_for(run, run.outcome, self._deps, self._waits)
        self._settler.carry_out(run.plan, run)

    def carry_out(self, plan: SettlementPlan) -> None:
        """Carry out a plan that belongs to no run."""
        self._state.plans_without_run.append(plan)
        self._settler.carry_out(plan, None)

    def plan_returned(self, result: PlanResult) -> None:
        """Receive a plan that was carried out, or that an error stopped."""
        plan, run, error = result.plan, result.run, result.error
        self._state.failing.pop(plan, None)
        parked = self._state.parked.pop(plan, None)
        match error:
            case WriteRefused():
                if run is not None:
                    self.drop(run, str(error))
            case LedgerUnavailable():
                if run is not None:
                    run.stopped = True
                self.ledger_lost(str(error))
            case MessageRefused():
                self._message_refused(plan, run, error, reported=parked is not None)
            case PublishFailed():
                self._publish_later(plan, run, error)
            case NotRejected():
                assert run is not None, "only a plan of a run confirms a rejection"
                self._let_go(run, plan)
            case _:
                self._record_settled(plan)
                self._over(plan, run)

    def _publish_later(self, plan: SettlementPlan, run: Run | None, error: PublishFailed) -> None:
        """Publish again after a while; meanwhile, the plan keeps its lease and its delivery, and the process is not ready."""
        plan.failures += 1
        self._state.failing[plan] = error
        self._timers.after(draw(_BACK_OFF, min(plan.failures, 10)), lambda: self.retry(plan, run))

    def _message_refused(self, plan: SettlementPlan, run: Run | None, error: MessageRefused, *, reported: bool) -> None:
        """
        Make a dead letter of a message whose copies the broker never accepts.

        | the plan | its next steps |
        |---|---|
        | a retry | publish a dead letter instead |
        | a dead letter, and the queue moves rejected messages | reject the original, so that the broker moves it |
        | a dead letter, and the queue does not move rejected messages | keep the delivery (*parked*), and try again every ten minutes |

        A parked plan keeps its lease, but stops no other job, because the prefetch grows by one for the plan's delivery.
        """
        lost = run is not None and run.delivery is None and run.envelope.from_ledger
        rejects = self._deps.adapter.capabilities.rejects and not lost
        verdict = refused_verdict(run, plan, str(error), self._deps.spec) if run is not None else None
        recorded = verdict == plan.record
        if not reported and not (run is not None and recorded):
            key = run.token.id.key if run is not None else ""
            report.refused(self._deps.spec.queue, key, error, report.MOVED if rejects else report.PARKED)
        if run is None and rejects:
            plan.steps, plan.at, plan.how = (Step.SETTLE,), 0, Settle.REJECT
            self._settler.carry_out(plan, None)
        elif run is None or verdict is None or (recorded and not rejects):
            self._state.parked[plan] = str(error)
            self._timers.after(_PARKED_FOR, lambda: self.retry(plan, run))
        else:
            if rejects and plan.message is not None and plan.message.to is Target.DEAD:
                run.plan = rejected(run.token, run.incoming, verdict)
            else:
                message = message_for(run.envelope, run.row.hop, verdict, run.token.uid, self._deps.worker)
                run.plan = moving(run.token, run.incoming, verdict, message)
            run.stopped = True  # until the verdict is recorded: a record needs a trusted run
            self.retry(run.plan, run)

    def _let_go(self, run: Run, plan: SettlementPlan) -> None:
        """Forget a run whose message may still be in the work queue; if the message comes again, the next owner finishes its settlement."""
        self._state.by_fence.pop(run.token.fence, None)
        if run.delivery is not None and run.delivery is not plan.settled_with:
            self._state.reconsider(run.delivery)

    def retry(self, plan: SettlementPlan, run: Run | None) -> None:
        """Continue a plan that was stopped, unless its run was dropped meanwhile."""
        if run is None:
            if plan.delivery is None:
                self._forget_failure(plan)
                self._state.plans_without_run.remove(plan)
            else:
                self._settler.carry_out(plan, None)
            return
        if self._state.by_fence.get(run.token.fence) is not run:
            self._forget_failure(plan)
        elif Step.RECORD not in plan.steps[plan.at :] or self._state.trusted(run):
            run.stopped = False
            self._settler.carry_out(plan, run)

    def _forget_failure(self, plan: SettlementPlan) -> None:
        self._state.failing.pop(plan, None)
        self._state.parked.pop(plan, None)

    def _record_settled(self, plan: SettlementPlan) -> None:
        """Record whether the broker confirmed the settlement; after a confirm, the ledger can delete the row earlier."""
        if plan.settled is None or plan.token is None or isinstance(plan.record, RecordInterrupted):
            return
        if self._state.ledger_away:  # each call can take up to 10 s, and this thread serves every job
            return
        try:
            self._deps.ledger.settled(plan.token, plan.settled is Settled.CONFIRMED)
        except LedgerUnavailable:
            return  # no harm: the ledger only keeps the row for longer

    def _over(self, plan: SettlementPlan, run: Run | None) -> None:
        if run is None:
            self._state.plans_without_run.remove(plan)
            return
        self._state.by_fence.pop(run.token.fence, None)
        if isinstance(plan.record, RecordInterrupted) and run.saved is None:
            report.often_interrupted(run.token, plan.record.counters.interruptions)
        self._deps.emit(report.settled(run, plan, self._deps.clock))
        late = run.delivery
        if late is not None and late is not plan.settled_with:
            self._state.reconsider(late)

    # --- what happens to a run -------------------------------------------------------------------------------------

    def detached(self, delivery: Delivery, signal: Lost) -> None:
        """Forget a delivery that the broker no longer lets this process settle; the delivery's run goes on without a delivery."""
        detached = [run for run in self._state.by_fence.values() if run.delivery is delivery]
        self._state.lose(delivery)
        for run in detached:
            about = report.about(run.token, self._deps.clock)
            self._deps.emit(DeliveryLost(**about, cause=signal.cause, explain=signal.explain))

    def adopt(self, run: Run, delivery: Delivery) -> None:
        """Bind a redelivery to the run under way: the run goes on, and settles this delivery."""
        self._state.bind(run.incoming, delivery)

    def drop(self, run: Run, write: str) -> None:
        """End a run whose write the ledger refused; the runner decides again on the run's delivery, by the decision table."""
        delivery, run.incoming = run.delivery, Incoming()
        run.end_span("fenced", "fenced")
        if run.slot is not None:  # kill first, because the ledger can need long to show why it refused
            run.dropped = True
            run.slot.kill(run.token.fence, Interrupted())
            waiting, run.waiting = run.waiting, []
            for asked in waiting:
                run.slot.reply(asked.fence, asked.id, None, refused="fenced")
        else:
            self._state.by_fence.pop(run.token.fence, None)
        times, now = self._deps.times, self._deps.clock.boottime()
        held = now < run.renewed_at + times.lease + times.margin
        self._refused.append((run, write, held))
        lost = self.explain_refusals()
        explain = "ledger.unreachable" if self._refused else "ledger.lost-history" if lost else ""
        self._deps.emit(Fenced(**report.about(run.token, self._deps.clock), write=write, lost=lost, explain=explain))
        if delivery is not None:
            self._state.reconsider(delivery)

    def explain_refusals(self) -> str:
        """
        Find out why the ledger refused writes, and return what the ledger has lost.

        While the ledger does not respond, the refused writes wait for this explanation.
        If a ledger that has gone back in time refused a write, the runner logs an error, and reports no take-over.
        """
        lost = ""
        while self._refused and not self._state.ledger_away:
            run, write, held = self._refused[0]
            try:
                lost = report.lost_history(run, self._deps.ledger.read(run.token.id), write, held=held)
            except LedgerUnavailable as error:
                self.ledger_lost(str(error))  # so that the runner decides on no delivery before
                return ""
            del self._refused[0]
            if lost:
                self._unrecorded.add(run.token.id)
                self.history_lost(run.token, lost)
        return lost

    def history_lost(self, token: Token, lost: str) -> None:
        """
        Log that the ledger has gone back in time, and mark the ledger's rows as not reliable.

        If several jobs show this at about the same time, the runner logs and marks this once.
        The rows are not reliable: a row can be from an earlier time, and another process can have done the row's job since then.
        """
        now = self._deps.clock.monotonic()
        if now >= self._quiet_until:
            report.history_lost(token, lost)
            try:
                self._deps.ledger.distrust()
            except LedgerUnavailable as error:
                self.ledger_lost(str(error))
        self._quiet_until = now + _SAME_LOSS

    def ledger_lost(self, cause: str) -> None:
        """Note that the ledger did not respond, and end the runs that must not go on without a lease."""
        if not self._state.ledger_away:
            self._deps.hurry()
        self._state.causes[LEDGER] = Cause(cause, "ledger.unreachable")
        self.stop_without_lease(self._state.by_fence.values())

    def stop_without_lease(self, runs: Iterable[Run]) -> None:
        """With `on_ledger_loss = "stop"`, end the runs whose lease is over, because another host may take their jobs over."""
        if not self._deps.stop_on_ledger_loss:
            return
        now, times = self._deps.clock.boottime(), self._deps.times
        for run in runs:
            lease_over = now > run.renewed_at + times.lease
            if lease_over and run.phase is Phase.RUNNING and run.slot is not None:
                run.slot.kill(run.token.fence, Interrupted())

    def remember(self, run: Run, done: float | None, total: float | None, note: str) -> None:
        """Keep the progress of a run until it is written."""
        run.progress = Progress(done, total, note, self._deps.clock.wall())

    def write_progress(self, runs: Iterable[Run]) -> None:
        """Write the progress that changed since the last call; a crash can lose such writes."""
        for run in runs:
            if run.progress is not None and not self._state.ledger_away:
                progress, run.progress = run.progress, None
                try:
                    self._deps.ledger.progress(run.token, progress)
                except LedgerUnavailable as error:
                    self.ledger_lost(str(error))
                    return

    def flush(self) -> None:
        """Let the ledger commit the settlements that no claim has carried yet; a crash can lose such writes."""
        if not self._state.ledger_away:
            try:
                self._deps.ledger.flush()
            except LedgerUnavailable as error:
                self.ledger_lost(str(error))
