"""
RocketMQ's remoting protocol in a trace, as far as one story needs it: a retry that no broker can store.

A frame has a length (4 bytes), the type and length of its header (1 and 3 bytes), the header and a body.
The reader reads headers in JSON, the default of every client.
It skips frames with a binary header, and the bytes of all bodies.

The conversation flags the refused retry, and the copy that an old client then sends.
What a server replies otherwise is in the logs of both sides, which `steadyworker explain` reads.
No event contains a remark, because a remark can contain an access key.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from steadyworker.diagnosis.frames import Flaw, Item, RemotingFrame
from steadyworker.diagnosis.line import Line, spelled
from steadyworker.diagnosis.tap import Side
from steadyworker.diagnosis.wire import text

LONGEST_FRAME = 1 << 24
"""The largest frame in bytes, as RocketMQ's servers and clients limit it."""

LONGEST_HEAD = 1 << 18
"""The largest header in bytes; it has room for properties of 32,767 escaped characters, and for all other fields."""

LONGEST_TOPIC = 127
"""The largest number of characters of a topic that a broker stores; since 5.1, a retry topic may have 255."""

RETRY = "%RETRY%"
"""The beginning of a retry topic's name; the name of the consumer group follows."""

_WORDS = struct.Struct(">II")
_HEADER_SIZE = (1 << 24) - 1  # the bits of the second word that are the header's length
_INT = 4  # bytes
_REPLY, _ONE_WAY = 1, 2
_SEND, _SEND_BACK = {10, 310}, 36
_ILLEGAL = 13
_TOO_LONG = re.compile(r"MESSAGE_ILLEGAL|longer than topic max length")  # before 4.6, any error has this code
_REQUESTS: Mapping[int, str] = {
    10: "SEND_MESSAGE", 11: "PULL_MESSAGE", 14: "QUERY_CONSUMER_OFFSET", 15: "UPDATE_CONSUMER_OFFSET",
    34: "HEART_BEAT", 35: "UNREGISTER_CLIENT", 36: "CONSUMER_SEND_MSG_BACK", 37: "END_TRANSACTION",
    38: "GET_CONSUMER_LIST_BY_GROUP", 39: "CHECK_TRANSACTION_STATE", 105: "GET_ROUTEINFO_BY_TOPIC",
    310: "SEND_MESSAGE_V2", 200050: "POP_MESSAGE", 200051: "ACK_MESSAGE",
}  # fmt: skip
_RESULTS: Mapping[int, str] = {0: "SUCCESS", 1: "SYSTEM_ERROR", 13: "MESSAGE_ILLEGAL", 17: "TOPIC_NOT_EXIST"}
_SHORT_NAMES = {"a": "producerGroup", "b": "topic", "i": "properties"}  # of SEND_MESSAGE_V2
_SHOWN = ("topic", "originTopic", "group", "consumerGroup", "producerGroup", "delayLevel")
_MOST_WAITING, _MOST_REFUSED = 20_000, 1_000


class _Header(msgspec.Struct):
    """A header in JSON."""

    code: int
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int | None = None
    remark: str | None = None
    extFields: dict[str, str | int | float | bool | None] | None = None  # noqa: N815 - as it is on the wire


def begins(raw: bytes | bytearray) -> bool:
    """Return whether these bytes, at least 8, are the beginning of a frame."""
    length, word = _WORDS.unpack_from(raw)
    header = word & _HEADER_SIZE
    known = word >> 24 == 1 or (word >> 24 == 0 and raw[_WORDS.size : _WORDS.size + 1] in b"{")
    return known and length + _INT <= LONGEST_FRAME and 0 < header <= length - _INT


