r"""
The values of AMQP 0-9-1: arguments of methods, properties of messages, tables and arrays.

pamqp knows the methods and the types of their arguments; this file reads the values.
pamqp's own decoder expects correct bytes.
It raises an error for a name that is not UTF-8, for most incomplete values, and for a time after the year 9999.
It reads a negative decimal as a large decimal, and cuts off a string that is longer than its frame.
It copies the rest of a table for every value, so the time for a table grows with the square of the table's length.
For an array that is announced longer than its frame, it adds one None for each announced byte, until the memory is full.
So four wrong bytes would end the trace, and with it all connections through it.
A diagnosis meets incorrect bytes more often than other programs, so this file reads each value as far as possible.
Each error in a value becomes a `Problem`.

A name (a short string) is a `str`; an octet that is not UTF-8 becomes `\xNN`.
A long string is a `str` if it is UTF-8, otherwise `bytes`.
A time is a `datetime`.
A time after the year 9999 stays a number; such a time appears if a client wrote milliseconds instead of seconds.
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
_NUMBERS = {
    b"b": struct.Struct(">b"),
    b"B": struct.Struct(">B"),
    b"s": struct.Struct(">h"),  # the specification has a short string here, but no peer uses this meaning
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
_LENGTH, _TIME = 4, 8  # bytes


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
                elif (number := _ARGUMENTS.get(kind)) is not None:
                    found[name] = self._number(number, self._end)
                else:
                    found[name] = self._argument(kind)
        except Misfit as error:
            self._problem("bad-method", f"the value of {name} does not fit: {error}", self.at)
            self.at = self._end
        return found

    def flags(self) -> list[int]:
        """
        Return the 16-bit words of the property flags; bit 0 of a word means that another word follows.

        Raises:
            Misfit: The words do not end.
        """
        words = [self._flags()]
        while words[-1] & 1:
            if len(words) == DEEPEST:
                raise Misfit("the property flags do not end")
            words.append(self._flags())
        return words

    def _flags(self) -> int:
        return int.from_bytes(self._next(2, self._end), "big")

    def _argument(self, kind: str) -> object:
        if kind == "longstr":
            return self._text(self._end)
        if kind == "timestamp":
            return self._time(self._end)
        assert kind == "table", kind
        end = self._container(self._end)
        began = self.at
        table: dict[str, object] = {}
        try:
            self._table(table, end, 1)
        except Misfit as error:  # the next argument begins where the table's length ends
            self._problem("bad-table", str(error), max(began, self.at - LONGEST_RAW // 4))
        self.at = end
        return table

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

    def _value(self, name: str, end: int, depth: int) -> object:  # noqa: PLR0911 - one for each type
        self._left -= 1
        kind = self._next(1, end)
        if (number := _NUMBERS.get(kind)) is not None:
            return self._number(number, end)
        match kind:
            case b"S":
                return self._text(end)
            case b"t":
                return self._next(1, end) != b"\0"
            case b"T":
                return self._time(end)
            case b"D":
                scale, digits = _DECIMAL.unpack(self._next(_DECIMAL.size, end))
                return Decimal(digits).scaleb(-scale)
            case b"x":
                return self._next(self._size(end), end)
            case b"V" | b"\0":  # the authors of pamqp have seen the second type in practice
                return None
            case b"F" | b"A":
                return self._nested(kind, end, depth)
        self.at -= 1
        if self._private:
            raise Misfit("a value has a type that AMQP does not have")
        raise Misfit(f"{name!r} has a value of the type {kind!r}, which AMQP does not have")

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
            raise Misfit(f"a table or an array of {size} bytes is announced, and {end - self.at} are left")
        return self.at + size

    def _name(self, end: int) -> str:
        at = self.at
        data = self._data
        if at >= end or (stop := at + 1 + data[at]) > end:
            announced = f"a name of {data[at]} bytes" if at < end else "a name"
            raise Misfit(f"{announced} is expected, and {max(0, end - at - 1)} bytes are left")
        self.at = stop
        raw = bytes(data[at + 1 : stop])
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._problem("bad-text", "a name is no UTF-8" if self._private else f"the name {raw!r} is no UTF-8", at)
            return raw.decode(errors="backslashreplace")

    def _text(self, end: int) -> str | bytes:
        raw = self._next(self._size(end), end)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw

    def _time(self, end: int) -> datetime | int:
        seconds = int.from_bytes(self._next(_TIME, end), "big")
        return datetime.fromtimestamp(seconds, UTC) if seconds <= _LAST_SECOND else seconds

    def _size(self, end: int) -> int:
        return int.from_bytes(self._next(_LENGTH, end), "big")

    def _number(self, number: struct.Struct, end: int) -> object:
        at = self.at
        if (stop := at + number.size) > end:
            raise Misfit(f"{number.size} bytes are expected, and {end - at} are left")
        self.at = stop
        return number.unpack_from(self._data, at)[0]

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
