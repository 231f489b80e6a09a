"""
Joins related records to one finding with a time line.

An example of a time line: heartbeats were missed, the connection was closed, the job was redelivered and ran twice.

| term | meaning |
|---|---|
| sighting | an entry of the catalogue, seen in a record |
| step | a line of a time line: a sighting, and the number of its repetitions |
| incident | steps that belong together; the root of an incident is the step that follows from no other step |
| finding | all incidents with the same root entry; a reader is shown findings |

A sighting belongs to an incident if their entries are equal or related, and if one of two conditions is met.
Two entries are related if one follows from the other (`Entry.follows`). The conditions are:

- A key (connection, peer, queue, message …) has the same value in both entries, and the entries are at most a day apart.
- The entries have no key in common, and are at most half a minute apart; in a log without times, at most 200 lines.

The memory is bounded: if there are many incidents and steps, only their numbers are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from steadyworker.diagnosis.catalogue import Entry
from steadyworker.diagnosis.matching import CAUSES
from steadyworker.diagnosis.records import Record

NEAR = 30.0
"""The largest number of seconds between two related records that have no key in common."""

# The largest numbers of different values of a group that are counted, in a finding and in a step of a time line.
_MOST_VALUES, _MOST_OF_STEP = 100, 20
_SAME_KEY = 86_400.0
_NEAR_LINES = 200
_MOST_OPEN = 200
_MOST_STEPS = 40
_WEAK = frozenset({"channel", "user", "vhost", "host", "port"})
"""The keys that many connections share; such a key alone joins no sightings."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """An entry of the catalogue, seen in a record."""

    entry: Entry
    groups: Mapping[str, str]
    record: Record
    line: int
    time: float | None = None
    size: int = 0
    probable: bool = False
    loosened: bool = False

    @property
    def keys(self) -> dict[str, str]:
        """The values by which the sighting is joined with other sightings."""
        return {name: self.groups[name] for name in self.entry.keys if name in self.groups}


@dataclass(slots=True)
class TimelineStep:
    """A line of a time line: the first sighting, the last one, their number, and the counted values of each group."""

    seen: Sighting
    last: Sighting
    times: int = 0
    values: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, seen: Sighting) -> None:
        """Count a sighting, but not a second one in the same line."""
        if not self.times or seen.record is not self.last.record or seen.line != self.last.line:
            self.times += 1
        self.last = seen
        for name, value in seen.groups.items():
            _count(self.values, name, value, 1, _MOST_OF_STEP)


@dataclass(slots=True, eq=False)
class Incident:
    """
    Sightings that belong together.

    Attributes:
        steps: At most 40 steps, in the order in which they were read; `left_out` counts further steps.
        ids: The ids of all entries that were seen.
        keys: All values of all keys.
        touched: The time at which the last step or repetition was added, by the clock of `Timelines.add`.
        shown: The number of steps that a reader has been shown.
    """

    steps: list[TimelineStep] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    keys: dict[str, set[str]] = field(default_factory=dict)
    left_out: int = 0
    touched: float = 0.0
    shown: int = 0

    def in_order(self) -> list[TimelineStep]:
        """Return the steps by their time; a step without a time stays after the step that was read before it."""
        times: list[float] = []
        for step in self.steps:
            times.append(step.seen.time if step.seen.time is not None else times[-1] if times else float("-inf"))
        return [step for _, step in sorted(zip(times, self.steps, strict=True), key=lambda pair: pair[0])]


@dataclass(slots=True)
class LogFinding:
    """
    All incidents with the same root entry.

    Attributes:
        entry: The root's entry.
        example: The incident with the longest time line.
        root: The root of the example; the texts contain its values.
        times: The number of incidents, plus the repetitions of the root within an incident.
        first: The first sighting of the root.
        last: The last sighting of the root.
        values: For each group of the root's pattern, the values that were seen, each with its number of sightings.
    """

    entry: Entry
    example: Incident
    root: Sighting
    first: Sighting
    last: Sighting
    times: int = 0
    values: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def probable(self) -> bool:
        """Whether no record has more than the hint of a pattern of the entry."""
        return self.root.probable and self.first.probable and self.last.probable

    @property
    def place(self) -> tuple[bool, bool, bool, bool, float, int]:
        """
        The finding's place in a report.

        Errors stand before warnings; a vague error, which only reports a lost connection, stands among the warnings.
        Among each of them, exact findings stand first, and probable ones last.
        Among unclear ones, what the network reported stands before what a client made of it; equals are in the order of their times.
        """
        lesser = self.entry.severity != "error" or self.entry.vague
        unclear = self.entry.general or self.entry.vague
        made = unclear and self.entry.family not in CAUSES
        return lesser, self.probable, unclear, made, self.first.time or 0.0, self.first.line


class Timelines:
    """The open incidents, and the findings from all incidents."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.findings: dict[str, LogFinding] = {}
        self._causes = _closure({entry.id: entry.follows for entry in entries})
        self._related = {identity: {identity, *causes} for identity, causes in self._causes.items()}
        for identity, causes in self._causes.items():
            for cause in causes & self._related.keys():
                self._related[cause].add(identity)
        self._open: list[Incident] = []

    def add(self, seen: Sighting, now: float = 0.0) -> list[Incident]:
        """Add a sighting, and return the incidents that were closed to make room."""
        incident = self._incident_of(seen)
        if incident is None:
            incident = Incident()
            self._open.append(incident)
        elif incident is not self._open[-1]:
            self._open.remove(incident)
            self._open.append(incident)
        _join(incident, seen)
        incident.touched = now
        return [self._close(self._open[0])] if len(self._open) > _MOST_OPEN else []

    def settled(self, now: float, after: float) -> list[Incident]:
        """Return the incidents that got nothing new for `after` seconds, and have steps that were not shown."""
        return [each for each in self._open if len(each.steps) > each.shown and now - each.touched >= after]

    def next_settles(self, after: float) -> float | None:
        """Return the time at which the next incident settles; None if no incident has to settle."""
        return min((each.touched + after for each in self._open if len(each.steps) > each.shown), default=None)

    def end(self) -> list[Incident]:
        """Close and return all open incidents, the oldest first."""
        return [self._close(incident) for incident in self._open.copy()]

    def root(self, incident: Incident) -> TimelineStep:
        """
        Return the step that follows from no other step.

        If there are several such steps, return the first error, or if there is no error, the first step.
        """
        roots = [step for step in incident.in_order() if not self._causes[step.seen.entry.id] & incident.ids]
        candidates = roots or incident.in_order()
        return next((step for step in candidates if step.seen.entry.severity == "error"), candidates[0])

    def of(self, incident: Incident) -> LogFinding:
        """Return the finding of this incident alone."""
        return _counted(None, incident, self.root(incident))

    def _close(self, incident: Incident) -> Incident:
        self._open.remove(incident)
        root = self.root(incident)
        self.findings[root.seen.entry.id] = _counted(self.findings.get(root.seen.entry.id), incident, root)
        return incident

    def _incident_of(self, seen: Sighting) -> Incident | None:
        """Return the latest open incident to which a sighting belongs."""
        related = self._related[seen.entry.id]
        keys = [(name, value) for name, value in seen.keys.items() if name not in _WEAK]
        for incident in reversed(self._open):
            if related.isdisjoint(incident.ids):
                continue
            known = incident.keys
            common = same = False
            for name, value in keys:
                if name in known:
                    common = True
                    if value in known[name]:
                        same = True
                        break
            if (same and _within(seen, incident, _SAME_KEY, None)) or (
                not common and _within(seen, incident, NEAR, _NEAR_LINES)
            ):
                return incident
        return None


