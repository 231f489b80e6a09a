r"""
The values of AMQP 0-9-1: arguments of methods, properties of messages, tables and arrays.

pamqp knows the methods and the types of their arguments; this file reads the values.
pamqp's own decoder expects correct bytes: it raises for a name that is no UTF-8 and for a time after the year 9999,
reads a negative decimal as a large one, accepts a string that is longer than its frame,
and takes time that grows with the square of a table's length.
A diagnosis meets such bytes more often than others do, so here each value is read as far as possible.
What is wrong with it becomes a `Problem`.

A name (a short string) is a `str`; an octet that is no UTF-8 stands there as `\xNN`.
A long string is a `str` if it is UTF-8, else `bytes`.
A time is a `datetime`, or the number itself if it is after the year 9999, as milliseconds are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

MOST_VALUES = 1_000
"""The largest number of values of one frame that are kept, so that no frame can fill the memory."""
DEEPEST = 32
"""The largest number of tables and arrays within one another that are read."""
LEFT_OUT = "…"
"""The name, in a table, of a text that says how much was left out."""

_LAST_SECOND = 253_402_300_799  # of the year 9999
_NUMBERS = {
    b"b": struct.Struct(">b"),
    b"B": struct.Struct(">B"),
    b"s": struct.Struct(">h"),  # a short string in the specification, but no peer uses it so
    b"U": struct.Struct(">h"),
    b"u": struct.Struct(">H"),
    b"I": struct.Struct(">i"),
    b"i": struct.Struct(">I"),
    b"l": struct.Struct(">q"),
    b"L": struct.Struct(">q"),
    b"f": struct.Struct(">f"),
    b"d": struct.Struct(">d"),
}
_ARGUMENTS = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
}
_DECIMAL = struct.Struct(">Bi")
_LENGTH = struct.Struct(">I")
_TIME = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a value: a key of `frames.FLAWS`, a sentence, and the first bytes."""

    kind: str
    what: str
    raw: bytes


class Misfit(Exception):
    """A value does not fit into what contains it, or has a type that AMQP does not have."""


