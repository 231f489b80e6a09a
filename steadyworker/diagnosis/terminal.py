"""
The events of a trace as lines in a terminal, at a speed that people can read.

    12.345  #1  client → Basic.Ack              channel 1, tag 7
    12.361  #1  broker → Basic.Deliver          channel 1, tag 8, routing key jobs
    17.002  #1  ! amqp.late-heartbeat: The client sent nothing for 4.5 s, …

If there are more than `MOST_LINES` events in one second, further events are only counted; a flag is always shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from steadyworker.diagnosis.wire import Event
from steadyworker.text.plain_text import printable
from steadyworker.units import count_text, size_text

MOST_LINES = 50
"""The largest number of lines in one second."""

_FEW = {"open", "connected", "close", "flag", "gap", "queue", "tuned", "skipped", "trouble"}
"""The kinds of events that are shown if frames are not shown."""

_NAME = 24
_MOST_DETAILS = 6
_LONGEST = 60
_LABELS = {
    "delivery_tag": "tag",
    "consumer_tag": "consumer",
    "prefetch_count": "prefetch",
    "reply_code": "code",
    "reply_text": "text",
    "body_size": "body",
    "seen_as": "in the broker's log",
    "client_properties": "client",
    "server_properties": "server",
}
_HEAD = {"t", "conn", "from", "kind", "name", "size", "id", "level", "what", "evidence", "remedy", "side", "how"}


class Terminal:
    """A writer of a line for each event; without `frames`, only connections, closes and flags get a line."""

    def __init__(self, write: Callable[[str], None], *, frames: bool = True) -> None:
        self._write = write
        self._frames = frames
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def __call__(self, event: Event) -> None:
        """Show one event."""
        kind = event["kind"]
        if kind == "trace":
            live = f": connect the client to {event['listen']}; Ctrl-C ends the trace."
            self._write(f"{event['listen']} → {event['to']}{'' if event.get('capture') else live}")
        elif kind == "end":
            self._report_left_out()
            for line in totals(event):
                self._write(line)
        elif kind == "flag":
            self._flag(event)
        elif self._frames or kind in _FEW:
            second = int(event["t"])
            if second != self._second:
                self._report_left_out()
                self._second, self._lines = second, 0
            self._lines += 1
            if self._lines > MOST_LINES and kind not in _FEW:
                self._left_out += 1
            else:
                self._write(f"{_start(event)} {title(event):<{_NAME}} {details(event)}".rstrip())

    def _report_left_out(self) -> None:
        if self._left_out:
            self._write(
                click.style(
                    f"{self._second:8}      … {count_text(self._left_out, 'more event')} in this second", dim=True
                )
            )
            self._left_out = 0

    def _flag(self, event: Event) -> None:
        colour = "red" if event["level"] == "error" else "yellow"
        self._write(
            f"{_start(event)} {click.style('! ' + event['id'], fg=colour, bold=True)}: {printable(event['what'])}"
        )
        for row in event.get("evidence", ()):
            self._write(
                f"{'':15}{'  '.join(printable(_cell(name, value)) for name, value in row.items() if value != '')}"
            )
        self._write(f"{'':15}{click.style('→', bold=True)} {event['remedy']}")


def totals(event: Event) -> list[str]:
    """Return the totals of a trace for people."""
    lines = [f"{event['t']:.1f} s, {count_text(event['connections'], 'connection')}"]
    for side, other in (("client", "broker"), ("broker", "client")):
        frames, size = event["frames"][side], event["bytes"][side]
        lines.append(f"{side} → {other}: {count_text(frames, 'frame')}, {size_text(size)}")
    if event.get("unread"):
        lines.append(f"not read, because the traffic was faster than the trace: {size_text(event['unread'])}")
    if event.get("unreachable"):
        lines.append(f"connections that did not reach the broker: {event['unreachable']:,}")
    flags: Mapping[str, int] = event["flags"]
    found = ", ".join(f"{name} {count:,}" for name, count in sorted(flags.items()))
    lines.append(f"flags: {found}" if found else "nothing was flagged")
    return lines


def _start(event: Event) -> str:
    side, conn = event["from"], event["conn"]
    number = "" if conn is None else f"#{conn}"
    arrow = {"client": "client →", "broker": "broker →"}.get(side, "")
    return f"{event['t']:9.3f} {number:>5} {arrow:<8}" if arrow else f"{event['t']:9.3f} {number:>5}"


def title(event: Event) -> str:
    """Return what happened, such as the name of a method."""
    kind: str = event["kind"]
    match kind:
        case "method" | "frame" | "header":
            return printable(event["name"])
        case "queue":
            return f"bytes wait for the {event['side']}"
        case "close":
            return f"close ({event['how']})"
        case "skipped":
            return f"not read: {printable(event['what'])}"
        case _:
            return kind


def details(event: Event, longest: int = _LONGEST) -> str:
    """Return the fields that only this kind of event has, each with at most `longest` characters: `channel 1, tag 7`."""
    found: list[str] = []
    for name, value in event.items():
        if name in {"headers", "properties"} and isinstance(value, Mapping):
            found += [_pair(inner, each, longest) for inner, each in value.items()]
        elif name not in _HEAD and value not in (None, False, "", {}):
            found.append(_pair(name, value, longest))
    if event["kind"] in {"body", "content", "bytes"}:
        found.append(size_text(event["size"]))
    return ", ".join(found[:_MOST_DETAILS])


def _pair(name: str, value: Any, longest: int) -> str:
    if isinstance(value, Mapping):
        value = " ".join(str(each) for each in value.values() if not isinstance(each, Mapping))
    if value is True:
        return _label(name)
    shown = printable(str(value))
    return f"{_label(name)} {shown if len(shown) <= longest else f'{shown[: longest - 1]}…'}"


def _label(key: str) -> str:
    """Return the name of a field for people."""
    return _LABELS.get(key) or printable(key).replace("_", " ")


def _cell(name: str, value: object) -> str:
    return str(value) if name in {"field", "number", "hex", "characters"} else f"{name}: {value}"
