r"""
How rows become bytes: CSV here, JSON Lines in `jsonl.py`, value by value as `values.py` says; Parquet in `parquet.py`.

**CSV** is RFC 4180 in UTF-8 with "\n" as line end, also after the last line.
A value is quoted if, and only if, it is text that is empty, is the null text, or holds the delimiter, a quote, CR or LF.
A quote inside is doubled.
NULL is the null text, never quoted: with the default `null=""` it is nothing at all, and empty text is `""`.
Readers that look at quotes (PostgreSQL's COPY, DuckDB, pyarrow, Spark) so tell the two apart; others read "" for both.
In a file of one column NULL is written as `""` too, because a blank line is no row for most readers.

Spark makes the same bytes by expressions, in `spark/lines.py`.

A file whose name ends in `.gz` is the same bytes, packed as `packed.py` says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from steadyworker.errors import ExportError
from steadyworker.exports.cells import Cells, LineWriter
from steadyworker.exports.jsonl import JsonLines, check_compression
from steadyworker.exports.packed import Gzip
from steadyworker.exports.parquet import Out, Parquet
from steadyworker.exports.patterns import DATE, MOMENT, UTC, check_pattern, check_zone, date_texts, moment_texts
from steadyworker.exports.sources import Row
from steadyworker.exports.stage import Target
from steadyworker.exports.values import TEXTS

__all__ = ["Csv", "Format", "JsonLines", "Parquet", "Writer", "format_of", "packed"]

_DELIMITERS = ",;|\t~^"
_FORMULA = "=+-@\t\r\0"


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
    """A kind of file: `Csv`, `JsonLines`, `Parquet`."""

    name: ClassVar[str]

    @property
    def resumable(self) -> bool:
        """Whether a file can be cut after any row and written on."""
        ...

    @property
    def compression(self) -> str | None:
        """What all of it is packed with, as `packed` does."""
        ...

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
        header: Whether the columns' names are the first line; or column to the name that it has there instead.
        null: The text for NULL; choose none that a number or a date of the data may be, because these are never quoted.
        bom: Begin with a byte order mark, by which Excel knows UTF-8.
        guard_formulas: Put `'` before text whose first character is one of `= + - @ TAB CR NUL`, so that no spreadsheet
            runs it (CWE-1236); never before a number.
        decimal_comma: Write `1,5` for numbers that have a point; the delimiter has to be another then.
        dates: How a date looks, in the notation of `patterns.py`,
        moments: and how a date with a time does.
        zone: The zone, like "Europe/Berlin", in which moments that have one are told.
        compression: "gzip", which a name that ends in `.gz` asks for, too.

    Raises:
        ExportError: An option that cannot be, or that would have to be quoted.
    """

    name: ClassVar[str] = "csv"

    delimiter: str = ","
    header: bool | Mapping[str, str] = True
    null: str = ""
    bom: bool = False
    guard_formulas: bool = True
    decimal_comma: bool = False
    dates: str = DATE
    moments: str = MOMENT
    zone: str = UTC
    compression: Literal["gzip"] | None = None

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter not in _DELIMITERS:
            raise ExportError(
                f"Expected a delimiter out of {', '.join(map(repr, _DELIMITERS))}, got {self.delimiter!r}."
            )
        if re.search(f'[{re.escape(self.delimiter)}"\r\n]', self.null):
            raise ExportError(
                f"Expected a null text without delimiter, quote and line end, got {self.null!r}: choose another."
            )
        if self.decimal_comma and self.delimiter == ",":
            raise ExportError("Expected another delimiter than ',' with decimal_comma: add delimiter=';'.")
        forbidden = self.delimiter + "\"'\r\n"
        check_pattern("dates", self.dates, forbidden, of_dates=True)
        check_pattern("moments", self.moments, forbidden, of_dates=False)
        check_zone(self.zone)
        check_compression(self.compression)

    @property
    def resumable(self) -> bool:
        """Whether a file can be cut after any row and written on."""
        return self.compression is None

    def options(self) -> dict[str, Any]:
        """Name and options, for the manifest."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            "name": self.name,
            **options,
            "header": self.header if isinstance(self.header, bool) else {**self.header},
        }

    def head(self, columns: Sequence[str]) -> bytes:
        """
        The byte order mark and the header line, if they are wanted.

        Raises:
            ExportError: `header` names a column that is not there, or makes two of one name.
        """
        renamed = {} if isinstance(self.header, bool) else self.header
        names = [renamed.get(name, name) for name in columns]
        missing = [name for name in renamed if name not in columns]
        if missing or len(set(names)) < len(names):
            raise ExportError(
                f"Expected in header columns out of {', '.join(columns)} and different names for them, "
                f"got {dict(renamed)!r}: correct it."
            )
        line = self.delimiter.join(map(self._cells()[str], names)) + "\n" if self.header is not False else ""
        return (("\ufeff" if self.bom else "") + line).encode()

    def text(self, value: object) -> str:
        """The text of a value, guarded if it is text."""
        shown = self._texts()[type(value)](value)
        return (
            "'" + shown if self.guard_formulas and isinstance(value, str) and shown[:1] in _FORMULA and shown else shown
        )

    def writer(self, out: Out, columns: Sequence[str], schema: Callable[[], Any]) -> Writer:  # noqa: ARG002 - for Parquet
        """A writer of rows, without the head."""
        cells = self._cells()
        if len(columns) == 1 and not self.null:
            cells[type(None)] = lambda _: '""'
        delimiter = self.delimiter
        return LineWriter(
            out, columns, lambda row: delimiter.join([cells[type(value)](value) for value in row]), self.text
        )

    def _texts(self) -> Cells:
        """Type to the text of a value, without guard and quotes."""
        texts = Cells(TEXTS)
        if self.decimal_comma:
            for kind in (Decimal, float):
                texts[kind] = _with_comma(TEXTS[kind])
        if self.dates != DATE:
            texts[date] = date_texts(self.dates)
        if (self.moments, self.zone) != (MOMENT, UTC):
            texts[datetime] = moment_texts(self.moments, self.zone)
        return texts

    def _cells(self) -> Cells:
        """Type to the cell that a value becomes; numbers and dates never need quotes."""
        special = re.compile(f'[{re.escape(self.delimiter)}"\r\n]').search
        formula = _FORMULA if self.guard_formulas else ""

        def quoted(value: str) -> str:
            shown = "'" + value if value[:1] in formula and value else value
            if special(value) or not value or value == self.null:
                return '"' + shown.replace('"', '""') + '"'
            return shown

        return Cells({**self._texts(), str: quoted, type(None): lambda _: self.null})


def _with_comma(convert: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: convert(value).replace(".", ",")


@contextmanager
def packed(out: Out, form: Format) -> Iterator[Out]:
    """Where the bytes of this format go on their way to `out`; whole when the block ends without an error."""
    if form.compression is None:
        yield out
        return
    body = Gzip(out)
    try:
        yield body
        body.finish()
    finally:
        body.close()


def format_of(target: Target, wanted: object | None) -> Format:
    """
    The format that was asked for, else the one that the file's name says; `.gz` at its end packs either.

    Raises:
        ExportError: No format, and a name that says none; something that is no format; Parquet as `.gz`.
    """
    zipped = target.path.suffix.lower() == ".gz"
    if wanted is not None and not isinstance(wanted, (Csv, JsonLines, Parquet)):
        raise ExportError(f"Expected Csv(), JsonLines() or Parquet() as format, got {wanted!r}: import one of them.")
    chosen = wanted or _by_suffix(target.path.with_suffix("") if zipped else target.path)
    if chosen is None:
        raise ExportError(
            f"Expected a name that ends in .csv, .jsonl or .parquet, got {target.path.name!r}: "
            "rename it, or give format=Csv()."
        )
    if not zipped:
        return chosen
    if isinstance(chosen, Parquet):
        raise ExportError(
            f"Expected no .gz at the end of a Parquet file's name, got {target.path.name!r}: it is compressed inside."
        )
    return replace(chosen, compression="gzip")


def _by_suffix(path: Path) -> Csv | JsonLines | Parquet | None:
    match path.suffix.lower():
        case ".csv":
            return Csv()
        case ".jsonl" | ".ndjson":
            return JsonLines()
        case ".parquet":
            return Parquet()
    return None
