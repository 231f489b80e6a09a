r"""
The values of AMQP 0-9-1: arguments of methods, properties of messages, tables and arrays.

pamqp knows the methods and the types of their arguments; this file reads the values.
pamqp's own decoder expects correct bytes, and four wrong bytes can end the trace and all connections through it:
for an array that is announced longer than its frame, it adds None until the memory is full.

The reader stops at the first value that does not fit, and the values before it are kept; behind a wrong table, it goes on.
A long string is a `str` if it is UTF-8, otherwise `bytes`; in a name, an octet that is not UTF-8 becomes `\xNN`.
A time is a number of seconds since 1970.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from decimal import Decimal

from steadyworker.diagnosis.frames import LONGEST_RAW

Octets = bytes | bytearray
"""The bytes of one or more frames."""

MOST_VALUES = 1_000
"""The largest number of values in the tables of one frame that are kept, so that no frame fills the memory."""

DEEPEST = 32
"""The largest depth of nested tables and arrays that is read."""

LEFT_OUT = "…"
"""The name of a text that a table gets if a part was left out; the text has the size of this part."""

_OCTET = 8  # bits
_KINDS = {"octet": "B", "short": "u", "long": "i", "longlong": "T", "longstr": "S", "timestamp": "T"}
"""The types of arguments, as types of values."""

_NUMBERS = {
    kind: struct.Struct(form)
    for kind, form in (
        *(("b", ">b"), ("B", ">B"), ("u", ">H"), ("I", ">i"), ("i", ">I"), ("l", ">q"), ("L", ">q"), ("f", ">f")),
        *(("d", ">d"), ("t", ">?"), ("U", ">h"), ("T", ">Q")),
        ("s", ">h"),  # the specification has a short string here, but no peer uses this meaning
    )
}
_DECIMAL = struct.Struct(">Bi")


class Misfit(Exception):
    """The error for a value that is longer than its container, or has a type that AMQP does not have."""


class Fields:
    """
    A reader of the values of one frame, in their order; the values are the bytes of `data` from `at` to `end`.

    `problems` has each error in a value: a kind of `Flaw`, a sentence, and the first bytes.
    If the values are `private`, such as a login or the headers of an application, the problems show none of these bytes.
    """

    __slots__ = ("_data", "_end", "_left", "_private", "at", "problems")

    def __init__(self, data: Octets, at: int, end: int, *, private: bool = False) -> None:
        self.at = at
        self.problems: list[tuple[str, str, bytes]] = []
        self._data = data
        self._end = end
        self._private = private
        self._left = MOST_VALUES

    @property
    def left(self) -> int:
        """The number of bytes that are not read yet."""
        return self._end - self.at

    def arguments(self, types: Iterable[tuple[str, str]]) -> dict[str, object]:
        """Read values with these names and types; neighbouring bits share an octet."""
        found: dict[str, object] = {}
        octet, bit = 0, _OCTET
        name = ""
        try:
            for name, kind in types:
                if kind == "bit" and bit == _OCTET:
                    octet, bit = self._next(1, self._end)[0], 0
                if kind == "bit":
                    found[name], bit = bool(octet >> bit & 1), bit + 1
                    continue
                bit = _OCTET
                if kind == "shortstr":
                    found[name] = self._name(self._end)
                elif kind == "table":
                    found[name] = self._table()
                else:
                    found[name] = self._value(_KINDS[kind], self._end, 0)
        except Misfit as error:
            self._problem("bad-method", f"the value of {name} does not fit: {error}", self.at)
            self.at = self._end
        return found

    def _table(self) -> dict[object, object]:
        """Read a table that is an argument; the next argument begins where the table's length ends."""
        end = self._container(self._end)
        began, table = self.at, dict[object, object]()
        try:
            self._fill(table, end, 1, named=True)
        except Misfit as error:
            self._problem("bad-table", str(error), max(began, self.at - LONGEST_RAW // 4))
        self.at = end
        return table

    def _fill(self, found: dict[object, object], end: int, depth: int, *, named: bool) -> None:
        """Read the values of a table by their names, or those of an array by their places."""
        while self.at < end:
            if self._left <= 0 or depth > DEEPEST:
                found[LEFT_OUT] = f"{end - self.at} bytes left out"
                self.at = end
                return
            self._left -= 1
            name: object = self._name(end) if named else len(found)
            found[name] = self._value(chr(self._next(1, end)[0]), end, depth)

    def _value(self, kind: str, end: int, depth: int) -> object:
        if (number := _NUMBERS.get(kind)) is not None:
            return number.unpack(self._next(number.size, end))[0]
        match kind:
            case "S" | "x":
                raw = self._next(int.from_bytes(self._next(4, end), "big"), end)
                try:
                    return raw.decode() if kind == "S" else raw
                except UnicodeDecodeError:
                    return raw
            case "D":
                scale, digits = _DECIMAL.unpack(self._next(_DECIMAL.size, end))
                return Decimal(digits).scaleb(-scale)
            case "F" | "A":
                inner, found = self._container(end), dict[object, object]()
                self._fill(found, inner, depth + 1, named=kind == "F")
                return found if kind == "F" else list(found.values())
            case "V" | "\0":  # the authors of pamqp have seen \0 in practice
                return None
        self.at -= 1
        shown = "" if self._private else f" {kind.encode('latin-1')!r}"
        raise Misfit(f"a value has a type{shown} that AMQP does not have")

    def _container(self, end: int) -> int:
        """Read the length of a table or an array, and return its end."""
        size = int.from_bytes(self._next(4, end), "big")
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

    def _next(self, size: int, end: int) -> bytes:
        at = self.at
        if (stop := at + size) > end:
            raise Misfit(f"{size} bytes are expected, and {end - at} are left")
        self.at = stop
        return bytes(self._data[at:stop])

    def _problem(self, kind: str, what: str, at: int) -> None:
        if not self.problems or self.problems[-1][0] != kind:  # one flaw of a kind is enough
            raw = b"" if self._private else bytes(self._data[at : min(at + LONGEST_RAW, self._end)])
            self.problems.append((kind, what, raw))
