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


class Following:
    """The search of a source that grows; it calls `show` with each incident that has settled."""

    def __init__(
        self,
        scanner: Scanner,
        source: Pipe,
        timelines: Timelines,
        show: Callable[[Incident], None],
        clock: Clock,
    ) -> None:
        self._scanner = scanner
        self._source = source
        self._timelines = timelines
        self._show = show
        self._clock = clock

    def run(self) -> None:
        """Read until the source has ended."""
        quiet_since: float | None = None
        busy_since: float | None = None
        flushed = False
        while True:
            block = self._source.read()
            now = self._clock.monotonic()
            if block:
                self._add(self._scanner.feed(block), now)
                quiet_since, flushed = now, False
                busy_since = busy_since or now
                self._stream(now - busy_since, now)
            elif quiet_since is not None and not flushed and now - quiet_since >= QUIET:
                self._add(self._scanner.flush(), now)
                busy_since, flushed = None, True
            for incident in self._timelines.settled(now, SETTLE):
                self._show(incident)
            if self._source.ended:
                break
            if not block:
                due = [] if flushed or quiet_since is None else [quiet_since + QUIET]
                if (settles := self._timelines.next_settles(SETTLE)) is not None:
                    due.append(settles)
                self._source.wait(max(0.0, min(due) - now) if due else None)
        self._add(self._scanner.end(), self._clock.monotonic())

    def _stream(self, seconds: float, now: float) -> None:
        """Show what was kept, if bytes have come for this long: a paste would be complete."""
        if seconds >= SETTLE:
            self._add(self._scanner.streams(), now)

    def _add(self, sightings: Iterable[Sighting], now: float) -> None:
        for seen in sightings:
            for closed in self._timelines.add(seen, now):
                if len(closed.steps) > closed.shown:
                    self._show(closed)
