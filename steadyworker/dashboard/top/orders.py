"""The actions of `steadyworker top` on selected rows, by `steadyworker.actions`, which also writes the log of actions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import StrEnum

from msgspec import Struct

from steadyworker.actions.jobs import JobActions
from steadyworker.actions.queues import OnQueue, PauseActions
from steadyworker.actions.report import ActionReport
from steadyworker.backends.connections import Connections, JobQueue, job_queue
from steadyworker.backends.waiting import QueueNow
from steadyworker.config.resolve import Options
from steadyworker.dashboard.top.tables import Value
from steadyworker.errors import ConfigError, SteadyWorkerError
from steadyworker.ledger.base import JobId
from steadyworker.ledger.listing import ListedJob
from steadyworker.units import count_text


class Order(StrEnum):
    """What a person can do with rows; the value is the verb of the question."""

    CANCEL = "Cancel"
    RETRY = "Run now"
    PAUSE = "Pause or resume"


class Obeyed(Struct, frozen=True):
    """The result of an action: the rows that it changed, and sentences about it, the first about all rows."""

    changed: Sequence[Hashable]
    texts: Sequence[str]


def fitting(order: Order, rows: Sequence[Value]) -> Sequence[Value]:
    """Return the rows on which an action is possible."""
    wanted = QueueNow if order is Order.PAUSE else ListedJob
    return [row for row in rows if isinstance(row, wanted)]


def obey(options: Options, order: Order, rows: Sequence[Value], reason: str) -> Obeyed:
    """Do an action queue by queue; an error of one queue stops only the rest of its rows."""
    changed: list[Hashable] = []
    texts: list[str] = []
    with Connections(options) as links:
        for (namespace, name), jobs in _by_queue(rows).items():
            try:
                queue = _queue_of(links, options, namespace, name)
                if order is Order.PAUSE:
                    texts += _paused(
                        PauseActions(links, queue),
                        next(row for row in rows if _place(row) == (namespace, name)),
                        reason,
                    )
                    changed.append((namespace, name))
                    continue
                acts = JobActions(links, queue)
                report = acts.cancel(jobs, reason or "by an operator") if order is Order.CANCEL else acts.retry(jobs)
            except SteadyWorkerError as error:
                texts.append(f"{name}: {error}")
                continue
            done = {each.key for each in report.changed}
            changed += [(id,) for id in jobs if id.key in done]
            texts += [f"{each.key} {each.problem}" for each in report.handled if each.problem]
            texts += [str(report.error)] if report.error is not None else []
            texts += _unlogged(report)
    noun = "queue" if order is Order.PAUSE else "job"
    return Obeyed(changed, [f"{order.value}: {len(changed):,} of {count_text(len(rows), noun)} changed", *texts])


def _queue_of(links: Connections, options: Options, namespace: str, name: str) -> JobQueue:
    """Return the queue; raise ConfigError if the settings name another broker than the row does."""
    queue = job_queue(name, options)
    if (got := links.namespace(queue)) != namespace:
        raise ConfigError(f"Expected the broker {namespace}, got {got}: start `steadyworker top` with its --broker.")
    return queue


def _paused(acts: PauseActions, row: Value, reason: str) -> Sequence[str]:
    # The row shows what the person saw; a pause by another person in between is replaced, and a lost one is no error.
    resumes = isinstance(row, QueueNow) and row.pause is not None
    return _unlogged(acts.resume() if resumes else acts.pause(reason))


def _unlogged(result: ActionReport | OnQueue) -> Sequence[str]:
    return [f"This is done, but not in the log of actions: {result.unlogged}"] if result.unlogged else []


def _place(row: Value) -> tuple[str, str]:
    if isinstance(row, QueueNow):
        return row.namespace, row.queue
    assert isinstance(row, ListedJob)
    return row.row.id.namespace, row.row.id.queue


def _by_queue(rows: Sequence[Value]) -> dict[tuple[str, str], list[JobId]]:
    found: dict[tuple[str, str], list[JobId]] = {}
    for row in rows:
        jobs = found.setdefault(_place(row), [])
        if isinstance(row, ListedJob):
            jobs.append(row.row.id)
    return found
