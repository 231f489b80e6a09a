"""The actions of `steadyworker top` on selected rows, by `steadyworker.actions`, which also writes the log of actions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import StrEnum

from msgspec import Struct

from steadyworker.actions.jobs import JobActions
from steadyworker.actions.queues import PauseActions
from steadyworker.backends.connections import Connections, JobQueue, job_queue
from steadyworker.backends.waiting import QueueNow
from steadyworker.config.resolve import Options
from steadyworker.dashboard.top.tables import Value, row_id
from steadyworker.errors import ConfigError, SteadyWorkerError
from steadyworker.ledger.listing import ListedJob
from steadyworker.units import count_text


class Order(StrEnum):
    """What a person can do with rows; the value is the verb of the question."""

    CANCEL = "Cancel"
    RETRY = "Retry now"
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
    for (namespace, name), found in _by_queue(rows).items():
        try:
            with Connections(options) as links:
                queue = job_queue(name, options)
                _check_broker(links, queue, options, namespace)
                done, about = _obeyed(links, queue, order, found, reason)
        except SteadyWorkerError as error:
            done, about = [], [f"{name}: {error}"]
        changed += done
        texts += about
    noun = "queue" if order is Order.PAUSE else "job"
    return Obeyed(changed, [f"{order.value}: {len(changed):,} of {count_text(len(rows), noun)} changed", *texts])


def _check_broker(links: Connections, queue: JobQueue, options: Options, namespace: str) -> None:
    """
    Raise ConfigError if the settings name another broker than the row; the ledger then records nothing.

    With --namespace, all rows have this namespace, and each action compares it with the broker.
    """
    if options.namespace is None and (got := links.adapter(queue).identity()) != namespace:
        raise ConfigError(
            f"Expected the broker {namespace} of this row, got {got}: start `steadyworker top` with its --broker, or with --namespace."
        )


def _obeyed(
    links: Connections, queue: JobQueue, order: Order, rows: Sequence[Value], reason: str
) -> tuple[Sequence[Hashable], Sequence[str]]:
    """Return the changed rows of this queue, and what there is to know about the others."""
    if order is Order.PAUSE:
        acts = PauseActions(links, queue)
        # The row shows what the person saw.
        paused = isinstance(rows[0], QueueNow) and rows[0].pause is not None
        result = acts.resume() if paused else acts.pause(reason)
        return [row_id(rows[0])], _unlogged(result.unlogged)
    ids = {row.row.id.key: row.row.id for row in rows if isinstance(row, ListedJob)}
    jobs = JobActions(links, queue)
    cancels = order is Order.CANCEL
    report = jobs.cancel([*ids.values()], reason or "by an operator") if cancels else jobs.retry([*ids.values()])
    problems = [f"{each.key} {each.problem}" for each in report.handled if each.problem]
    error = [str(report.error)] if report.error is not None else []
    changed = {each.key for each in report.changed}
    rest = [*problems, *error, *_unlogged(report.unlogged)]
    return [row_id(row) for row in rows if isinstance(row, ListedJob) and row.row.id.key in changed], rest


def _unlogged(cause: str) -> Sequence[str]:
    return [f"This is done, but not in the log of actions: {cause}"] if cause else []


def _by_queue(rows: Sequence[Value]) -> dict[tuple[str, str], list[Value]]:
    found: dict[tuple[str, str], list[Value]] = {}
    for row in rows:
        if isinstance(row, QueueNow):
            found[row.namespace, row.queue] = [row]
        elif isinstance(row, ListedJob):
            found.setdefault((row.row.id.namespace, row.row.id.queue), []).append(row)
    return found
