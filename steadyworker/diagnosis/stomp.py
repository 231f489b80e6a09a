r"""
The reader of STOMP 1.0, 1.1 and 1.2, which makes frames from the bytes of one direction.

A frame is a command line, header lines, an empty line, the body, and a NUL:

    SEND\n
    destination:/queue/jobs\n
    content-length:5\n
    \n
    hello\0

With `content-length`, the body has this number of bytes, and may contain NULs; otherwise the body ends at the first NUL.
A line ends with LF, or since 1.2 also with CR LF.
Line ends between two frames are heartbeats.
If a header is repeated, its first value counts.

The reader holds at most the command and the headers of one frame, up to a maximum size.
The reader only counts the bytes of a body.
The version decides which escapes exist: `\n`, `\c` and `\\` since 1.1, and `\r` since 1.2.
The frames CONNECT and CONNECTED have no escapes.
A `Flaw` never shows bytes of a body or of a login.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from steadyworker.diagnosis.frames import LONGEST_RAW, Flaw, Heartbeat, Item, StompFrame
from steadyworker.diagnosis.protocols import STOMP_COMMANDS, Opening, first_line, recognize

LONGEST_HEAD = 65_536
"""The largest number of bytes of a frame's command and headers together."""

MOST_HEADERS = 500
"""The largest number of headers of one frame that are kept."""

