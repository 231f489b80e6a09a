"""The fields of a run in events and logs: the job, the reason for the start, the outcome, and the settlement of the message."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

from steadyworker.clock import Clock
from steadyworker.errors import MessageRefused
from steadyworker.events import JobSettled
from steadyworker.ledger.base import Ending, Moving, Row, State, Token, Verdict
from steadyworker.ledger.facts import Pause
from steadyworker.outcome import (
    CANCELLED,
    SNOOZED,
    Crashed,
    Done,
    Failed,
    Interrupted,
    JobState,
    Outcome,
    Rejected,
    Snoozed,
)
from steadyworker.runner.settlement_plan import RecordInterrupted, SettlementPlan
from steadyworker.runner.state import Run
from steadyworker.telemetry.logs import explained, get_logger
from steadyworker.telemetry.metrics import reason_of_attempt

_MANY_INTERRUPTIONS = 10
_MOST_REMEMBERED = 1000


_BEGINS = {
    JobState.RUNNING: "dropped",
    JobState.INTERRUPTED: "interrupted",
    JobState.SCHEDULED: "snoozed",
    JobState.RETRYING: "retry",
}
_FAILURES = ("failed", "rejected", "crashed")
_LOST_MESSAGE = "the broker lost its message"


class Once:
    """The memory of the last reports, so that a problem that comes again and again is reported once."""

    def __init__(self) -> None:
        self._seen: deque[Hashable] = deque(maxlen=_MOST_REMEMBERED)

    def is_first(self, what: Hashable) -> bool:
        """Return whether `what` was not reported yet, and remember `what`."""
        first = what not in self._seen
        if first:
            self._seen.append(what)
        return first


def about(token: Token, clock: Clock) -> dict[str, Any]:
    """Return the fields of every event."""
    return {"key": token.id.key, "queue": token.id.queue, "fence": token.fence, "at": clock.wall()}


def why(before: Row | None, *, lost: bool) -> str:
    """
    Return why a run begins.

    `before` is the job's row before the claim.
    For the first run of a round, `before` is None, or the row that a replay has inserted.
    """
    if before is None or before.hop < 0:
        return "new"
    return "taken over" if lost else f"after {before.state.value}"


def because(before: Row | None, *, lost: bool, from_ledger: bool) -> str:
    """
    Return why an attempt begins, for people; see `steadyworker.ledger.facts.Attempt`.

    `before` is the job's row before the claim; `from_ledger` is true if the broker has lost the job's message.
    """
    if before is None or before.fence == 0:
        why = "new"
    elif before.hop < 0:
        why = "replayed"
    elif lost:
        why = "taken over"
    else:
        why = _BEGINS.get(before.job_state, before.state.value)
    return f"{why}; {_LOST_MESSAGE}" if from_ledger else why


def name(outcome: Outcome, run: Run) -> str:
    """
    Return the name of a run's outcome: `done`, `failed`, and so on.

    A cancel by a person is `cancelled`, and a failure for which the handler asked by `Retry` is `retry`.
    """
    mark = run.cancel_reason if run.cancel_reason is not None else run.row.cancel_reason
    if mark is not None and reason(outcome) == f"{CANCELLED}{mark}":
        return "cancelled"
    if isinstance(outcome, Failed) and outcome.planned:
        return "retry"
    return type(outcome).__name__.lower()


def failure(outcome: Outcome, run: Run) -> str:
    """Return the type of a run's failure, for traces: the class of the error, or a word; empty for a run that did not fail."""
    word = name(outcome, run)
    if word not in _FAILURES:
        return ""
    return error(outcome)[0] or reason_of_attempt(word, reason(outcome))


def reason(outcome: Outcome) -> str:
    """Return the reason of an outcome; empty for `Done`."""
    match outcome:
        case Failed(reason=why) | Rejected(reason=why) | Crashed(cause=why):
            return why
        case Snoozed(delay=delay):
            return f"{SNOOZED}{delay:g} s"
        case Interrupted(unfit=unfit):
            return f"interrupted: this host cannot run the job: {unfit}" if unfit else "interrupted"
        case Done():
            return ""


def error(outcome: Outcome) -> tuple[str, str]:
    """Return the error's class and its text; `reason` returns both as one text: `ValueError: no such merchant`."""
    if not isinstance(outcome, Failed | Rejected):
        return "", reason(outcome)
    text = outcome.reason.removeprefix(f"{outcome.error_class.rpartition('.')[2]}: ")
    return outcome.error_class, text


def ending(run: Run, outcome: Outcome) -> Ending:
    """Return how a run ended, for people, with the outcome's name."""
    error_class, error_text = error(outcome)
    result = outcome.result if isinstance(outcome, Done) else None
    word, why = name(outcome, run), reason(outcome)
    return Ending(word, why, error_class, error_text, run.traceback, run.peak_memory, result, run.checkpoint)


