"""A job as a row of a page."""

from __future__ import annotations

import math

from msgspec import Struct

from steadyworker.dashboard.addresses import job_path
from steadyworker.dashboard.estimates import left_text, rate_text
from steadyworker.ledger.base import Progress, State
from steadyworker.ledger.listing import ListedJob, Liveness, Need, OwnerNow
from steadyworker.ledger.lost import OVERDUE
from steadyworker.text.redaction import redact
from steadyworker.units import amount, count_text, span


class JobLine(Struct, frozen=True):
    """
    A job as a row.

    Attributes:
        path: The address of the job's page, below the root of the dashboard.
        state, level: The state in words, and its colour: `fine`, `warning`, `error` or empty.
        share: The part that is done, from 0 to 1; None if the run reports no total.
        progress, note, rate, left: The progress in words; each empty if the ledger does not know it.
        silent: Seconds since the last progress.
        elapsed, limit, limit_share: Seconds of the run; the time limit, and the share of it that is used.
        tries: The attempts, crashes and losses that were not 0, in words.
        host, pid: The worker process.
        truth: What the ledger knows of the worker process: `alive`, `silent for 40 s`, `gone`.
        why: The reason of the state, for people.
    """

    namespace: str
    queue: str
    key: str
    round: int
    path: str
    state: str
    level: str
    share: float | None = None
    progress: str = ""
    note: str = ""
    rate: str = ""
    left: str = ""
    silent: float | None = None
    started_at: float | None = None
    elapsed: float | None = None
    limit: float | None = None
    limit_share: float | None = None
    tries: str = ""
    host: str = ""
    pid: int = 0
    truth: str = ""
    why: str = ""


def job_line(job: ListedJob, now: float) -> JobLine:
    """Return the row of a job."""
    row, progress, owner = job.row, job.progress, job.owner
    id = row.id
    running = row.state is State.RUNNING
    elapsed = max(0.0, now - row.started_at) if running and row.started_at is not None else None
    limit = owner.time_limit if owner is not None and running else None
    state, level = _state(job)
    return JobLine(
        id.namespace,
        id.queue,
        id.key,
        id.round,
        job_path(id.namespace, id.queue, id.key),
        state,
        level,
        share=share_of(progress) if running else None,
        progress=progress_text(progress),
        note=redact(progress.note) if progress is not None else "",
        rate=rate_text(progress) if running else "",
        left=left_text(row, progress, now) if running and _goes_on(job) else "",
        silent=max(0.0, now - progress.at) if progress is not None and running else None,
        started_at=row.started_at,
        elapsed=elapsed,
        limit=limit,
        limit_share=elapsed / limit if elapsed is not None and limit else None,
        tries=tries_text(job),
        host=owner.host if owner is not None else "",
        pid=owner.pid if owner is not None else 0,
        truth=owner_text(owner) if owner is not None else "",
        why=why_text(job),
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
    return f"{math.floor(share * 100)} %, {amount(progress.done)} of {amount(progress.total)}"


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


def owner_text(owner: OwnerNow) -> str:
    """Return what the ledger knows of the worker process that holds a job."""
    match owner.liveness:
        case Liveness.ALIVE:
            return "alive" if owner.connected else "alive, without a connection to the broker"
        case Liveness.SILENT:
            return f"silent for {span(owner.silent_for)}"
        case Liveness.GONE:
            return "gone"


def why_text(job: ListedJob) -> str:
    """Return the reason of the job's state: a cancel, the due time, and the last error."""
    row, orphan = job.row, job.orphan
    error = ": ".join(part for part in (row.error_class, row.error_text) if part)
    parts = [
        f"cancelled: {row.cancel_reason}" if row.cancel_reason is not None else "",
        f"due in {span(row.due_in)}" if row.state is State.MOVED and row.due_in else "",
        f"late by {span(row.late_by)}" if row.late_by > OVERDUE and orphan is None else "",
        f"no message came for {span(orphan.unseen_for)}" if orphan is not None else "",
        row.reason,
        "" if (row.error_text or row.error_class) in row.reason else error,
    ]
    return redact("; ".join(dict.fromkeys(part for part in parts if part)))


def _state(job: ListedJob) -> tuple[str, str]:
    owner = job.owner
    if job.row.state is State.RUNNING and owner is not None and owner.liveness is not Liveness.ALIVE:
        return owner_text(owner), "error" if owner.liveness is Liveness.GONE else "warning"
    if job.need is Need.STUCK:
        return "stuck", "warning"
    state = job.row.job_state.value
    levels = {"running": "fine", "done": "fine", "dead": "error", "retrying": "warning", "interrupted": "warning"}
    return state, levels.get(state, "")


def _goes_on(job: ListedJob) -> bool:
    return job.need is not Need.STUCK and job.owner is not None and job.owner.liveness is Liveness.ALIVE
