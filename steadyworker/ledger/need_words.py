"""
The words for what a job or a worker process needs, which the command line and the page share.

A clause has no capital letter and no full stop, so that a list of clauses fits into one line; `sentence` makes text of it.
A part in backticks is a command.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from steadyworker.ledger.base import Progress, Row, State
from steadyworker.ledger.fleet import Trouble, WorkerNow, unready
from steadyworker.ledger.hang import step_of
from steadyworker.ledger.listing import ListedJob, Liveness, Need, OwnerNow
from steadyworker.ledger.lost import OVERDUE
from steadyworker.text.redaction import redact
from steadyworker.units import amount, count_text, span

START_ONE = "start one with `steadyworker run MODULE:CLASS`"
"""The remedy for a queue that no worker process consumes."""

MAY_HANG = "may hang"
"""The state of a run with the need `Need.STUCK`, for people."""

EXHAUSTED = "exhausted"
"""The reason of a job that failed `max_attempts` times, as the decision on a run writes it."""


def sentence(*clauses: str) -> str:
    """Return these clauses as one sentence, without recognised secrets; an empty text without a clause."""
    text = redact("; ".join(dict.fromkeys(filter(None, clauses)))).removesuffix(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def reason_text(reason: str, attempts: int = 0) -> str:
    """Return the reason of a job's state, or of the end of a run, for people; `attempts` is the number of failures, if it is known."""
    if reason != EXHAUSTED:
        return reason
    return f"gave up after {count_text(attempts, 'failure')}" if attempts else "gave up"


def cause_text(row: Row) -> str:
    """Return the reason of a job's state, and the last error unless the reason already has it."""
    error = ": ".join(part for part in (row.error_class, row.error_text) if part)
    reason = reason_text(row.reason, row.counters.attempts)
    if not error or (row.error_text or row.error_class) in row.reason:
        return reason
    return f"{reason}{': ' if row.reason == EXHAUSTED else '; ' if reason else ''}{error}"


def late_clause(job: ListedJob) -> str:
    """Return how late a job is whose message may still come; empty if it is not late, or has its `Orphan`."""
    late = job.row.late_by
    if not late or job.orphan is not None:
        return ""
    if late <= OVERDUE:
        return f"due for {span(late)}" if job.row.state is State.MOVED else ""
    return f"late by {span(late)}"


def counts_clause(job: ListedJob) -> str:
    """Return the number of crashes and of losses; empty if there are none."""
    counters = job.row.counters
    crashes = count_text(counters.crashes, "crash", "crashes") if counters.crashes else ""
    losses = count_text(counters.losses, "loss", "losses") if counters.losses else ""
    return ", ".join(filter(None, (crashes, losses)))


def owner_clause(owner: OwnerNow, *, paused: bool) -> str:
    """Return what a run's worker process does, and what becomes of the run; empty if all is well."""
    match owner.liveness:
        case Liveness.ALIVE if not owner.connected:
            return "its worker has no connection to the broker; it goes on"
        case Liveness.ALIVE:
            return ""
        case Liveness.SILENT:
            free = f"another may take the job over in {span(owner.free_within)}"
            return f"no renewal for {span(owner.silent_for)}: frozen, or cut off from the ledger; {free}"
        case Liveness.GONE if not owner.heirs:
            return f"no worker consumes this queue: {START_ONE}"
        case Liveness.GONE if paused:
            return "its worker is gone"
        case Liveness.GONE:
            return _takeover_clause(owner)


def _takeover_clause(owner: OwnerNow) -> str:
    """Return when another worker process takes over; it needs a free slot."""
    if owner.full:
        busy = "the only slot is busy" if owner.full == 1 else f"all {owner.full:,} slots are busy"
        free = f"free to be taken over in {span(owner.free_within)}, then" if owner.free_within else "taken over"
        return f"{free} with the next free slot; {busy}"
    when = f"within {span(owner.free_within)}" if owner.free_within else "with its next free slot"
    return f"taken over by another worker {when}"


def hang_clause(job: ListedJob, now: float) -> str:
    """Return how long a run has been without progress, where it stands, and what one of its steps took before; empty without progress."""
    progress = job.progress
    if progress is None:
        return ""
    step = step_of(job.row, progress)
    usual = f"; before that, a step took {step_text(step)}" if step is not None else ""
    return f"no progress for {span(max(0.0, now - progress.at))}{_at_clause(progress)}{usual}"


