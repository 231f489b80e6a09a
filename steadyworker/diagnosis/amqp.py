"""
The reader of AMQP 0-9-1: from the bytes of one direction to frames.

A frame is a type (1 byte), a channel (2), a size (4), so many bytes, and the end octet 0xCE:

    +------+---------+-------------+------------------+------+
    | type | channel |    size     | payload          | 0xCE |
    +------+---------+-------------+------------------+------+

The reader holds at most the head of a frame, or an incomplete frame that is a method or the header of a message.
Of a body it counts the bytes, so the largest body needs no memory.
It compares the size with the agreed maximum when it has read the head, before it reads or holds anything more.

pamqp (extra `trace`) knows the methods with their arguments; `fields.py` reads the values.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace

from steadyworker.diagnosis.fields import Fields, Misfit
from steadyworker.diagnosis.frames import (
    LONGEST_RAW,
    Body,
    ContentHeader,
    Flaw,
    Heartbeat,
    Item,
    Method,
    ProtocolHeader,
)
from steadyworker.diagnosis.protocols import recognize
from steadyworker.errors import ConfigError

UNLIMITED = 134_217_728
"""The largest frame if both ends agreed on no limit: a larger size is no size, but other bytes."""

_HEAD = struct.Struct(">BHI")
_END = 0xCE
_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_TYPES = {_METHOD: "method", _HEADER: "content header", _BODY: "body", _HEARTBEAT: "heartbeat"}
_CONTENT = {"Basic.Publish", "Basic.Return", "Basic.Deliver", "Basic.GetOk"}
_AWAITED = -1  # in place of the bytes of a body that are left: the content header is still to come
_MOST_CHANNELS = 4_096
_HEADER_SIZE = 8
_PROPERTY_BITS = [1 << bit for bit in range(15, 1, -1)]

Signature = tuple[str, tuple[tuple[str, str], ...]]


class AmqpReader:
    """
    Reads one direction of an AMQP connection.

    `opening` says that this direction starts with a protocol header, as that of a client does.
    `frame_max` is what both ends agreed on, and may be set at any time; 0 means that they agreed on no limit.
    """

    def __init__(self, *, frame_max: int = 131_072, opening: bool) -> None:
        self.frame_max = frame_max
        self.blind = False
        self._opening = opening
        self._methods, self._properties = _specification()
        self._offset = 0  # of the first byte that is neither read nor skipped
        self._held = bytearray()  # what has come of a head or of a frame that is not complete
        self._need = _HEAD.size  # the number of bytes that `_held` must have before it can be read
        self._body: tuple[int, int, int] | None = None  # offset, channel and length of the body that is skipped
        self._skip = 0  # bytes of this body that are still to come, without the end octet
        self._contents: dict[int, int] = {}  # channels with a message under way: bytes of its body still to come

    def feed(self, data: bytes) -> list[Item]:
        """Take the next bytes of this direction, and return what they complete."""
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
            else:
                used = self._read(data, at, items)
                if not used and not self.blind:
                    self._held += data[at:]
                    used = end - at
                at += used
        if self.blind:
            if at < end and items and isinstance(last := items[-1], Flaw):
                items[-1] = replace(last, raw=(last.raw + data[at : at + LONGEST_RAW])[:LONGEST_RAW])
            self._offset += end - at
        return items

    def end(self) -> list[Item]:
        """Take note that the stream ended: return a flaw if it ended inside a frame."""
        items: list[Item] = []
        if not self.blind:
            self._cut(items)
            self.blind = True
        return items

    # --- One thing at a time ---

    def _read(self, data: bytes | bytearray, at: int, items: list[Item]) -> int:
        """Read what begins at `at`; return its bytes here, or 0 with `_need` set if it is not complete."""
        there = len(data) - at
        if there < _HEAD.size:
            self._need = _HEAD.size
            return 0
        kind, channel, size = _HEAD.unpack_from(data, at)
        if kind not in _TYPES or (self._opening and self._offset == 0):
            return self._read_other(data, at, items)
        if size > (limit := (self.frame_max or UNLIMITED) - _HEADER_SIZE):
            what = f"a {_TYPES[kind]} frame of {size} bytes on channel {channel}, where at most {limit} are allowed"
            return self._lose(items, "frame-too-large", what, data, at)
        if kind == _BODY:
            self._body, self._skip = (self._offset, channel, size), size
            self._offset += _HEAD.size
            self._need = _HEAD.size
            return _HEAD.size
        whole = size + _HEADER_SIZE
        if there < whole:
            self._need = whole
            return 0
        self._need = _HEAD.size
        if data[at + whole - 1] != _END:
            return self._lose_end(items, kind, channel, size, bytes(data[at : at + _HEAD.size]), data[at + whole - 1])
        if kind == _METHOD:
            self._method(data, at, channel, size, items)
        elif kind == _HEADER:
            self._content_header(data, at, channel, size, items)
        else:
            items.append(Heartbeat(self._offset, whole, channel))
        self._offset += whole
        return whole

    def _read_other(self, data: bytes | bytearray, at: int, items: list[Item]) -> int:
        """Read a protocol header, or see what other protocol stands in the place of a frame."""
        head = bytes(data[at : at + _HEADER_SIZE])
        if head.startswith(b"AMQP"):
            if len(head) < _HEADER_SIZE:
                self._need = _HEADER_SIZE
                return 0
            if (opening := recognize(head)) is not None and opening.kind == "amqp-1.0":
                return self._lose(items, opening.kind, f"a header of AMQP 1.0: {head!r}", data, at)
            items.append(ProtocolHeader(self._offset, _HEADER_SIZE, head, second=self._offset > 0))
            self._offset += _HEADER_SIZE
            self._need = _HEAD.size
            return _HEADER_SIZE
        place = "in the place of a frame" if self._offset else "at the start"
        opening = recognize(head)
        if opening is not None and opening.kind in {"http", "tls", "stomp"}:
            return self._lose(items, opening.kind, f"{opening.name} {place}", data, at)
        if self._opening and self._offset == 0:
            return self._lose(items, "unparsable", f"{head!r} at the start, where a protocol header belongs", data, at)
        return self._lose(items, "frame-type", f"a frame of type {head[0]}, which AMQP does not have", data, at)

    def _skip_body(self, data: bytes, at: int, items: list[Item]) -> int:
        """Skip what is here of the body; behind its last byte, check the end octet."""
        assert self._body is not None
        here = min(self._skip, len(data) - at)
        self._skip -= here
        self._offset += here
        at += here
        if at == len(data):
            return at
        offset, channel, length = self._body
        self._body = None
        if data[at] != _END:
            head = _HEAD.pack(_BODY, channel, length)
            self._offset = offset
            self._lose_end(items, _BODY, channel, length, head, data[at])
            return at + 1
        self._offset += 1
        left = self._contents.get(channel)
        if left is None or left == _AWAITED or length > left:
            expected = "no message" if left is None else "a content header" if left == _AWAITED else f"{left} bytes"
            self._mixed(
                items, offset, channel, length, f"a body frame of {length} bytes, where {expected} was expected"
            )
        elif length == left:
            del self._contents[channel]
        else:
            self._contents[channel] = left - length
        items.append(Body(offset, length + _HEADER_SIZE, channel, length))
        return at + 1

    def _method(self, data: bytes | bytearray, at: int, channel: int, size: int, items: list[Item]) -> None:
        offset, start = self._offset, at + _HEAD.size
        if size < 4:  # noqa: PLR2004 - class and method
            self._flaw(items, size, "bad-method", f"a method frame of {size} bytes", data[at : at + LONGEST_RAW])
            return
        index = int.from_bytes(data[start : start + 4], "big")
        class_id, method_id = index >> 16, index & 0xFFFF
        if (signature := self._methods.get(index)) is None:
            what = f"method {method_id} of class {class_id}, which AMQP does not have"
            self._flaw(items, size, "bad-method", what, data[at : min(at + LONGEST_RAW, start + size)])
            return
        name, arguments = signature
        fields = Fields(data, start + 4, start + size)
        values = fields.arguments(arguments)
        self._problems(items, fields, size, name)
        if channel in self._contents:
            self._mixed(items, offset, channel, size, f"{name} inside a message")
        if name in _CONTENT:
            if len(self._contents) >= _MOST_CHANNELS:
                self._contents.clear()
            self._contents[channel] = _AWAITED
        items.append(Method(offset, size + _HEADER_SIZE, channel, name, values, class_id, method_id))

    def _content_header(self, data: bytes | bytearray, at: int, channel: int, size: int, items: list[Item]) -> None:
        offset, start = self._offset, at + _HEAD.size
        fields = Fields(data, start, start + size)
        body_size, properties = 0, {}
        try:
            head = fields.arguments((("class", "short"), ("weight", "short"), ("size", "longlong")))
            if "size" not in head:
                raise Misfit(f"a content header of {size} bytes")
            body_size = int(str(head["size"]))
            words = fields.flags()
            known = [part for bit, part in zip(_PROPERTY_BITS, self._properties, strict=True) if words[0] & bit]
            properties = fields.arguments(known)
            if words[0] & 2 or any(word & ~1 for word in words[1:]):
                raise Misfit("a property that AMQP does not have")
        except Misfit as error:
            what = f"the content header on channel {channel}: {error}"
            self._flaw(items, size, "unparsable", what, data[at : min(at + LONGEST_RAW, start + size)])
        self._problems(items, fields, size, "the content header")
        if self._contents.pop(channel, None) != _AWAITED:
            self._mixed(items, offset, channel, size, "a content header without its method")
        if body_size:
            self._contents[channel] = body_size
        items.append(ContentHeader(offset, size + _HEADER_SIZE, channel, body_size, properties))

    # --- Flaws ---

    def _problems(self, items: list[Item], fields: Fields, size: int, name: str) -> None:
        for problem in fields.problems:
            self._flaw(items, size, problem.kind, f"{name}: {problem.what}", problem.raw)
        if not any(problem.kind == "bad-method" for problem in fields.problems) and fields.rest():
            self._flaw(items, size, "bad-method", f"{name}: {fields.rest()} bytes behind the last value", b"")

    def _flaw(self, items: list[Item], size: int, kind: str, what: str, raw: bytes | bytearray) -> None:
        items.append(Flaw(self._offset, size + _HEADER_SIZE, kind, what, bytes(raw[:LONGEST_RAW])))

    def _mixed(self, items: list[Item], offset: int, channel: int, size: int, what: str) -> None:
        self._contents.pop(channel, None)
        items.append(Flaw(offset, size + _HEADER_SIZE, "interleaved", f"{what}, on channel {channel}", b""))

    def _lose_end(self, items: list[Item], kind: int, channel: int, size: int, head: bytes, octet: int) -> int:
        what = (
            f"0x{octet:02X} instead of the end octet 0xCE, behind {size} bytes of a {_TYPES[kind]} frame "
            f"on channel {channel}"
        )
        return self._lose(items, "frame-end", what, head + bytes([octet]), 0, size + _HEADER_SIZE)

    def _lose(
        self, items: list[Item], kind: str, what: str, data: bytes | bytearray, at: int, size: int | None = None
    ) -> int:
        raw = bytes(data[at : at + LONGEST_RAW])
        used = len(raw) if size is None else size
        items.append(Flaw(self._offset, used, kind, what, raw))
        self._offset += used
        self._held = bytearray()
        self.blind = True
        return used

    def _cut(self, items: list[Item]) -> None:
        if self._body is not None:
            offset, channel, length = self._body
            came = self._offset - offset
            what = (
                f"the stream ended behind {came} of {length + _HEADER_SIZE} bytes of a body frame on channel {channel}"
            )
            items.append(Flaw(offset, came, "cut", what, _HEAD.pack(_BODY, channel, length)))
        elif self._held:
            raw = bytes(self._held[:LONGEST_RAW])
            opening = recognize(raw)
            if opening is not None and opening.kind in {"http", "tls", "stomp"}:
                items.append(
                    Flaw(self._offset, len(raw), opening.kind, f"{opening.name}, and the end of the stream", raw)
                )
                return
            whole = "the head of a frame"
            if len(self._held) >= _HEAD.size and self._held[0] in _TYPES:
                kind, channel, size = _HEAD.unpack_from(self._held)
                whole = f"{size + _HEADER_SIZE} bytes of a {_TYPES[kind]} frame on channel {channel}"
            what = f"the stream ended behind {len(self._held)} of {whole}"
            items.append(Flaw(self._offset, len(self._held), "cut", what, raw))


def _specification() -> tuple[Mapping[int, Signature], tuple[tuple[str, str], ...]]:
    """Return the methods by class and method, and the properties, as pamqp has them."""
    try:
        from pamqp import commands
    except ImportError as error:
        raise ConfigError("Expected pamqp to read AMQP, got none: pip install 'steadyworker[trace]'.") from error
    methods = {
        index: (str(method.name), tuple((name, str(method.amqp_type(name))) for name in method.attributes()))
        for index, method in commands.INDEX_MAPPING.items()
    }
    flags = ["exclusive", "passive", "active", "write", "read"]
    # RabbitMQ still accepts this class of AMQP 0-8, and old clients still use it.
    methods[0x1E000A] = ("Access.Request", (("realm", "shortstr"), *((name, "bit") for name in flags)))
    methods[0x1E000B] = ("Access.RequestOk", (("ticket", "short"),))
    properties = commands.Basic.Properties
    return methods, tuple((name, str(properties.amqp_type(name))) for name in properties.attributes())
