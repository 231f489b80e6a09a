"""
The events of a trace: what is written as JSON Lines, shown in a terminal, and drawn on a page.

Each event is one JSON object; the first line of a trace has the kind `trace`.

    {"t": 12.345678, "conn": 1, "from": "client", "kind": "method", "name": "Basic.Ack", "channel": 1, "size": 21, …}

`t` is in seconds since the trace began; `from` is `client`, `broker`, or `trace` for what the trace itself noticed.

| kind | what it tells |
|---|---|
| `open` | a client connected: the addresses of both ends, TLS |
| `header` | a protocol header of AMQP |
| `method`, `content`, `body` | a method of AMQP, the properties of a message, its whole body (its size, and in how many frames) |
| `frame` | a frame of STOMP with some of its headers |
| `heartbeat` | a heartbeat of either protocol |
| `bytes` | bytes of which only the size and the time are known: TLS, or another protocol |
| `tuned` | what both ends agreed on: the largest silence of each in seconds, the largest frame and channel |
| `gap` | a side was silent for longer than it had agreed to |
| `queue` | bytes wait for a side that does not read, or no longer wait |
| `close` | a side closed its direction (`fin`) or the connection (`reset`), or could not be reached (`refused`) |
| `skipped` | bytes that passed without being read, or events that are not listed |
| `flag` | something that ends connections or loses messages, with its id, evidence and remedy |
| `end` | the totals of the trace |

No event has a body, a login, or a header that an application made up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from steadyworker.text.plain_text import plain_text

VERSION = 1

Event = dict[str, Any]
Listener = Callable[[Event], object]
Level = Literal["error", "warning"]

MOST_FLAGS = 20
"""The largest number of flags of one id on one connection; later ones are only counted."""

LONGEST_TEXT = 300
"""The largest number of characters of a text from the wire."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of flag: how bad it is if nothing else is said, and the remedy that is most likely to help."""

    level: Level
    remedy: str


FLAGS: Mapping[str, Kind] = {
    "amqp.second-header": Kind(
        "error",
        "Open a new socket for each connection, and let one thread of one process own it: connect after a fork, and do not share a socket through a pool or a proxy.",
    ),
    "amqp.interleaved-frames": Kind(
        "error",
        "Let one thread own the connection: other threads hand their publishes and acknowledgements to it, or have connections of their own.",
    ),
    "amqp.late-heartbeat": Kind(
        "warning",
        "Run jobs outside of the thread that owns the connection, so that it can send heartbeats; a longer heartbeat only moves the limit.",
    ),
    "amqp.unknown-delivery-tag": Kind(
        "error",
        "Acknowledge on the channel that delivered the message, and drop the acknowledgement if that channel has gone: the broker delivers the message again.",
    ),
    "amqp.double-ack": Kind("error", "Acknowledge each delivery once, in one place of the program."),
    "amqp.dead-channel": Kind(
        "error",
        "After a close, open a new channel, and forget what was delivered on the old one: the broker delivers it again.",
    ),
    "amqp.unlimited-prefetch": Kind(
        "warning", "Set a prefetch with basic.qos before basic.consume: 1 for long jobs, 100 to 300 for short ones."
    ),
    "amqp.frame-cut": Kind(
        "error",
        "Look at the end that closed: it was killed, crashed, or closed the socket while another thread was writing.",
    ),
    "amqp.peer-not-reading": Kind(
        "error",
        "Let the connection's thread read at all times, and set a prefetch, so that no more messages come than the program can take.",
    ),
    "amqp.http-on-port": Kind(
        "error",
        "Send HTTP to the port of the management API (15672), and let health checks of a load balancer use TCP only.",
    ),
    "amqp.tls-on-port": Kind("error", "Connect with TLS to the port for it (5671), or without TLS to this one."),
    "amqp.stomp-on-port": Kind("error", "Connect with STOMP to the port of the STOMP plugin (61613)."),
    "amqp.frame-too-large": Kind(
        "error",
        "If a header frame is too large, make the message's headers smaller; a body is cut into frames by the client library, which must respect the agreed size.",
    ),
    "amqp.invalid-frame-end": Kind(
        "error",
        "Look for two threads that write to one connection, or for a middlebox that changes bytes; no broker or client library does this alone.",
    ),
    "amqp.delivery-timeout": Kind(
        "error",
        "Raise the delivery timeout of the queue (consumer_timeout) above the longest job, or acknowledge earlier.",
    ),
    "amqp.connection-forced": Kind(
        "error", "Connect again after a pause: an operator or a restart of the broker closed the connection."
    ),
    "amqp.channel-error": Kind(
        "error", "Correct what the broker's text names, then open a new channel: the old one is closed."
    ),
    "stomp.late-heartbeat": Kind(
        "warning",
        "Send heartbeats in a third of the agreed time, from a thread that no job holds up; on ActiveMQ, set transport.hbGracePeriodMultiplier=1.5.",
    ),
    "stomp.client-id-taken": Kind(
        "error",
        "Leave the client id out, or make it different for each process and each connection; an old connection holds it until the broker notices its end.",
    ),
    "stomp.frame-cut": Kind(
        "error",
        "Look at the end that closed: it was killed, crashed, or closed the socket while another thread was writing.",
    ),
    "stomp.double-ack": Kind("error", "Acknowledge each message once, in one place of the program."),
    "stomp.peer-not-reading": Kind(
        "error",
        "Let the connection's thread read at all times, and set a prefetch, so that no more messages come than the program can take.",
    ),
    "stomp.unknown-subscription": Kind(
        "error", "Use the id of a subscription that this connection has made, and has not ended."
    ),
    "stomp.http-on-port": Kind(
        "error",
        "Send HTTP to the port of the broker's web console, and let health checks of a load balancer use TCP only.",
    ),
    "stomp.tls-on-port": Kind(
        "error", "Connect with TLS to the port for it (61612 or 61614), or without TLS to this one."
    ),
    "stomp.error-frame": Kind(
        "error", "Correct what the broker's text names, then connect again: it closes after ERROR."
    ),
    "trace.unparsable": Kind(
        "warning", "Look at both ends: these bytes belong to another protocol, or one end sends wrong bytes."
    ),
}
"""Every id that a flag can have; each is an entry of the catalogue."""


