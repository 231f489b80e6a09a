"""Searches logs, block by block, for records that the catalogue explains, and counts all other errors."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from steadyworker.diagnosis import pasted
from steadyworker.diagnosis.catalogue import Entry
from steadyworker.diagnosis.formats import instant, is_error, lacks_year
from steadyworker.diagnosis.matching import Matcher
from steadyworker.diagnosis.reading import UnreadableSource
from steadyworker.diagnosis.records import Cutter, Record
from steadyworker.diagnosis.timeline import Sighting
from steadyworker.text.redaction import may_hold_secret, redact

_MOST_SHAPES = 200
_DAY = 86_400.0
_SHAPE = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*|\s+")
_LONGEST_SHAPE = 300


@dataclass(slots=True)
class Unknown:
    """
    The records that report a failure, and that no entry explains.

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
    """

    def __init__(self, entries: Iterable[Entry], now: float | None = None) -> None:
        self.matcher = Matcher(entries)
        self.sieve = self.matcher.sieve
        self.unknown = Unknown()
        self._now = now

    def instant(self, stamp: str) -> float | None:
        """Return a time in seconds since 1970; a time without a year gets the most probable year."""
        if self._now is None or not lacks_year(stamp):
            return instant(stamp)
        year = datetime.fromtimestamp(self._now, UTC).year
        times = [instant(stamp, each) for each in (year + 1, year, year - 1)]
        return next((time for time in times if time is not None and time <= self._now + _DAY), None)

    def sightings(
        self, records: Iterable[Record], unknown: list[Record], *, pasted: bool = False
    ) -> Iterator[Sighting]:
        """Yield the sightings in the records; the list gets each record that reports a failure, and has no sighting."""
        for record in records:
            if not pasted and self.sieve.ordinary(record.text.encode()):
                continue
            matches = self.matcher.match(record.text, pasted=pasted)
            if not matches and is_error(record.text, pasted=pasted):
                unknown.append(record)
            time = self.instant(record.stamp) if matches and record.stamp else None
            secret = bool(matches) and may_hold_secret(record.text)
            redacted = redact(record.text) if secret else record.text
            for match in matches:
                line = record.line + match.line
                groups = open_values(match.groups, record.text, redacted) if secret else match.groups
                yield Sighting(match.entry, groups, record, line, time, match.size, match.probable, match.loosened)


def open_values(groups: Mapping[str, str], text: str, redacted: str) -> dict[str, str]:
    """
    Return the values without secrets.

    The name of a secret often stands before the value in the record, and not in the value: `accessKey=(?P<user>…)`.
    So a value is left out if `redacted`, the record without secrets, has it less often than `text`, the record itself.
    The texts of an entry then have their defaults.
    """
    found = {}
    for name, value in groups.items():
        shown = redact(value)
        before, after = (_times(value, text), _times(shown, redacted))
        if after >= before and (before or value not in text or shown in redacted):
            found[name] = shown
    return found


def _times(value: str, text: str) -> int:
    """Return the number of times that a text has a value as whole words: a short value may also be a part of another word."""
    return sum(1 for _ in re.finditer(rf"(?<!\w){re.escape(value)}(?!\w)", text))


@dataclass(slots=True)
class _Found:
    """
    What a reading of a text has.

    Attributes:
        sightings: The sightings.
        unknown: The records that report a failure, and that no entry explains.
    """

    sightings: list[Sighting] = field(default_factory=list)
    unknown: list[Record] = field(default_factory=list)

    def better(self, other: _Found) -> bool:
        """Return whether this reading makes more sense than the other one."""
        if not self.sightings and not other.sightings:
            return bool(self.unknown) and not other.unknown
        if self._strength == other._strength and self._ids != other._ids:
            return self._explained > other._explained
        return (self._strength, -self._left) > (other._strength, -other._left)

    @property
    def _ids(self) -> set[str]:
        """The ids of the entries that are the most certain."""
        most = max((_certainty(seen) for seen in self.sightings), default=0)
        return {seen.entry.id for seen in self.sightings if _certainty(seen) == most}

    @property
    def _strength(self) -> tuple[int, int]:
        return max((_certainty(seen) for seen in self.sightings), default=0), len(self._ids)

    @property
    def _explained(self) -> int:
        """The number of characters that these entries explain."""
        return sum({seen.entry.id: seen.size for seen in self.sightings if seen.entry.id in self._ids}.values())

    @property
    def _left(self) -> int:
        """The number of other entries."""
        return len({seen.entry.id for seen in self.sightings} - self._ids)


def _certainty(seen: Sighting) -> int:
    return 1 if seen.probable else 2 if seen.entry.general else 3 if seen.loosened else 4


class Scanner:
    """
    The search of one source.

    A text of at most `pasted.MOST` bytes, after which no further line comes soon, can be the copy of a log.
    The scanner also reads such a text as `pasted.readings` restores it, because an escape or a wrap can hide a failure.
    """

    def __init__(self, source: str, search: Search) -> None:
        self.cutter = Cutter(source, search.sieve.ordinary)
        self._search = search
        self._text: bytes | None = b""
        self._before = 0
        """The number of lines before the text."""
        self._found = _Found()
        """What the text has as it is."""

    def feed(self, block: bytes) -> Iterator[Sighting]:
        """Yield the sightings in the records that end within this block, if the text is too long for a paste."""
        if self._text is not None:
            self._text = self._text + block if len(self._text) + len(block) <= pasted.MOST else None
        return self._certain(self.cutter.feed(block))

    def flush(self) -> Iterator[Sighting]:
        """Yield the remaining sightings, because no further line is expected soon."""
        incomplete = b"" if self._text is None else self._text[self._text.rfind(b"\n") + 1 :]
        if self._text is not None:
            self._text = self._text.removesuffix(incomplete)
        yield from self._rest(self.cutter.flush())
        self._text = incomplete

    def end(self) -> Iterator[Sighting]:
        """Yield the sightings in the remaining records."""
        return self._rest(self.cutter.end())

    def whole(self, blocks: Iterable[bytes]) -> Iterator[Sighting]:
        """
        Yield the sightings in the whole source.

        Raises:
            UnreadableSource: The source cannot be read further; the sightings in the part that was read come first.
        """
        try:
            for block in blocks:
                yield from self.feed(block)
        except UnreadableSource:
            yield from self.end()
            raise
        yield from self.end()

    def streams(self) -> Iterator[Sighting]:
        """Yield the sightings up to now, because lines come all the time: the text is not a paste."""
        self._text = None
        return self._certain(())

    def _certain(self, records: Iterable[Record]) -> Iterator[Sighting]:
        """Search the records; yield the sightings if the text is no paste, because then no other reading can be better."""
        found = self._found
        for seen in self._search.sightings(records, found.unknown):
            if self._text is None:
                yield from found.sightings
                found.sightings.clear()
                yield seen
            else:
                found.sightings.append(seen)
        if self._text is None:
            yield from self._ended(found)

    def _rest(self, records: Iterable[Record]) -> Iterator[Sighting]:
        yield from self._certain(records)
        best = self._found
        for lines in pasted.readings(self._text.decode("utf-8", "replace")) if self._text else ():
            found = self._reading(lines)
            best = found if found.better(best) else best
        yield from self._ended(best)
        self._text, self._before = b"", self.cutter.lines

    def _reading(self, lines: pasted.Lines) -> _Found:
        """Return what a restored text has; the numbers of lines are those of the source."""
        found = _Found()
        cutter = Cutter(self.cutter.source)
        records = [*cutter.feed("\n".join(line for _, line in lines).encode("utf-8", "replace")), *cutter.end()]
        for seen in self._search.sightings(records, found.unknown, pasted=True):
            at = self._before + 1 + lines[min(seen.line, len(lines)) - 1][0]
            found.sightings.append(replace(seen, record=self._placed(seen.record, lines), line=at))
        found.unknown = [self._placed(record, lines) for record in found.unknown]
        return found

    def _placed(self, record: Record, lines: pasted.Lines) -> Record:
        return replace(record, line=self._before + 1 + lines[record.line - 1][0])

    def _ended(self, found: _Found) -> Iterator[Sighting]:
        yield from found.sightings
        for record in found.unknown:
            self._search.unknown.add(record)
        self._found = _Found()


def by_time(sources: Iterable[Iterator[Sighting]]) -> Iterator[Sighting]:
    """Yield the sightings of several sources in the order of their times; each source must already be in order."""

    def timed(number: int, source: Iterator[Sighting]) -> Iterator[tuple[float, int, int, Sighting]]:
        time = float("-inf")
        for position, seen in enumerate(source):
            time = max(time, seen.time) if seen.time is not None else time
            yield time, number, position, seen

    for *_, seen in heapq.merge(*(timed(number, source) for number, source in enumerate(sources))):
        yield seen
