"""Searches logs, block by block, for records that the catalogue explains, and counts all other errors."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from steadyworker.diagnosis.catalogue import Entry
from steadyworker.diagnosis.decoding import Decoding, UndecodableSource
from steadyworker.diagnosis.formats import instant, is_error, lacks_year
from steadyworker.diagnosis.matching import Matcher
from steadyworker.diagnosis.records import Cutter, Record
from steadyworker.diagnosis.timeline import Sighting

_MOST_SHAPES = 200
_DAY = 86_400.0
_YEAR_2001 = 978_307_200.0  # a time without any date gets the year 2000
_SHAPE = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*|\s+")
_LONGEST_SHAPE = 300


@dataclass(slots=True)
class Unknown:
    """
    The records that have the level of an error, and that no entry explains.

    Attributes:
        count: The number of these records.
        shapes: For the beginning of each text without its numbers, the number of records and the first record.
            After 200 different texts, no further text is added.
    """

    count: int = 0
    shapes: dict[str, tuple[int, Record]] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Count a record."""
        self.count += 1
        shape = _SHAPE.sub("#", record.text[:_LONGEST_SHAPE])
        if shape in self.shapes or len(self.shapes) < _MOST_SHAPES:
            times, first = self.shapes.get(shape, (0, record))
            self.shapes[shape] = times + 1, first

    def most_frequent(self, number: int) -> list[tuple[int, Record]]:
        """Return the most frequent shapes."""
        return heapq.nlargest(number, self.shapes.values(), key=lambda shape: shape[0])


class Search:
    """
    A catalogue, ready to search any number of sources.

    `now` is the present time in seconds since 1970, if it is known.
    A time without a year gets the latest year that makes it at most a day later than `now`.
    Once a time with a year was seen, a time without a year gets the year that brings it nearest to the last seen time.
    """

    def __init__(self, entries: Iterable[Entry], now: float | None = None) -> None:
        self.matcher = Matcher(entries)
        self.sieve = self.matcher.sieve
        self.unknown = Unknown()
        self._now = now
        self._dated: float | None = None

    def instant(self, stamp: str) -> float | None:
        """Return a time in seconds since 1970; a time without a year gets the most probable year."""
        if not lacks_year(stamp):
            time = instant(stamp)
            if time is not None and time > _YEAR_2001:
                self._dated = time
            return time
        near = self._dated if self._dated is not None else self._now
        if near is None:
            return instant(stamp)
        year = datetime.fromtimestamp(near, UTC).year
        times = [time for each in (year - 1, year, year + 1) if (time := instant(stamp, each)) is not None]
        if self._dated is None:
            times = [time for time in times if time <= near + _DAY]
            return max(times, default=None)
        return min(times, key=lambda time: abs(time - near), default=None)


class Scanner:
    """The search of one source."""

    def __init__(self, source: str, search: Search) -> None:
        self.cutter = Cutter(source, search.sieve.ordinary)
        self._decoding = Decoding()
        self._search = search

    def feed(self, block: bytes) -> Iterator[Sighting]:
        """
        Yield the sightings in the records that end within this block.

        Raises:
            UndecodableSource: The block is compressed, and cannot be decompressed.
        """
        for text in self._decoding.feed(block):
            yield from self._found(self.cutter.feed(text))

    def flush(self) -> Iterator[Sighting]:
        """Yield the sightings in the open records."""
        return self._found(self.cutter.flush())

    def end(self) -> Iterator[Sighting]:
        """
        Yield the sightings in the remaining records.

        Raises:
            UndecodableSource: The source is compressed, and its end is missing; the sightings before the error come first.
        """
        unreadable: UndecodableSource | None = None
        try:
            for text in self._decoding.end():
                yield from self._found(self.cutter.feed(text))
        except UndecodableSource as error:
            unreadable = error
        yield from self._found(self.cutter.end())
        if unreadable:
            raise unreadable

    def whole(self, blocks: Iterable[bytes]) -> Iterator[Sighting]:
        """
        Yield the sightings in the whole source.

        Raises:
            OSError: The source cannot be read further.
            UndecodableSource: The source is compressed, and cannot be decompressed further.
                Before either error, the sightings in the part that was read are yielded.
        """
        try:
            for block in blocks:
                yield from self.feed(block)
        except (OSError, UndecodableSource):
            yield from self._found(self.cutter.end())
            raise
        yield from self.end()

    def _found(self, records: Iterable[Record]) -> Iterator[Sighting]:
        for record in records:
            if self._search.sieve.ordinary(record.text.encode()):
                continue
            matches = self._search.matcher.match(record.text)
            if not matches and is_error(record.text):
                self._search.unknown.add(record)
            time = self._search.instant(record.stamp) if matches and record.stamp else None
            for match in matches:
                yield Sighting(match.entry, match.groups, record, record.line + match.line, time)


def by_time(sources: Iterable[Iterator[Sighting]]) -> Iterator[Sighting]:
    """Yield the sightings of several sources in the order of their times; each source must already be in order."""

    def timed(number: int, source: Iterator[Sighting]) -> Iterator[tuple[float, int, int, Sighting]]:
        time = float("-inf")
        for position, seen in enumerate(source):
            time = max(time, seen.time) if seen.time is not None else time
            yield time, number, position, seen

    for *_, seen in heapq.merge(*(timed(number, source) for number, source in enumerate(sources))):
        yield seen