class RemotingReader:
    """A reader of one direction of a connection; it returns a frame as soon as its header is complete."""

    def __init__(self) -> None:
        self.blind = False
        self._offset = 0  # the offset of the first byte in `_held`
        self._held = bytearray()  # the bytes of a header, as far as they have come
        self._left = 0  # bytes of the last frame that are still to come

    def feed(self, data: bytes) -> list[Item]:
        """Read the next bytes of this direction, and return the items that these bytes complete."""
        items: list[Item] = []
        here = min(self._left, len(data))
        self._left -= here
        self._held += data[here:]
        while len(self._held) >= _WORDS.size and not self.blind:
            length, word = _WORDS.unpack_from(self._held)
            end = _WORDS.size + (word & _HEADER_SIZE)
            if not begins(self._held):
                self._lose(items, "a length and a type that begin no frame of RocketMQ")
            elif word >> 24 == 0 and end - _WORDS.size <= LONGEST_HEAD:
                if len(self._held) < end:
                    break
                self._read(items, bytes(self._held[_WORDS.size : end]), length + _INT)
            size = length + _INT
            self._left = max(0, size - len(self._held))
            self._offset += size
            del self._held[:size]
        return items

    def end(self) -> list[Item]:
        """End the stream, and return a flaw if the end is inside a frame."""
        cut = not self.blind and (self._held or self._left)
        self.blind = True
        return [Flaw(self._offset, 0, "cut", "the stream ended in a frame of RocketMQ", b"")] if cut else []

    def _read(self, items: list[Item], head: bytes, size: int) -> None:
        try:
            found = msgspec.json.decode(head, type=_Header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._lose(items, f"a header of {len(head)} bytes that is not the JSON of RocketMQ")
            return
        fields = {_SHORT_NAMES.get(name, name): str(value) for name, value in (found.extFields or {}).items()}
        body = size - _WORDS.size - len(head)
        language = f"{found.language or ''} {_version(found.version)}".strip()
        remark = found.remark or ""
        items.append(
            RemotingFrame(self._offset, size, found.code, found.opaque, found.flag, language, remark, fields, body)
        )

    def _lose(self, items: list[Item], what: str) -> None:
        self.blind = True
        items.append(Flaw(self._offset, len(self._held), "unparsable", what, bytes(self._held[: _WORDS.size])))


def _version(number: int) -> str:
    """Return a version by its number (`MQVersion`), such as 4.9.7; each has two, and 4.0.0 has 212 and 213."""
    index = (number - 212) // 2
    return "" if index < 0 else ".".join(map(str, (4 + index // 100, index // 10 % 10, index % 10)))


class RocketmqConversation:
    """The state of one connection, which the frames of both sides change."""

    family: Final = "rocketmq"

    def __init__(self, line: Line) -> None:
        self._line = line
        self.readers = {side: RemotingReader() for side in Side}
        self._requests: dict[Side, OrderedDict[int, RemotingFrame]] = {side: OrderedDict() for side in Side}
        self._refused: OrderedDict[str, None] = OrderedDict()  # retry topics that are too long

    def receive(self, t: float, side: Side, item: Item, _: Callable[[int], bytes]) -> None:
        """Receive the next item of a side."""
        match item:
            case RemotingFrame() if item.flag & _REPLY:
                self._reply(t, side, item)
            case RemotingFrame():
                self._request(t, side, item)
            case Flaw(kind="cut"):
                self._line.flag(t, "rocketmq.frame-cut", self._line.cut(side, item.what))
            case Flaw():
                what = f"From the {side.label}: {item.what} (byte {item.offset} of its direction)."
                self._line.flag(t, "trace.unparsable", what, spelled(item.raw), unless_flagged=True)

    def _request(self, t: float, side: Side, frame: RemotingFrame) -> None:
        properties = _properties(frame.fields.get("properties", "")) if frame.code in _SEND else {}
        marks: dict[str, object] = {
            name: text(properties[name]) for name in ("TRAN_MSG", "DELAY") if name in properties
        }
        self._event(t, side, frame, name=_request_name(frame), headers={**_shown(frame), **marks} or None)
        if not frame.flag & _ONE_WAY:
            waiting = self._requests[side]
            waiting[frame.opaque] = frame
            if len(waiting) > _MOST_WAITING:
                waiting.popitem(last=False)
        topic = frame.fields.get("topic", "")
        if topic.startswith(RETRY) and properties.get("TRAN_MSG") == "true":
            what = f"The {side.label} sent a message again to a retry topic, with its transaction mark (TRAN_MSG=true): the broker takes it for a half message, and RMQ_SYS_TRANS_HALF_TOPIC grows."
            if topic in self._refused:
                what += f" The client ({text(frame.language)}) sends this copy because the broker refused the retry."
            row = {"topic": text(topic), "request": _request_name(frame), **marks}
            self._line.flag(t, "rocketmq.half-topic-grows", what, [row])

    def _reply(self, t: float, side: Side, frame: RemotingFrame) -> None:
        request = self._requests[side.other].pop(frame.opaque, None)
        name = _RESULTS.get(frame.code, f"result {frame.code}")
        to = request and _request_name(request)
        self._event(t, side, frame, name=name, to=to, code=frame.code or None, headers=_shown(frame) or None)
        if request is None or not (frame.code == _ILLEGAL or (frame.code and _TOO_LONG.search(frame.remark))):
            return
        group = next((request.fields[each] for each in ("group", "consumerGroup") if each in request.fields), "")
        retry = RETRY + group if request.code == _SEND_BACK else request.fields.get("topic", "")
        if retry.startswith(RETRY) and len(retry) > LONGEST_TOPIC:
            self._too_long(t, side, request, retry)

    def _too_long(self, t: float, side: Side, request: RemotingFrame, retry: str) -> None:
        """Flag a retry that can never be stored, because the group's name is too long."""
        self._refused[retry] = None
        if len(self._refused) > _MOST_REFUSED:
            self._refused.popitem(last=False)
        group = retry.removeprefix(RETRY)
        what = f"The {side.label} refused a retry ({_request_name(request)}) with MESSAGE_ILLEGAL: the name of the retry topic, {RETRY} and the name of the consumer group, has {len(retry)} characters, and the broker stores topics of at most {LONGEST_TOPIC}. No message of this group can be retried."
        rows: list[dict[str, object]] = [
            {"name": text(group), "characters": len(group), "allowed": LONGEST_TOPIC - len(RETRY)},
            {"name": text(retry), "characters": len(retry), "allowed": LONGEST_TOPIC},
        ]
        self._line.flag(t, "rocketmq.illegal-retry-topic", what, rows)

    def _event(self, t: float, side: Side, frame: RemotingFrame, **detail: Any) -> None:
        size, body = frame.size, frame.body_size or None
        product = f"RocketMQ {text(frame.language)}".strip()
        self._line.frame(t, side, "frame", size=size, body_size=body, **detail, product=product, opaque=frame.opaque)


def _request_name(frame: RemotingFrame) -> str:
    return _REQUESTS.get(frame.code, f"request {frame.code}")


def _shown(frame: RemotingFrame) -> dict[str, str]:
    """Return the fields that events show; all other fields belong to an application, or are secret."""
    return {name: text(frame.fields[name]) for name in _SHOWN if frame.fields.get(name)}


def _properties(written: str) -> dict[str, str]:
    """Return the properties of a message; control characters separate them."""
    pairs = (each.partition("\1") for each in written.split("\2"))
    return {name: value for name, _, value in pairs if name}
