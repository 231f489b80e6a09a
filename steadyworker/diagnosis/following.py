"""
Explains logs while they are written.

An incident is shown when nothing was added to it for `SETTLE` seconds, so that the time line contains the incident's consequences.
If a source has no new bytes for `QUIET` seconds, its last record is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from steadyworker.clock import Clock
from steadyworker.diagnosis.scan import Scanner
from steadyworker.diagnosis.timeline import Incident, Sighting, Timelines

SETTLE = 4.0
QUIET = 0.5


class GrowingSource(Protocol):
    """A source that can be read without waiting."""

    @property
    def ended(self) -> bool:
        """True if the source will never have more bytes."""
        ...

    def read(self) -> bytes:
        """Return the bytes that are available now, or no bytes."""
        ...


class Following:
    """The search of sources that grow; it calls `show` with each incident that has settled."""

    def __init__(
        self,
        sources: Sequence[tuple[Scanner, GrowingSource]],
        timelines: Timelines,
        show: Callable[[Incident], None],
        clock: Clock,
        wait: Callable[[float | None], None],
    ) -> None:
        self._sources = sources
        self._timelines = timelines
        self._show = show
        self._clock = clock
        self._wait = wait

    def run(self) -> None:
        """Read until every source has ended; between reads, call `wait` with the longest time to wait, or None."""
        quiet_since: float | None = None
        busy_since: float | None = None
        flushed = False
        while True:
            read = self._read()
            now = self._clock.monotonic()
            if read:
                quiet_since, flushed = now, False
                busy_since = busy_since or now
                self._stream(now - busy_since, now)
            elif quiet_since is not None and not flushed and now - quiet_since >= QUIET:
                for scanner, _ in self._sources:
                    self._add(scanner.flush(), now)
                busy_since, flushed = None, True
            for incident in self._timelines.settled(now, SETTLE):
                self._show(incident)
            if all(source.ended for _, source in self._sources):
                break
            if not read:
                due = [] if flushed or quiet_since is None else [quiet_since + QUIET]
                if (settles := self._timelines.next_settles(SETTLE)) is not None:
                    due.append(settles)
                self._wait(max(0.0, min(due) - now) if due else None)
        for scanner, _ in self._sources:
            self._add(scanner.end(), self._clock.monotonic())

    def _stream(self, seconds: float, now: float) -> None:
        """Show what was kept, if bytes have come for this long: a paste would be complete."""
        if seconds >= SETTLE:
            for scanner, _ in self._sources:
                self._add(scanner.streams(), now)

    def _read(self) -> bool:
        """Read one block of each source; return whether any source had bytes."""
        some = False
        for scanner, source in self._sources:
            if block := source.read():
                some = True
                self._add(scanner.feed(block), self._clock.monotonic())
        return some

    def _add(self, sightings: Iterable[Sighting], now: float) -> None:
        for seen in sightings:
            for closed in self._timelines.add(seen, now):
                if len(closed.steps) > closed.shown:
                    self._show(closed)
