"""
The page of a trace: one HTML file to attach to a ticket, of less than 300 kB for a trace of any length.

The page has the frame and the styles of the dashboard, needs no JavaScript, and loads nothing.
It shows in this order: the verdict, the remedy, the evidence, the lanes of both sides, and a table of events.
The table has the events near each flag, the opening and the end of each connection, and numbers for all other events.
"""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from datetime import datetime, timedelta
from pathlib import Path
from typing import TextIO

from markupsafe import Markup
from msgspec import Struct, field

from steadyworker.diagnosis.terminal import details, title
from steadyworker.diagnosis.verdict import LONGEST, ConnectionEnd, FlagKind, lapse, verdict_of
from steadyworker.diagnosis.wire import Event
from steadyworker.pages import environment as pages
from steadyworker.text.plain_text import plain_text

LARGEST_PAGE = 300_000
"""The largest size of a page, in bytes."""

NEIGHBOURS = 8
"""The number of events before and after a flag that the table shows."""

MOST_CONNECTIONS = 100
"""The number of connections that are kept; an ended connection without a flag is dropped first."""

_MOST_DRAWN = 6
_MOST_ROWS = (300, 120, 40, 0)  # the numbers of rows that are tried until the page is small enough
_MOST_SPANS = 400
_MOST_MARKS = 20
_KEY_KINDS = frozenset({"open", "tuned", "gap", "close", "flag"})
_SIDES = ("client", "broker")


class TableRow(Struct, frozen=True):
    """A row of the table; rows of a low rank are left out first, and `number` is the place among all events."""

    rank: int
    number: int
    event: Event
    what: str
    details: str


class Spans:
    """Times in which a side did something; when there are too many, near times are joined."""

    def __init__(self) -> None:
        self.spans: list[list[float]] = []
        self._apart = 0.0

    def add(self, began: float, ended: float) -> None:
        """Add a time, which ends no earlier than those before it."""
        self.spans.append([began, ended])
        if len(self.spans) > 1 and began - self.spans[-2][1] <= self._apart:
            self.spans[-2:] = [[self.spans[-2][0], ended]]
        while len(self.spans) > _MOST_SPANS:
            self._apart = max(2 * self._apart, 0.001)
            self.spans = self.joined(self._apart)

    def joined(self, apart: float) -> list[list[float]]:
        """Return the times; those that are at most this number of seconds apart are one."""
        found: list[list[float]] = []
        for began, ended in self.spans:
            if found and began - found[-1][1] <= apart:
                found[-1][1] = ended
            else:
                found.append([began, ended])
        return found


class TracedConnection(Struct):
    """What the page keeps of a connection: the times for its lanes, its flags, its end, and its latest events."""

    opened: Event
    last: float = 0.0
    sent: dict[str, Spans] = field(default_factory=lambda: {side: Spans() for side in _SIDES})
    unread: dict[str, Spans] = field(default_factory=lambda: {side: Spans() for side in _SIDES})
    silent: deque[Event] = field(default_factory=lambda: deque(maxlen=_MOST_MARKS))
    flags: list[Event] = []
    end: ConnectionEnd = field(default_factory=ConnectionEnd)
    recent: deque[tuple[int, Event]] = field(default_factory=lambda: deque(maxlen=NEIGHBOURS))
    rank: int = 0
    to_keep: int = NEIGHBOURS + 1

    def add(self, event: Event) -> None:
        """Note what the lanes and the verdict need of an event."""
        t, kind, side = event["t"], event["kind"], event["from"]
        self.last = t
        self.end.add(event)
        if kind == "gap":
            self.silent.append(event)
        elif kind == "queue":
            self.unread[event["side"]].add(max(t - event["since"], 0), t)
        elif side in _SIDES and kind not in {"close", "skipped"}:
            self.sent[side].add(t, t)


