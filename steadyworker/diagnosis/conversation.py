"""
One connection in a trace: the protocol of its sides, the side that is silent, and the side that closes.

The bytes come from the relay or from a file of captured packets, each with its time and its sender: the client or the broker.
The client's first bytes show the protocol of the connection, and the broker's first bytes confirm this protocol.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from steadyworker.diagnosis.amqp_conversation import AmqpConversation
from steadyworker.diagnosis.boundary import LONGEST_COMMAND, next_amqp, next_stomp
from steadyworker.diagnosis.frames import Method, StompFrame
from steadyworker.diagnosis.line import Line, spelled
from steadyworker.diagnosis.protocols import recognize
from steadyworker.diagnosis.stomp_conversation import StompConversation
from steadyworker.diagnosis.tap import Side
from steadyworker.diagnosis.wire import Level, Wire
from steadyworker.units import size_text

STUCK = 4.0
"""The seconds after which a side that reads nothing is flagged; if the other side closes earlier, `SHORT` are enough."""

SHORT = 1.0
"""The seconds after which an event shows that a side reads nothing."""

NOT_READ = "bytes that were not read, because the traffic was faster than the trace"

_JUDGED = 8  # the number of a client's bytes that is enough to know the protocol
_RECENT = 8_192
_LONGEST_FIRST = 256
_MOST_SEARCHED = 1 << 20  # the largest size of a frame, if both sides agreed on no limit
_MOST_HELD = 1 << 16
_AMQPS_PORT = 5671
_AMQP_PORTS = {_AMQPS_PORT, 5672}
_STOMP_PORTS = range(61_610, 61_620)
_NAMES = {"amqp": "AMQP", "stomp": "STOMP"}
_ROCKETMQ = re.compile(rb"\x00...(?:\x00...\{|\x01\x00)", re.DOTALL)
"""The first bytes of RocketMQ's remoting protocol: a length, the type and length of a header, the header (JSON, or binary)."""

Spoken = AmqpConversation | StompConversation


class _Recent:
    """The present bytes of a side, and some of its bytes before them."""

    def __init__(self) -> None:
        self._data = b""
        self._end = 0

    def add(self, data: bytes) -> None:
        """Receive the present bytes."""
        self._data = self._data[-_RECENT:] + data
        self._end += len(data)

    def since(self, offset: int) -> bytes:
        """Return the bytes from an offset on; nothing if they are no longer kept."""
        at = offset - self._end + len(self._data)
        return self._data[at:] if at >= 0 else b""


@dataclass(slots=True)
class _Unread:
    """A side that does not read, since a time; bytes wait for it, and it is reported when it is `due`."""

    since: float
    waiting: int
    due: float


@dataclass(slots=True)
class Known:
    """The facts that the connections of a trace share: the broker's protocol, and the connection that holds each client id; `tls` is true if the broker's port is for TLS only."""

    family: str = "amqp"
    sure: bool = False
    tls: bool = False
    client_ids: MutableMapping[str, Line] = field(default_factory=dict)

    @classmethod
    def at(cls, port: int) -> Known:
        """Return the facts that follow from the broker's port."""
        if port in _STOMP_PORTS:
            return cls("stomp", sure=True)
        return cls("amqp", sure=port in _AMQP_PORTS, tls=port == _AMQPS_PORT)


