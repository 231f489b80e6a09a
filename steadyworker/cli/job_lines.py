"""One job as a record for `--json`, and as a line for people: cells of a table, and the text of WHY."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from steadyworker.cli.output import Column, ago, clock_time, instant, screen
from steadyworker.cli.paused import pause_parts
from steadyworker.ledger.base import Progress, State
from steadyworker.ledger.listing import ListedJob, Liveness, Need, OwnerNow, time_left
from steadyworker.ledger.lost import advice
from steadyworker.ledger.need_words import (
    MAY_HANG,
    cause_text,
    counts_clause,
    hang_clause,
    late_clause,
    owner_clause,
    remedy_clause,
)
from steadyworker.text.redaction import redact
from steadyworker.units import amount, span

_BAR = 10
_DONE = State.DONE.value

COLUMNS = (
    Column("QUEUE", least=16, most=30),
    Column("KEY", least=20, most=40),
    Column(
        "STATE",
        styles={
            "running": "cyan",
            MAY_HANG: "yellow",
            "done": "green",
            "dead": "red",
            "retrying": "yellow",
            "interrupted": "yellow",
            "silent": "yellow",
            "gone": "red",
        },
    ),
    Column("ATTEMPTS", right=True, rank=2),
    Column("PROGRESS", least=8, most=24),
    Column("LIMIT", right=True, rank=3),
    Column("STARTED", right=True, rank=4),
    Column("ELAPSED", right=True),
    Column("IN ALL", right=True, rank=6),
    Column("LAST PROGRESS", right=True, rank=5),
    Column("WORKER", rank=7, most=30),
    Column("WHY"),
)


def as_record(job: ListedJob, now: float) -> dict[str, Any]:
    """
    Return a job's record as `--json` prints it.

    Instants are ISO 8601 in UTC, durations are seconds.
    """
    row, progress, orphan, owner, pause = job.row, job.progress, job.orphan, job.owner, job.pause
    return {
        "namespace": row.id.namespace,
        "queue": row.id.queue,
        "key": row.id.key,
        "round": row.id.round,
        "state": row.job_state.value,
        "need": job.need.value if job.need else None,
        "attempts": row.counters.attempts,
        "crashes": row.counters.crashes,
        "losses": row.counters.losses,
        "interruptions": row.counters.interruptions,
        "done": progress.done if progress else None,
        "total": progress.total if progress else None,
        "note": redact(progress.note) if progress else "",
        "eta": _left(job, now),
        "reason": redact(row.reason),
        "error_class": redact(row.error_class),
        "error": redact(row.error_text),
        "cancelled": None if row.cancel_reason is None else redact(row.cancel_reason),
        "conflicts": row.conflicts,
        "due_in": row.due_in,
        "late_by": row.late_by,
        "paused": pause is not None,
        "paused_by": pause.who if pause else None,
        "paused_at": instant(pause.at) if pause else None,
        "pause_reason": redact(pause.reason) if pause else None,
        "message_missing_for": orphan.unseen_for if orphan else None,
        "hindrance": orphan.hindrance.value if orphan and orphan.hindrance else None,
        "fence": row.fence,
        "worker": row.worker,
        "owner": row.owner,
        "owner_state": owner.liveness.value if owner else None,
        "owner_silent_for": owner.silent_for if owner else None,
        "free_within": owner.free_within if owner else None,
        "host": owner.host if owner else None,
        "pid": owner.pid if owner else None,
        "time_limit": owner.time_limit if owner else None,
        "connected": owner.connected if owner else None,
        "uid": row.uid,
        "created_at": instant(row.created_at),
        "started_at": instant(row.started_at),
        "ended_at": instant(row.ended_at),
        "last_progress": instant(progress.at) if progress else None,
    }


def lines_of(jobs: Sequence[ListedJob], width: int, now: float, *, verbose: bool, bar: bool = False) -> Iterator[Text]:
    """Yield the lines of a table of jobs; the column QUEUE is left out if all jobs have one queue."""
    start = int(len({job.row.id.queue for job in jobs}) == 1)
    rows = [cells(job, now, bar=bar)[start:] for job in jobs]
    return screen(COLUMNS[start:], rows, width, [why(job, now) for job in jobs] if verbose else ())


def cells(job: ListedJob, now: float, *, bar: bool = False) -> list[Any]:
    """Return the cells of a job's line, in the order of `COLUMNS`; with `bar`, the progress of a running job has a bar."""
    row, progress = job.row, job.progress
    running = row.state is State.RUNNING
    until = row.ended_at if row.ended_at is not None else now
    run = until - row.started_at if row.started_at is not None and (running or row.ended_at is not None) else None
    return [
        row.id.queue,
        row.id.key if not row.id.round else f"{row.id.key} (round {row.id.round})",
        state_text(job),
        str(row.counters.attempts),
        _bar(progress) if bar and running else progress_text(progress),
        _limit(run, job.owner) if running else "–",
        clock_time(row.started_at, now),
        span(run),
        span(until - row.created_at),
        ago(now - progress.at if progress and running else None),
        _place(job) if running else "",
        why(job, now),
    ]


