r"""
Recognises a protocol by its first bytes, even if a program has read these bytes as numbers of another protocol.

A broker that expects a frame of AMQP reads one byte as type, two bytes as channel and four bytes as size.
If the other end sends another protocol, the broker's log has three numbers that make no sense.
Written as bytes again, the numbers are the first seven bytes that the other end sent:

    type        65    41            A
    channel  19793    4D 51         M Q
    size  1342177289  50 00 00 09   P \0 \0 \t        the protocol header of AMQP 0-9-1

The same happens with lengths of 32 bits: `GET ` is 1195725856.
`spell` computes the bytes from the numbers, and compares them with the openings of protocols.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

FRAME_HEAD = (("type", 1), ("channel", 2), ("size", 4))
"""The numbers at the head of an AMQP frame, each with its size in bytes."""

_HTTP_METHODS = ("GET ", "POST ", "PUT ", "HEAD ", "DELETE ", "OPTIONS ", "PATCH ", "TRACE ", "CONNECT ", "PRI * ")
STOMP_COMMANDS = frozenset({
    "CONNECT", "STOMP", "CONNECTED", "SEND", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "BEGIN", "COMMIT", "ABORT",
    "DISCONNECT", "MESSAGE", "RECEIPT", "ERROR",
})  # fmt: skip
"""The commands of STOMP 1.0 to 1.2."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The first bytes of a protocol: each possible beginning, and the number of its bytes that are enough to recognize the protocol."""

    kind: str
    name: str
    begins: tuple[bytes, ...]
    least: int = 3


@dataclass(frozen=True, slots=True)
class SpelledRow:
    """One number, and the bytes from which it was read."""

    field: str
    number: int
    hex: str
    characters: str


@dataclass(frozen=True, slots=True)
class Spelled:
    """
    Numbers, written as bytes: `rows` has a row for each number, and `raw` has the bytes of all numbers, joined.

    `protocol` is the protocol that the bytes open, and `kind` is its short name.
    Both are None if the bytes are too few to decide.
    """

    rows: tuple[SpelledRow, ...]
    raw: bytes
    protocol: str | None
    kind: str | None


OPENINGS = (
    Opening("amqp", "AMQP protocol header", (b"AMQP\0\0\x09\x01", b"AMQP\x01\x01\x00\x09", b"AMQP\x01\x01\x08\x00")),
    Opening("amqp-1.0", "AMQP 1.0 protocol header", tuple(b"AMQP" + bytes([n, 1, 0, 0]) for n in (0, 2, 3))),
    Opening("amqp", "AMQP protocol header", (b"AMQP",)),
    Opening("http", "HTTP response", (b"HTTP/",)),
    Opening("tls", "TLS ClientHello", tuple(b"\x16\x03" + bytes([n]) for n in range(5)), least=2),
    Opening("tls", "TLS alert", tuple(b"\x15\x03" + bytes([n]) for n in range(5)), least=2),
    Opening(
        "stomp",
        "STOMP frame",
        tuple(f"{command}{end}".encode() for command in STOMP_COMMANDS for end in ("\n", "\r\n")),
    ),
    Opening("http", "HTTP request", tuple(map(str.encode, _HTTP_METHODS))),
    Opening("redis", "PING", (b"PING", b"*1\r\n$4\r\nPING"), least=4),
    Opening("proxy", "PROXY protocol header", (b"PROXY ", b"\r\n\r\n\x00\r\nQUIT\n"), least=4),
    Opening("ssh", "SSH banner", (b"SSH-",), least=4),
)
"""The known openings; if two openings fit, the first counts."""


def recognize(raw: bytes, *, at: int = 0) -> Opening | None:
    """
    Return the opening that has the bytes `raw` from byte `at` on.

    Return None if no opening fits, or if there are too few bytes.
    """
    return next((opening for opening in OPENINGS if _fits(opening, raw, at)), None)


def _fits(opening: Opening, raw: bytes, at: int) -> bool:
    """Return whether enough of the bytes agree with the opening."""
    first = raw[:1]
    for begins in opening.begins:
        if begins[at : at + 1] == first:  # most openings end here, and a log can have millions of numbers
            part = begins[at : at + len(raw)]
            if len(part) >= min(opening.least, len(begins)) and raw.startswith(part):
                return True
    return False


