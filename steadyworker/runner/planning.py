"""
Makes settlement plans from outcomes and from the states of rows; `settler.py` carries the plans out.

This module also makes the tasks for slots, and the messages that plans publish.
"""

from __future__ import annotations

from msgspec.structs import replace

from steadyworker.adapter import Capabilities
from steadyworker.delivery import (
    DEAD_HEADERS,
    ERROR_CLASS,
    ERROR_TEXT,
    WORKER,
    OutgoingMessage,
    Redelivered,
    Settle,
    Target,
)
from steadyworker.ledger.base import KeptMessage, Moving, Row, Token, Verdict
from steadyworker.link import Task
from steadyworker.outcome import CANCELLED, Ack, Counters, Crashed, Failed, Later, Outcome, Release, ToDeadLetter
from steadyworker.retry import count, decide
from steadyworker.runner import report
from steadyworker.runner.envelope import (
    Envelope,
    envelope_of,
    facts_of,
    for_handler,
    header_text,
    names_of,
    without_facts,
)
from steadyworker.runner.settlement_plan import Incoming, RecordDone, RecordInterrupted, SettlementPlan, Step
from steadyworker.runner.state import Deps, Run
from steadyworker.runner.waits import Waits
from steadyworker.spec import WorkerSpec
from steadyworker.telemetry.run_span import RunSpan

REFUSED = "the broker refuses its copies: "
"""The beginning of a dead letter's reason if the broker never accepts a copy of the job's message; the broker's own text follows."""

_MARKED = {Redelivered.YES: True, Redelivered.NO: False, Redelivered.UNKNOWN: None}
_AFTER_RECORD = (Step.PUBLISH, Step.CONFIRM, Step.SETTLE)


def task_of(row: Row, envelope: Envelope, spec: WorkerSpec, span: RunSpan | None = None) -> Task:
    """Return a slot's input for the run of a claimed job, which `span` traces."""
    return Task(
        key=row.id.key,
        queue=row.id.queue,
        namespace=row.id.namespace,
        round=row.id.round,
        uid=row.uid,
        fence=row.fence,
        attempt=row.counters.attempts + 1,
        body=envelope.delivery.body,
        headers=for_handler(envelope.delivery.headers),
        last_checkpoint=row.checkpoint,
        export_state=row.export_state,
        sent_at=envelope.delivery.sent_at,
        redelivered=_MARKED[envelope.delivery.redelivered],
        time_limit=spec.time_limit,
        stall_limit=spec.stall_limit,
        trace={} if span is None else span.headers,
    )


# --- Plans ---------------------------------------------------------------------------------------------------------------


def plan_for(run: Run, outcome: Outcome, deps: Deps, waits: Waits) -> SettlementPlan:
    """Return the plan for a run's outcome, by the Worker's retry policy (`retry.decide`)."""
    plan = _plan_for(run, outcome, deps, waits)
    plan.end = report.ending(run, outcome)
    return plan


def _plan_for(run: Run, outcome: Outcome, deps: Deps, waits: Waits) -> SettlementPlan:
    counters = count(outcome, run.row.counters, deps.clock.wall())
    delay = waits.draw(outcome, counters) if isinstance(outcome, Failed | Crashed) else 0.0
    settlement = decide(outcome, counters, deps.spec.retry, delay)
    error_class, error_text = report.error(outcome)
    match settlement:
        case Ack():
            return done(run.token, run.incoming)
        case Release():
            return interrupted(run.token, run.incoming, counters)
        case Later(delay=delay):
            fresh = isinstance(outcome, Failed) and outcome.fresh
            reason = report.reason(outcome)
            verdict = Verdict(Moving.RETRY, reason, counters, delay, error_class, error_text, not fresh)
        case ToDeadLetter(reason=reason):
            owes = owes_call(deps.spec, reason)
            verdict = Verdict(Moving.DEAD, reason, counters, 0.0, error_class, error_text, owes_call=owes)
    message = message_for(run.envelope, run.row.hop, verdict, run.token.uid, deps.worker)
    return moving(run.token, run.incoming, verdict, message)


def finishing_plan(row: Row, envelope: Envelope, incoming: Incoming, worker: str) -> SettlementPlan:
    """
    Return the plan that finishes a settlement, after the former owner left the job in the state `moving`.

    The plan's fence is the new fence of the take-over; `incoming` has no delivery if the job's message is lost.
    """
    target = Moving.DEAD if row.target is None else row.target
    verdict = Verdict(target, row.reason, row.counters, row.due_in, row.error_class, row.error_text)
    return finish(row.token, incoming, message_for(envelope, row.hop, verdict, row.uid, worker))


def done(token: Token, incoming: Incoming) -> SettlementPlan:
    """Return the plan of a job that is done: record `done`, then acknowledge the delivery."""
    return SettlementPlan((Step.RECORD, Step.SETTLE), incoming, token, RecordDone())


