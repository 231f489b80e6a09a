r"""
How rows become bytes: CSV and JSON Lines, value by value as `values.py` says.  Parquet is in `parquet.py`.

**CSV** is RFC 4180 in UTF-8 with "\n" as line end, also after the last line.
A value is quoted if, and only if, it is text that is empty or holds the delimiter, a quote, CR or LF.
A quote inside is doubled.
NULL is the null text, never quoted: with the default `null=""` it is nothing at all, and empty text is `""`.
Readers that look at quotes (PostgreSQL's COPY, DuckDB, pyarrow, Spark) so tell the two apart; others read "" for both.
In a file of one column NULL is written as `""` too, because a blank line is no row for most readers.

Spark makes the same bytes by expressions, in `spark/lines.py`.

**JSON Lines** has one object a line, keys in the columns' order, no blanks.
Decimals are strings, because most readers make binary floats of JSON's numbers.
NaN and the infinities are strings, because JSON has no such number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from json.encoder import encode_basestring
from typing import Any, ClassVar, Protocol

from steadyworker.errors import ExportError
from steadyworker.exports.parquet import Parquet
from steadyworker.exports.sources import Row
from steadyworker.exports.stage import Target
from steadyworker.exports.values import TEXTS, text

_DELIMITERS = ",;|\t~^"
_FORMULA = "=+-@\t\r\0"


class Out(Protocol):
    """Where a writer's bytes go."""

    def write(self, data: bytes, /) -> int:
        """Take all of them."""
        ...


class Writer(Protocol):
    """Makes one file's bytes."""

    def write(self, rows: Sequence[Row], first: int) -> None:
        """
        Write these rows, each with one value per column; the first of them has this number.

        Raises:
            ExportError: A value that the format cannot hold; names row (from 0) and column.
        """
        ...

    def finish(self) -> None:
        """Write what follows the last row."""
        ...

    def close(self) -> None:
        """Release what it holds, finished or not, while `out` is still open."""
        ...


class Format(Protocol):
    """A kind of file: `Csv`, `JsonLines`, `Parquet`; `resumable` if a file can be cut after any row and written on."""

    name: ClassVar[str]
    resumable: ClassVar[bool]

    def options(self) -> dict[str, Any]:
        """Name and options, for the manifest."""
        ...

    def head(self, columns: Sequence[str]) -> bytes:
        """What stands before the first row."""
        ...

    def text(self, value: object) -> str:
        """The text of a value that is not None, as the file has it, without quotes."""
        ...

    def writer(self, out: Out, columns: Sequence[str], schema: Callable[[], Any]) -> Writer:
        """A writer of rows, without the head; `schema()` at the first row is the source's Arrow schema, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Csv:
    """
    CSV (RFC 4180); the module's docstring has the exact rules.

    Args:
        delimiter: One of `, ; | TAB ~ ^`, none of which is part of a number or a date.
        header: Whether the columns' names are the first line.
        null: The text for NULL; choose one that is no value of the data, because a value like it reads as NULL.
        bom: Begin with a byte order mark, by which Excel knows UTF-8.
        guard_formulas: Put `'` before text whose first character is one of `= + - @ TAB CR NUL`, so that no spreadsheet
            runs it (CWE-1236); never before a number.

    Raises:
        ExportError: Another delimiter; a `null` that would have to be quoted.
    """

    name: ClassVar[str] = "csv"
    resumable: ClassVar[bool] = True

    delimiter: str = ","
    header: bool = True
    null: str = ""
    bom: bool = False
    guard_formulas: bool = True

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter not in _DELIMITERS:
            raise ExportError(
                f"Expected a delimiter out of {', '.join(map(repr, _DELIMITERS))}, got {self.delimiter!r}."
            )
        if re.search(f'[{re.escape(self.delimiter)}"\r\n]', self.null):
            raise ExportError(
                f"Expected a null text without delimiter, quote and line end, got {self.null!r}: choose another."
            )

    def options(self) -> dict[str, Any]:
        """Name and options, for the manifest."""
        return {"name": self.name, **asdict(self)}

    def head(self, columns: Sequence[str]) -> bytes:
        """The byte order mark and the header line, if they are wanted."""
        line = self.delimiter.join(map(self._cells()[str], columns)) + "\n" if self.header else ""
        return (("\ufeff" if self.bom else "") + line).encode()

    def text(self, value: object) -> str:
        """The text of a value, guarded if it is text."""
        shown = text(value)
        return (
            "'" + shown if self.guard_formulas and isinstance(value, str) and shown[:1] in _FORMULA and shown else shown
        )

    def writer(self, out: Out, columns: Sequence[str], schema: Callable[[], Any]) -> Writer:  # noqa: ARG002 - for Parquet
        """A writer of rows, without the head."""
        cells = self._cells()
        if len(columns) == 1 and not self.null:
            cells[type(None)] = lambda _: '""'
        delimiter = self.delimiter
        return _Lines(out, columns, lambda row: delimiter.join([cells[type(value)](value) for value in row]))

    def _cells(self) -> _Cells:
        """Type to the cell that a value becomes; numbers and dates never need quotes."""
        special = re.compile(f'[{re.escape(self.delimiter)}"\r\n]').search
        formula = _FORMULA if self.guard_formulas else ""

        def quoted(value: str) -> str:
            if value[:1] in formula and value:
                value = "'" + value
            if special(value) or not value:
                return '"' + value.replace('"', '""') + '"'
            return value

        return _Cells({**TEXTS, str: quoted, type(None): lambda _: self.null})


@dataclass(frozen=True, slots=True)
class JsonLines:
    """One JSON object a line (`.jsonl`), in UTF-8; the module's docstring has the exact rules."""

    name: ClassVar[str] = "jsonl"
    resumable: ClassVar[bool] = True

    def options(self) -> dict[str, Any]:
        """The name: there are no options."""
        return {"name": self.name}

    def head(self, columns: Sequence[str]) -> bytes:  # noqa: ARG002 - each line has the names
        """Nothing."""
        return b""

    def text(self, value: object) -> str:
        """The text of a value."""
        return text(value)

    def writer(self, out: Out, columns: Sequence[str], schema: Callable[[], Any]) -> Writer:  # noqa: ARG002 - for Parquet
        """A writer of rows."""
        names = [encode_basestring(name) + ":" for name in columns]
        cells = _Cells(
            {
                **{kind: _string(convert) for kind, convert in TEXTS.items()},
                bool: TEXTS[bool],
                int: TEXTS[int],
                float: _number,
                type(None): lambda _: "null",
            }
        )

        def line(row: Row) -> str:
            return (
                "{" + ",".join([name + cells[type(value)](value) for name, value in zip(names, row, strict=True)]) + "}"
            )

        return _Lines(out, columns, line)


