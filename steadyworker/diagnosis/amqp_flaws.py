"""The flags for bytes that break AMQP: the catalogue's id of each kind, and a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from steadyworker.diagnosis.amqp import HEADER, AmqpReader
from steadyworker.diagnosis.boundary import inner_amqp
from steadyworker.diagnosis.frames import Flaw
from steadyworker.diagnosis.line import Line, spelled
from steadyworker.diagnosis.protocols import recognize
from steadyworker.diagnosis.tap import Side
from steadyworker.diagnosis.wire import text

_ON_CHANNEL = re.compile(r"on channel (\d+)$")
_FLAWS: Mapping[str, str] = {
    "http": "amqp.http-on-port",
    "tls": "amqp.tls-on-port",
    "stomp": "amqp.stomp-on-port",
    "frame-too-large": "amqp.frame-too-large",
    "frame-end": "amqp.invalid-frame-end",
    "interleaved": "amqp.interleaved-frames",
    "cut": "amqp.frame-cut",
    "frame-type": "amqp.unknown-frame-type",
    "bad-method": "amqp.bad-method",
    "bad-table": "amqp.bad-arguments",
}
_FOREIGN = {"http", "tls", "stomp"}
_FRAME_TYPES = {1, 2, 3, 8}


def ends_with_channel(flaw: Flaw) -> bool:
    """Return whether a message stayed incomplete because its channel was closed."""
    return flaw.what.startswith("Channel.Close")


def judge(line: Line, t: float, side: Side, flaw: Flaw, recent: Callable[[int], bytes], reader: AmqpReader) -> None:
    """Write the flag for a flaw that this reader returned; `recent` returns the side's last bytes from an offset on."""
    flag = _flag_of(side, flaw)
    what = f"From the {side.label}: {text(flaw.what)} (byte {flaw.offset} of its direction)."
    evidence: bytes = flaw.raw
    data = recent(flaw.offset) if flaw.kind in {"frame-end", "cut"} else b""
    header = data.find(HEADER)
    if header < 0 and flaw.kind in {"frame-end", "cut"} and reader.inner_header is not None:
        header = reader.inner_header - flaw.offset
    if side is Side.CLIENT and header > 0:
        flag, evidence = "amqp.second-header", HEADER
        what = f"The client sent a second protocol header inside of a frame, {header} bytes behind the frame's first byte: a forked process or another thread connects again over a connection that is open."
    elif flaw.kind == "frame-end":
        inner = inner_amqp(data, reader.frame_max or len(data))
        if inner is not None:
            flag = "amqp.interleaved-frames"
            what = f"The {side.label} sent another frame inside of a frame: {text(flaw.what)}; another method frame begins {inner} bytes behind its first byte. Two threads write to this connection."
    elif flaw.kind == "cut":
        what = line.cut(side, text(flaw.what))
    elif flaw.kind == "interleaved":
        channel = _ON_CHANNEL.search(flaw.what)
        where = f" on channel {channel[1]}" if channel else ""
        what = f"The {side.label} mixed the frames of two messages{where}: {text(flaw.what)} (byte {flaw.offset} of its direction). Two threads write to this connection."
    line.flag(t, flag, what, spelled(evidence), unless_flagged=flag == "trace.unparsable")


def _flag_of(side: Side, flaw: Flaw) -> str:
    """Return the catalogue's id for bytes that break the protocol."""
    if flaw.kind in _FOREIGN and flaw.offset:
        return f"amqp.{flaw.kind}-in-connection"
    if side is Side.BROKER and not flaw.offset:
        return "amqp.plain-on-tls-port" if flaw.kind == "tls" else "trace.unparsable"
    if flaw.kind == "unparsable" and not flaw.offset:
        opening = recognize(flaw.raw)
        if opening is not None and opening.kind == "proxy":
            return "amqp.proxy-protocol-on-port"
        is_frame = flaw.raw[0] in _FRAME_TYPES and not flaw.raw[1]
        return "amqp.frame-before-header" if is_frame else "amqp.unknown-protocol-on-port"
    return _FLAWS.get(flaw.kind, "trace.unparsable")
