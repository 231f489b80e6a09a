r"""
The reader of RocketMQ's remoting protocol, which name servers, brokers and the proxies' remoting port speak.

A frame has four parts, and all numbers are big-endian:

| bytes | part |
|---|---|
| 4 | the length of what follows |
| 4 | first byte: the type of the header (0 is JSON, 1 is binary); other three bytes: the header's length |
| | the header: code, number of the request, flag (bit 0: a reply; bit 1: a request without a reply), remark, fields |
| | the body |

    00 00 00 5C  00 00 00 58  {"code":36,"extFields":{"group":"jobs",…},"flag":0,"language":"JAVA","opaque":7,"version":411}

The reader holds at most one header, up to a maximum size; it skips a frame with a larger header.
The reader only counts the bytes of a body.
Of a binary header, which clients use only if an operator asks for it, the reader reads no remark and no fields.
A header that cannot be read is a flaw, and the reader continues with the next frame.
If the lengths contradict each other, no later frame can be found.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import msgspec

from steadyworker.diagnosis.frames import FLAWS, Flaw, Item, RemotingFrame
from steadyworker.diagnosis.protocols import Opening, recognize

LONGEST_HEAD = 1 << 18
"""The largest header in bytes; it has room for properties of 32,767 escaped characters, and for all other fields."""

WORDS = struct.Struct(">II")

_JSON, _BINARY = 0, 1
_HEADER_SIZE = (1 << 24) - 1  # the bits of the second word that are the header's length
_FIXED = struct.Struct(">hBhii")
_INT = 4  # bytes
_V4_0_0_SNAPSHOT = 212


FIELDS = (
    *("topic", "originTopic", "group", "consumerGroup", "producerGroup", "queueId", "queueOffset", "offset"),
    *("delayLevel", "reconsumeTimes", "maxReconsumeTimes", "maxMsgNums", "commitOffset", "commitOrRollback"),
    *("nextBeginOffset", "invisibleTime", "clientID", "properties", "AccessKey"),
    *(
        "a",
        "b",
        "e",
        "i",
        "j",
    ),  # producerGroup, topic, queueId, properties and reconsumeTimes in `SendMessageRequestHeaderV2`
)
"""The fields of headers that the reader keeps; it keeps no other fields."""

_Fields = msgspec.defstruct("_Fields", [(name, str | int | float | bool | None, None) for name in FIELDS])


class _Header(msgspec.Struct):
    """A header in JSON."""

    code: int
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int | None = None
    remark: str | None = None
    extFields: msgspec.Raw = msgspec.Raw(b"null")  # noqa: N815 - as it is on the wire


def begins(raw: bytes, max_frame: int = 1 << 24) -> bool:
    """Return whether these bytes, at least 8, are the beginning of a frame."""
    length, word = WORDS.unpack_from(raw)
    return (
        length + _INT <= max_frame
        and word >> 24 in {_JSON, _BINARY}
        and 0 < word & _HEADER_SIZE <= length - _INT
        and (word >> 24 == _BINARY or raw[WORDS.size : WORDS.size + 1] in b"{")
    )


def version_of(number: int) -> str:
    """
    Return the version of a server or client by its number (`MQVersion`), such as 4.9.7; empty before 4.0.0.

    Each version has two consecutive numbers, the first for its snapshot and the second for its release.
    Patch and minor version go up to 9.
    """
    index = (number - _V4_0_0_SNAPSHOT) // 2
    return "" if index < 0 else ".".join(map(str, (4 + index // 100, index // 10 % 10, index % 10)))


class RemotingReader:
    """
    A reader of one direction of a connection.

    `max_frame` is the largest size of a frame, with the four bytes of its length.
    The default is the limit of RocketMQ's servers and clients.
    A larger length is a flaw, and no byte after this length is read.
    """

    def __init__(self, *, max_frame: int = 1 << 24) -> None:
        self.max_frame = max_frame
        self.blind = False
        self._offset = 0  # the offset of the frame that comes next, or is being read
        self._head = bytearray()  # the frame's lengths and header, as far as they have come
        self._needed = WORDS.size  # `_head` must have so many bytes before it can be read
        self._frame: RemotingFrame | None = None  # the frame whose body is skipped; None if the frame could not be read
        self._left = 0  # bytes of the body that are still to come
        self._size = 0

    def feed(self, data: bytes) -> list[Item]:
        """Read the next bytes of this direction, and return the items that these bytes complete."""
        items: list[Item] = []
        at = 0
        while at < len(data) and not self.blind:
            if self._left:
                here = min(self._left, len(data) - at)
                self._left -= here
            else:
                here = min(self._needed - len(self._head), len(data) - at)
                self._head += data[at : at + here]
                if len(self._head) < self._needed:
                    return items
                if self._needed == WORDS.size:
                    self._begin(items)
                else:
                    self._read_header(items)
            at += here
            if not self._left and self._size and not self.blind and self._needed == WORDS.size:
                self._finish(items)
        return items

    def end(self) -> list[Item]:
        """End the stream, and return a flaw if the end is inside a frame."""
        items: list[Item] = []
        if not self.blind and (self._head or self._left):
            came = self._size - self._left if self._left else len(self._head)
            if self._needed == WORDS.size and not self._left and (opening := recognize(bytes(self._head))) is not None:
                self._flaw(items, _kind_of(opening), f"{opening.name}, and the end of the stream", came)
            else:
                where = "body" if self._left else "header"
                self._flaw(items, "cut", f"the stream ended after {came} bytes of a frame, in its {where}", came)
        self.blind = True
        return items

    def _begin(self, items: list[Item]) -> None:
        """Check the lengths."""
        raw = bytes(self._head)
        length, word = WORDS.unpack(raw)
        header = word & _HEADER_SIZE
        if not begins(raw, self.max_frame):
            place = "in the place of a frame" if self._offset else "at the start"
            opening = recognize(raw)
            if opening is not None:
                kind, what = _kind_of(opening), f"{opening.name} {place}"
            elif length + _INT > self.max_frame:
                kind, what = (
                    "frame-too-large",
                    f"a length of {length} bytes {place}, where {self.max_frame} are allowed",
                )
            else:
                kind, what = "bad-frame", f"a length of {length} bytes {place}, and then 0x{word:08X} for the header"
            self._flaw(items, kind, what, len(raw), raw)
            self.blind = True
            return
        self._size = _INT + length
        if header > LONGEST_HEAD:
            what = f"a header of {header} bytes, of which at most {LONGEST_HEAD} are read"
            self._flaw(items, "frame-too-large", what, self._size, raw)
            self._skip(None, WORDS.size)
        else:
            self._needed = WORDS.size + header

    def _read_header(self, items: list[Item]) -> None:
        """Read the complete header, and begin with the body."""
        head = bytes(self._head[WORDS.size :])
        binary = self._head[_INT] == _BINARY
        body = self._size - len(self._head)
        frame: RemotingFrame | None = None
        try:
            frame = replace((_binary if binary else _json)(head), offset=self._offset, size=self._size, body_size=body)
        except (ValueError, RecursionError, struct.error):
            what = f"a {'binary' if binary else 'JSON'} header of {len(head)} bytes that cannot be read"
            self._flaw(items, "bad-frame", what, self._size)
        self._skip(frame, len(self._head))

    def _skip(self, frame: RemotingFrame | None, came: int) -> None:
        self._frame, self._left = frame, self._size - came
        self._head, self._needed = bytearray(), WORDS.size

    def _finish(self, items: list[Item]) -> None:
        if self._frame is not None:
            items.append(self._frame)
        self._offset += self._size
        self._frame, self._size = None, 0

    def _flaw(self, items: list[Item], kind: str, what: str, size: int, raw: bytes = b"") -> None:
        items.append(Flaw(self._offset, size, kind, what, raw))


def _kind_of(opening: Opening) -> str:
    return opening.kind if opening.kind in FLAWS else "unparsable"


def _json(head: bytes) -> RemotingFrame:
    try:
        found = msgspec.json.decode(head, type=_Header)
        given = msgspec.json.decode(found.extFields, type=_Fields | None)
    except msgspec.MsgspecError as error:
        raise ValueError from error
    fields = {name: str(value) for name in FIELDS if (value := getattr(given, name, None)) is not None}
    language = str(found.language or "")
    return RemotingFrame(
        0, 0, found.code, found.opaque, found.flag, language, found.version, found.remark or "", fields, 0
    )


def _binary(head: bytes) -> RemotingFrame:
    code, _, version, opaque, flag = _FIXED.unpack_from(head)
    return RemotingFrame(0, 0, code, opaque, flag, "", version, "", {}, 0)
