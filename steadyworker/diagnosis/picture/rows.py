"""
The events of a connection in their order; some events are exact, and the runs of events between them are folded.

Each event is exact while the event is one of the last `NEIGHBOURS` events.
A flag is an event that points to a fault.
The `NEIGHBOURS` events before and after a flag stay exact; the other events are folded into runs.
If there are too many rows, runs become longer; then neighbours are folded, then openings and gaps, and at last flags.
The first and the last rows of a connection are folded last.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import dropwhile

from steadyworker.diagnosis.picture.event_fields import Event, count_of, details_of, is_light, name_of, side_of, text_of
from steadyworker.diagnosis.picture.words import PARTS

NEIGHBOURS = 10
"""The number of events before a flag, and after a flag, that are kept exact."""

ROWS = 220
"""
The number of rows of a connection after folding.

If there are 1.5 times as many rows, the least important rows are folded until about this number is left.
"""

_HEAD, _TAIL = 60, 80
_PAUSE = 5.0
"""The seconds without a message that end a run."""

_MOST_KINDS = 24
"""The number of kinds of events that a run counts separately."""


class Rank(IntEnum):
    """The importance of a row; rows of the lowest importance are folded first."""

    RUN = 0
    NEIGHBOUR = 1
    FIRST = 2
    KEPT = 3
    FLAG = 4


@dataclass(slots=True)
class Moment:
    """One exact event; when it is certain that the row stays, `details` replaces `event`."""

    t: float
    side: str
    kind: str
    name: str
    size: int
    rank: Rank
    event: Event | None
    channel: str = ""
    details: tuple[tuple[str, str], ...] = ()
    body_size: int = 0
    number: int = 0
    """The number of the flag on the page."""


@dataclass(slots=True)
class FoldedRun:
    """A run of folded events: the number of each kind from each end, and their bytes."""

    start: float
    end: float
    counts: dict[tuple[str, str, str], int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    rank: Rank = Rank.RUN
    busy: float | None = None
    """The time of the run's last event that was not a heartbeat."""

    @property
    def t(self) -> float:
        """The time of the run's first event."""
        return self.start

    def add(self, moment: Moment) -> None:
        """Fold an event into this run."""
        self.end = max(self.end, moment.t)
        if moment.kind != "heartbeat":
            self.busy = moment.t
        self._count((moment.side, moment.kind, moment.name), 1)
        self.sizes[moment.side] = self.sizes.get(moment.side, 0) + moment.size

    def join(self, other: FoldedRun) -> None:
        """Fold the next run into this run."""
        self.end = max(self.end, other.end)
        self.busy = self.busy if other.busy is None else other.busy
        for key, number in other.counts.items():
            self._count(key, number)
        for side, size in other.sizes.items():
            self.sizes[side] = self.sizes.get(side, 0) + size

    def _count(self, key: tuple[str, str, str], number: int) -> None:
        if key not in self.counts and len(self.counts) >= _MOST_KINDS:
            key = (key[0], "other", "other frames")
        self.counts[key] = self.counts.get(key, 0) + number


Row = Moment | FoldedRun