def _at_clause(progress: Progress) -> str:
    done = "" if progress.done is None else amount(progress.done)
    total = f" of {amount(progress.total)}" if done and progress.total else ""
    parts = ", ".join(filter(None, (f"{done}{total}", redact(progress.note))))
    return f" at {parts}" if parts else ""


def step_text(seconds: float) -> str:
    """Return the duration of a step, for people; one of less than ten seconds has a fraction."""
    if seconds < 0.1:  # noqa: PLR2004 - what people notice
        return "under 0.1 s"
    return f"about {seconds:.1f} s" if seconds < 10 else f"about {span(seconds)}"  # noqa: PLR2004 - two digits are enough


def limit_clause(job: ListedJob, now: float) -> str:
    """Return when the time limit of a run ends it."""
    limit, began = job.owner.time_limit if job.owner is not None else None, job.row.started_at
    if limit is None or began is None:
        return "it has no time limit"
    return f"its time limit ends the run in {span(max(0.0, limit - max(0.0, now - began)))}"


def remedy_clause(job: ListedJob) -> str:
    """Return the command that helps a job in need; empty if none does."""
    named = f"{shlex.quote(job.row.id.queue)} {shlex.quote(job.row.id.key)}"
    match job.need:
        case Need.DEAD:
            return f"`steadyworker dead replay {named}` runs it again"
        case Need.CRASHING:
            return f"`steadyworker cancel {named}` ends it"
        case Need.STUCK:
            goes_on = "runs it from the start" if job.row.checkpoint is None else "continues it at its last checkpoint"
            ends = f"`steadyworker cancel {named}` ends the run; the job becomes a dead letter"
            return f"{ends}, and `steadyworker dead replay {named}` {goes_on}"
        case Need.OVERDUE if not job.unsure and job.orphan is None and job.owner is None and job.pause is None:
            return f"`steadyworker retry {named}` sends its message again"
        case _:
            return ""


def death_clause(worker: WorkerNow) -> str:
    """Return what became of a dead worker process that needs nothing."""
    if worker.successor:
        return f"died, and was replaced by {worker.successor}"
    return f"died {span(worker.seen.seen_ago)} ago, and nothing started in its place"


def trouble_clauses(worker: WorkerNow, trouble: Trouble) -> Sequence[str]:
    """Return what a worker process needs, with the remedy."""
    report, silent = worker.seen.report, span(worker.seen.seen_ago)
    match trouble:
        case Trouble.GONE:
            held = ", and nothing started in its place"
            if worker.forsaken:
                held = f"; no other worker consumes {', '.join(worker.forsaken)}"
            elif worker.runs:
                held = f"; another takes over its {count_text(worker.runs, 'job')}"
            texts = [f"died {silent} ago{held}: read its log, and start it again"]
        case Trouble.CRASH_LOOP:
            dead = count_text(worker.deaths, "predecessor")
            texts = [f"crash loop: {dead} died within an hour: read the log of the last one, {worker.predecessor}"]
        case Trouble.SILENT:
            texts = [f"no renewal for {silent}: frozen, or cut off from the ledger"]
        case Trouble.DETACHED:
            queues = report.queues.items() if report is not None else ()
            lost = ", ".join(worker.queues.get(name, name) for name, queue in queues if not queue.connected)
            texts = [f"no connection to the broker of {lost}: its jobs go on; check broker and network"]
        case Trouble.STUCK:
            (queue, key), *others = worker.stuck
            more = f", and so may {count_text(len(others), 'more run')}" if others else ""
            texts = [
                f"its run of {key} may hang: `steadyworker cancel {shlex.quote(queue)} {shlex.quote(key)}` ends it{more}"
            ]
        case Trouble.NOT_READY:
            errors = [found.text for found in report.findings if found.level == "error"] if report is not None else []
            texts = [*(unready(report) if report is not None else ()), *errors]
        case Trouble.QUIET:
            pid = "" if report is None else f" {report.pid}"
            texts = [f"starts no new jobs, by order: `kill -USR2{pid}` resumes it"]
    return texts


def foreign_clause(unexplained: int) -> str:
    """Return the clause about consumers that no worker process of the ledger explains."""
    return (
        f"{count_text(unexplained, 'consumer')} at the broker that no worker process of this ledger explains: "
        "another program, or a worker with another --ledger, receives its messages"
    )