class Page:
    """The page of the events that were added; its memory does not grow with the number of events."""

    def __init__(self) -> None:
        self.begin: Event = {"started": "1970-01-01T00:00:00+00:00", "listen": "", "to": ""}
        self.totals: Event = {}
        self.trouble = ""
        self.seconds = 0.0
        self.number = 0
        self.opened = 0
        self._connections: dict[int, TracedConnection] = {}
        self._kinds: dict[str, FlagKind] = {}
        self._rows: list[TableRow] = []

    def add(self, event: Event) -> None:
        """Add the next event."""
        kind = event["kind"]
        if kind == "trace":
            self.begin = event
            return
        self.seconds = event["t"]
        if kind == "end":
            self.totals = event
            return
        self.number += 1
        self.opened += kind == "open"
        if kind == "flag":
            event = {**event, "what": plain_text(event["what"], LONGEST)}
            self._kinds.setdefault(event["id"], FlagKind(event)).add(event)  # the ids are those of the catalogue
        elif kind == "trouble":
            self.trouble = plain_text(event.get("error") or "connections could not be accepted", LONGEST)
        connection = self._connections.get(event["conn"])
        if connection is None and kind in {"open", "flag"}:
            self._make_room()
            connection = self._connections[event["conn"]] = TracedConnection(event)
        if connection is not None:
            connection.add(event)
            self._keep(connection, event)

    def _make_room(self) -> None:
        """Drop the first connection that has ended without a flag, or the first one."""
        if len(self._connections) >= MOST_CONNECTIONS:
            order = ((not each.end.close, bool(each.flags), number) for number, each in self._connections.items())
            del self._connections[min(order)[2]]

    def _keep(self, connection: TracedConnection, event: Event) -> None:
        """Keep an event for the table, or among the latest events; a flag or an end keeps also the events before it."""
        kind = event["kind"]
        if kind not in _KEY_KINDS and not connection.to_keep:
            connection.recent.append((self.number, event))
            return
        connection.to_keep = NEIGHBOURS if kind == "flag" else max(connection.to_keep - 1, 0)
        if kind == "flag":
            known = {(each["id"], each["level"]) for each in connection.flags}
            connection.rank = 1 if (event["id"], event["level"]) in known else 3 if event["level"] == "error" else 2
            if len(connection.flags) < _MOST_MARKS:
                connection.flags.append(event)
        if kind in {"flag", "close"}:
            self._rows += [_row(connection.rank, number, each) for number, each in connection.recent]
            connection.recent.clear()
        self._rows.append(_row(connection.rank, self.number, event))
        if len(self._rows) > 2 * _MOST_ROWS[0]:
            self._rows = self._table(_MOST_ROWS[0])

    def _table(self, most: int) -> list[TableRow]:
        """Return at most this number of rows in their order; those of the lowest rank are left out."""
        kept = sorted(self._rows, key=lambda row: (-row.rank, row.number))[:most]
        return sorted(kept, key=lambda row: row.number)

    def write(self, out: TextIO) -> None:
        """Write the page as it is now; more events can follow, and then another page."""
        template = pages.environment(Path(__file__).parent / "templates").get_template("trace.html")
        style = (pages.HERE / "page.css").read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        ends = {number: each.end for number, each in self._connections.items()}
        verdict = verdict_of(self._kinds.values(), ends, self.opened, self.seconds)
        flags = sorted((kind.flag for kind in self._kinds.values()), key=lambda flag: flag["t"])
        text = ""
        for most in _MOST_ROWS:
            text = template.render(
                trace=self, verdict=verdict, others=[flag for flag in flags if flag is not verdict.flag],
                drawn=self._drawn(verdict.flag), rows=self._table(most), title=verdict.headline,
                style=Markup(style), digest=digest, lapse=lapse,  # noqa: S704 - a file of this package
            )  # fmt: skip
            if len(text.encode()) < LARGEST_PAGE:
                break
        out.write(text)

    def _drawn(self, flag: Event | None) -> list[tuple[int, TracedConnection]]:
        """Return the connections with lanes in their order; that of the verdict and those with flags are chosen first."""
        of_verdict = flag and flag["conn"]
        order = sorted(self._connections.items(), key=lambda pair: (pair[0] != of_verdict, not pair[1].flags))
        return sorted(order[:_MOST_DRAWN])

    def clock(self, t: float) -> str:
        """Return the time of an event in UTC: `10:02:41.312`."""
        return f"{datetime.fromisoformat(self.begin['started']) + timedelta(seconds=t):%H:%M:%S.%f}"[:-3]

    def percent(self, t: float) -> float:
        """Return the place of a time on the lanes."""
        return round(100 * max(t, 0) / max(self.seconds, 0.001), 2)

    def width(self, began: float, ended: float) -> float:
        """Return the width of a time on the lanes, which is wide enough to be seen."""
        return max(round(self.percent(ended) - self.percent(began), 2), 0.25)


def _row(rank: int, number: int, event: Event) -> TableRow:
    is_flag = event["kind"] == "flag"
    what, more = (event["what"], "") if is_flag else (title(event), details(event, LONGEST))
    return TableRow(rank, number, event, plain_text(what, LONGEST), plain_text(more, LONGEST))
