"""
Explains a log while it is written, as it comes through a pipe.

An incident is shown when nothing was added to it for `SETTLE` seconds, so that the time line contains the incident's consequences.
If the pipe has no new bytes for `QUIET` seconds, its last record is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from steadyworker.clock import Clock
from steadyworker.diagnosis.reading import Pipe
from steadyworker.diagnosis.scan import Scanner
from steadyworker.diagnosis.timeline import Incident, Sighting, Timelines

SETTLE = 4.0
QUIET = 0.5


def follow(
    scanner: Scanner, source: Pipe, timelines: Timelines, show: Callable[[Incident], None], clock: Clock
) -> None:
    """Explain a source while it grows, until it has ended; call `show` with each incident that has settled."""

    def add(sightings: Iterable[Sighting], now: float) -> None:
        for closed in [each for seen in sightings for each in timelines.add(seen, now)]:
            if len(closed.steps) > closed.shown:
                show(closed)

    last = 0.0
    busy_since: float | None = None
    flushed = True
    while not source.ended:
        block, now = source.read(), clock.monotonic()
        if block:
            add(scanner.feed(block), now)
            last, flushed = now, False
            busy_since = busy_since or now
            if now - busy_since >= SETTLE:  # a paste would be complete
                add(scanner.streams(), now)
        elif not flushed and now - last >= QUIET:
            add(scanner.flush(), now)
            busy_since, flushed = None, True
        for incident in timelines.settled(now, SETTLE):
            show(incident)
        if not block and not source.ended:
            due = (None if flushed else last + QUIET, timelines.next_settles(SETTLE))
            soonest = min((time for time in due if time is not None), default=None)
            source.wait(None if soonest is None else max(0.0, soonest - now))
    add(scanner.end(), clock.monotonic())