class Wire:
    """Writes the events of all connections of a trace, in their order, and counts them."""

    def __init__(self, began: float, listeners: Sequence[Listener]) -> None:
        self._began = began
        self._listeners = listeners
        self._shown: Counter[tuple[int, str]] = Counter()
        self.flags: Counter[str] = Counter()
        self.frames = {"client": 0, "broker": 0}
        self.bytes = {"client": 0, "broker": 0}
        self.skipped = 0
        self.connections = 0
        self.unreachable = 0
        self.last = 0.0

    def begin(self, started: str, **where: object) -> None:
        """Write the first line: when the trace began, and between which addresses it stands."""
        self._write({"kind": "trace", "version": VERSION, "started": started, **where})

    def event(self, t: float, conn: int | None, side: str, kind: str, /, **detail: object) -> None:
        """Write one event; details that are None are left out."""
        self.last = max(0.0, t - self._began)
        event: Event = {"t": round(self.last, 6), "conn": conn, "from": side, "kind": kind}
        for name, value in detail.items():
            if value is not None:
                event[name] = value
        self._write(event)

    def flag(
        self,
        t: float,
        conn: int | None,
        flag: str,
        what: str,
        evidence: Iterable[Mapping[str, object]] = (),
        *,
        level: Level | None = None,
    ) -> None:
        """Write a flag; after `MOST_FLAGS` of one id on one connection, only count it."""
        self.flags[flag] += 1
        self._shown[conn or 0, flag] += 1
        if self._shown[conn or 0, flag] > MOST_FLAGS:
            return
        kind = FLAGS[flag]
        self.event(
            t,
            conn,
            "trace",
            "flag",
            id=flag,
            level=level or kind.level,
            what=text(what),
            evidence=list(evidence) or None,
            remedy=kind.remedy,
        )

    def forget(self, conn: int) -> None:
        """Forget what was counted of a connection that has ended; say how many of its flags were not listed."""
        for shown in [key for key in self._shown if key[0] == conn]:
            left_out = self._shown.pop(shown) - MOST_FLAGS
            if left_out > 0:
                self.event(self.last + self._began, conn, "trace", "skipped", count=left_out, what=f"flags {shown[1]}")

    def end(self, t: float, **more: object) -> None:
        """Write the last line: the totals."""
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


def text(value: object) -> str:
    """Return a text from the wire without secrets, as valid Unicode, and not too long."""
    return plain_text(value, LONGEST_TEXT)
