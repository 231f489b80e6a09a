"""A job as a row of a page."""

from __future__ import annotations

import math

from msgspec import Struct

from steadyworker.dashboard.addresses import job_path
from steadyworker.dashboard.estimates import left_text, rate_text
from steadyworker.ledger.base import Progress, State
from steadyworker.ledger.facts import MOST_ATTEMPTS
from steadyworker.ledger.listing import ListedJob, Liveness, Need, OwnerNow
from steadyworker.ledger.need_words import MAY_HANG, cause_text, late_clause
from steadyworker.ledger.story_words import BECAUSE
from steadyworker.text.redaction import redact
from steadyworker.units import amount, count_text, span


class JobLine(Struct, frozen=True):
    """
    A job as a row: the job itself, and what a page shows of it in words, each empty if the ledger does not know it.

    Attributes:
        path: The address of the job's page, below the root of the dashboard.
        state, level: The state, and its colour: `fine`, `warning`, `error` or empty.
        share: The part that is done, from 0 to 1; None if the run reports no total.
        progress, note, rate, left: The progress, its note, the rate of the last minutes, and the time left.
        silent: Seconds since the last progress of the run; None without one.
        elapsed, limit: Seconds of the run, and its time limit; None if the job does not run, or has no limit.
        place, truth: Where its worker process runs, and whether it lives.
        tries: The failed attempts, crashes and losses.
        began: The number of the run, and why it began; empty if the ledger has no record of it.
        why: The reason of the state.
    """

    job: ListedJob
    path: str
    state: str
    level: str
    share: float | None
    progress: str
    note: str
    rate: str
    left: str
    silent: float | None
    elapsed: float | None
    limit: float | None
    place: str
    truth: str
    tries: str
    why: str
    began: str = ""

    @property
    def moves(self) -> bool:
        """Whether the run has reported progress, and does not hang as far as its progress shows."""
        return self.silent is not None and self.job.need is not Need.STUCK


def job_line(job: ListedJob, now: float, began: str = "", held: str = "") -> JobLine:
    """Return the row of a job; `began` is the text of `began_text`, and `held` is why no job of its queue begins now."""
    row, progress, owner = job.row, job.progress, job.owner
    runs = row.state is State.RUNNING
    goes_on = runs and job.need is not Need.STUCK and owner is not None and owner.liveness is Liveness.ALIVE
    silent = max(0.0, now - progress.at) if progress is not None and runs else None
    state, level = _state(job)
    place = "" if owner is None else f"{owner.host}:{owner.pid}" if owner.pid else owner.host
    return JobLine(
        job,
        job_path(row.id.namespace, row.id.queue, row.id.key),
        state,
        level,
        share_of(progress) if runs else None,
        progress_text(progress),
        redact(progress.note) if progress is not None else "",
        rate_text(progress) if runs and job.need is not Need.STUCK else "",
        left_text(row, progress, now) if goes_on else "",
        silent,
        max(0.0, now - row.started_at) if runs and row.started_at is not None else None,
        owner.time_limit if owner is not None and runs else None,
        place,
        owner_text(owner) if owner is not None else "",
        tries_text(job),
        why_text(job, held),
        began,
    )


def share_of(progress: Progress | None) -> float | None:
    """Return the part that is done, from 0 to 1; None without a total."""
    if progress is None or progress.done is None or not progress.total:
        return None
    return min(1.0, max(0.0, progress.done / progress.total))


def progress_text(progress: Progress | None) -> str:
    """Return the progress in words, such as `30 %, 3 of 10`; a percentage is never rounded up."""
    if progress is None or progress.done is None:
        return ""
    share = share_of(progress)
    if share is None or progress.total is None:
        return amount(progress.done)
    percent = math.floor(round(100 * share, 9))  # 100 * 0.29 is a little less than 29
    return f"{percent if share >= 1 else min(99, percent)} %, {amount(progress.done)} of {amount(progress.total)}"


def tries_text(job: ListedJob) -> str:
    """Return the counters that limit the job's runs, in words; those that are 0 are left out."""
    counters = job.row.counters
    parts = (
        (counters.attempts, "failed attempt", ""),
        (counters.crashes, "crash", "crashes"),
        (counters.losses, "loss", "losses"),
        (counters.interruptions, "interruption", ""),
    )
    return ", ".join(count_text(number, noun, plural) for number, noun, plural in parts if number)


def began_text(runs: int, because: str) -> str:
    """Return the number of a job's kept runs, and why the last of them began, such as `run 2, its retry`; empty for a first run."""
    if runs == 1 and because == "new":
        return ""
    first, semicolon, more = because.partition(";")
    number = f"run {runs}" if runs < MOST_ATTEMPTS else f"run {runs} or later"
    return redact(f"{number}, {BECAUSE.get(first, first)}{semicolon}{more}") if runs else ""


def owner_text(owner: OwnerNow) -> str:
    """Return what the ledger knows of the worker process that holds a job."""
    match owner.liveness:
        case Liveness.ALIVE:
            return "alive" if owner.connected else "alive, without a connection to the broker"
        case Liveness.SILENT:
            return f"silent for {span(owner.silent_for)}"
        case Liveness.GONE:
            return "gone"


def why_text(job: ListedJob, held: str = "") -> str:
    """Return the reason of the job's state: a cancel, the due time, what it waits for, and the last error."""
    row, orphan, cause = job.row, job.orphan, cause_text(job.row)
    due = row.state is State.MOVED and not row.due_in
    parts = [
        f"cancelled: {row.cancel_reason}" if row.cancel_reason is not None else "",
        f"due in {span(row.due_in)}" if row.state is State.MOVED and row.due_in else "",
        late_clause(job),
        f"no message came for {span(orphan.unseen_for)}" if orphan is not None else "",
        held if due or row.state is State.INTERRUPTED else "",
        f"last run: {cause}" if due and (row.error_class or row.error_text) else cause,
    ]
    return redact("; ".join(dict.fromkeys(part for part in parts if part)))


def _state(job: ListedJob) -> tuple[str, str]:
    owner = job.owner
    if job.row.state is State.RUNNING and owner is not None and owner.liveness is not Liveness.ALIVE:
        waits = ", a cancel waits" if job.row.cancel_reason is not None else ""
        return f"{owner_text(owner)}{waits}", "error" if owner.liveness is Liveness.GONE else "warning"
    if job.need is Need.STUCK:
        return MAY_HANG, "warning"
    state = job.row.job_state.value
    levels = {"running": "fine", "done": "fine", "dead": "error", "retrying": "warning", "interrupted": "warning"}
    return state, levels.get(state, "")
