r"""
The reader of STOMP 1.0, 1.1 and 1.2: from the bytes of one direction to frames.

A frame is a command line, header lines, an empty line, the body, and a NUL:

    SEND\n
    destination:/queue/jobs\n
    content-length:5\n
    \n
    hello\0

If `content-length` is there, the body has so many bytes, NULs among them; else it ends at the first NUL.
A line ends with LF, or with CR LF since 1.2.
Ends of line between two frames are heartbeats.
If a header is repeated, its first value counts.

The reader holds at most the command and the headers of one frame, and these have a largest size.
Of a body it counts the bytes.
The version decides about escapes: `\n`, `\c` and `\\` since 1.1, `\r` since 1.2, none in `CONNECT` and `CONNECTED`.
"""

from __future__ import annotations

import re
from dataclasses import replace

from steadyworker.diagnosis.frames import LONGEST_RAW, Flaw, Heartbeat, Item, StompFrame
from steadyworker.diagnosis.protocols import STOMP_COMMANDS, Opening, recognize

LONGEST_HEAD = 65_536
"""The largest number of bytes of a frame's command and headers together."""

_LONGEST_COMMAND = 32
_HEAD_END = re.compile(rb"\n\r?\n")
_EOLS = re.compile(rb"[\r\n]+")
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_ESCAPED = {"n": "\n", "c": ":", "\\": "\\", "r": "\r"}
_LITERAL = {"CONNECT", "CONNECTED"}
_DIGITS = 18
_JUDGED = 8  # so many bytes are enough to see that something else than STOMP begins


