"""What a run is given, and what follows from its outcome; nothing is done here, only put together."""

from __future__ import annotations

from steadyworker.ledger.base import Moving, Row, Verdict
from steadyworker.names import file_name
from steadyworker.outcome import Ack, Counters, DeadLetter, Failed, Later, Outcome, Release
from steadyworker.retry import RetryPolicy, count, decide, drawn_delay
from steadyworker.runner import report, settlement_plan
from steadyworker.runner.envelope import Envelope
from steadyworker.runner.settlement_plan import Origin, SettlementPlan
from steadyworker.runner.state import Deps, Run
from steadyworker.slots.base import Task
from steadyworker.spec import WorkerSpec
from steadyworker.telemetry.logs import get_logger


def task_of(row: Row, envelope: Envelope, spec: WorkerSpec) -> Task:
    """What a slot is given of a job that was claimed."""
    return Task(
        key=row.id.key,
        queue=row.id.queue,
        name=file_name(row.id.key, row.id.round),
        uid=row.uid,
        fence=row.fence,
        attempt=row.counters.attempts + 1,
        body=envelope.delivery.body,
        headers=envelope.delivery.headers,
        last_checkpoint=row.checkpoint,
        export_state=row.export_state,
        sent_at=envelope.delivery.sent_at,
        time_limit=spec.time_limit,
        stall_limit=spec.stall_limit,
    )


def plan_for(run: Run, outcome: Outcome, deps: Deps) -> SettlementPlan:
    """What follows from the outcome of a run, by the policy (`retry.decide`), as a hand-over."""
    counters = count(outcome, run.row.counters, deps.clock.wall())
    settlement = decide(outcome, counters, deps.spec.retry, _delay(outcome, counters, deps.spec))
    error_class, error_text = report.error(outcome)
    match settlement:
        case Ack():
            return settlement_plan.done(run.token, run.delivery)
        case Release():
            return settlement_plan.interrupted(run.token, run.delivery, counters)
        case Later(delay=delay):
            fresh = isinstance(outcome, Failed) and outcome.fresh
            reason = report.reason(outcome)
            verdict = Verdict(Moving.RETRY, reason, counters, delay, error_class, error_text, not fresh)
        case DeadLetter(reason=reason):
            verdict = Verdict(Moving.DEAD, reason, counters, 0.0, error_class, error_text)
    origin = Origin(run.token.id, run.row.hop, run.envelope.delivery.body, run.envelope.origin.headers)
    message = settlement_plan.message_for(origin, verdict, run.token.uid, deps.worker)
    return settlement_plan.moving(run.token, run.delivery, verdict, message)


def finishing_plan(row: Row, envelope: Envelope, worker: str) -> SettlementPlan:
    """What is left of a hand-over that its owner left at `moving`, under the fence that was drawn for it."""
    target = Moving.DEAD if row.target is None else row.target
    verdict = Verdict(target, row.reason, row.counters, row.due_in, row.error_class, row.error_text)
    origin = Origin(row.id, row.hop, envelope.delivery.body, envelope.origin.headers)
    return settlement_plan.finish(
        row.token, envelope.delivery, settlement_plan.message_for(origin, verdict, row.uid, worker)
    )


def _delay(outcome: Outcome, counters: Counters, spec: WorkerSpec) -> float:
    """The wait that the Worker's policy draws; one that raises is a user's code, in a thread that serves every job."""
    try:
        return drawn_delay(outcome, counters, spec.retry)
    except Exception:  # noqa: BLE001 - whatever a user's `wait` raises for this attempt
        get_logger("steadyworker.runner").exception("wait_failed", worker=spec.target)
        return drawn_delay(outcome, counters, RetryPolicy())