_HEAD_END = re.compile(rb"\n\r?\n")
_EOLS = re.compile(rb"[\r\n]+")
_COMMANDS = frozenset(command.encode() for command in STOMP_COMMANDS)
_COMMAND = re.compile(rb"[A-Z]{1,32}\r?")
_LONGEST_COMMAND = 33  # with its CR
_ESCAPE = re.compile(rb"\\(.?)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"c": b":", b"\\": b"\\", b"r": b"\r"}
_CONNECTS = {"CONNECT", "STOMP", "CONNECTED"}
_DIGITS = 18
_JUDGED = 8  # this number of bytes is enough to see that another protocol than STOMP begins
_FOREIGN = {"http", "tls", "amqp", "amqp-1.0"}


class StompReader:
    """
    A reader of one direction of a STOMP connection.

    `version` is the version that both ends agreed on.
    A reader takes the version from `CONNECTED`, or guesses it from `CONNECT`.
    The caller must set the version for the other direction.
    `max_frame` is the largest body; a larger `content-length` is a flaw before any byte of the body is read.
    """

    def __init__(self, *, max_frame: int = 104_857_600) -> None:
        self.version = "1.2"
        self.max_frame = max_frame
        self.blind = False
        self._offset = 0  # the offset of the first byte that is neither read nor skipped
        self._head = bytearray()  # the command and the headers, as far as they have come
        self._frame: StompFrame | None = None  # the frame whose body is skipped; its size is the size of the head
        self._left: int | None = None  # bytes of this body still to come; None if the body ends at the first NUL

    def feed(self, data: bytes) -> list[Item]:
        """Read the next bytes of this direction, and return the items that these bytes complete."""
        items: list[Item] = []
        at, end = 0, len(data)
        while at < end and not self.blind:
            if self._frame is not None:
                at = self._skip_body(self._frame, data, at, items)
            elif not self._head and (eols := _EOLS.match(data, at)):
                items.append(Heartbeat(self._offset, eols.end() - at))
                self._offset += eols.end() - at
                at = eols.end()
            else:
                at = self._read_head(data, at, items)
        if self.blind:
            self._offset += end - at
        return items

    def end(self) -> list[Item]:
        """End the stream, and return a flaw if the end is inside a frame."""
        items: list[Item] = []
        if not self.blind and (frame := self._frame) is not None:
            came = self._offset - frame.offset
            what = f"the stream ended after {came} bytes of a frame {frame.command}, in its body"
            items.append(Flaw(frame.offset, came, "cut", what, first_line(frame.command.encode())))
        elif not self.blind and self._head:
            if (opening := self._foreign()) is not None:
                self._lose(items, opening.kind, f"{opening.name}, and the end of the stream")
            else:
                self._lose(items, "cut", f"the stream ended after {len(self._head)} bytes of a frame, in its headers")
        self.blind = True
        return items

    # --- Command and headers ---

    def _read_head(self, data: bytes, at: int, items: list[Item]) -> int:
        """Hold the bytes of the command and the headers; read them when the empty line has come."""
        before = len(self._head)
        stop = at + LONGEST_HEAD + 1 - before
        if not before and (found := _HEAD_END.search(data, at, stop)):  # the usual case: hold this frame's head only
            stop = found.end()
        self._head += data[at:stop]
        found = _HEAD_END.search(self._head, max(0, before - len(b"\n\r")))
        if found:
            del self._head[found.end() :]
        used = len(self._head) - before
        if before > _LONGEST_COMMAND or self._begins_well(items):
            if found:
                self._begin(bytes(self._head), items)
            elif len(self._head) > LONGEST_HEAD:
                self._lose(items, "frame-too-large", f"more than {LONGEST_HEAD} bytes of headers")
        return at + used

    def _begins_well(self, items: list[Item]) -> bool:
        """Return whether the command line, as far as it has come, can begin a frame."""
        line, whole, _ = bytes(self._head[: _LONGEST_COMMAND + 1]).partition(b"\n")
        if line.removesuffix(b"\r") in _COMMANDS if whole else len(self._head) < _JUDGED:
            return True
        place = "in the place of a frame" if self._offset else "at the start"
        if (opening := self._foreign()) is not None:
            self._lose(items, opening.kind, f"{opening.name} {place}")
        elif not _COMMAND.fullmatch(line):
            known = recognize(line)
            found = (
                f"{known.name} {place}" if known else f"a line {place}"
            )  # the line can be a part of a body or a login
            self._lose(items, "bad-frame", f"{found}, which is no command")
        return not self.blind

    def _foreign(self) -> Opening | None:
        """Return the other protocol that begins here, if there is such a protocol."""
        opening = recognize(bytes(self._head[:LONGEST_RAW]))
        return opening if opening is not None and opening.kind in _FOREIGN else None

    def _begin(self, head: bytes, items: list[Item]) -> None:
        """Read the command and the headers, and begin with the body."""
        lines = _lines(head)
        command = next(lines).decode()
        if command not in STOMP_COMMANDS:
            self._flaw(items, "bad-frame", f"a command {command}, which STOMP does not have", first_line(head))
        headers = self._headers(command, lines, items)
        if command in _CONNECTS:
            versions = headers.get("version" if command == "CONNECTED" else "accept-version", "1.0")
            self.version = max(versions.split(","))
        size = self._length(headers.get("content-length"), items)
        if size is not None and size > self.max_frame:
            what = f"a body of {size} bytes in a frame {command}, where at most {self.max_frame} are allowed"
            self._lose(items, "frame-too-large", what)
            return
        self._frame, self._left = StompFrame(self._offset, len(head), command, headers, size or 0), size
        self._offset += len(head)
        self._head = bytearray()

    def _headers(self, command: str, lines: Iterator[bytes], items: list[Item]) -> dict[str, str]:
        headers: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            place, shown = f"header {number} of a frame {command}", b"" if command in _CONNECTS else line
            name, colon, value = line.partition(b":")
            if not colon:
                self._flaw(items, "bad-frame", f"{place} has no colon", shown)
                continue
            if self.version == "1.0":
                name, value = name.strip(), value.strip()
            elif b"\\" in line and command not in _CONNECTS:
                name, value = self._unescape(name, shown, items), self._unescape(value, shown, items)
            try:
                key, text = name.decode(), value.decode()
            except UnicodeDecodeError:
                self._flaw(items, "bad-text", f"{place} is no UTF-8", shown)
                key, text = name.decode(errors="backslashreplace"), value.decode(errors="backslashreplace")
            if len(headers) < MOST_HEADERS:
                headers.setdefault(key, text)
        return headers

    def _unescape(self, text: bytes, line: bytes, items: list[Item]) -> bytes:
        for found in _ESCAPE.finditer(text):
            if found[1] not in _ESCAPED or (found[1] == b"r" and self.version == "1.1"):
                escape = found[0].decode(errors="backslashreplace")
                what = f"the escape {escape} in a header, which STOMP {self.version} does not have"
                self._flaw(items, "bad-escape", what, line)
                break
        return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[0]), text)

    def _length(self, text: str | None, items: list[Item]) -> int | None:
        """Return the number in a content-length; None if there is no such header, or if it has no number."""
        number = (text or "").strip(" \t")
        if number.isascii() and number.isdigit() and len(number) <= _DIGITS:
            return int(number)
        if text is not None:
            self._flaw(items, "bad-frame", f"a content-length that is no number: {text[:40]!r}", b"")
        return None

    # --- Body ---

    def _skip_body(self, frame: StompFrame, data: bytes, at: int, items: list[Item]) -> int:
        """Skip the body's bytes in `data`; at the NUL after the body, return the frame."""
        began = frame.offset + frame.size
        if self._left is None:
            room = self.max_frame - (self._offset - began)
            nul = data.find(b"\0", at, at + room + 1)
            here = (nul if nul >= 0 else min(len(data), at + room + 1)) - at
            if here > room:
                self._frame, self.blind = None, True
                self._offset += room
                what = f"a body without an end in a frame {frame.command}, where at most {self.max_frame} are allowed"
                items.append(Flaw(frame.offset, self._offset - frame.offset, "frame-too-large", what, b""))
                return at + room
        else:
            here = min(self._left, len(data) - at)
            self._left -= here
        at += here
        self._offset += here
        if at == len(data):
            return at
        self._frame = None
        size = self._offset - began
        self._offset += 1
        whole = self._offset - frame.offset
        if data[at] != 0:
            self.blind = True
            what = f"0x{data[at]:02X} instead of NUL behind a body of {size} bytes in a frame {frame.command}"
            items.append(Flaw(frame.offset, whole, "frame-end", what, data[at : at + 1]))
        else:
            items.append(replace(frame, size=whole, body_size=size))
        return at + 1

    # --- Flaws ---

    def _flaw(self, items: list[Item], kind: str, what: str, raw: bytes) -> None:
        last = items[-1] if items else None
        if not (isinstance(last, Flaw) and (last.offset, last.kind) == (self._offset, kind)):  # one of a kind is enough
            items.append(Flaw(self._offset, len(self._head), kind, what, raw[:LONGEST_RAW]))

    def _lose(self, items: list[Item], kind: str, what: str) -> None:
        """Become blind, because the rest of the stream cannot be divided into frames."""
        raw = bytes(self._head[:LONGEST_RAW])
        if kind not in {"tls", "amqp", "amqp-1.0"}:
            raw = b"" if kind == "bad-frame" else first_line(raw)
        items.append(Flaw(self._offset, len(self._head), kind, what, raw))
        self._offset += len(self._head)
        self._head = bytearray()
        self.blind = True


def _lines(head: bytes) -> Iterator[bytes]:
    """Return the lines before the empty line, without their line ends."""
    at = 0
    while (end := head.find(b"\n", at)) >= 0:
        line = head[at:end].removesuffix(b"\r")
        if not line:
            return
        yield line
        at = end + 1
