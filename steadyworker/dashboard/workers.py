"""The page of the worker processes: what each needs, its slots, and its connections in the last 24 hours."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from steadyworker.dashboard.notices import needs_person, trouble_text, troubles_of, worker_name
from steadyworker.dashboard.paging import ListPart, part_of
from steadyworker.dashboard.pictures import DAY, Strip, strip
from steadyworker.dashboard.reader import ReadOnce
from steadyworker.ledger.facts import LinkEvent
from steadyworker.ledger.fleet import Trouble, WorkerNow, of_namespace, workers
from steadyworker.ledger.listing import Liveness
from steadyworker.ledger.need_words import death_clause, sentence
from steadyworker.units import count_text, span

MOST_WORKERS = 40
"""The number of worker processes in a part of the list; those in trouble come first."""

_MOST_STRIPS = 6
_MOST_SEGMENTS = 480
"""The number of segments on the page, so that it has less than 100 kB."""


class WorkerLine(Struct, frozen=True):
    """A worker process as a row: its state in words and its colour, what it needs, and a strip for each queue."""

    now: WorkerNow
    name: str
    state: str
    level: str
    needs: Sequence[str]
    strips: Sequence[Strip]


class WorkersPage(Struct, frozen=True):
    """The content of the page."""

    headline: str
    workers: ListPart[WorkerLine]


def workers_page(once: ReadOnce, now: float, namespace: str | None, page: int = 1) -> WorkersPage:
    """Return the content of the page of the worker processes."""
    ledger = once.as_ledger
    found = of_namespace(ledger, workers(ledger, now), namespace)
    part = part_of(found, page, MOST_WORKERS)
    shown = {each.seen.owner for each in part.rows}
    events: dict[str, list[LinkEvent]] = {}
    for event in ledger.facts.link_events(now - DAY):
        if event.owner in shown:
            events.setdefault(event.owner, []).append(event)
    most = _MOST_SEGMENTS // max(1, sum(len(each.names[:_MOST_STRIPS]) for each in part.rows))
    lines = [_line(each, events.get(each.seen.owner, []), now, most) for each in part.rows]
    return WorkersPage(_headline(found, now), ListPart(lines, part.number, part.offset, part.size))


def _line(worker: WorkerNow, events: Sequence[LinkEvent], now: float, most: int) -> WorkerLine:
    report, until = worker.seen.report, now - worker.seen.seen_ago
    began = report.started_at if report is not None else min((event.at for event in events), default=until)
    strips = []
    for name in worker.names[:_MOST_STRIPS]:
        queue = worker.queues[name]
        reported = report.queues.get(name) if report is not None and worker.liveness is Liveness.ALIVE else None
        strips.append(
            strip(queue, reported, [event for event in events if event.queue == queue], began, until, now, most)
        )
    troubles = troubles_of(worker, now)
    needs = [trouble_text(worker, trouble) for trouble in troubles]
    if worker.liveness is Liveness.GONE and not troubles:
        needs.append(sentence(death_clause(worker)))
    return WorkerLine(worker, worker_name(worker), *_state(worker, troubles), needs, strips)


def _state(worker: WorkerNow, troubles: Sequence[Trouble]) -> tuple[str, str]:
    """Return the state of a worker process in words, and its colour."""
    if worker.liveness is Liveness.GONE:
        return "gone", "error" if troubles else "warning"
    if worker.liveness is Liveness.SILENT:
        return f"silent for {span(worker.seen.seen_ago)}", "warning"
    if troubles == [Trouble.QUIET]:
        return "quiet", ""
    if troubles:
        return troubles[0].value, "error" if Trouble.CRASH_LOOP in troubles else "warning"
    stage = worker.seen.report.stage if worker.seen.report is not None else ""
    return stage or "alive", "fine"


def _headline(found: Sequence[WorkerNow], now: float) -> str:
    if not found:
        return "No worker process: start one with `steadyworker run MODULE:CLASS`"
    living = sum(each.liveness is not Liveness.GONE for each in found)
    troubled = sum(needs_person(each, now) for each in found)
    text = f"{count_text(living, 'worker process', 'worker processes')} {'lives' if living == 1 else 'live'}"
    return f"{text}, {troubled:,} {'needs' if troubled == 1 else 'need'} a person" if troubled else text