class Conversation:
    """One connection of a client to the broker."""

    def __init__(self, wire: Wire, number: int, known: Known) -> None:
        self.line = Line(wire, number)
        self._wire = wire
        self._known = known
        self._spoken: Spoken | None = None
        self._first = bytearray()  # the client's first bytes, until they are enough
        self._recent = {side: _Recent() for side in Side}
        self._searching: dict[Side, bytes] = {}  # for each side that missed bytes, the possible beginning of a frame
        self._encrypted = False
        self._unknown = False
        self._ended: set[Side] = set()
        self._blocked: dict[Side, _Unread] = {}
        self._connected = False
        self._broker_sent = False

    # --- What happens to the connection ----------------------------------------------------------------------------------

    def opened(self, t: float, facts: Mapping[str, Any]) -> None:
        """Note that a client connected to the trace."""
        self._wire.connections += 1
        self.line.event(t, None, "open", **facts)
        self.line.client_address = str(facts.get("client", ""))
        for silence in self.line.silences.values():
            silence.last = t

    def connected(self, t: float, facts: Mapping[str, Any]) -> None:
        """Note that the broker is reached, too; `seen_as` is the address that the broker's log contains."""
        self._connected = True
        self.line.event(t, None, "connected", **facts)
        if facts.get("joined"):
            self._spoken = self._speaker(self._known.family)
            self._searching = dict.fromkeys(Side, b"")

    def failed(self, t: float, side: Side, error: str) -> None:
        """Note that the broker could not be reached, or that TLS failed with one of the sides."""
        self._wire.unreachable += side is Side.BROKER
        self.line.event(t, side, "close", who=side.label, how="refused", error=error)

    def data(self, t: float, side: Side, data: bytes) -> None:
        """Read bytes that a side sent."""
        self._note_bytes(t, side, len(data))
        if side in self._searching:
            data = self._search(side, data)
            if not data:
                return
        if self._spoken is None:
            data = self._decide(t, side, data)
        if self._encrypted or self._unknown:
            self.line.event(t, side, "bytes", size=len(data))
        elif self._spoken is not None and data:
            self._read(t, side, data)

    def missed(self, t: float, side: Side, size: int, why: str = NOT_READ) -> None:
        """Note that bytes of a side passed without being read."""
        silence = self.line.silences[side]
        silence.last = max(silence.last, t if not silence.late else 0.0)  # the bytes passed at unknown times
        self._note_bytes(t, side, size)
        self._wire.skipped += size
        self.line.event(t, side, "skipped", bytes=size, what=why)
        if self._spoken is not None:
            self._searching[side] = b""
        elif not self._encrypted:
            self._begin_unknown(t)

    def give_up(self, t: float) -> None:
        """Note that the connection cannot be read any more, so only the sizes and times of its bytes are known."""
        self._begin_unknown(t)
        self._forget()
        self._spoken = None
        self._first = bytearray()
        self._searching.clear()

    def ended(self, t: float, side: Side, how: str, error: str | None = None) -> None:
        """Note that a side closed its direction (`fin`) or the connection (`reset`)."""
        line = self.line
        self.tick(t)
        first = line.closed_by is None
        if first:
            line.closed_by, line.closed_how = side, how
            self._closed_in_silence(t, side)
            if (blocked := self._blocked.get(side.other)) and t - blocked.since >= SHORT:
                self._not_reading(t, side.other, blocked)
        if self._spoken is None and self._first:
            self._decide(t, Side.CLIENT, b"", last=True)
        self._judge_refusal(t)
        cut = False
        for each in Side if how == "reset" else (side,):
            cut |= self._end_of(t, each)
        line.event(t, side, "close", who=side.label, how=how, first=first or None, in_frame=cut, error=error)
        if first and isinstance(self._spoken, AmqpConversation):
            self._spoken.closed(t)

    def blocked(self, t: float, side: Side, *, blocked: bool, waiting: int) -> None:
        """Note that the relay waits, or no longer waits, for a side that does not read; the other side cannot be read."""
        silence = self.line.silences[side.other]
        if blocked:
            self._blocked[side] = _Unread(t, waiting, t + SHORT)
            silence.paused = True
        elif (found := self._blocked.pop(side, None)) is not None:
            silence.resume(t)
            if found.due > found.since + SHORT:  # its begin was reported, too
                self._report_blocked(t, side, found)

    def _report_blocked(self, t: float, side: Side, blocked: _Unread) -> None:
        since = round(t - blocked.since, 3)
        self.line.event(t, None, "queue", side=side.label, bytes=blocked.waiting, since=since)

    def _not_reading(self, t: float, side: Side, blocked: _Unread) -> None:
        """Flag a side that does not read, but once, and not if the other side was the first not to read."""
        other = self._blocked.get(side.other)
        if blocked.due == math.inf or (other and other.since < blocked.since):
            return
        blocked.due = math.inf
        since = t - blocked.since
        what = f"The {side.label} has read nothing for {since:.1f} s, and {size_text(blocked.waiting)} wait for it: the {side.other.label} can write no more to this connection."
        if side is Side.BROKER and isinstance(self._spoken, AmqpConversation) and self._spoken.blocked:
            what += f" It had sent Connection.Blocked: {self._spoken.blocked}."
        rows = [{"queue": f"to the {side.label} (SIOCOUTQ)", "bytes": blocked.waiting, "since": f"{since:.1f} s"}]
        kind = "broker-not-reading" if side is Side.BROKER else "peer-not-reading"
        self.line.flag(t, f"{self._family}.{kind}", what, rows)

    def closed(self, t: float, *, by_trace: bool = False) -> None:
        """Note that both sockets are closed; if the trace ends first, the trace itself closes them."""
        if by_trace:
            self.line.event(t, None, "close", who="trace", how="fin")
        for side in Side:
            self._judge_no_more(t, side)
            self.blocked(t, side, blocked=False, waiting=0)
        self._forget()

    def _forget(self) -> None:
        if isinstance(self._spoken, StompConversation):
            self._spoken.forget()

    def due(self) -> float:
        """Return the time at which a silence becomes too long."""
        return min(
            *(silence.limit for silence in self.line.silences.values()),
            *(blocked.due for blocked in self._blocked.values()),
        )

    def tick(self, t: float) -> None:
        """Flag the silences that have become too long, and the sides that read nothing for too long."""
        for side, blocked in self._blocked.items():
            if blocked.due <= t:
                self._report_blocked(t, side, blocked)
                if t - blocked.since >= STUCK:
                    self._not_reading(t, side, blocked)
                blocked.due = max(blocked.since + STUCK, t + SHORT) if blocked.due < math.inf else math.inf
        for side, silence in self.line.silences.items():
            if silence.limit <= t:
                silence.late = True
                self._late(t, side, t - silence.last, level="warning")

    def _judge_refusal(self, t: float) -> None:
        """Flag a client that received no byte from the broker, because the broker expects another protocol."""
        known, spoken = self._known, self._spoken
        if spoken is None or self._broker_sent or not self._connected:
            return
        if known.tls and self.line.closed_by is Side.BROKER and spoken.family == "amqp":
            what = "The client sent a protocol header without TLS, and the broker closed the connection without a reply: it expects TLS on this port."
            self.line.flag(t, "amqp.plain-on-tls-port", what, unless_flagged=True)
        if not known.sure or known.family == spoken.family:
            return
        what = f"The client speaks {_NAMES[spoken.family]}, and the broker, which expects {_NAMES[known.family]} on this port, gave no answer."
        flag = "amqp.stomp-on-port" if spoken.family == "stomp" else "trace.unparsable"
        self.line.flag(t, flag, what, unless_flagged=True)

    # --- Silence ---------------------------------------------------------------------------------------------------------

    def _note_bytes(self, t: float, side: Side, size: int) -> None:
        self._wire.bytes[side.label] += size
        self._broker_sent |= side is Side.BROKER
        silence = self.line.silences[side]
        was_late = silence.late
        length = silence.received(t)
        if length:
            if not was_late:
                self._late(t, side, length, level="warning")
            self._gap(t, side, length)

    def _judge_no_more(self, t: float, side: Side) -> None:
        """Report a silence that lasts until the end, and judge no more silences of this side."""
        silence = self.line.silences[side]
        if silence.late:
            self._gap(t, side, t - silence.last)
        silence.late, silence.allowed = False, 0.0

    def _gap(self, t: float, side: Side, length: float) -> None:
        allowed = self.line.silences[side].allowed
        self.line.event(t, side, "gap", seconds=round(length, 3), allowed=allowed)

    def _late(self, t: float, side: Side, length: float, *, level: Level, then: str = "") -> None:
        allowed = self.line.silences[side].allowed
        what = f"The {side.label} sent nothing for {length:.1f} s, and had agreed to a heartbeat of {allowed:g} s: it is {length - allowed:.1f} s late{then}."
        rows: list[dict[str, object]] = [
            {
                "side": side.label,
                "agreed": f"{allowed:g} s",
                "silent for": f"{length:.1f} s",
                "late by": f"{length - allowed:.1f} s",
            }
        ]
        kind = "broker-silent" if side is Side.BROKER else "late-heartbeat"
        self.line.flag(t, f"{self._family}.{kind}", what, rows, level=level)

    def _closed_in_silence(self, t: float, side: Side) -> None:
        """Flag that a side closed because the other side was silent for too long."""
        silence = self.line.silences[side.other]
        if silence.late:
            self._late(
                t, side.other, t - silence.last, level="error", then=f", and the {side.label} closed the connection"
            )

    # --- Protocols -------------------------------------------------------------------------------------------------------

    @property
    def _family(self) -> str:
        return self._spoken.family if self._spoken else self._known.family

    def _decide(self, t: float, side: Side, data: bytes, *, last: bool = False) -> bytes:
        """Find the protocol, and return the bytes that must be read now."""
        if self._encrypted or self._unknown:
            return data
        first = self._first
        if side is Side.CLIENT:
            first += data
        elif not first:
            self._unknown = True
            what = "The broker sent the first bytes; in each protocol that the trace reads, the client does."
            self.line.flag(t, "trace.unparsable", what, spelled(data[:_JUDGED]))
            return data
        opened = bytes(first[:_LONGEST_FIRST].lstrip(b"\r\n"))
        opening = recognize(opened)
        kind = opening.kind if opening else ""
        if side is Side.CLIENT and _ROCKETMQ.match(first):
            self._unknown = True
            what = "The client speaks RocketMQ's remoting protocol, which the trace does not read: only sizes and times are known."
            self.line.flag(t, "trace.unparsable", what, spelled(bytes(first[:_JUDGED])))
            return bytes(first)
        sure = kind in _NAMES and len(opened) >= _JUDGED
        if side is Side.CLIENT and not (sure or last or len(first) > _MOST_HELD):
            return b""  # the broker's reply shows which protocol the broker expects
        broker = recognize(data) if side is Side.BROKER else None
        left = self.line.closed_by is Side.CLIENT and not self._known.sure
        unanswered = last and (self._known.tls or left)
        if kind == "tls" and (unanswered or (broker is not None and broker.kind == "tls")):
            self._encrypted = True
            self.line.event(
                t,
                None,
                "skipped",
                what="encrypted: only sizes and times are known; terminate TLS with --tls-cert, --tls-key and --to-tls to see more",
            )
            self.line.event(t, Side.CLIENT, "bytes", size=len(first))
            return data
        answer = broker.kind.removesuffix("-1.0") if broker else ""
        family = next((each for each in (kind, answer) if each in _NAMES), self._known.family)
        self._spoken = self._speaker(family)
        self._read(t, Side.CLIENT, bytes(first))
        self._first = bytearray()
        return data if side is Side.BROKER else b""

    def _begin_unknown(self, t: float) -> None:
        if not self._unknown:
            self._unknown = True
            if self._first:
                self.line.event(t, Side.CLIENT, "bytes", size=len(self._first))

    def _read(self, t: float, side: Side, data: bytes) -> None:
        spoken = self._spoken
        assert spoken is not None
        recent = self._recent[side]
        recent.add(data)
        reader = spoken.readers[side]
        blind = reader.blind
        for item in reader.feed(data):
            spoken.receive(t, side, item, recent.since)
            if side is Side.BROKER and isinstance(item, (Method, StompFrame)):
                self._known.family, self._known.sure = spoken.family, True
        if blind:
            self.line.event(t, side, "bytes", size=len(data))

    def _search(self, side: Side, data: bytes) -> bytes:
        """Find the next frame after missed bytes, and return the bytes from this frame on."""
        spoken = self._spoken
        assert spoken is not None
        data = self._searching[side] + data
        opening = recognize(data[:_JUDGED])
        stomp_at = next_stomp(data)
        if not self._known.sure and (stomp_at is not None or (opening is not None and opening.kind == "stomp")):
            spoken = self._spoken = self._speaker("stomp")
            self._known.family, self._known.sure = "stomp", True
        at = 0 if opening is not None and opening.kind == spoken.family else None
        if isinstance(spoken, AmqpConversation):
            found, needed = next_amqp(data, spoken.readers[side].frame_max or _MOST_SEARCHED)
            at = found if at is None else at
            kept = data[needed:]
        else:
            assert isinstance(spoken, StompConversation)
            at = stomp_at if at is None else at
            kept = data[-LONGEST_COMMAND:]
        if at is None:
            self._searching[side] = kept
            return b""
        del self._searching[side]
        spoken.missed(side)
        self._recent[side] = _Recent()
        return data[at:]

    def _speaker(self, family: str) -> Spoken:
        if family == "stomp":
            return StompConversation(self.line, self._known.client_ids)
        return AmqpConversation(self.line)

    def _end_of(self, t: float, side: Side) -> bool:
        """Note the end of a direction, and return whether the direction ended inside a frame."""
        self._judge_no_more(t, side)
        if side in self._ended:
            return False
        self._ended.add(side)
        if self._spoken is None or side in self._searching:
            return False
        items = self._spoken.readers[side].end()
        for item in items:
            self._spoken.receive(t, side, item, self._recent[side].since)
        return bool(items)
