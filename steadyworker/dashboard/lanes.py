"""
The picture of a job: its runs, the delivery that each run holds, and the connection under it, over one time axis.

A run goes on while its connection is lost; the picture shows this.
The ledger keeps the events of connections for a day, and a process can drop events; a time without knowledge is drawn as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from steadyworker.dashboard.strip import DAY, PictureSegment
from steadyworker.ledger.facts import Attempt, LinkEvent
from steadyworker.text.redaction import redact
from steadyworker.units import count_text, span

WIDTH = 1000
"""The width of the picture in its own units."""

_LEAST = 4.0
"""The least width of a segment, so that a short loss is visible."""


class Lanes(Struct, frozen=True):
    """
    The picture.

    Attributes:
        runs, deliveries, connections: The segments of each lane.
        began, ended: The times at both ends.
        text: The picture in words.
    """

    runs: Sequence[PictureSegment]
    deliveries: Sequence[PictureSegment]
    connections: Sequence[PictureSegment]
    began: float
    ended: float
    text: str


def lanes_of(runs: Sequence[tuple[int, Attempt]], events: Sequence[LinkEvent], now: float) -> Lanes:
    """Return the picture of these runs, which is not empty; the events are those of the queue, oldest first."""
    began = min(attempt.started_at for _, attempt in runs)
    ended = max(now if attempt.ended_at is None else attempt.ended_at for _, attempt in runs)
    scale = WIDTH / max(ended - began, 0.001)

    def segment(state: str, at: float, until: float, text: str) -> PictureSegment:
        width = max((until - at) * scale, _LEAST)
        return PictureSegment(state, round(min((at - began) * scale, WIDTH - width), 1), round(width, 1), text)

    bars, deliveries, connections = [], [], []
    losses = adoptions = 0
    for number, (_, attempt) in enumerate(runs, 1):
        until = now if attempt.ended_at is None else attempt.ended_at
        state = attempt.outcome or "running"
        bars.append(
            segment(state, attempt.started_at, until, f"run {number}: {state}, {span(until - attempt.started_at)}")
        )
        own = [
            event
            for event in events
            if event.owner == attempt.owner
            and attempt.started_at <= event.at <= until
            and event.fence in (None, attempt.fence)
        ]
        losses += sum(event.event == "delivery-lost" for event in own)
        adoptions += sum(event.event == "adopted" for event in own)
        known_from = max(attempt.started_at, now - DAY)
        for kind, at, end, why in _delivery(attempt, own, known_from, until):
            deliveries.append(segment(kind, at, end, f"delivery {kind}, {span(end - at)}{why}"))
        for kind, at, end, why in _connection(attempt, own, known_from, until):
            connections.append(segment(kind, at, end, f"connection {kind}, {span(end - at)}{why}"))
    text = f"{count_text(len(runs), 'run')}; deliveries lost: {losses}, bound again: {adoptions}"
    return Lanes(bars, deliveries, connections, began, ended, text)


def _delivery(
    attempt: Attempt, events: Sequence[LinkEvent], known_from: float, until: float
) -> Iterator[tuple[str, float, float, str]]:
    start = "bound" if attempt.epoch is not None else "from the ledger"
    changes = {"delivery-lost": "lost", "adopted": "bound"}
    yield from _spans(start, attempt.started_at, events, changes, known_from, until)


def _connection(
    attempt: Attempt, events: Sequence[LinkEvent], known_from: float, until: float
) -> Iterator[tuple[str, float, float, str]]:
    start = "connected" if attempt.epoch is not None else "unknown"
    changes = {
        "connected": "connected",
        "lost": "lost",
        "blocked": "blocked",
        "unblocked": "connected",
        "draining": "draining",
    }
    yield from _spans(start, attempt.started_at, events, changes, known_from, until)


def _spans(
    state: str, at: float, events: Sequence[LinkEvent], changes: dict[str, str], known_from: float, until: float
) -> Iterator[tuple[str, float, float, str]]:
    """Yield the states between the events; before `known_from`, the state is unknown."""
    why = ""
    if known_from > at:
        yield "unknown", at, min(known_from, until), ": the events of that time are deleted"
        state, at = "unknown", min(known_from, until)
    for event in events:
        if event.event in changes:
            if event.at > at:
                yield state, at, event.at, why
            state, at = changes[event.event], event.at
            why = f": {redact(event.why)}" if event.why else ""
    if until > at or not events:
        yield state, at, until, why
