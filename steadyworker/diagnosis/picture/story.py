"""The data that is kept of a connection while its events are read: rows, curves, flags, gaps and end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from steadyworker.diagnosis.picture.curves import Counts, Level
from steadyworker.diagnosis.picture.event_fields import (
    SIDES,
    Event,
    count_of,
    field,
    number_of,
    side_of,
    text_of,
)
from steadyworker.diagnosis.picture.flags import MOST_IDS, Alike, Flag
from steadyworker.diagnosis.picture.pending import Pending
from steadyworker.diagnosis.picture.rows import Moment, Rank, Rows, moment_of
from steadyworker.units import size_text

_KEPT_KINDS = frozenset({"open", "header", "tuned", "gap", "close", "skipped", "end"})
_KEPT_NAMES = frozenset(
    {
        *("Connection.Start", "Connection.StartOk", "Connection.Open", "Connection.OpenOk", "Connection.Close"),
        *("Connection.CloseOk", "Connection.Blocked", "Connection.Unblocked", "Channel.Close", "Basic.Cancel"),
        *("CONNECT", "STOMP", "CONNECTED", "ERROR", "DISCONNECT"),
        *("CONSUMER_SEND_MSG_BACK", "MESSAGE_ILLEGAL", "END_TRANSACTION", "UNREGISTER_CLIENT"),
    }
)
_FIRST = 2
"""The number of events of each kind that are shown exactly, before further events are folded."""

_MOST_NAMES = 120
_MOST_GAPS = 60
_MOST_CLOSES = 4
_MOST_SPOKEN = 3
_GROWTH = 4
"""The factor of growth: a send queue gets a row when it begins, and each time that it has grown by this factor."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A period in which one end sent no byte."""

    side: str
    start: float
    end: float
    allowed: float | None


