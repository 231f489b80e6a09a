"""
Traffic of AMQP for the tests of the reader: what pamqp's encoder makes of values from Hypothesis.

Each `Part` is one frame, beside what the reader must return for it.
Where the encoder cannot write a value, or writes another one, the strategy says so and leaves the value out.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from pamqp import body, commands, frame, header, heartbeat

from steadyworker.diagnosis.frames import BodyFrame, ContentHeader, Flaw, Heartbeat, Item, Method, ProtocolHeader

OPENING = b"AMQP\0\0\x09\x01"
CONTENT = {"Basic.Publish", "Basic.Return", "Basic.Deliver", "Basic.GetOk"}
METHODS: dict[str, Any] = {kind.__qualname__: kind for kind in commands.INDEX_MAPPING.values()}
LONGEST_NAME = 255

Seen = tuple[Any, ...]


@dataclass(frozen=True)
class Part:
    """One frame as it goes over the wire, and what a reader must see in it."""

    wire: bytes
    seen: Seen


def seen(item: Item) -> Seen:
    """An item without its place, to compare with a `Part`."""
    match item:
        case Method():
            return "method", item.channel, item.name, dict(item.fields)
        case ContentHeader():
            return "header", item.channel, item.body_size, dict(item.properties)
        case BodyFrame():
            return "body", item.channel, item.length
        case Heartbeat():
            return "heartbeat", item.channel
        case ProtocolHeader():
            return "protocol", item.raw, item.second
        case Flaw():
            return "flaw", item.kind, item.what
    raise AssertionError(item)


def written(value: Any) -> Any:
    """A value as a reader must return it: bytes that are UTF-8 are text."""
    match value:
        case bytes() | bytearray():
            return bytes(value)
        case dict():
            return {key: written(one) for key, one in value.items()}
        case list():
            return [written(one) for one in value]
        case datetime():
            return int(value.timestamp())
    return value


names = st.text(st.characters(codec="utf-8"), max_size=60).filter(lambda text: len(text.encode()) <= LONGEST_NAME)
plain_names = st.text("abcdefghij.-_/ 0123456789", max_size=127)
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
texts = st.text(st.characters(codec="utf-8"), max_size=80)
times = st.integers(0, 253_402_300_799).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
decimals = st.builds(
    lambda digits, scale: Decimal(digits).scaleb(-scale), st.integers(-(10**9), 10**9), st.integers(0, 6)
)
floats = st.floats(allow_nan=False, width=32)


def tables(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Tables with tables and arrays in them."""
    nested = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
    )
    return st.dictionaries(keys, nested, max_size=6)


# pamqp writes the numbers from -128 to -1 with an unsigned format, and fails; and it writes 1E-7 as 0.
pamqp_tables = tables(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1).filter(lambda number: not -128 <= number < 0)
    | decimals.filter(lambda number: "E" not in str(number))
    | floats
    | texts
    | times
    | st.binary(max_size=40).map(bytearray)
)


def arguments(table: st.SearchStrategy[dict[str, Any]]) -> dict[str, st.SearchStrategy[Any]]:
    """Values for each type of the specification."""
    return {
        "octet": st.integers(0, 2**8 - 1),
        "short": st.integers(0, 2**16 - 1),
        "long": st.integers(0, 2**32 - 1),
        "longlong": st.integers(0, 2**63 - 1),
        "bit": st.booleans(),
        "shortstr": names | plain_names,
        "longstr": texts,
        "table": table,
        "timestamp": times,
    }


PAMQP = arguments(pamqp_tables)


@st.composite
def pamqp_methods(draw: st.DrawFn, channel: int, names: Sequence[str]) -> Part:
    """A method by pamqp; an argument for which pamqp allows one value only keeps this value."""
    with warnings.catch_warnings(action="ignore"):  # Basic.RecoverAsync is deprecated, but sent
        method = METHODS[draw(st.sampled_from(names))]()
    for name in method.attributes():
        usual = getattr(method, name)
        setattr(method, name, draw(PAMQP[method.amqp_type(name)]))
        try:
            method.validate()
        except ValueError:
            setattr(method, name, draw(plain_names) if usual is None else usual)
    fields = {name: written(value) for name, value in method}
    return Part(frame.marshal(method, channel), ("method", channel, method.name, fields))