class StompReader:
    """
    Reads one direction of a STOMP connection.

    `version` is what both ends agreed on; the broker's direction learns it from `CONNECTED`.
    `max_frame` is the largest frame; a larger `content-length` is a flaw before any of its bytes is read.
    """

    def __init__(self, *, max_frame: int = 104_857_600) -> None:
        self.version = "1.2"
        self.max_frame = max_frame
        self.blind = False
        self._offset = 0  # of the first byte that is neither read nor skipped
        self._head = bytearray()  # the command and the headers, as far as they have come
        self._frame: StompFrame | None = None  # the frame of which the body is skipped
        self._skip = 0  # bytes of this body that are still to come, if its length is known
        self._sized = False

    def feed(self, data: bytes) -> list[Item]:
        """Take the next bytes of this direction, and return what they complete."""
        items: list[Item] = []
        at, end = 0, len(data)
        while at < end and not self.blind:
            if self._frame is not None:
                at = self._body(data, at, items)
            elif not self._head and data[at] in b"\r\n":
                found = _EOLS.match(data, at)
                assert found
                items.append(Heartbeat(self._offset, found.end() - at))
                self._offset += found.end() - at
                at = found.end()
            else:
                at = self._headers(data, at, items)
        if self.blind:
            if at < end and items and isinstance(last := items[-1], Flaw):
                items[-1] = replace(last, raw=(last.raw + data[at : at + LONGEST_RAW])[:LONGEST_RAW])
            self._offset += end - at
        return items

    def end(self) -> list[Item]:
        """Take note that the stream ended: return a flaw if it ended inside a frame."""
        items: list[Item] = []
        if not self.blind and self._frame is not None:
            came = self._offset - self._frame.offset
            what = f"the stream ended behind {came} bytes of a frame {self._frame.command}, in its body"
            items.append(Flaw(self._frame.offset, came, "cut", what, b""))
        elif not self.blind and self._head:
            raw = bytes(self._head[:LONGEST_RAW])
            if (opening := _foreign(raw)) is not None:
                self._lose(items, opening.kind, f"{opening.name}, and the end of the stream")
            else:
                what = f"the stream ended behind {len(self._head)} bytes of a frame, in its headers"
                self._lose(items, "cut", what)
        self.blind = True
        return items

    def _headers(self, data: bytes, at: int, items: list[Item]) -> int:
        """Hold what belongs to the command and the headers; read them when the empty line has come."""
        before = len(self._head)
        room = LONGEST_HEAD + 1 - before
        self._head += data[at : at + room]
        found = _HEAD_END.search(self._head, max(0, before - 2))
        used = (found.end() if found else len(self._head)) - before
        if found:
            del self._head[found.end() :]
        if not self._begins_well(items):
            return at + used
        if found:
            self._start(bytes(self._head), items)
        elif len(self._head) > LONGEST_HEAD:
            self._lose(items, "frame-too-large", f"more than {LONGEST_HEAD} bytes of headers")
        return at + used

    def _begins_well(self, items: list[Item]) -> bool:
        """Judge the command line, as far as it has come."""
        line, end, _ = bytes(self._head[: _LONGEST_COMMAND + 2]).partition(b"\n")
        if (end or len(self._head) >= _JUDGED) and (opening := _foreign(bytes(self._head[:LONGEST_RAW]))) is not None:
            place = "in the place of a frame" if self._offset else "at the start"
            self._lose(items, opening.kind, f"{opening.name} {place}")
        elif len(line) > _LONGEST_COMMAND or (end and not re.fullmatch(rb"[A-Z]+\r?", line)):
            self._lose(items, "bad-frame", f"{line[:_LONGEST_COMMAND]!r} in the place of a command")
        elif not end and len(self._head) >= _JUDGED and not re.fullmatch(rb"[A-Z]+\r?", line):
            self._lose(items, "bad-frame", f"{line!r} in the place of a command")
        return not self.blind

    def _start(self, head: bytes, items: list[Item]) -> None:
        """Read the command and the headers, and begin with the body."""
        lines = head.rstrip(b"\r\n").split(b"\n")
        command = lines[0].rstrip(b"\r").decode()
        if command not in STOMP_COMMANDS:
            self._flaw(items, "bad-frame", f"a command {command}, which STOMP does not have", head)
        headers: dict[str, str] = {}
        for line in lines[1:]:
            self._header(command, line.rstrip(b"\r"), headers, items)
        if command == "CONNECTED":
            self.version = headers.get("version", "1.0")
        self._sized, self._skip = False, 0
        if (length := headers.get("content-length")) is not None:
            if not (length.isascii() and length.strip().isdigit() and len(length) <= _DIGITS):
                self._flaw(items, "bad-frame", f"a content-length that is no number: {length[:40]!r}", head)
            elif int(length) > self.max_frame:
                what = f"a body of {int(length)} bytes, where at most {self.max_frame} are allowed"
                self._lose(items, "frame-too-large", what)
                return
            else:
                self._sized, self._skip = True, int(length)
        self._frame = StompFrame(self._offset, len(head), command, headers, self._skip)
        self._offset += len(head)
        self._head = bytearray()

    def _header(self, command: str, line: bytes, headers: dict[str, str], items: list[Item]) -> None:
        try:
            text = line.decode()
        except UnicodeDecodeError:
            self._flaw(items, "bad-text", f"a header that is no UTF-8: {line[:40]!r}", line)
            text = line.decode(errors="backslashreplace")
        name, colon, value = text.partition(":")
        if not colon:
            self._flaw(items, "bad-frame", f"a header line without a colon: {text[:40]!r}", line)
            return
        if self.version == "1.0":
            name, value = name.strip(), value.strip()
        elif command not in _LITERAL:
            name, value = self._unescape(name, line, items), self._unescape(value, line, items)
        headers.setdefault(name, value)

    def _unescape(self, text: str, line: bytes, items: list[Item]) -> str:
        if "\\" not in text:
            return text
        for found in _ESCAPE.finditer(text):
            if found[1] not in _ESCAPED or (found[1] == "r" and self.version == "1.1"):
                what = f"{found[0]!r} in a header, which STOMP {self.version} does not have"
                self._flaw(items, "bad-escape", what, line)
                break
        return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[0]), text)

    def _body(self, data: bytes, at: int, items: list[Item]) -> int:
        """Skip what is here of the body; at its NUL, return the frame."""
        frame = self._frame
        assert frame is not None
        if self._sized:
            here = min(self._skip, len(data) - at)
            self._skip -= here
            self._offset += here
            at += here
            if at == len(data):
                return at
            if data[at] != 0:
                what = f"0x{data[at]:02X} instead of NUL behind a body of {frame.body_size} bytes in a frame {frame.command}"
                self._frame = None
                items.append(Flaw(self._offset, 1, "frame-end", what, data[at : at + 1]))
                self._offset += 1
                self.blind = True
                return at + 1
        else:
            nul = data.find(b"\0", at)
            stop = len(data) if nul < 0 else nul
            self._offset += stop - at
            at = stop
            size = self._offset - frame.offset - frame.size
            if size > self.max_frame:
                self._frame = None
                what = f"a body without an end behind {self.max_frame} bytes, the largest size that is allowed"
                items.append(Flaw(frame.offset, self._offset - frame.offset, "frame-too-large", what, b""))
                self.blind = True
                return at
            if nul < 0:
                return at
            frame = replace(frame, body_size=size)
        self._offset += 1
        items.append(replace(frame, size=self._offset - frame.offset))
        self._frame = None
        return at + 1

    def _flaw(self, items: list[Item], kind: str, what: str, raw: bytes) -> None:
        items.append(Flaw(self._offset, len(self._head), kind, what, bytes(raw[:LONGEST_RAW])))

    def _lose(self, items: list[Item], kind: str, what: str) -> None:
        self._flaw(items, kind, what, bytes(self._head[:LONGEST_RAW]))
        self._offset += len(self._head)
        self._head = bytearray()
        self.blind = True


def _foreign(raw: bytes) -> Opening | None:
    """Return the other protocol that these bytes open, if it is one that is told apart."""
    opening = recognize(raw)
    return opening if opening is not None and opening.kind in {"http", "tls", "amqp", "amqp-1.0"} else None
