"""
The reader of AMQP 0-9-1, which makes frames from the bytes of one direction.

A frame is a type (1 byte), a channel (2 bytes), a size (4 bytes), a payload of this size, and the end octet 0xCE:

    +------+---------+-------------+------------------+------+
    | type | channel |    size     | payload          | 0xCE |
    +------+---------+-------------+------------------+------+

The reader holds the head of a frame, or an incomplete frame that is a method or the header of a message.
The reader only counts the bytes of a body, so the largest body needs no memory.
When the reader has read a head, the reader compares the size with the agreed maximum before it reads or holds further bytes.

pamqp (extra `trace`) knows the methods with their arguments; `fields.py` reads the values.
A `Flaw` never shows bytes of a body, of a login, or of the headers of an application.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from steadyworker.diagnosis.fields import Fields, Octets
from steadyworker.diagnosis.frames import (
    LONGEST_RAW,
    BodyFrame,
    ContentHeader,
    Flaw,
    Heartbeat,
    Item,
    Method,
    ProtocolHeader,
)
from steadyworker.diagnosis.protocols import first_line, recognize
from steadyworker.errors import ConfigError

if TYPE_CHECKING:
    from pamqp.base import Frame

UNLIMITED = 134_217_728
"""The largest frame if both ends agreed on no limit or a larger one; a larger number cannot be a size."""

_MOST_HELD = 1 << 20
"""The largest frame that the reader must hold, because it is no part of a body."""

HEADER = b"AMQP\0\0\x09\x01"
"""The protocol header of AMQP 0-9-1."""

_HEAD = struct.Struct(">BHI")
_AROUND = _HEAD.size + 1  # the bytes of a frame around its payload
_PROTOCOL_HEADER = 8
_INDEX = 4  # the bytes of a method's class and number
_END = 0xCE
_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_TYPES = {_METHOD: "method", _HEADER: "content header", _BODY: "body", _HEARTBEAT: "heartbeat"}
_CONTENT = {"Basic.Publish", "Basic.Return", "Basic.Deliver", "Basic.GetOk"}
_SECRET = {"Connection.StartOk", "Connection.SecureOk", "Connection.UpdateSecret"}
_AWAITED = -1  # this value replaces the number of remaining bytes until the content header has come
_CONTENT_HEAD = struct.Struct(">HHQH")  # class, weight, size of the body, flags of the properties
_FIRST_PROPERTY = 15  # the first property's bit in the first word of the flags; the next properties have the lower bits
_LAST_PROPERTY = 2
_FOREIGN = {"http", "tls", "stomp"}

Signature = tuple[str, tuple[tuple[str, str], ...]]


class AmqpReader:
    """
    A reader of one direction of an AMQP connection.

    `opening` means that this direction starts with a protocol header, as a client's direction does.
    `frame_max` is the largest frame that both ends agreed on; 0 means that they agreed on no limit.
    The caller may set `frame_max` at any time.

    Raises:
        ConfigError: pamqp is not installed; the message names the extra.
    """

    def __init__(self, *, frame_max: int = 131_072, opening: bool) -> None:
        self.frame_max = frame_max
        self.blind = False
        self.inner_header: int | None = None
        """The offset of the last protocol header in a body; another program has perhaps written it into the frame."""
        self._opening = opening
        self._methods, self._properties = _specification()
        self._offset = 0  # the offset of the first byte that is neither read nor skipped
        self._held = bytearray()  # the bytes of an incomplete head or frame
        self._need = _HEAD.size  # the number of bytes that `_held` must have before it can be read
        self._body: tuple[int, int, int] | None = None  # offset, channel and length of the body that is skipped
        self._skip = 0  # bytes of this body that are still to come, without the end octet
        self._contents: dict[int, int] = {}  # channel → bytes of its message's body that are still to come

    def feed(self, data: bytes) -> list[Item]:
        """Read the next bytes of this direction, and return the items that these bytes complete."""
        items: list[Item] = []
        at, end = 0, len(data)
        while at < end and not self.blind:
            if self._body is not None:
                at = self._skip_body(data, at, items)
            elif self._held:
                more = min(self._need - len(self._held), end - at)
                self._held += data[at : at + more]
                at += more
                if len(self._held) >= self._need and self._read(self._held, 0, items):
                    self._held = bytearray()
            elif used := self._read(data, at, items):
                at += used
            else:
                self._held += data[at:]
                at = end
        if self.blind:
            _show_more(items, bytes(data[at : at + LONGEST_RAW]))
            self._offset += end - at
        return items

    def end(self) -> list[Item]:
        """End the stream, and return a flaw if the end is inside a frame."""
        items: list[Item] = []
        if not self.blind and self._body is not None:
            offset, channel, length = self._body
            self._cut(items, offset, self._offset - offset, _BODY, channel, length)
        elif not self.blind and self._held:
            raw = bytes(self._held[: _HEAD.size + _INDEX])
            if raw[0] in _TYPES and len(raw) >= _HEAD.size and not self._at_start:
                self._cut(items, self._offset, len(self._held), *_HEAD.unpack_from(raw))
            elif (opening := recognize(raw)) is not None and opening.kind in _FOREIGN:
                self._lose(items, opening.kind, f"{opening.name}, and the end of the stream", raw)
            else:
                self._lose(items, "cut", f"the stream ended after {len(raw)} bytes of the head of a frame", raw)
        self.blind = True
        return items

    @property
    def _at_start(self) -> bool:
        return self._opening and self._offset == 0

    # --- One item at a time: each method returns the item's size if the item is complete ---

    def _read(self, data: Octets, at: int, items: list[Item]) -> int:
        """Read the item that begins at `at`; if the item is incomplete, set `_need` and return 0."""
        there = len(data) - at
        self._need = _HEAD.size
        if there < _HEAD.size:
            return 0
        head: tuple[int, int, int] = _HEAD.unpack_from(data, at)
        kind, channel, size = head
        if kind not in _TYPES or self._at_start:
            return self._read_other(bytes(data[at : at + _PROTOCOL_HEADER]), items)
        if size > (limit := min(self.frame_max or UNLIMITED, UNLIMITED if kind == _BODY else _MOST_HELD) - _AROUND):
            what = f"a {_TYPES[kind]} frame of {size} bytes on channel {channel}, where at most {limit} are allowed"
            return self._lose(items, "frame-too-large", what, bytes(data[at : at + _HEAD.size]))
        if kind == _BODY:
            self._body, self._skip = (self._offset, channel, size), size
            self._offset += _HEAD.size
            return _HEAD.size
        whole = size + _AROUND
        if there < whole:
            self._need = whole
            return 0
        if (octet := data[at + whole - 1]) != _END:
            self._wrong_end(items, kind, channel, size, octet)
        elif kind == _METHOD:
            self._method(data, at + _HEAD.size, channel, size, items)
        elif kind == _HEADER:
            self._content_header(data, at + _HEAD.size, channel, size, items)
        else:
            if size or channel:
                what = f"a heartbeat of {size} bytes on channel {channel}; a heartbeat has no bytes, and channel 0"
                self._flaw(items, "unparsable", what, whole, bytes(data[at : at + _HEAD.size]))
            items.append(Heartbeat(self._offset, whole, channel))
        self._offset += whole
        return whole

    def _read_other(self, head: bytes, items: list[Item]) -> int:
        """Read a protocol header, or recognise another protocol in the place of a frame."""
        opening = recognize(head)
        if head.startswith(b"AMQP"):
            if len(head) < _PROTOCOL_HEADER:
                self._need = _PROTOCOL_HEADER
                return 0
            if opening is not None and opening.kind == "amqp-1.0":
                return self._lose(items, opening.kind, f"a header of AMQP 1.0: {head!r}", head)
            items.append(ProtocolHeader(self._offset, len(head), head, second=self._offset > 0))
            self._offset += len(head)
            return len(head)
        place = "in the place of a frame" if self._offset else "at the start"
        found = opening.name if opening else f"a frame of type {head[0]}, which AMQP does not have,"
        if opening is not None and opening.kind in _FOREIGN:
            return self._lose(items, opening.kind, f"{found} {place}", head)
        if self._at_start:
            found = opening.name if opening else repr(head)
            return self._lose(items, "unparsable", f"{found} {place}, where a protocol header belongs", head)
        return self._lose(items, "frame-type", f"{found} {place}", head)

    def _skip_body(self, data: bytes, at: int, items: list[Item]) -> int:
        """Skip the body's bytes in `data`, and check the end octet after the last byte; return the place after the skipped bytes."""
        assert self._body is not None
        here = min(self._skip, len(data) - at)
        if (inner := data.find(HEADER, at, at + here)) >= 0:
            self.inner_header = self._offset + inner - at
        self._skip -= here
        self._offset += here
        at += here
        if at == len(data):
            return at
        offset, channel, length = self._body
        self._body = None
        if data[at] != _END:
            self._offset = offset
            self._wrong_end(items, _BODY, channel, length, data[at])
            self._offset += length + _AROUND
            return at + 1
        self._offset += 1
        left = self._contents.get(channel)
        if left is not None and length < left:
            self._contents[channel] = left - length
        elif length == left:
            del self._contents[channel]
        else:
            expected = "no body" if left is None else "a content header" if left == _AWAITED else f"{left} bytes"
            what = f"a body frame of {length} bytes, where {expected} was expected"
            self._mixed(items, offset, channel, length, what)
        items.append(BodyFrame(offset, length + _AROUND, channel, length))
        return at + 1

    def _method(self, data: Octets, start: int, channel: int, size: int, items: list[Item]) -> None:
        index = int.from_bytes(data[start : start + min(_INDEX, size)], "big")
        if size < _INDEX or (signature := self._methods.get(index)) is None:
            known = f"method {index & 0xFFFF} of class {index >> 16}, which AMQP does not have"
            what = known if size >= _INDEX else f"a method frame of {size} bytes"
            self._flaw(items, "bad-method", what, size + _AROUND, bytes(data[start : start + min(_INDEX, size)]))
            return
        name, arguments = signature
        fields = Fields(data, start + _INDEX, start + size, private=name in _SECRET)
        values = fields.arguments(arguments)
        if fields.problems or fields.left:
            self._problems(items, fields, size, name)
        if channel in self._contents:
            self._mixed(items, self._offset, channel, size, f"{name} inside a message")
        if name in _CONTENT:
            self._contents[channel] = _AWAITED
        items.append(Method(self._offset, size + _AROUND, channel, name, values))

    def _content_header(self, data: Octets, start: int, channel: int, size: int, items: list[Item]) -> None:
        fields = Fields(data, start, start + size, private=True)
        body_size, properties = 0, dict[str, object]()
        wrong = f"{size} bytes are too few for a content header"
        if size >= _CONTENT_HEAD.size:
            _, _, body_size, flags = _CONTENT_HEAD.unpack_from(data, start)
            fields.at += _CONTENT_HEAD.size
            properties = fields.arguments([part for bit, part in self._properties if flags >> bit & 1])
            unknown = flags & ((1 << _LAST_PROPERTY) - 1)
            wrong = "the content header has a property that AMQP does not have" if unknown else ""
        if wrong:
            self._flaw(items, "bad-method", wrong, size + _AROUND, b"")
            fields.at += fields.left
        if fields.problems or fields.left:
            self._problems(items, fields, size, "the content header")
        if self._contents.pop(channel, None) != _AWAITED:
            self._mixed(items, self._offset, channel, size, "a content header without its method")
        if body_size:
            self._contents[channel] = body_size
        items.append(ContentHeader(self._offset, size + _AROUND, channel, body_size, properties))

    # --- Flaws after which the reader can read the next frame ---

    def _problems(self, items: list[Item], fields: Fields, size: int, name: str) -> None:
        for kind, what, raw in fields.problems:
            self._flaw(items, kind, f"{name}: {what}", size + _AROUND, raw)
        if fields.left:
            what = f"{name}: {fields.left} extra bytes after the last value"
            self._flaw(items, "bad-method", what, size + _AROUND, b"")

    def _mixed(self, items: list[Item], offset: int, channel: int, size: int, what: str) -> None:
        self._contents.pop(channel, None)
        self._flaw(items, "interleaved", f"{what}, on channel {channel}", size + _AROUND, b"", offset=offset)

    def _flaw(
        self, items: list[Item], kind: str, what: str, size: int, raw: bytes, *, offset: int | None = None
    ) -> None:
        items.append(Flaw(self._offset if offset is None else offset, size, kind, what, raw))

    # --- Flaws after which the reader is blind ---

    def _wrong_end(self, items: list[Item], kind: int, channel: int, size: int, octet: int) -> None:
        self.blind = True
        what = f"0x{octet:02X} instead of the end octet 0xCE behind {_frame(kind, channel, size)}"
        raw = _HEAD.pack(kind, channel, size) + bytes([octet])
        items.append(Flaw(self._offset, size + _AROUND, "frame-end", what, raw))

    def _cut(self, items: list[Item], offset: int, came: int, kind: int, channel: int, size: int) -> None:
        what = f"the stream ended after {came} of {size + _AROUND} bytes of {_frame(kind, channel, size)}"
        items.append(Flaw(offset, came, "cut", what, _HEAD.pack(kind, channel, size)))

    def _lose(self, items: list[Item], kind: str, what: str, head: bytes) -> int:
        self.blind = True
        items.append(Flaw(self._offset, len(head), kind, what, head))
        self._offset += len(head)
        return len(head)