def _limit(run: float | None, owner: OwnerNow | None) -> str:
    """Return the share of the time limit that a run has used, such as `80% of 2 h 00 min`."""
    if run is None or owner is None or not owner.time_limit:
        return "–"
    return f"{share(run, owner.time_limit)} of {span(owner.time_limit)}"


def state_text(job: ListedJob) -> str:
    """Return the job's state; of a run that may hang, or whose worker process does not renew its lease, this fact."""
    if job.row.state is State.DONE:
        return _DONE
    if job.row.state is State.RUNNING and job.owner is not None:
        if job.owner.liveness is Liveness.SILENT:
            return f"silent {job.owner.silent_for:.0f} s"
        if job.owner.liveness is Liveness.GONE:
            return "gone"
    if job.need is Need.STUCK:
        return MAY_HANG
    return job.row.job_state.value


def why(job: ListedJob, now: float) -> str:
    """Return the text of the column WHY: the time left, the cause of the job's state, the last error, and the remedy."""
    row, orphan = job.row, job.orphan
    if row.state is State.DONE and not (row.reason or row.error_class or row.conflicts or row.cancel_reason):
        return counts_clause(job)  # a long listing has almost only such jobs
    left = _left(job, now)
    counts = counts_clause(job)
    parts = [
        owner_clause(job.owner, paused=job.pause is not None) if job.owner is not None else "",
        f"about {span(left)} left" if left is not None else "",
        counts if job.need is Need.CRASHING else "",
        hang_clause(job, now) if job.need is Need.STUCK else "",
        f"cancelled: {row.cancel_reason}" if row.cancel_reason is not None else "",
        f"due in {span(row.due_in)}" if row.state is State.MOVED and row.due_in else "",
        late_clause(job),
        f"no message came for {span(orphan.unseen_for)}; {advice(orphan)}" if orphan is not None else "",
        f"its queue is {'; '.join(pause_parts(job.pause, now))}" if job.pause is not None else "",
        cause_text(row),
        counts,
        f"dead letters with this key and another payload: {row.conflicts}" if row.conflicts else "",
        remedy_clause(job),
    ]
    return redact("; ".join(dict.fromkeys(part for part in parts if part)))


def _place(job: ListedJob) -> str:
    """Return where a job runs, as `host:pid`; without a process id, the name of its worker process."""
    owner = job.owner
    return f"{owner.host}:{owner.pid}" if owner is not None and owner.pid else job.row.worker


def _left(job: ListedJob, now: float) -> float | None:
    """Return the seconds until a run ends; None if that is unknown, or if the run may hang or has no living worker process."""
    lives = job.owner is not None and job.owner.liveness is Liveness.ALIVE
    runs = job.row.state is State.RUNNING and job.need is not Need.STUCK
    return time_left(job.progress, now) if lives and runs else None


def progress_text(progress: Progress | None) -> str:
    """Return a run's progress for people, such as `30% 3/10 pages`."""
    if progress is None:
        return ""
    note = redact(progress.note)
    if progress.done is None:
        return note
    if not progress.total:
        return f"{amount(progress.done)} {note}".rstrip()
    part = share(progress.done, progress.total)
    return f"{part} {amount(progress.done)}/{amount(progress.total)} {note}".rstrip()


def share(part: float, whole: float) -> str:
    """Return a part of a whole as a percentage without decimals, rounded down: 9,999 of 10,000 are `99%`."""
    percent = 100 * part / whole
    if not math.isfinite(percent):
        return "?%"
    whole_percent = math.floor(round(percent, 9))  # 100 * 0.29 is a little less than 29
    return f"{whole_percent if part >= whole else min(99, whole_percent)}%"


def _bar(progress: Progress | None) -> str | Text:
    text = progress_text(progress)
    if progress is None or progress.done is None or not progress.total:
        return text
    done = int(_BAR * min(1.0, max(0.0, progress.done / progress.total)))
    return Text.assemble(("━" * done, "cyan"), ("━" * (_BAR - done), "dim"), f" {text}")