def interrupted(token: Token, incoming: Incoming, counters: Counters) -> SettlementPlan:
    """Return the plan of a run that this worker process ended: record `interrupted`, then release the delivery."""
    return SettlementPlan((Step.RECORD, Step.SETTLE), incoming, token, RecordInterrupted(counters), how=Settle.RELEASE)


def moving(token: Token, incoming: Incoming, verdict: Verdict, message: OutgoingMessage) -> SettlementPlan:
    """Return the plan of a retry or a dead letter: record the verdict, publish the message, record the broker's confirm, acknowledge."""
    return SettlementPlan((Step.RECORD, *_AFTER_RECORD), incoming, token, verdict, message)


def finish(token: Token, incoming: Incoming, message: OutgoingMessage) -> SettlementPlan:
    """Return the plan of a settlement that is already recorded: all steps after the record."""
    return SettlementPlan(_AFTER_RECORD, incoming, token, message=message)


def comes_in(delay: float, broker: Capabilities) -> float:
    """Return the seconds after which a message with this delay comes: a broker with delay levels rounds the delay up."""
    return min((level for level in broker.levels if level >= delay), default=delay)


def pass_on(incoming: Incoming, message: OutgoingMessage) -> SettlementPlan:
    """Return the plan that publishes a message in place of a delivery, and writes nothing to the ledger."""
    return SettlementPlan((Step.PUBLISH, Step.SETTLE), incoming, message=message)


def owes_call(spec: WorkerSpec, reason: str) -> bool:
    """Return whether `on_dead` must be called for a job that dies for this reason; not for a cancel by a person."""
    return spec.has_on_dead and not reason.startswith(CANCELLED)


def refused_verdict(run: Run, plan: SettlementPlan, cause: str, spec: WorkerSpec) -> Verdict:
    """Return the verdict of a dead letter for a plan whose message the broker never accepts; the verdict's reason contains `cause`."""
    row = run.row
    verdict = plan.record
    if not isinstance(verdict, Verdict):
        verdict = Verdict(Moving.DEAD, row.reason, row.counters, 0.0, row.error_class, row.error_text)
    reason = verdict.reason if REFUSED in verdict.reason else f"{verdict.reason}; {REFUSED}{cause}"
    owes = owes_call(spec, reason)
    return replace(verdict, target=Moving.DEAD, delay=0.0, reason=reason, keep_checkpoint=True, owes_call=owes)


def rejected(token: Token, incoming: Incoming, verdict: Verdict) -> SettlementPlan:
    """Return the plan that makes the broker itself move the message to the dead letters: record the verdict, reject, record the move."""
    return SettlementPlan((Step.RECORD, Step.SETTLE, Step.CONFIRM), incoming, token, verdict, how=Settle.REJECT)


def settle_only(incoming: Incoming, how: Settle = Settle.ACK) -> SettlementPlan:
    """Return the plan that only acknowledges or releases a delivery."""
    return SettlementPlan((Step.SETTLE,), incoming, how=how)


# --- Messages ------------------------------------------------------------------------------------------------------------


def message_for(envelope: Envelope, hop: int, verdict: Verdict, uid: str, worker: str) -> OutgoingMessage:
    """Return the message of a verdict: a retry with the next hop and a delay, or a dead letter with the cause."""
    if verdict.target is Moving.RETRY:
        headers = _headers(envelope, hop + 1, verdict, uid)
        return OutgoingMessage(Target.LATER, envelope.delivery.body, headers, verdict.delay)
    cause = {
        ERROR_CLASS: verdict.error_class,
        ERROR_TEXT: header_text(verdict.error_text),
        WORKER: worker,
    }
    headers = _headers(envelope, hop, verdict, uid) | {name: value for name, value in cause.items() if value}
    return OutgoingMessage(Target.DEAD, envelope.delivery.body, headers)


def deferred(envelope: Envelope, uid: str, delay: float) -> OutgoingMessage:
    """
    Return a copy of the message that comes later, with the same hop.

    Only the copy of a dead letter keeps a dead letter's headers.
    A copy with these headers and the uid counts as a letter that an operator moved.
    """
    theirs = envelope.delivery.headers
    if not envelope.letter:
        theirs = {name: text for name, text in theirs.items() if name not in DEAD_HEADERS}
    headers = {**theirs, **names_of(envelope.id, envelope.hop, uid)}
    return OutgoingMessage(Target.LATER, envelope.delivery.body, headers, delay)


def again(row: Row, kept: KeptMessage) -> OutgoingMessage:
    """Turn the message that the ledger keeps into the message for which this unfinished job waits."""
    envelope = envelope_of(row, kept)
    verdict = Verdict(Moving.RETRY, row.reason, row.counters)
    return OutgoingMessage(Target.WORK, envelope.delivery.body, _headers(envelope, envelope.hop, verdict, row.uid))


def _headers(envelope: Envelope, hop: int, verdict: Verdict, uid: str) -> dict[str, str]:
    """Return the user's headers, and our headers with their new values."""
    ours = facts_of(envelope.id, hop, uid, verdict.counters, verdict.reason)
    return without_facts(envelope.delivery.headers) | ours