class Rows:
    """The rows of a connection; if there are too many rows, they are folded to `most` rows."""

    def __init__(self, most: int = ROWS) -> None:
        self._most = most
        self._limit = most * 3 // 2
        self._rows: list[Row] = []
        self._latest: deque[Moment] = deque()
        self._keep = 0

    def add(self, moment: Moment) -> None:
        """Add the next event."""
        if moment.rank is Rank.FLAG:
            self._keep = NEIGHBOURS
            for neighbour in dropwhile(_is_part, self._latest):  # the beginning of their message is already folded
                neighbour.rank = max(neighbour.rank, Rank.NEIGHBOUR)
        elif self._keep:
            self._keep -= 1
            moment.rank = max(moment.rank, Rank.NEIGHBOUR)
        elif _is_part(moment) and self._latest and self._latest[-1].rank is Rank.NEIGHBOUR:
            moment.rank = Rank.NEIGHBOUR  # the rest of a message that has begun
        self._latest.append(moment)
        if len(self._latest) > NEIGHBOURS:
            self._settle(self._latest.popleft())

    def shown(self, most: int = ROWS) -> list[Row]:
        """Return the rows in their order, about `most` rows or fewer; the caller may add further events later."""
        rows = [*self._rows]
        for moment in self._latest:
            _exact(moment)
            rows.append(moment)
        return folded(rows, most) if len(rows) > most else rows

    def _settle(self, moment: Moment) -> None:
        """Decide the place of an event that is no longer among the latest events."""
        if moment.rank > Rank.RUN:
            _exact(moment)
            self._rows.append(moment)
        else:
            last = self._rows[-1] if self._rows else None
            if not isinstance(last, FoldedRun) or not _continues(last, moment):
                last = FoldedRun(moment.t, moment.t)
                self._rows.append(last)
            last.add(moment)
        if len(self._rows) > self._limit:
            self._rows = folded(self._rows, self._most)

    def shrink(self, most: int) -> None:
        """Keep fewer rows from now on."""
        self._most, self._limit = most, most * 3 // 2
        self._rows = folded(self._rows, most)


def _continues(run: FoldedRun, moment: Moment) -> bool:
    """
    Return whether an event belongs to the run.

    A run has only heartbeats, or has messages without a pause between them.
    """
    if run.busy is None:
        return moment.kind == "heartbeat"
    return moment.t - run.busy < _PAUSE


def _is_part(moment: Moment) -> bool:
    return moment.kind in PARTS and moment.rank is Rank.RUN


def _exact(moment: Moment) -> None:
    """Replace the event by the texts that the page shows, so that no large value is kept."""
    event = moment.event
    if event is not None:
        moment.name = text_of(moment.name)
        moment.channel = "" if event.get("channel") is None else text_of(event["channel"], 12)
        moment.body_size = count_of(event.get("body_size"))
        moment.details = details_of(event)
        moment.event = None


def moment_of(event: Event, t: float, rank: Rank) -> Moment:
    """Return an event as a row."""
    kind, name, size = name_of(event.get("kind")), name_of(event.get("name")), count_of(event.get("size"))
    moment = Moment(t, side_of(event), kind, name, size, rank, event)
    if not is_light(event):
        _exact(moment)
    return moment


def folded(rows: list[Row], most: int) -> list[Row]:
    """Return about `most` rows or fewer; the least important rows are folded."""
    head, tail = min(_HEAD, most // 4), min(_TAIL, most // 3)
    while len(rows) > most:
        shorter = _pairs_joined(rows)
        if len(shorter) == len(rows):
            break
        rows = shorter
    for rank in (Rank.NEIGHBOUR, Rank.FIRST, Rank.KEPT, Rank.FLAG):
        if len(rows) <= most:
            break
        rows = [*rows[:head], *_stretches_joined(rows[head:-tail], rank), *rows[-tail:]]
    return rows


def _pairs_joined(rows: list[Row]) -> list[Row]:
    """Return the rows with neighbouring runs joined in pairs."""
    result: list[Row] = []
    paired = False
    for row in rows:
        last = result[-1] if result else None
        if isinstance(row, FoldedRun) and isinstance(last, FoldedRun) and not paired:
            result[-1] = joined(last, row)
            paired = True
        else:
            result.append(row)
            paired = False
    return result


def _stretches_joined(rows: list[Row], rank: Rank) -> list[Row]:
    """Return the rows with each stretch of rows of at most this importance as one run."""
    result: list[Row] = []
    for row in rows:
        last = result[-1] if result else None
        if row.rank > rank:
            result.append(row)
        elif isinstance(last, FoldedRun):
            result[-1] = joined(last, row)
        else:
            result.append(joined(FoldedRun(row.t, row.t), row))
    return result


def joined(run: FoldedRun, row: Row) -> FoldedRun:
    """Return a run with one more row; the given run does not change, because a shorter page may need it, too."""
    result = FoldedRun(run.start, run.end, dict(run.counts), dict(run.sizes))
    if isinstance(row, FoldedRun):
        result.join(row)
    else:
        result.add(row)
    return result
