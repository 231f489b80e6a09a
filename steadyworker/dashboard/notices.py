"""What needs a person, in words: a job, a worker process or a queue, why it needs a person, and the command that helps."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar
from urllib.parse import urlencode

from msgspec import Struct

from steadyworker.backends.waiting import RECENT, QueueNow
from steadyworker.dashboard.addresses import job_path
from steadyworker.dashboard.causes import FailureCause
from steadyworker.dashboard.job_line import why_text
from steadyworker.ledger.base import Row, State
from steadyworker.ledger.fleet import Trouble, WorkerNow
from steadyworker.ledger.listing import ListedJob, Liveness, Need
from steadyworker.ledger.lost import advice
from steadyworker.ledger.need_words import (
    MAY_HANG,
    START_ONE,
    counts_clause,
    foreign_clause,
    hang_clause,
    limit_clause,
    owner_clause,
    remedy_clause,
    sentence,
    trouble_clauses,
)
from steadyworker.outcome import JobState
from steadyworker.text.redaction import redact
from steadyworker.units import count_text, span

MOST_DEAD, MOST_CAUSES, MOST_OF_A_CAUSE = 500, 10, 3
"""The numbers of dead jobs that the notices are made of, of causes with notices of their own, and of notices of one cause."""

_COMMANDS = {"cancel": "cancel", "retry": "retry", "replay": "dead replay"}


class ButtonOfJob(Protocol):
    """A button of a job: its action and its text."""

    @property
    def do(self) -> str:
        """The action."""
        ...

    @property
    def label(self) -> str:
        """The text of the button."""
        ...


Button = TypeVar("Button", bound=ButtonOfJob)


class Notice(Struct, frozen=True):
    """
    Something that needs a person.

    Attributes:
        level: `error` if a job waits for the person, otherwise `warning`.
        kind: What is wrong, in one or two words.
        what: The name of the job, worker process or queue.
        where: The queue of a job; otherwise empty.
        path: The address of its page, below the root of the dashboard.
        text: Why it needs a person, and the remedy; a part in backticks is a command.
        explain: The entry of the catalogue; empty if there is none.
        row: The job; None for a worker process, a queue, and several jobs.
        act: For several jobs, the text and the address of a link to act on all of them; otherwise None.
    """

    level: str
    kind: str
    what: str
    where: str
    path: str
    text: str
    explain: str = ""
    row: Row | None = None
    act: tuple[str, str] | None = None


def helpful(text: str, row: Row, offers: Sequence[Button]) -> tuple[str, Sequence[Button]]:
    """Return a text about a job with the names of the offered buttons in place of commands, and these buttons."""
    found, named = [], f"{shlex.quote(row.id.queue)} {shlex.quote(row.id.key)}"
    for offer in offers:
        command = f"`steadyworker {_COMMANDS.get(offer.do)} {named}`"
        if command in text:
            text = text.replace(command, offer.label)
            found.append(offer)
    if found:  # a text about a cancel also names what the page offers after it
        text = text.replace(f"`steadyworker dead replay {named}`", "Replay")
    return text, found


def job_notice(job: ListedJob, now: float) -> Notice:
    """Return the notice about a job that needs a person."""
    assert job.need is not None
    id = job.row.id
    level = "warning" if job.need in (Need.STUCK, Need.CRASHING) else "error"
    path = job_path(id.namespace, id.queue, id.key)
    explain = "check.lost-messages" if job.need in (Need.STRANDED, Need.OVERDUE) else ""
    kind = MAY_HANG if job.need is Need.STUCK else job.need.value
    return Notice(level, kind, id.key, id.queue, path, need_text(job, now), explain, job.row)


def dead_notices(found: Sequence[tuple[ListedJob, FailureCause]], number: int, now: float) -> list[Notice]:
    """
    Return the notices about dead jobs, each with its cause, the newest first; `number` counts all dead jobs.

    Many jobs of one cause are one notice; the cause with the most jobs comes first, and the last notice counts what has none.
    """
    causes: dict[FailureCause, list[ListedJob]] = {}
    for job, cause in found:
        causes.setdefault(cause, []).append(job)
    order = sorted(causes.items(), key=lambda each: -len(each[1]))
    notices = []
    for cause, alike in order[:MOST_CAUSES]:
        if len(alike) > MOST_OF_A_CAUSE:
            notices.append(_cause_notice(cause, alike, now))
        else:
            notices += [job_notice(job, now) for job in alike]
    hidden = number - sum(len(alike) for _, alike in order[:MOST_CAUSES])
    if hidden:
        notices.append(_others_notice(hidden, order[MOST_CAUSES:], number - len(found)))
    return notices


def _cause_notice(cause: FailureCause, alike: Sequence[ListedJob], now: float) -> Notice:
    newest, number = alike[0].row, len(alike)
    when = f", {span(now - newest.ended_at)} ago" if newest.ended_at is not None else ""
    where = f"{cause.text}. " if cause.path else ""
    text = redact(f"{where}The latest is {newest.id.key}{when}: {why_text(alike[0])}.")
    of_queue = {"broker": cause.namespace, "queue": cause.queue}
    path = f"/failures?{urlencode(of_queue, errors='surrogatepass')}#cause-{cause.name}"
    chosen = urlencode(of_queue | {"state": JobState.DEAD.value, "cause": cause.name}, errors="surrogatepass")
    act = (f"Replay or drop these {number:,} …", f"/choose?{chosen}")
    return Notice("error", Need.DEAD.value, count_text(number, "job"), cause.queue, path, text, act=act)


def _others_notice(number: int, order: Sequence[tuple[FailureCause, Sequence[ListedJob]]], unread: int) -> Notice:
    """Return the notice about dead jobs without a notice of their own: `order` has their causes, the largest first."""
    text = f"{count_text(unread, 'older job')} of any cause. " if unread else ""
    if order:
        cause, alike = order[0]
        largest = redact(f"{cause.text} in {cause.queue}, {count_text(len(alike), 'job')}")
        text += f"{count_text(len(order), 'other cause')}; the largest: {largest}."
    return Notice("error", Need.DEAD.value, count_text(number, "other job"), "", "/failures", text.strip())


def need_text(job: ListedJob, now: float) -> str:
    """Return what a job needs, with the command that helps; an empty text if it needs nothing."""
    row, text, remedy, need = job.row, "", sentence(remedy_clause(job)), job.need
    owner = job.owner
    if need is Need.OVERDUE and owner is not None and owner.liveness is Liveness.GONE and not owner.heirs:
        need = Need.NO_WORKER  # which also is the reason why it is late
    match need:
        case Need.STRANDED | Need.OVERDUE if job.orphan is not None and row.owner is None:
            text = f"Its message did not come for {span(job.orphan.unseen_for)}: {advice(job.orphan)}."
        case Need.STRANDED | Need.OVERDUE if job.unsure:
            text = (
                "Its message did not come. So many jobs of its queue are late that the page cannot name its hindrance."
            )
        case Need.STRANDED | Need.OVERDUE if row.owner is not None:
            text = f"Its lease ended {span(row.late_by)} ago, and no worker process has taken it over: check the workers of this queue."
        case Need.STRANDED | Need.OVERDUE:
            text = f"Its retry is late by {span(row.late_by)}."
        case Need.NO_WORKER:
            text = f"Its worker process is gone, and no other consumes this queue: {START_ONE}."
        case Need.CRASHING:
            last = f", the last: {redact(row.reason)}" if row.reason else ""
            text = f"{counts_clause(job)} since its last checkpoint{last}."
        case Need.STUCK:
            lives = ("" if owner is None else owner_clause(owner, paused=False)) or "its worker process lives"
            text = f"{sentence(hang_clause(job, now))} {sentence(lives, limit_clause(job, now))}"
        case Need.DEAD:
            when = f" {span(now - row.ended_at)} ago" if row.ended_at is not None else ""
            text = f"Failed for good{when}: {why_text(job)}."
    return " ".join(filter(None, (text, remedy, cancel_text(job))))


def cancel_text(job: ListedJob) -> str:
    """Return that the cancel of a run waits, because its worker process is gone; otherwise an empty text."""
    row, owner = job.row, job.owner
    if row.cancel_reason is None or row.state is not State.RUNNING:
        return ""
    if owner is not None and owner.liveness is not Liveness.GONE:
        return ""
    return sentence(f"a cancel waits for a worker process: {row.cancel_reason}")


LOUD_AGAIN = "`Start new jobs again` ends this"
"""The remedy for a queue whose worker processes are all quiet."""

NO_WORKER = "no worker"
"""The kind of the notice about a queue that waits for a worker process."""

_URGENT = (Trouble.GONE, Trouble.CRASH_LOOP)

_STARTS_WITHIN = 60.0
"""Seconds after its start in which a process may be not ready: its first report is older than its first connection."""


def troubles_of(worker: WorkerNow, now: float) -> Sequence[Trouble]:
    """Return the troubles of a worker process; a process that has just started is not in trouble because it is not ready."""
    report = worker.seen.report
    starts = report is not None and now - report.started_at < _STARTS_WITHIN
    return [trouble for trouble in worker.troubles if not (starts and trouble is Trouble.NOT_READY)]


def needs_person(worker: WorkerNow, now: float) -> bool:
    """Return whether a worker process needs a person; quiet is an order."""
    return any(trouble is not Trouble.QUIET for trouble in troubles_of(worker, now))


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
    clauses = trouble_clauses(worker, trouble)
    texts = [sentence(clause) for clause in clauses] if trouble is Trouble.NOT_READY else [sentence(*clauses)]
    return " ".join(filter(None, texts)) or "It reports that it is not ready."


def queue_notices(queues: Sequence[QueueNow]) -> Iterator[Notice]:
    """Yield a notice for each queue that waits for a worker process, and for each with consumers of unknown origin."""
    for queue in queues:
        name = queue.queue
        if queue.waits:
            waiting = count_text(queue.depth.ready or 0, "message")
            ago = f" {span(queue.age)} ago" if queue.age > RECENT else ""
            kind, why = NO_WORKER, f"and no worker process consumes it: {START_ONE}"
            if queue.quiet:
                kind, why = Trouble.QUIET.value, f"but {queue.quiet}; {LOUD_AGAIN}"
            yield Notice("error", kind, name, "", "/queues", f"{waiting} ready{ago}, {why}.")
        if queue.unexplained and not queue.workers:
            text = sentence(foreign_clause(queue.unexplained))
            remedy = "This ledger knows no worker process of the queue: set --ledger and --namespace as its workers have them."
            yield Notice("warning", "another ledger", name, "", "/queues", f"{text} {remedy}", "ledger.of-others")
        elif queue.unexplained:
            text = sentence(foreign_clause(queue.unexplained))
            remedy = "Give all workers one ledger, or stop the other program."
            yield Notice(
                "warning", "unknown consumers", name, "", "/queues", f"{text} {remedy}", "check.foreign-consumers"
            )