def spell(numbers: Mapping[str, int]) -> Spelled | None:
    """
    Return the numbers of a frame's head (`type`, `channel`, `size`; one or more of them) as the bytes of the connection.

    Returns None if no number is given, or if a number does not fit into its bytes.
    """
    rows: list[SpelledRow] = []
    raw, start, at = b"", 0, 0
    for field, size in FRAME_HEAD:
        number = numbers.get(field)
        if number is not None:
            if not 0 <= number < 256**size:
                return None
            if raw and start + len(raw) != at:
                raw, start = b"", at  # a number in the middle is unknown: the longer run of bytes decides
            if not raw:
                start = at
            octets = number.to_bytes(size, "big")
            rows.append(_row(field, number, octets))
            raw += octets
        at += size
    return _spelled(rows, raw, start) if rows else None


def spell_length(number: int) -> Spelled | None:
    """Return a length of 32 bits as the bytes of the connection; None if it does not fit into 32 bits."""
    if not 0 <= number < 2**32:
        return None
    octets = number.to_bytes(4, "big")
    return _spelled([_row("length", number, octets)], octets, 0)


def spell_bytes(raw: bytes) -> Spelled:
    """Return the numbers that a reader of AMQP frames reads from these bytes, and the protocol that the bytes open."""
    rows, at = [], 0
    for field, size in FRAME_HEAD:
        octets = raw[at : at + size]
        if len(octets) == size:
            rows.append(_row(field, int.from_bytes(octets, "big"), octets))
        at += size
    return _spelled(rows, raw, 0)


def erlang_binary(text: str) -> bytes | None:
    """
    Return the bytes of a binary that Erlang has printed, such as `<<"GET / HT">>` or `<<22,3,1>>`.

    Return None if the text is not such a binary.
    """
    if not (binary := _BINARY.fullmatch(text)):
        return None
    raw = b""
    for found in _SEGMENT.finditer(binary[1]):
        if found["text"] is not None:
            raw += _ESCAPE.sub(_unescape, found["text"]).encode("latin-1", "replace")
        elif int(found["number"]) <= _LARGEST_OCTET:
            raw += bytes([int(found["number"])])
        else:
            return None
    return raw


_LARGEST_OCTET = 0xFF
_SEGMENT = re.compile(r"""\s*(?:"(?P<text>(?:[^"\\]|\\.)*)"|(?P<number>\d{1,9}))\s*""", re.DOTALL)
# Erlang cuts a long binary, and prints dots for the rest.
_BINARY = re.compile(
    r"""\s*<<((?:\s*(?:"(?:[^"\\]|\\.)*"|\d{1,9})\s*(?:,|(?=\.|>)))*)\s*(?:\.\.\.)?\s*>>(?:\s*\.\.\.)?\s*""", re.DOTALL
)
_ESCAPE = re.compile(r"\\(x\{[0-9A-Fa-f]{1,6}\}|x[0-9A-Fa-f]{2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "s": " ", "d": "\x7f"}


def _unescape(found: re.Match[str]) -> str:
    part = found[1]
    if part[0] == "x" and len(part) > 1:
        return chr(min(int(part[1:].strip("{}"), 16), _LARGEST_OCTET))
    if part[0] in "01234567":
        return chr(int(part, 8) & _LARGEST_OCTET)
    return _ESCAPED.get(part, part)


def first_line(raw: bytes) -> bytes:
    """Return the bytes up to and including the first line end."""
    end = raw.find(b"\n")
    return raw if end < 0 else raw[: end + 1]


def characters(octets: bytes) -> str:
    """Return bytes as characters, with the escapes of C for characters that cannot be printed."""
    names = {"\0": "\\0", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\\": "\\\\"}
    shown = (chr(octet) for octet in octets)
    return "".join(
        names.get(one) or (one if one.isascii() and one.isprintable() else f"\\x{ord(one):02x}") for one in shown
    )


def _row(field: str, number: int, octets: bytes) -> SpelledRow:
    return SpelledRow(field, number, octets.hex(" ").upper(), characters(octets))


def _spelled(rows: list[SpelledRow], raw: bytes, at: int) -> Spelled:
    opening = recognize(raw, at=at)
    return Spelled(tuple(rows), raw, opening.name if opening else None, opening.kind if opening else None)