def _within(seen: Sighting, incident: Incident, seconds: float, lines: int | None) -> bool:
    """
    Return whether a sighting is near the first or the last step of an incident.

    The distance is in seconds, or in lines if there are no times.
    """
    for other in (incident.steps[-1].last, incident.steps[0].seen):
        if seen.time is not None and other.time is not None:
            if abs(seen.time - other.time) <= seconds:
                return True
        elif lines is None or (seen.record.source == other.record.source and abs(seen.line - other.line) <= lines):
            return True
    return False


def _join(incident: Incident, seen: Sighting) -> None:
    for step in incident.steps:
        if step.seen.entry.id == seen.entry.id and step.seen.keys == seen.keys:
            step.add(seen)
            break
    else:
        if len(incident.steps) < _MOST_STEPS:
            incident.steps.append(TimelineStep(seen, seen))
            incident.steps[-1].add(seen)
            incident.ids.add(seen.entry.id)
        else:
            incident.left_out += 1
    for name, value in seen.keys.items():
        values = incident.keys.setdefault(name, set())
        if len(values) < _MOST_VALUES:
            values.add(value)


def _counted(finding: LogFinding | None, incident: Incident, root: TimelineStep) -> LogFinding:
    """Return the finding with one more incident."""
    if finding is None:
        finding = LogFinding(root.seen.entry, incident, root.seen, root.seen, root.last)
    elif len(incident.steps) > len(finding.example.steps):
        finding.example, finding.root = incident, root.seen
    finding.first = min(finding.first, root.seen, key=_order)
    finding.last = max(finding.last, root.last, key=_order)
    for step in incident.steps:
        if step.seen.entry.id == root.seen.entry.id:
            finding.times += step.times
            for name, counter in step.values.items():
                for value, times in counter.items():
                    _count(finding.values, name, value, times, _MOST_VALUES)
    return finding


def _count(values: dict[str, Counter[str]], name: str, value: str, times: int, most: int) -> None:
    """Count a value of a group, but at most `most` different values."""
    counter = values.setdefault(name, Counter())
    if value in counter or len(counter) < most:
        counter[value] += times


def _order(seen: Sighting) -> tuple[float, int]:
    return (seen.time if seen.time is not None else float("-inf"), seen.line)


def _closure(follows: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Return for each id all ids from which it follows, directly or indirectly."""

    def causes(identity: str, known: set[str]) -> Iterator[str]:
        for cause in follows.get(identity, ()):
            if cause not in known:
                known.add(cause)
                yield cause
                yield from causes(cause, known)

    return {identity: {*causes(identity, {identity})} - {identity} for identity in follows}