@dataclass(frozen=True, slots=True)
class ConnectionClose:
    """The close of a connection: the end that closed it, and the way in which it closed."""

    t: float
    who: str
    how: str
    error: str
    in_frame: bool


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason that an end gave when it closed the connection or a channel."""

    t: float
    side: str
    name: str
    text: str
    code: str = ""


class Lane:
    """One end of a connection, with the frames that it sent and their times."""

    __slots__ = ("address", "beats", "bytes", "frames", "heartbeats", "sent", "software")

    def __init__(self, start: float) -> None:
        self.address = ""
        self.software = ""
        self.frames = 0
        self.bytes = 0
        self.heartbeats = 0
        self.sent = Counts(start)
        self.beats = Counts(start)


class Story:
    """A connection, from its first event to its last."""

    def __init__(self, conn: str, t: float, rows: int) -> None:
        self.conn = conn
        self.start = t
        self.last = t
        self.lanes = {side: Lane(t) for side in SIDES}
        self.counts: dict[tuple[str, str, str], int] = {}
        self.rows = Rows(rows)
        self.pending = Pending()
        self.unacked = Level(t)
        self.queues: dict[str, Level] = {}
        self.prefetch: int | None = None
        self.tls = ""
        self.tuned = ""
        self.gaps: list[Gap] = []
        self.more_gaps = 0
        self.closes: list[ConnectionClose] = []
        self.reasons: list[Reason] = []
        self.flags: dict[str, Alike] = {}
        self.flagged = 0
        self.skipped = 0
        self.seen_as = ""

    @property
    def closed(self) -> bool:
        """Whether the trace has seen the end of the connection."""
        return bool(self.closes) and self.closes[0].who != "trace"

    @property
    def frames(self) -> int:
        """The number of frames of both ends."""
        return sum(lane.frames for lane in self.lanes.values())

    @property
    def ended_in_order(self) -> bool:
        """Whether an end closed the session in the protocol's way."""
        return any(name in _GOODBYES for _, _, name in self.counts)

    def add(self, event: Event, t: float, flag: Flag | None = None) -> None:
        """Add the next event."""
        self.last = max(self.last, t)
        if flag is not None:
            self._flagged(event, t, flag)
            return
        moment = moment_of(event, t, Rank.RUN)
        kind = moment.kind
        lane = self.lanes.get(moment.side)
        if kind == "bytes" and lane is not None:
            lane.bytes += moment.size
            lane.sent.add(t)
        elif kind in FRAMES and lane is not None:
            self._count(moment, lane)
            if self.pending.see(moment.name, event):
                self.unacked.set(t, self.pending.count)
        handle = self._handlers.get(kind)
        if handle is not None and handle(self, event, moment) is False:
            return
        known = self.counts.get((moment.side, moment.kind, moment.name), 0)
        if kind in _KEPT_KINDS or moment.name in _KEPT_NAMES:
            moment.rank = Rank.KEPT
        elif kind != "heartbeat" and (0 < known <= _FIRST or kind not in FRAMES):
            moment.rank = Rank.FIRST
        self.rows.add(moment)

    def _count(self, moment: Moment, lane: Lane) -> None:
        key = (moment.side, moment.kind, moment.name)
        if key in self.counts or len(self.counts) < _MOST_NAMES:
            self.counts[key] = self.counts.get(key, 0) + 1
        lane.frames += 1
        lane.bytes += moment.size
        if moment.kind == "heartbeat":
            lane.heartbeats += 1
            lane.beats.add(moment.t)
        else:
            lane.sent.add(moment.t)

    def _flagged(self, event: Event, t: float, flag: Flag) -> None:
        self.flagged += 1
        if flag.id not in self.flags and len(self.flags) >= MOST_IDS:
            return
        alike = self.flags.setdefault(flag.id, Alike())
        moment = Moment(t, side_of(event), "flag", flag.id, 0, Rank.FLAG, None)
        if alike.add(flag):
            moment.number = flag.number
        self.rows.add(moment)

    def _opened(self, event: Event, _moment: Moment) -> None:
        for side, lane in self.lanes.items():
            lane.address = lane.address or text_of(field(event, side), 60)
        tls = field(event, "tls")
        self.seen_as = text_of(field(event, "seen_as"), 60)
        self.tls = "" if tls in (None, False, "") else "TLS" if tls is True else text_of(tls, 40)

    def _gap(self, event: Event, moment: Moment) -> None:
        seconds = number_of(field(event, "seconds")) or 0.0
        gap = Gap(moment.side, max(moment.t - seconds, self.start), moment.t, number_of(field(event, "allowed")))
        self.gaps.append(gap)
        if len(self.gaps) > _MOST_GAPS:
            self.gaps.remove(min(self.gaps, key=lambda each: each.end - each.start))
            self.more_gaps += 1

    def _queue(self, event: Event, moment: Moment) -> bool:
        side = text_of(field(event, "side"), 10)
        side = side if side in SIDES else moment.side
        size = count_of(field(event, "bytes"))
        level = self.queues.setdefault(side, Level(self.start))
        shown = size > 0 and (level.last == 0 or size >= _GROWTH * max(level.highest, 1))
        level.set(moment.t, size)
        return shown

    def _close(self, event: Event, moment: Moment) -> None:
        who = text_of(field(event, "who") or moment.side, 20)
        if len(self.closes) < _MOST_CLOSES:
            in_frame = field(event, "in_frame") is True
            error = text_of(field(event, "error"), 200)
            self.closes.append(
                ConnectionClose(moment.t, who, text_of(field(event, "how"), 20), error, in_frame=in_frame)
            )

    def _tuned(self, event: Event, _moment: Moment) -> None:
        self.tuned = agreement(event)

    def _skipped(self, event: Event, _moment: Moment) -> None:
        self.skipped += count_of(field(event, "count"))

    def _named(self, event: Event, moment: Moment) -> None:
        """Read the facts about the whole connection from a method or command."""
        name = moment.name
        if name in _ENDINGS and len(self.reasons) < _MOST_SPOKEN:
            text = text_of(field(event, "reply_text", "text", "message", "reason"), 300)
            code = text_of(field(event, "reply_code", "code"), 8)
            self.reasons.append(Reason(moment.t, moment.side, name, text, code))
        elif (
            (name in _GREETINGS or "product" in event)
            and (lane := self.lanes.get(moment.side)) is not None
            and not lane.software
        ):
            lane.software = software_of(event)
        elif name == "Basic.Qos":
            self.prefetch = count_of(field(event, "prefetch_count")) or None

    _handlers: ClassVar[dict[str, Callable[[Story, Event, Moment], bool | None]]] = {
        "open": _opened,
        "gap": _gap,
        "queue": _queue,
        "close": _close,
        "tuned": _tuned,
        "skipped": _skipped,
        "method": _named,
        "frame": _named,
    }


FRAMES = frozenset({"header", "method", "frame", "content", "body", "heartbeat"})
_ENDINGS = frozenset({"Connection.Close", "Channel.Close", "ERROR"})
_GOODBYES = frozenset({"Connection.Close", "DISCONNECT", "UNREGISTER_CLIENT"})
_GREETINGS = frozenset({"Connection.Start", "Connection.StartOk", "CONNECTED"})


def agreement(event: Event) -> str:
    """Return, in words, the limits that both ends agreed on."""
    parts = []
    beat = number_of(field(event, "heartbeat"))
    if beat is not None:
        proposed = number_of(field(event, "proposed"))
        other = f" (the broker proposed {proposed:g} s)" if proposed not in (None, beat) else ""
        parts.append(f"a heartbeat of {beat:g} s{other}" if beat else f"no heartbeat{other}")
    for side in SIDES:
        beat = number_of(field(event, f"heartbeat_{side}"))
        if beat is not None:
            parts.append(f"a heartbeat of the {side} every {beat:g} s" if beat else f"no heartbeat of the {side}")
    if size := count_of(field(event, "frame_max")):
        parts.append(f"frames of up to {size_text(size)}")
    if version := text_of(field(event, "version"), 10):
        parts.append(f"version {version}")
    return ", ".join(parts) or "nothing that the trace knows"


def software_of(event: Event) -> str:
    """Return the name and version of the program at one end, as far as the program has sent them."""
    given = field(event, "server", "product", "server_properties", "client_properties")
    if isinstance(given, dict):
        parts = [text_of(given.get(key), 40) for key in ("product", "version")]
    else:
        parts = [text_of(given, 40), text_of(field(event, "product_version"), 20)]
    return " ".join(part for part in parts if part)