def _frame(kind: int, channel: int, size: int) -> str:
    return f"a {_TYPES[kind]} frame of {size} bytes on channel {channel}"


def _show_more(items: list[Item], following: bytes) -> None:
    """
    Add the bytes that follow to the last flaw's bytes, if the flaw is another protocol.

    If that protocol is text, add only the rest of the line, because a login can follow.
    """
    if items and isinstance(last := items[-1], Flaw) and last.kind not in {"frame-end", "frame-too-large"}:
        raw = (last.raw + following)[:LONGEST_RAW]
        items[-1] = replace(last, raw=first_line(raw) if last.kind in {"http", "stomp"} else raw)


def _specification() -> tuple[Mapping[int, Signature], tuple[tuple[int, tuple[str, str]], ...]]:
    """Return pamqp's methods, by class and number, and pamqp's properties, by bit."""
    try:
        from pamqp import commands
    except ImportError as error:
        raise ConfigError("Expected pamqp to read AMQP, got none: pip install 'steadyworker[trace]'.") from error
    classes = cast("Mapping[int, type[Frame]]", commands.INDEX_MAPPING)
    methods = {
        index: (method.name, tuple((name, method.amqp_type(name)) for name in method.attributes()))
        for index, method in classes.items()
    }
    # RabbitMQ still accepts this class of AMQP 0-8, and old clients still use it.
    flags = ("exclusive", "passive", "active", "write", "read")
    methods[0x1E000A] = ("Access.Request", (("realm", "shortstr"), *((name, "bit") for name in flags)))
    methods[0x1E000B] = ("Access.RequestOk", (("ticket", "short"),))
    properties = commands.Basic.Properties
    types = [(name, properties.amqp_type(name)) for name in properties.attributes()]
    return methods, tuple(zip(range(_FIRST_PROPERTY, _LAST_PROPERTY - 1, -1), types, strict=True))
