r"""
The values of AMQP 0-9-1: arguments of methods, properties of messages, tables and arrays.

pamqp knows the methods and the types of their arguments; this file reads the values.
pamqp's own decoder expects correct bytes, and four wrong bytes can end the trace and all connections through it:
for an array that is announced longer than its frame, it adds one None for each announced byte, until the memory is full.
It also copies the rest of a table for every value, and cuts off a string that is longer than its frame.
A diagnosis meets incorrect bytes more often than other programs, so this file reads each value as far as possible.
Each error in a value becomes a `Problem`.

A name (a short string) is a `str`; an octet that is not UTF-8 becomes `\xNN`.
A long string is a `str` if it is UTF-8, otherwise `bytes`.
A time is a `datetime`; a time after the year 9999, which a client wrote in milliseconds, stays a number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from steadyworker.diagnosis.frames import LONGEST_RAW

Octets = bytes | bytearray
"""The bytes of one or more frames."""

MOST_VALUES = 1_000
"""The largest number of values in the tables of one frame that are kept, so that no frame fills the memory."""

DEEPEST = 32
"""The largest depth of nested tables and arrays that is read."""

MOST_PROBLEMS = 8
"""The largest number of problems of one frame that are kept."""

LEFT_OUT = "…"
"""The name of a text that a table gets if a part was left out; the text has the size of this part."""

_LAST_SECOND = 253_402_300_799  # of the year 9999
_OCTET = 8  # bits
_KINDS = {"octet": "B", "short": "u", "long": "i", "longlong": "longlong", "longstr": "S", "timestamp": "T"}
"""The types of arguments, as types of values."""

_NUMBERS = {
    kind: struct.Struct(form)
    for kind, form in (
        *(("b", ">b"), ("B", ">B"), ("u", ">H"), ("I", ">i"), ("i", ">I"), ("l", ">q"), ("L", ">q"), ("f", ">f")),
        *(("d", ">d"), ("t", ">?"), ("U", ">h"), ("longlong", ">Q")),
        ("s", ">h"),  # the specification has a short string here, but no peer uses this meaning
    )
}
_DECIMAL = struct.Struct(">Bi")


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in a value: a key of `frames.FLAWS`, a sentence, and the first bytes."""

    kind: str
    what: str
    raw: bytes


class Misfit(Exception):
    """The error for a value that is longer than its container, or has a type that AMQP does not have."""


class Fields:
    """
    A reader of the values of one frame, in their order; the values are the bytes of `data` from `at` to `end`.

    If the values are `private`, such as a login or the headers of an application, the problems show none of these bytes.
    """

    __slots__ = ("_data", "_end", "_left", "_private", "at", "problems")

    def __init__(self, data: Octets, at: int, end: int, *, private: bool = False) -> None:
        self.at = at
        self.problems: list[Problem] = []
        self._data = data
        self._end = end
        self._private = private
        self._left = MOST_VALUES

    @property
    def left(self) -> int:
        """The number of bytes that are not read yet."""
        return self._end - self.at

    def arguments(self, types: Iterable[tuple[str, str]]) -> dict[str, object]:
        """
        Read values with these names and types; neighbouring bits share an octet.

        At the first value that does not fit, add a problem and stop; return the values before it.
        """
        found: dict[str, object] = {}
        octet, bit = 0, _OCTET
        name = ""
        try:
            for name, kind in types:
                if kind == "bit":
                    if bit == _OCTET:
                        octet, bit = self._next(1, self._end)[0], 0
                    found[name] = bool(octet >> bit & 1)
                    bit += 1
                    continue
                bit = _OCTET
                if kind == "shortstr":
                    found[name] = self._name(self._end)
                elif kind == "table":
                    found[name] = self._table()
                else:
                    found[name] = self._value(_KINDS[kind], self._end)
        except Misfit as error:
            self._problem("bad-method", f"the value of {name} does not fit: {error}", self.at)
            self.at = self._end
        return found

    def _table(self) -> dict[object, object]:
        """Read a table that is an argument; the next argument begins where the table's length ends."""
        end = self._container(self._end)
        began = self.at
        table: dict[object, object] = {}
        try:
            self._fill(table, end, 1, named=True)
        except Misfit as error:
            self._problem("bad-table", str(error), max(began, self.at - LONGEST_RAW // 4))
        self.at = end
        return table

    def _fill(self, found: dict[object, object], end: int, depth: int, *, named: bool) -> None:
        """Read the values of a table by their names, or those of an array by their places."""
        while self.at < end:
            if self._left <= 0:
                found[LEFT_OUT] = self._leave_out(end)
                return
            self._left -= 1
            name: object = self._name(end) if named else len(found)
            kind = chr(self._next(1, end)[0])
            if kind in {"F", "A"}:
                found[name] = self._nested(kind, end, depth)
            elif kind in _NUMBERS or kind in {"S", "T", "D", "x", "V", "\0"}:
                found[name] = self._value(kind, end)
            else:
                self.at -= 1
                of = (
                    f"{name!r} has a value of the type {kind.encode('latin-1')!r}, which"
                    if not self._private
                    else "a value has a type that"
                )
                raise Misfit(f"{of} AMQP does not have")

    def _nested(self, kind: str, end: int, depth: int) -> object:
        inner = self._container(end)
        if depth >= DEEPEST:
            return self._leave_out(inner)
        found: dict[object, object] = {}
        self._fill(found, inner, depth + 1, named=kind == "F")
        return found if kind == "F" else list(found.values())

    def _value(self, kind: str, end: int) -> object:  # noqa: PLR0911 - one for each type
        if (number := _NUMBERS.get(kind)) is not None:
            (value,) = number.unpack(self._next(number.size, end))
            return value
        match kind:
            case "S":
                raw = self._next(self._size(end), end)
                try:
                    return raw.decode()
                except UnicodeDecodeError:
                    return raw
            case "T":
                seconds = int.from_bytes(self._next(8, end), "big")
                return datetime.fromtimestamp(seconds, UTC) if seconds <= _LAST_SECOND else seconds
            case "D":
                scale, digits = _DECIMAL.unpack(self._next(_DECIMAL.size, end))
                return Decimal(digits).scaleb(-scale)
            case "x":
                return self._next(self._size(end), end)
        return None  # V; the authors of pamqp have seen \0 in practice, too

    def _leave_out(self, end: int) -> str:
        text = f"{end - self.at} bytes left out"
        self.at = end
        return text

    def _container(self, end: int) -> int:
        """Read the length of a table or an array, and return its end."""
        size = self._size(end)
        if size > end - self.at:
            raise Misfit(f"a table or an array of {size} bytes is announced, and {end - self.at} are left")
        return self.at + size

    def _name(self, end: int) -> str:
        at = self.at
        raw = self._next(self._next(1, end)[0], end)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._problem("bad-text", "a name is no UTF-8" if self._private else f"the name {raw!r} is no UTF-8", at)
            return raw.decode(errors="backslashreplace")

    def _size(self, end: int) -> int:
        return int.from_bytes(self._next(4, end), "big")

    def _next(self, size: int, end: int) -> bytes:
        at = self.at
        if (stop := at + size) > end:
            raise Misfit(f"{size} bytes are expected, and {end - at} are left")
        self.at = stop
        return bytes(self._data[at:stop])

    def _problem(self, kind: str, what: str, at: int) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            raw = b"" if self._private else bytes(self._data[at : min(at + LONGEST_RAW, self._end)])
            self.problems.append(Problem(kind, what, raw))
