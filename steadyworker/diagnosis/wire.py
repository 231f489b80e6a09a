"""
The events of a trace, which are written as JSON Lines, shown in a terminal, and drawn on a page.

Each event is one JSON object; the first line of a trace has the kind `trace`.

    {"t": 12.345678, "conn": 1, "from": "client", "kind": "method", "name": "Basic.Ack", "channel": 1, "size": 21, …}

`t` is in seconds since the trace began.
`from` is `client` or `broker`, or `trace` for an event that the trace itself noticed.

| kind | content |
|---|---|
| `open` | a client connected: its address, TLS |
| `connected` | the trace connected to the broker for it: the addresses of both ends, TLS |
| `header` | a protocol header of AMQP |
| `method`, `content`, `body` | a method of AMQP; a message's properties; a message's body (size, number of frames) |
| `frame` | a frame of STOMP, with some headers |
| `heartbeat` | a heartbeat of AMQP or STOMP |
| `bytes` | bytes of which only the size and the time are known: TLS, or another protocol |
| `tuned` | the limits that both ends agreed on: each end's largest silence in seconds, the largest frame and channel |
| `gap` | a side was silent for longer than agreed |
| `queue` | bytes wait for a side that does not read, or no longer wait |
| `close` | a side closed its direction (`fin`) or the connection (`reset`), or could not be reached (`refused`) |
| `skipped` | bytes that passed without being read |
| `flag` | a problem that ends connections or loses messages, with its id, evidence and remedy |
| `trouble` | an error of the trace itself: it cannot accept or make connections, or cannot read one |
| `end` | the totals of the trace |

No event contains a body, a login, or a header or property that an application has defined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

from steadyworker.diagnosis.catalogue import find
from steadyworker.text.plain_text import plain_text

VERSION = 1

Event = dict[str, Any]
Listener = Callable[[Event], object]
Level = Literal["error", "warning"]

LONGEST_TEXT = 300
"""The largest number of characters of a text from a connection."""

LONGEST_ID = 8
"""The characters of a message's id or correlation id that events show."""


class Wire:
    """A writer and counter of the events of all connections of a trace, in their order."""

    def __init__(self, began: float, listeners: Sequence[Listener]) -> None:
        self._began = began
        self._listeners = listeners
        self._entry = cache(find)
        self.flags: Counter[str] = Counter()
        self.frames = {"client": 0, "broker": 0}
        self.bytes = {"client": 0, "broker": 0}
        self.skipped = 0
        self.connections = 0
        self.unreachable = 0

    def begin(self, started: str, **where: object) -> None:
        """Write the first line: the time at which the trace began, and the addresses on both sides of the trace."""
        self._write({"kind": "trace", "version": VERSION, "started": started, **where})

    def event(self, t: float, conn: int | None, side: str, kind: str, /, **detail: object) -> None:
        """Write one event without the details that are None."""
        event: Event = {"t": round(max(0.0, t - self._began), 6), "conn": conn, "from": side, "kind": kind}
        for name, value in detail.items():
            if value is not None:
                event[name] = value
        self._write(event)

    def flag(
        self,
        t: float,
        conn: int,
        flag: str,
        what: str,
        evidence: Iterable[Mapping[str, object]] = (),
        level: Level | None = None,
        groups: Mapping[str, str] | None = None,
    ) -> None:
        """Count and write a flag with the catalogue's first remedy; `groups` are the values in the remedy's text."""
        self.flags[flag] += 1
        entry = self._entry(flag)
        assert entry is not None, flag
        self.event(
            t,
            conn,
            "trace",
            "flag",
            id=flag,
            level=level or entry.severity,
            what=text(what),
            evidence=list(evidence) or None,
            remedy=entry.filled(entry.remedies[0], {name: text(value) for name, value in (groups or {}).items()}),
        )

    def end(self, t: float, **more: object) -> None:
        """Write the last line, which has the totals."""
        self.event(
            t,
            None,
            "trace",
            "end",
            connections=self.connections,
            unreachable=self.unreachable or None,
            frames=dict(self.frames),
            bytes=dict(self.bytes),
            unread=self.skipped or None,
            flags=dict(self.flags),
            **more,
        )

    def _write(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)


def shortened(value: object) -> str:
    """Return the beginning of an id that an application has chosen, because the id can be the key of a person."""
    shown = text(value)
    return shown if len(shown) <= LONGEST_ID else f"{shown[:LONGEST_ID]}…"


def text(value: object) -> str:
    """Return a text from a connection without secrets, as valid Unicode, and with at most `LONGEST_TEXT` characters."""
    return plain_text(value, LONGEST_TEXT)
