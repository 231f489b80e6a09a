"""
The connection of a worker process to the broker of one queue in the last 24 hours, as segments of a strip.

The segments come from the events that the process recorded.
The process drops events while the ledger does not respond, so a segment can also be unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from steadyworker.ledger.facts import LinkEvent
from steadyworker.text.redaction import redact
from steadyworker.units import count_text, span

DAY = 86400.0

WIDTH = 1440
"""The width of a strip in its own units: one for each minute of a day."""

_MEANS = {
    "connected": "connected",
    "unblocked": "connected",
    "adopted": "connected",
    "lost": "lost",
    "blocked": "blocked",
    "draining": "draining",
}
_BEFORE = {
    "lost": "connected",
    "blocked": "connected",
    "unblocked": "blocked",
    "draining": "connected",
    "adopted": "connected",
}
"""The state that the first event of a strip proves for the time before it."""


class PictureSegment(Struct, frozen=True):
    """
    A part of a strip.

    Attributes:
        state: `connected`, `lost`, `blocked`, `draining`, or `unknown`.
        x, width: The place in the strip, in units of `WIDTH`.
        text: The state, its length and its cause, for people.
    """

    state: str
    x: float
    width: float
    text: str


class Strip(Struct, frozen=True):
    """The strip of one queue, and the same in words."""

    queue: str
    segments: Sequence[PictureSegment]
    text: str


def strip(
    queue: str, events: Iterable[LinkEvent], began: float, until: float, now: float, *, connected: bool | None
) -> Strip:
    """
    Return the strip of a queue.

    Args:
        queue: The queue.
        events: The events of the worker process and this queue since `now - DAY`, oldest first.
        began: The start of the process.
        until: Its last sign of life.
        now: The right end of the strip.
        connected: What the process last reported; None if it reported nothing.
    """
    found = [event for event in events if event.event in _MEANS and event.event != "adopted"]
    first = max(began, now - DAY)
    state = (
        _BEFORE.get(found[0].event, "unknown")
        if found
        else {True: "connected", False: "lost", None: "unknown"}[connected]
    )
    marks = [(first, state, "")] if not found or found[0].at > first else []
    marks += [(max(event.at, first), _MEANS[event.event], event.why) for event in found]
    last = marks[-1][1]
    if connected is not None and found and connected != (last != "lost"):
        marks.append((until, "unknown", "the process now reports another state, and has recorded no event of it"))
    segments = []
    losses, lost_for = 0, 0.0
    for number, (at, state, why) in enumerate(marks):
        end = marks[number + 1][0] if number + 1 < len(marks) else until
        if state == "lost":
            losses += 1
            lost_for += max(0.0, end - at)
        x = (at - now + DAY) / DAY * WIDTH
        width = max((end - at) / DAY * WIDTH, 1.5 if state != "connected" else 0.0)
        cause = f": {redact(why)}" if why else ""
        segments.append(PictureSegment(state, round(x, 2), round(width, 2), f"{state} for {span(end - at)}{cause}"))
    if losses:
        text = f"connection lost {count_text(losses, 'time')} in 24 hours, {span(lost_for)} in all"
    else:
        text = f"{segments[-1].state} for {span(until - first)}, no loss recorded"
    return Strip(queue, segments, text)
