"""What needs a person, in words: a job, a worker process or a queue, why it needs a person, and the command that helps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from msgspec import Struct

from steadyworker.backends.waiting import QueueNow
from steadyworker.dashboard.addresses import job_path
from steadyworker.dashboard.job_line import why_text
from steadyworker.ledger.fleet import Trouble, WorkerNow
from steadyworker.ledger.listing import ListedJob, Need
from steadyworker.ledger.lost import advice
from steadyworker.text.redaction import redact
from steadyworker.units import count_text, span


class Notice(Struct, frozen=True):
    """
    Something that needs a person.

    Attributes:
        level: `error` if a job waits for the person, otherwise `warning`.
        kind: What is wrong, in one or two words.
        what: The name of the job, worker process or queue.
        where: The queue of a job; otherwise empty.
        path: The address of its page, below the root of the dashboard.
        text: Why it needs a person; a part in backticks is a command.
    """

    level: str
    kind: str
    what: str
    where: str
    path: str
    text: str


def job_notice(job: ListedJob, now: float) -> Notice:
    """Return the notice about a job that needs a person."""
    assert job.need is not None
    id = job.row.id
    level = "warning" if job.need in (Need.STUCK, Need.CRASHING) else "error"
    return Notice(
        level, job.need.value, id.key, id.queue, job_path(id.namespace, id.queue, id.key), need_text(job, now)
    )


def need_text(job: ListedJob, now: float) -> str:
    """Return what a job needs, with the command that helps; an empty text if it needs nothing."""
    row = job.row
    named = f"{shlex.quote(row.id.queue)} {shlex.quote(row.id.key)}"
    match job.need:
        case Need.STRANDED | Need.OVERDUE:
            text = _late_text(job, named)
        case Need.NO_WORKER:
            text = "Its worker process is gone, and no other consumes this queue: start one with `steadyworker run`."
        case Need.CRASHING:
            crashes, losses = row.counters.crashes, row.counters.losses
            counts = [count_text(crashes, "crash", "crashes")] if crashes else []
            counts += [count_text(losses, "loss", "losses")] if losses else []
            since = f"{' and '.join(counts)} since its last checkpoint, the last: {redact(row.reason)}"
            text = f"{since}. `steadyworker cancel {named}` ends it."
        case Need.STUCK:
            silent = span(now - job.progress.at) if job.progress is not None else "half an hour"
            text = f"No progress for {silent}, but its worker process lives. `steadyworker cancel {named}` ends it."
        case Need.DEAD:
            when = f" {span(now - row.ended_at)} ago" if row.ended_at is not None else ""
            text = f"Failed for good{when}: {why_text(job)}. `steadyworker dead replay {named}` runs it again."
        case None:
            text = ""
    return text


def _late_text(job: ListedJob, named: str) -> str:
    """Return what a job needs whose message, retry or new owner is late."""
    if job.orphan is not None:
        return f"Its message did not come for {span(job.orphan.unseen_for)}: {advice(job.orphan)}."
    late = span(job.row.late_by)
    if job.row.owner is not None:
        return f"Its lease ended {late} ago, and no worker process has taken it over: check the workers of this queue."
    return f"Its retry is late by {late}: `steadyworker retry {named}` starts it."


_URGENT = (Trouble.GONE, Trouble.CRASH_LOOP)

_STARTS_WITHIN = 60.0
"""Seconds after its start in which a process may be not ready: its first report is older than its first connection."""


def troubles_of(worker: WorkerNow, now: float) -> Sequence[Trouble]:
    """Return the troubles of a worker process; a process that has just started is not in trouble because it is not ready."""
    report = worker.seen.report
    starts = report is not None and now - report.started_at < _STARTS_WITHIN
    return [trouble for trouble in worker.troubles if not (starts and trouble is Trouble.NOT_READY)]


def worker_notices(worker: WorkerNow, now: float) -> Iterator[Notice]:
    """Yield a notice for each trouble of a worker process; a job without progress has its own notice, and quiet is an order."""
    for trouble in troubles_of(worker, now):
        if trouble not in (Trouble.STUCK, Trouble.QUIET):
            level = "error" if trouble in _URGENT else "warning"
            yield Notice(level, trouble.value, worker_name(worker), "", "/workers", trouble_text(worker, trouble))


def worker_name(worker: WorkerNow) -> str:
    """Return the host and the process id of a worker process."""
    report = worker.seen.report
    return f"{worker.seen.host}:{report.pid}" if report is not None else worker.seen.host


def trouble_text(worker: WorkerNow, trouble: Trouble) -> str:
    """Return what a worker process needs, for people."""
    report, silent = worker.seen.report, span(worker.seen.seen_ago)
    match trouble:
        case Trouble.GONE:
            held = f" Another takes over its {count_text(worker.runs, 'job')}." if worker.runs else ""
            text = f"Died {silent} ago, and no other of this host consumes its queues.{held} Read its log, and start it again."
        case Trouble.CRASH_LOOP:
            text = f"{count_text(worker.deaths, 'predecessor')} died within an hour: read the log of the last one."
        case Trouble.SILENT:
            text = f"No renewal for {silent}: it is frozen, or cut off from the ledger."
        case Trouble.DETACHED:
            queues = report.queues.items() if report is not None else ()
            lost = ", ".join(name.rpartition("/")[2] for name, queue in queues if not queue.connected)
            text = f"No connection to the broker of {lost}: its jobs go on. Check broker and network."
        case Trouble.STUCK:
            more = f" and {len(worker.stuck) - 1} more" if worker.stuck[1:] else ""
            text = f"No progress of {worker.stuck[0]}{more} for half an hour."
        case Trouble.NOT_READY:
            errors = [found.text for found in report.findings if found.level == "error"] if report is not None else []
            texts = dict.fromkeys([*(report.not_ready if report is not None else ()), *errors])
            text = redact("; ".join(texts)) or "it reports that it is not ready."
            text = f"{text[:1].upper()}{text[1:]}"
        case Trouble.QUIET:
            text = "Receives no messages, by order: `kill -USR2` ends this."
    return text


def queue_notices(queues: Sequence[QueueNow]) -> Iterator[Notice]:
    """Yield a notice for each queue that waits for a worker process, and for each with consumers of unknown origin."""
    for queue in queues:
        name = queue.queue
        if queue.depth.ready and not queue.workers and queue.pause is None:
            waiting = count_text(queue.depth.ready, "message")
            text = f"{waiting} ready, and no worker process consumes it: start one with `steadyworker run`."
            yield Notice("error", "no worker", name, "", "/queues", text)
        if queue.unexplained:
            count = count_text(queue.unexplained, "consumer")
            text = (
                f"{count} at the broker that no worker process of this ledger explains: "
                "another program, or a worker with another --ledger, receives its messages."
            )
            yield Notice("warning", "unknown consumers", name, "", "/queues", text)