def drawn_properties(draw: st.DrawFn, values: Mapping[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    kinds = commands.Basic.Properties
    chosen = draw(st.sets(st.sampled_from(kinds.attributes())))
    return {name: draw(values[kinds.amqp_type(name)]) for name in sorted(chosen)}


@st.composite
def pamqp_messages(draw: st.DrawFn, channel: int) -> list[Part]:
    """A method with its message by pamqp, which writes no empty properties, and only the delivery modes 1 and 2."""
    values = {
        name: value for name, value in drawn_properties(draw, PAMQP).items() if value != "" and name != "cluster_id"
    }
    if "delivery_mode" in values:
        values["delivery_mode"] = draw(st.integers(1, 2))
    pieces = draw(st.lists(st.binary(min_size=1, max_size=300), max_size=4))
    size = sum(map(len, pieces))
    about = header.ContentHeader(0, size, commands.Basic.Properties(**values))
    return [
        draw(pamqp_methods(channel, sorted(CONTENT))),
        Part(frame.marshal(about, channel), ("header", channel, size, written(values))),
        *(Part(frame.marshal(body.ContentBody(piece), channel), ("body", channel, len(piece))) for piece in pieces),
    ]


@st.composite
def traces(draw: st.DrawFn) -> list[Part]:
    """The bytes of a client: its header, then methods and messages on some channels, mixed as channels may be."""
    lanes: list[list[Part]] = []
    alone = sorted(set(METHODS) - CONTENT)
    for channel in draw(st.lists(st.integers(0, 2**16 - 1), max_size=4, unique=True)):
        units: st.SearchStrategy[list[Part]] = st.one_of(
            pamqp_methods(channel, alone).map(lambda part: [part]),
            pamqp_messages(channel),
        )
        lanes.append([part for unit in draw(st.lists(units, max_size=4)) for part in unit])
    beat = Part(frame.marshal(heartbeat.Heartbeat(), 0), ("heartbeat", 0))
    lanes.append([beat] * draw(st.integers(0, 2)))
    parts = [Part(OPENING, ("protocol", OPENING, False))]
    while lanes := [lane for lane in lanes if lane]:
        parts.append(draw(st.sampled_from(lanes)).pop(0))
    return parts


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The data in pieces, cut at these places."""
    ends = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


@st.composite
def pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The data in pieces of every kind: some cuts, pieces of one size, or single bytes."""
    if draw(st.booleans()):
        return cut(data, draw(st.lists(st.integers(0, len(data)), max_size=30)))
    return cut(data, range(0, len(data), draw(st.integers(1, 50))))


def table_of(pairs: Mapping[str, tuple[bytes, Any]]) -> bytes:
    """A table, from names and encoded values."""
    encoded = ((key.encode(), raw) for key, (raw, _) in pairs.items())
    content = b"".join(bytes([len(key)]) + key + raw for key, raw in encoded)
    return struct.pack(">I", len(content)) + content


def framed(kind: int, channel: int, payload: bytes) -> bytes:
    """A frame around a payload."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


# --- A second opinion: where the frames end, by a program that has all bytes before it -------------------------------


def first_break(wire: bytes, frame_max: int) -> tuple[str, int] | None:  # noqa: PLR0911 - one for each way
    """Where a client's bytes leave the frames, and how; None if they never do."""
    at = 0
    while at < len(wire):
        if wire[at : at + 4] == b"AMQP" and len(wire) - at >= len(OPENING):
            if wire[at + 5 : at + 8] == b"\1\0\0" and wire[at + 4] in {0, 2, 3}:
                return "amqp-1.0", at
            at += len(OPENING)
            continue
        if len(wire) - at < 7 or wire[at : at + 4] == b"AMQP":
            return "cut", at
        kind, _, size = struct.unpack_from(">BHI", wire, at)
        if at == 0 or kind not in {1, 2, 3, 8}:
            return "foreign", at
        if size > frame_max - 8:
            return "frame-too-large", at
        if len(wire) - at < size + 8:
            return "cut", at
        if wire[at + 7 + size] != 0xCE:
            return "frame-end", at
        at += size + 8
    return None
