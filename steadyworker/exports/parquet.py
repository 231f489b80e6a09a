"""
Parquet, written by pyarrow's own writer.

If the source yields Arrow batches, each column gets the plain form of its type in the batches.
The plain types are `string` for text, microseconds for moments, and UTC for moments with a zone.
An unsigned integer becomes the type as which Spark reads it, such as DECIMAL(20,0) for 64 bits.
The same is true inside of lists, structs and maps.
If the source yields rows, pyarrow infers the types from the first rows, and the writer widens these types.
A decimal is widened to 38 digits, and a column that has only NULLs in these rows becomes text.
A later value that would have to change for its column's type, such as 1.5 among integers, is refused.
Every column is nullable.

A row group has 65,536 rows, whatever the size of the batches, so equal rows of equal types give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from itertools import chain
from typing import Any, ClassVar

from steadyworker.errors import ExportRejected
from steadyworker.exports.format import Format
from steadyworker.exports.render import Out
from steadyworker.exports.sources import arrow, check_text, columns_in, plain_type, zoned_moments

ROW_GROUP = 65_536
"""The number of rows in a row group."""


@dataclass(frozen=True, slots=True)
class Parquet(Format):
    """
    The Parquet format, compressed with zstd.

    The index of a Parquet file is at its end, so an export cannot continue an incomplete file.
    Therefore an interrupted export starts from the first row.
    """

    name: ClassVar[str] = "parquet"
    endings: ClassVar[tuple[str, ...]] = (".parquet",)

    def options(self) -> dict[str, Any]:
        """Return name and compression, for the manifest."""
        return {"name": self.name, "compression": "zstd"}

    def writer(self, out: Out, columns: Sequence[str]) -> ParquetWriter:
        """Return a writer of rows."""
        return ParquetWriter(out, columns)


class ParquetWriter:
    """
    A writer of rows, in row groups of equal size.

    The first chunk sets the types: its Arrow types, or the types that pyarrow infers from its rows.
    """

    def __init__(self, out: Out, columns: Sequence[str]) -> None:
        self._arrow = arrow()
        self._out, self._columns = out, columns
        self._schema: Any = None
        self._waiting: list[Any] = []
        self._rows = 0
        self._file: Any = None

    def batch(self, chunk: Sequence[Any], first: int) -> Any:
        """Return the chunk as one batch of the file's types; `first` is the number of its first row, for errors."""
        batches, given = columns_in(chunk, self._columns)
        if batches:
            given = [self._arrow.chunked_array(arrays, arrays[0].type).combine_chunks() for arrays in given]
        if self._schema is None:
            types = [
                column.type if batches else self._widened(self._array(name, column, None).type)
                for name, column in zip(self._columns, given, strict=True)
            ]
            self._schema = plain_schema(self._columns, types)
        if not batches:
            for name, column, kind in zip(self._columns, given, self._schema.types, strict=True):
                _check_exact(name, column, kind, first)
        arrays = [
            self._array(name, column, kind)
            for name, column, kind in zip(self._columns, given, self._schema.types, strict=True)
        ]
        return self._arrow.RecordBatch.from_arrays(arrays, schema=self._schema)

    def write(self, batch: Any, first: int) -> None:  # noqa: ARG002 - every row can be written
        """Write the rows of this batch; each row group is written when it is full."""
        self._waiting.append(self._arrow.Table.from_batches([batch]))
        self._rows += batch.num_rows
        if self._rows >= ROW_GROUP:
            waiting = self._arrow.concat_tables(self._waiting)
            whole = self._rows - self._rows % ROW_GROUP
            for first_row in range(0, whole, ROW_GROUP):
                self._write(waiting.slice(first_row, ROW_GROUP))
            self._waiting, self._rows = [waiting.slice(whole)], self._rows - whole

    def finish(self) -> None:
        """Write the remaining rows and the index, even for a file without rows."""
        names = list(self._columns)
        schema = self._waiting[0].schema if self._waiting else plain_schema(names, [self._arrow.string()] * len(names))
        if self._rows:
            self._write(self._arrow.concat_tables(self._waiting))
        self._opened(schema).close()

    def close(self) -> None:
        """Close pyarrow's writer now, because its finalizer would otherwise write to the file later."""
        if self._file is not None and self._file.is_open:
            with suppress(OSError):
                self._file.close()

    def _write(self, table: Any) -> None:
        # The chunks are combined into one chunk, because the end of a chunk would end a Parquet page.
        self._opened(table.schema).write_table(table.combine_chunks(), ROW_GROUP)

    def _opened(self, schema: Any) -> Any:
        import pyarrow.parquet  # `arrow()` has checked that it is installed

        if self._file is None:
            self._file = pyarrow.parquet.ParquetWriter(self._out, schema, compression="zstd")
        return self._file

    def _array(self, name: str, column: Any, kind: Any) -> Any:
        try:
            if hasattr(column, "cast"):
                made = column.cast(kind)
                check_text(name, made)
                return made
            if kind is not None and self._arrow.types.is_timestamp(kind) and kind.tz is not None:
                return zoned_moments(column)
            return self._arrow.array(column, type=kind)
        except (self._arrow.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise ExportRejected(
                f"Column {name!r}: expected values of type {kind or 'one type'}, but {error}. "
                "Yield Arrow batches instead of rows: their schema sets the types."
            ) from error

    def _widened(self, kind: Any) -> Any:
        types = self._arrow.types
        if types.is_null(kind):
            return self._arrow.string()
        if types.is_decimal(kind):
            return self._arrow.decimal128(38, kind.scale)
        return kind


def _check_exact(name: str, values: Sequence[Any], kind: Any, first: int) -> None:
    """
    Check that no value has to change for the column's type; pyarrow itself cuts 1.5 to 1, and a moment to its day.

    Raises:
        ExportRejected: A value has another type.
    """
    if _fits(values, kind):
        return
    number, value = next((number, value) for number, value in enumerate(values, first) if not _fits([value], kind))
    raise ExportRejected(
        f"Row {number}, column {name!r}: expected a value of type {kind}, as in the first rows, got {value!r:.200}. "
        "Give all values of the column one type (moments all with a zone, or all without), "
        "or yield Arrow batches, whose schema sets the types."
    )


def _fits(values: Sequence[Any], kind: Any) -> bool:
    """Return whether all these values are NULL, or of the Python types that have exactly this Arrow type's values."""
    types = arrow().types
    if types.is_nested(kind):
        return all(
            _fits(inner, each) for inner, each in _inside([value for value in values if value is not None], kind)
        )
    exact = next((exact for matches, exact in _EXACT if getattr(types, matches)(kind)), None)
    if exact is None:
        return True
    python = set(map(type, values))
    known = {next((known for known in _KNOWN if issubclass(each, known)), None) for each in python}
    if known - {None, *exact}:
        return False  # a type that is not known, such as one of numpy, is pyarrow's to convert
    zoned = {value.tzinfo is not None for value in values if value is not None} if known & {datetime, time} else set()
    return zoned <= {types.is_timestamp(kind) and kind.tz is not None}


def _inside(values: Sequence[Any], kind: Any) -> Iterator[tuple[Sequence[Any], Any]]:
    """Yield the values inside of lists, maps and structs, with their types."""
    types = arrow().types
    if types.is_list(kind):
        yield [*chain.from_iterable(values)], kind.value_type
    elif types.is_map(kind):
        pairs = [pair for value in values for pair in (value.items() if isinstance(value, Mapping) else value)]
        yield [key for key, _ in pairs], kind.key_type
        yield [item for _, item in pairs], kind.item_type
    elif types.is_struct(kind):
        for field in kind:
            yield [value.get(field.name) for value in values if isinstance(value, Mapping)], field.type


_KNOWN = (str, bytes, bool, int, float, Decimal, datetime, date, time)  # a bool is an int too, and a datetime a date
_EXACT: Sequence[tuple[str, frozenset[type]]] = (
    ("is_boolean", frozenset({bool})),
    ("is_integer", frozenset({int})),
    ("is_floating", frozenset({float, int})),  # pyarrow refuses an integer that a float does not hold
    ("is_decimal", frozenset({Decimal, int})),
    ("is_timestamp", frozenset({datetime})),
    ("is_date", frozenset({date})),
    ("is_time", frozenset({time})),
    ("is_string", frozenset({str})),
    ("is_binary", frozenset({bytes})),
)
"""For the types of pyarrow, by the function that finds them, the types of Python whose values it does not change."""


def plain_schema(names: Sequence[str], types: Sequence[Any]) -> Any:
    """Return the Arrow schema of these columns, with plain types and without metadata."""
    return arrow().schema(list(zip(names, map(plain_type, types), strict=True)))