def format_of(target: Target, wanted: object | None) -> Format:
    """
    The format that was asked for, else the one that the file's name says.

    Raises:
        ExportError: No format, and a name that says none; something that is no format.
    """
    if isinstance(wanted, (Csv, JsonLines, Parquet)):
        return wanted
    if wanted is not None:
        raise ExportError(f"Expected Csv(), JsonLines() or Parquet() as format, got {wanted!r}: import one of them.")
    match target.path.suffix.lower():
        case ".csv":
            return Csv()
        case ".jsonl" | ".ndjson":
            return JsonLines()
        case ".parquet":
            return Parquet()
    raise ExportError(
        f"Expected a name that ends in .csv, .jsonl or .parquet, got {target.path.name!r}: "
        "rename it, or give format=Csv()."
    )


class _Lines:
    """Writes each row as one line."""

    def __init__(self, out: Out, columns: Sequence[str], line: Callable[[Row], str]) -> None:
        self._out, self._columns, self._line = out, columns, line

    def write(self, rows: Sequence[Row], first: int) -> None:
        try:
            data = "".join([self._line(row) + "\n" for row in rows]).encode()
        except (ExportError, UnicodeEncodeError, ValueError):
            self._explain(rows, first)
            raise
        self._out.write(data)

    def finish(self) -> None:
        pass  # lines need no end

    def close(self) -> None:
        pass  # and hold nothing

    def _explain(self, rows: Iterable[Row], first: int) -> None:
        """Find the value that could not be written, and say where it is."""
        for number, row in enumerate(rows, first):
            for column, value in zip(self._columns, row, strict=True):
                try:
                    if value is not None:
                        text(value).encode()
                except (ExportError, ValueError) as error:
                    raise ExportError(f"Row {number}, column {column!r}: {error}") from error


class _Cells(dict[type, Callable[[Any], str]]):
    """Type to converter; a type that is not there has the one of the nearest class that it derives from."""

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        found = next((self[base] for base in kind.__mro__ if base in self), text)
        self[kind] = found
        return found


def _string(convert: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: encode_basestring(convert(value))


def _number(value: float) -> str:
    shown = TEXTS[float](value)
    return shown if shown[-1].isdigit() else f'"{shown}"'
