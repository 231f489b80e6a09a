"""The page of the worker processes: what each needs, its slots, and its connections in the last 24 hours."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from steadyworker.dashboard.notices import trouble_text, worker_name
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.dashboard.strip import DAY, Strip, strip
from steadyworker.ledger.facts import LinkEvent
from steadyworker.ledger.fleet import Trouble, WorkerNow, workers
from steadyworker.ledger.listing import Liveness
from steadyworker.units import count_text, span

MOST_WORKERS = 100
"""The largest number of worker processes on the page; those in trouble come first."""

_MOST_STRIPS = 6


class SlotsLine(Struct, frozen=True):
    """A queue of a worker process: its name, its slots with and without a run, and whether it is paused."""

    queue: str
    busy: int
    slots: int
    paused: bool
    time_limit: float | None


class WorkerLine(Struct, frozen=True):
    """
    A worker process as a row.

    Attributes:
        name: Host and process id.
        state, level: Its stage or its truth in words, and its colour.
        version, started_at, seen_ago: As it reported.
        runs: The number of jobs that it holds.
        queues: Its queues.
        needs: What it needs, in words.
        strips: Its connections.
    """

    name: str
    owner: str
    state: str
    level: str
    version: str
    started_at: float | None
    seen_ago: float
    runs: int
    queues: Sequence[SlotsLine]
    needs: Sequence[str]
    strips: Sequence[Strip]


class WorkersPage(Struct, frozen=True):
    """The content of the page; `all_workers` is the number of worker processes, also of those that are left out."""

    headline: str
    workers: Sequence[WorkerLine]
    all_workers: int


def workers_page(once: ReadOnce, now: float, namespace: str | None) -> WorkersPage:
    """Return the content of the page of the worker processes."""
    ledger = once.as_ledger
    found = [
        each
        for each in workers(ledger, now)
        if namespace is None or any(name.startswith(f"{namespace}/") for name in each.names)
    ]
    events: dict[str, list[LinkEvent]] = {}
    for event in ledger.facts.link_events(now - DAY):
        events.setdefault(event.owner, []).append(event)
    lines = [_line(each, events.get(each.seen.owner, []), now) for each in found[:MOST_WORKERS]]
    return WorkersPage(_headline(found), lines, len(found))


def _line(worker: WorkerNow, events: Sequence[LinkEvent], now: float) -> WorkerLine:
    seen, report = worker.seen, worker.seen.report
    slots, strips = [], []
    for name in worker.names:
        queue = name.rpartition("/")[2]
        reported = report.queues.get(name) if report is not None else None
        if reported is not None:
            slots.append(SlotsLine(queue, reported.busy, reported.slots, reported.paused, reported.time_limit))
        else:
            slots.append(SlotsLine(queue, 0, 0, paused=False, time_limit=None))
        connected = reported.connected if reported is not None and worker.liveness is Liveness.ALIVE else None
        of_queue = [event for event in events if event.queue == queue]
        began = report.started_at if report is not None else (of_queue[0].at if of_queue else now - seen.seen_ago)
        strips.append(strip(queue, of_queue, began, now - seen.seen_ago, now, connected=connected))
    state, level = _state(worker)
    return WorkerLine(
        worker_name(worker),
        seen.owner,
        state,
        level,
        report.version if report is not None else "",
        report.started_at if report is not None else None,
        seen.seen_ago,
        worker.runs,
        slots,
        [trouble_text(worker, trouble) for trouble in worker.troubles],
        strips[:_MOST_STRIPS],
    )


def _state(worker: WorkerNow) -> tuple[str, str]:
    match worker.liveness:
        case Liveness.GONE:
            return "gone", "error"
        case Liveness.SILENT:
            return f"silent for {span(worker.seen.seen_ago)}", "warning"
        case Liveness.ALIVE:
            if worker.troubles:
                return worker.troubles[0].value, "error" if Trouble.CRASH_LOOP in worker.troubles else "warning"
            stage = worker.seen.report.stage if worker.seen.report is not None else ""
            return stage or "alive", "fine"


def _headline(found: Sequence[WorkerNow]) -> str:
    if not found:
        return "No worker process: start one with `steadyworker run`"
    living = sum(each.liveness is not Liveness.GONE for each in found)
    troubled = sum(bool(each.troubles) for each in found)
    text = f"{count_text(living, 'worker process', 'worker processes')} {'lives' if living == 1 else 'live'}"
    return f"{text}, {troubled:,} {'needs' if troubled == 1 else 'need'} a person" if troubled else text