class Fields:
    """Reads the values of one frame, in order: `data` from `at` to `end`."""

    def __init__(self, data: bytes | bytearray, at: int, end: int) -> None:
        self.at = at
        self.problems: list[Problem] = []
        self._data = data
        self._end = end
        self._left = MOST_VALUES

    def arguments(self, types: Iterable[tuple[str, str]]) -> dict[str, object]:
        """
        Read values with these names and types, the bits of neighbours from one octet.

        Stops at the first value that does not fit, and reports a problem.
        """
        found: dict[str, object] = {}
        octet, bit = 0, 8
        name = ""
        try:
            for name, kind in types:
                if kind != "bit":
                    bit = 8
                    found[name] = self._argument(kind)
                    continue
                if bit == 8:  # noqa: PLR2004 - bits of an octet
                    octet, bit = self._number(_ARGUMENTS["octet"], self._end), 0
                found[name] = bool(octet >> bit & 1)
                bit += 1
        except Misfit as error:
            self._problem("bad-method", f"the argument {name} does not fit: {error}", self.at)
        return found

    def flags(self) -> list[int]:
        """Return the 16-bit words of property flags: bit 0 of a word says that another word follows."""
        words = [self._number(_ARGUMENTS["short"], self._end)]
        while words[-1] & 1:
            words.append(self._number(_ARGUMENTS["short"], self._end))
            if len(words) > DEEPEST:
                raise Misfit("the property flags do not end")
        return words

    def rest(self) -> int:
        """Return how many bytes are left."""
        return self._end - self.at

    def _argument(self, kind: str) -> object:
        if kind == "shortstr":
            return self._name(self._end)
        if kind == "longstr":
            return self._text(self._end)
        if kind == "table":
            return self._table_argument()
        if kind == "timestamp":
            return self._time(self._end)
        return self._number(_ARGUMENTS[kind], self._end)

    def _table_argument(self) -> dict[str, object]:
        """Read a table; behind one with a problem, the next argument stands where the table's length says."""
        end = self._container(self._end)
        found: dict[str, object] = {}
        began = self.at
        try:
            self._table(found, end, 1)
        except Misfit as error:
            self._problem("bad-table", str(error), min(self.at, end), since=began)
        self.at = end
        return found

    def _table(self, found: dict[str, object], end: int, depth: int) -> None:
        while self.at < end:
            if self._left <= 0:
                found[LEFT_OUT] = self._leave_out(end)
                return
            name = self._name(end)
            found[name] = self._value(name, end, depth)

    def _array(self, found: list[object], end: int, depth: int) -> None:
        while self.at < end:
            if self._left <= 0:
                found.append(self._leave_out(end))
                return
            found.append(self._value(f"element {len(found)}", end, depth))

    def _value(self, name: str, end: int, depth: int) -> object:
        self._left -= 1
        kind = self._take(1, end)
        if (number := _NUMBERS.get(kind)) is not None:
            return self._number(number, end)
        match kind:
            case b"S":
                return self._text(end)
            case b"t":
                return self._take(1, end) != b"\0"
            case b"T":
                return self._time(end)
            case b"D":
                scale, digits = _DECIMAL.unpack(self._take(5, end))
                return Decimal(digits).scaleb(-scale)
            case b"x":
                return self._take(self._size(end), end)
            case b"V" | b"\0":  # the second one was seen in the wild
                return None
            case b"F" | b"A":
                return self._nested(kind, end, depth)
        self.at -= 1
        raise Misfit(f"the value of {name!r} has the type {kind!r}, which AMQP does not have")

    def _nested(self, kind: bytes, end: int, depth: int) -> object:
        inner = self._container(end)
        if depth >= DEEPEST:
            return self._leave_out(inner)
        if kind == b"F":
            table: dict[str, object] = {}
            self._table(table, inner, depth + 1)
            return table
        array: list[object] = []
        self._array(array, inner, depth + 1)
        return array

    def _leave_out(self, end: int) -> str:
        text = f"{end - self.at} bytes left out"
        self.at = end
        return text

    def _container(self, end: int) -> int:
        """Read the length of a table or an array, and return its end."""
        size = self._size(end)
        if size > end - self.at:
            self.at -= _LENGTH.size
            raise Misfit(f"a table or array of {size} bytes, where {end - self.at - _LENGTH.size} are left")
        return self.at + size

    def _name(self, end: int) -> str:
        start = self.at
        raw = self._take(self._take(1, end)[0], end)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._problem("bad-text", f"the name {raw!r} is no UTF-8", start)
            return raw.decode(errors="backslashreplace")

    def _text(self, end: int) -> str | bytes:
        raw = self._take(self._size(end), end)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw

    def _time(self, end: int) -> datetime | int:
        (seconds,) = _TIME.unpack(self._take(8, end))
        return datetime.fromtimestamp(seconds, UTC) if seconds <= _LAST_SECOND else int(seconds)

    def _size(self, end: int) -> int:
        return int(_LENGTH.unpack(self._take(4, end))[0])

    def _number(self, number: struct.Struct, end: int) -> int:
        at = self.at
        if number.size > end - at:
            raise Misfit(f"{number.size} bytes are expected, and {end - at} are left")
        self.at = at + number.size
        (value,) = number.unpack_from(self._data, at)
        return value  # type: ignore[no-any-return] # or a float

    def _take(self, size: int, end: int) -> bytes:
        at = self.at
        if size > end - at:
            raise Misfit(f"{size} bytes are expected, and {end - at} are left")
        self.at = at + size
        return bytes(self._data[at : at + size])

    def _problem(self, kind: str, what: str, at: int, *, since: int | None = None) -> None:
        """Keep the first problems only: a frame can have thousands of bad names."""
        if len(self.problems) < DEEPEST:
            start = at if since is None else max(since, at - 16)
            self.problems.append(Problem(kind, what, bytes(self._data[start : min(start + 64, self._end)])))
