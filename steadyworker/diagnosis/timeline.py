"""
Joins related records to one finding with its time line: missed heartbeats, closed, redelivered, ran twice.

| term | meaning |
|---|---|
| sighting | an entry of the catalogue, seen in a record |
| step | a line of a time line: a sighting, and how often it was repeated |
| incident | steps that belong together; its root is the step that follows from no other one |
| finding | all incidents with the same root entry; what a reader is shown |

A sighting belongs to an incident if their entries are the same, or one follows from the other (`Entry.follows`), and
- a key (connection, peer, queue, message …) has the same value in both, at most a day apart; or
- they have no key in common, and are at most half a minute apart, or 200 lines if the log has no times.

The memory is bounded: of many incidents and steps, only the numbers are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from steadyworker.diagnosis.catalogue import Entry
from steadyworker.diagnosis.records import Record

NEAR = 30.0
"""The largest number of seconds between two related records that have no key in common."""

# Different values of a group that are counted, in a finding and in a step of a time line.
_MOST_VALUES, _MOST_OF_STEP = 100, 20
_SAME_KEY = 86_400.0
_NEAR_LINES = 200
_MOST_OPEN = 200
_MOST_STEPS = 40
_WEAK = frozenset({"channel", "user", "vhost", "host", "port"})
"""Keys that many connections share: by themselves they join nothing."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """An entry of the catalogue, seen in a record."""

    entry: Entry
    groups: Mapping[str, str]
    record: Record
    line: int
    time: float | None = None

    @property
    def keys(self) -> dict[str, str]:
        """The values by which it is joined with others."""
        return {name: self.groups[name] for name in self.entry.keys if name in self.groups}


@dataclass(slots=True)
class TimelineStep:
    """
    A line of a time line: a sighting, the number of times that it was seen, and the last of them.

    `others` counts the values of each group, if a repetition had other values than the first one.
    """

    seen: Sighting
    last: Sighting
    times: int = 1
    others: dict[str, Counter[str]] | None = None

    def again(self, seen: Sighting) -> None:
        """Count a repetition."""
        if self.others is None and seen.groups != self.seen.groups:
            self.others = {name: Counter({value: self.times}) for name, value in self.seen.groups.items()}
        if self.others is not None:
            for name, value in seen.groups.items():
                _count(self.others, name, value, 1, _MOST_OF_STEP)
        self.times += 1
        self.last = seen

    def values(self) -> Iterator[tuple[str, str, int]]:
        """Yield each value of each group, and how often it was seen."""
        if self.others is None:
            yield from ((name, value, self.times) for name, value in self.seen.groups.items())
        else:
            for name, counter in self.others.items():
                yield from ((name, value, times) for value, times in counter.items())


@dataclass(slots=True, eq=False)
class Incident:
    """
    Sightings that belong together.

    Attributes:
        steps: In the order in which they were read, at most 40; `left_out` counts the others.
        ids: The ids of all entries that were seen.
        keys: All values of all keys.
        touched: When the last step or repetition was added, by the clock of `Timelines.add`.
        shown: The number of steps that a reader has been shown.
    """

    steps: list[TimelineStep] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    keys: dict[str, set[str]] = field(default_factory=dict)
    left_out: int = 0
    touched: float = 0.0
    shown: int = 0

    def in_order(self) -> list[TimelineStep]:
        """Return the steps by their time; a step without a time stays behind the one that was read before it."""
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
        root: The root of the example, whose values stand in the texts.
        times: The number of incidents, a repetition of the root within an incident included.
        first: The first sighting of the root.
        last: The last sighting of the root.
        values: How often each value of each group was seen, for the groups of the root.
    """

    entry: Entry
    example: Incident
    root: Sighting
    first: Sighting
    last: Sighting
    times: int = 0
    values: dict[str, Counter[str]] = field(default_factory=dict)


class Timelines:
    """The open incidents, and the findings that came of all incidents."""

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
        """Return the incidents with steps that were not shown, to which nothing was added for `after` seconds."""
        return [each for each in self._open if len(each.steps) > each.shown and now - each.touched >= after]

    def next_settles(self, after: float) -> float | None:
        """Return when the next incident settles; None if none waits for it."""
        return min((each.touched + after for each in self._open if len(each.steps) > each.shown), default=None)

    def end(self) -> list[Incident]:
        """Close and return all open incidents, the oldest first."""
        return [self._close(incident) for incident in self._open.copy()]

    def root(self, incident: Incident) -> TimelineStep:
        """Return the step that follows from no other step: the first one that is an error, else the first one."""
        roots = [step for step in incident.in_order() if not self._causes[step.seen.entry.id] & incident.ids]
        candidates = roots or incident.in_order()
        return next((step for step in candidates if step.seen.entry.severity == "error"), candidates[0])

    def of(self, incident: Incident) -> LogFinding:
        """Return the finding of this incident as it would be if nothing else had happened."""
        return _counted(None, incident, self.root(incident))

    def _close(self, incident: Incident) -> Incident:
        self._open.remove(incident)
        root = self.root(incident)
        self.findings[root.seen.entry.id] = _counted(self.findings.get(root.seen.entry.id), incident, root)
        return incident

    def _incident_of(self, seen: Sighting) -> Incident | None:
        """Return the latest open incident that a sighting belongs to."""
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
    """Return whether a sighting is this near to the first or the last step of an incident, in time or else in lines."""
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
            step.again(seen)
            break
    else:
        if len(incident.steps) < _MOST_STEPS:
            incident.steps.append(TimelineStep(seen, seen))
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
            for name, value, times in step.values():
                _count(finding.values, name, value, times, _MOST_VALUES)
    return finding


def _count(values: dict[str, Counter[str]], name: str, value: str, times: int, most: int) -> None:
    """Count a value of a group, if no more than `most` different ones are counted."""
    counter = values.setdefault(name, Counter())
    if value in counter or len(counter) < most:
        counter[value] += times


def _order(seen: Sighting) -> tuple[float, int]:
    return (seen.time if seen.time is not None else float("-inf"), seen.line)


def _closure(follows: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Return for each id all ids that it follows from, directly or not."""

    def causes(identity: str, known: set[str]) -> Iterator[str]:
        for cause in follows.get(identity, ()):
            if cause not in known:
                known.add(cause)
                yield cause
                yield from causes(cause, known)

    return {identity: {*causes(identity, {identity})} - {identity} for identity in follows}