def settled(run: Run, plan: SettlementPlan, clock: Clock) -> JobSettled:
    """Return the event for the settlement of a run's message; this process may have finished the settlement for a dead owner."""
    outcome = run.outcome or Interrupted()
    counters, record = run.row.counters, plan.record
    target, because = run.row.target, reason(outcome)
    match record:
        case Verdict():
            counters, target, because = record.counters, record.target, record.reason
        case RecordInterrupted():
            counters = record.counters
    if record is None or isinstance(record, Verdict):
        settlement = "later" if target is Moving.RETRY else "dead-letter"
    else:
        settlement = "release" if isinstance(record, RecordInterrupted) else "ack"
    return JobSettled(
        **about(run.token, clock),
        settlement=settlement,
        outcome=name(outcome, run),
        reason=because,
        attempts=counters.attempts,
        crashes=counters.crashes,
        losses=counters.losses,
        interruptions=counters.interruptions,
        settled=plan.settled.value if plan.settled is not None else "unknown",
        seconds=round(clock.monotonic() - run.started, 6),
    )


def lost_history(run: Run, row: Row | None, write: str, *, held: bool) -> str:
    """
    Return what the ledger has lost, as the job's row shows after a refused write; empty if the ledger has lost nothing.

    The ledger has lost nothing if a later run has or had the job.

    `held` is False if lease and margin of the run could be over at the refusal: another run could then have begun and ended.
    A ledger keeps the row of a job that runs, and a later claim draws a greater fence.
    So a smaller fence shows that the ledger has gone back in time.
    If `held` is True, a missing row, or a row with another uid, also shows this.
    """
    if row is not None and row.fence < run.token.fence and row.uid == run.token.uid:
        return f"the start of this run; its last run of the job is {row.fence}"
    if row is None or row.uid != run.token.uid:
        if not held and (row is None or row.fence > run.token.fence):
            _record_removed(run.token)
            return ""
        again = "" if row is None else ", and another run has begun the job as a new one"
        return f"the job's record{again}"
    if write == "confirm" and row.token == run.token and row.state is State.RUNNING:
        return "the outcome of this run"
    return ""


def _record_removed(token: Token) -> None:
    """Log that a frozen run lost its job to another run, and that an operator or the ledger has since removed the job's record."""
    about = {"key": token.id.key, "queue": token.id.queue, "fence": token.fence}
    why = "the lease was over, another run took the job over, and the job's record has been removed since"
    get_logger("steadyworker.runner").info("job_record_removed", **about, why=why)


_WENT_BACK = (
    "Find out what set the ledger back: a stand-by that was promoted without the last commits, or a backup that was restored. "
    "Every job that ran since then is unknown to it: a job that was done runs again if its message comes again, "
    "a job that runs now starts again, and an accepted cancel is lost; cancel again, and look for effects that happened twice. "
    "A job of before whose message is lost waits for `steadyworker retry`, because it may be done. "
    "Let commits wait for the stand-by (synchronous_commit), so that a fail-over loses none."
)


def history_lost(token: Token, lost: str) -> None:
    """Log that the ledger has gone back in time, as this job shows, and what the operator must do."""
    about = {"key": token.id.key, "queue": token.id.queue, "fence": token.fence}
    log = get_logger("steadyworker.runner")
    log.error("ledger_lost_history", **about, lost=lost, remedy=_WENT_BACK, explain="ledger.lost-history")


def replaced(ledger: str) -> None:
    """
    Warn that another server, or an older copy, has taken the place of the ledger at this URL.

    If a fail-over went to a stand-by that has every commit, nothing is lost, but no process can know this.
    """
    what = "a stand-by, a restored backup or another file is in its place, and may lack what was written last"
    log = get_logger("steadyworker.runner")
    log.warning("ledger_replaced", ledger=ledger, what=what, remedy=_WENT_BACK, explain="ledger.lost-history")


def paused(queue: str, pause: Pause | None) -> None:
    """Log the begin or the end of a queue's pause."""
    log = get_logger("steadyworker.runner")
    if pause is None:
        log.info("queue_resumed", queue=queue)
    else:
        log.info("queue_paused", queue=queue, who=pause.who, reason=pause.reason)


def row_locked(token: Token) -> None:
    """Warn that the ledger could not renew a lease, because another session keeps the job's row locked."""
    remedy = "end the session that holds a lock on this row of the ledger; the run ends when its lease is over."
    log = get_logger("steadyworker.runner")
    about = {"key": token.id.key, "queue": token.id.queue, "fence": token.fence}
    log.warning("lease_not_renewed", **about, remedy=remedy, explain="ledger.row-locked")


MOVED = "it becomes a dead letter; if the broker refuses its dead letter, too, this worker process asks the broker to move the message itself"
PARKED = (
    "it becomes a dead letter; if the broker refuses its dead letter, too, "
    "this worker process keeps the message, goes on with other jobs, and tries again every 10 minutes"
)
HELD = "another run may have its job; this worker process keeps the message, goes on with other jobs, and decides again later"


def refused(queue: str, key: str, error: MessageRefused, fate: str) -> None:
    """Report a message whose copies the broker never accepts; `key` is empty for a message without a job."""
    log = get_logger("steadyworker.runner")
    log.error("message_refused", key=key, queue=queue, why=str(error), fate=fate, **explained(error.id))


def often_interrupted(token: Token, times: int) -> None:
    """Warn of a job that was interrupted many times without a checkpoint, because the job might never reach its end."""
    if times >= _MANY_INTERRUPTIONS:
        log = get_logger("steadyworker.runner")
        about = {"key": token.id.key, "queue": token.id.queue, "times": times}
        log.warning("often_interrupted", **about, explain="steadyworker.often-interrupted")
