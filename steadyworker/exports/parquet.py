"""
Parquet, written by pyarrow's own writer.

If the source yields Arrow batches, each column gets the plain form of its type in the batches.
The plain types are `string` for text, microseconds for moments, and UTC for moments with a zone.
An unsigned integer becomes the type as which Spark reads it, such as DECIMAL(20,0) for 64 bits.
The same is true inside of lists, structs and maps.
If the source yields rows, pyarrow infers the types from the first rows, and the writer widens these types.
A decimal is widened to 38 digits, and a column that has only NULLs in these rows becomes text.
Every column is nullable.

A row group has 65,536 rows, whatever the size of the batches, so equal rows of equal types give equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from steadyworker.errors import ExportRejected
from steadyworker.exports.render import PLAIN, Out, cells
from steadyworker.exports.sources import arrow, check_text, columns_in

# For each type of unsigned integers, the type as which Spark reads it.
_SIGNED: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "uint8": lambda pa: pa.int16(),
        "uint16": lambda pa: pa.int32(),
        "uint32": lambda pa: pa.int64(),
        "uint64": lambda pa: pa.decimal128(20, 0),
    }
)

ROW_GROUP = 65_536
"""The number of rows in a row group."""


@dataclass(frozen=True, slots=True)
class Parquet:
    """
    The Parquet format, compressed with zstd.

    The index of a Parquet file is at its end, so an export cannot continue an incomplete file.
    Therefore an interrupted export starts from the first row.
    """

    name: ClassVar[str] = "parquet"

    @property
    def resumable(self) -> bool:
        """False: Parquet needs its index at the end."""
        return False

    @property
    def compression(self) -> None:
        """None: Parquet compresses its own data."""

    def options(self) -> dict[str, Any]:
        """Return name and compression, for the manifest."""
        return {"name": self.name, "compression": "zstd"}

    def head(self, columns: Sequence[str]) -> bytes:  # noqa: ARG002 - pyarrow writes the beginning of the file
        """Return no bytes: pyarrow writes the beginning of the file."""
        return b""

    def texts(self, column: Any) -> Any:
        """Return the texts of a column, for totals by group."""
        return cells(column, PLAIN, lambda texts, _: texts)

    def writer(self, out: Out, columns: Sequence[str]) -> ParquetWriter:
        """Return a writer of rows."""
        return ParquetWriter(out, columns)


class RowGroups:
    """A writer of Arrow tables of one schema into one file, in row groups of equal size."""

    def __init__(self, out: Out, schema: Any) -> None:
        import pyarrow.parquet  # `arrow()` has checked that it is installed

        self._schema = schema
        self._waiting: list[Any] = []
        self._rows = 0
        self._writer = pyarrow.parquet.ParquetWriter(out, schema, compression="zstd")

    def add(self, table: Any) -> None:
        """Add these rows; write each row group when it is full."""
        self._waiting.append(table)
        self._rows += len(table)
        if self._rows >= ROW_GROUP:
            waiting = self._together()
            whole = self._rows - self._rows % ROW_GROUP
            for first in range(0, whole, ROW_GROUP):
                self._write(waiting.slice(first, ROW_GROUP))
            self._waiting, self._rows = [waiting.slice(whole)], self._rows - whole

    def finish(self) -> None:
        """Write the remaining rows and the index, even for a file without rows."""
        if self._rows:
            self._write(self._together())
        self._writer.close()

    def close(self) -> None:
        """Close pyarrow's writer now, because its finalizer would otherwise write to the file later."""
        if self._writer.is_open:
            with suppress(OSError):
                self._writer.close()

    def _together(self) -> Any:
        return arrow().concat_tables(self._waiting)

    def _write(self, table: Any) -> None:
        # The chunks are combined into one chunk, because the end of a chunk would end a Parquet page.
        self._writer.write_table(table.combine_chunks(), ROW_GROUP)


class ParquetWriter:
    """A writer of rows. The first chunk sets the types: its Arrow types, or the types that pyarrow infers from its rows."""

    def __init__(self, out: Out, columns: Sequence[str]) -> None:
        self._arrow = arrow()
        self._out, self._columns = out, columns
        self._schema: Any = None
        self._groups: RowGroups | None = None

    def batch(self, chunk: Sequence[Any], first: int) -> Any:  # noqa: ARG002 - pyarrow's error names no row
        """Return the chunk as one batch of the file's types."""
        batches, given = columns_in(chunk, self._columns)
        if batches:
            given = [self._arrow.chunked_array(arrays, arrays[0].type).combine_chunks() for arrays in given]
        if self._schema is None:
            types = [
                column.type if batches else self._widened(self._array(name, column, None).type)
                for name, column in zip(self._columns, given, strict=True)
            ]
            self._schema = plain_schema(self._columns, types)
        arrays = [
            self._array(name, column, kind)
            for name, column, kind in zip(self._columns, given, self._schema.types, strict=True)
        ]
        return self._arrow.RecordBatch.from_arrays(arrays, schema=self._schema)

    def write(self, batch: Any, first: int) -> None:  # noqa: ARG002 - every row can be written
        """Write the rows of this batch."""
        self._opened(batch.schema).add(self._arrow.Table.from_batches([batch]))

    def finish(self) -> None:
        """Write the remaining rows and the index, even for a file without rows."""
        names = list(self._columns)
        self._opened(plain_schema(names, [self._arrow.string()] * len(names))).finish()

    def close(self) -> None:
        """Close the writer."""
        if self._groups is not None:
            self._groups.close()

    def _opened(self, schema: Any) -> RowGroups:
        if self._groups is None:
            self._groups = RowGroups(self._out, schema)
        return self._groups

    def _array(self, name: str, column: Any, kind: Any) -> Any:
        try:
            if hasattr(column, "cast"):
                made = column.cast(kind)
                check_text(name, made)
                return made
            return self._arrow.array(column, type=kind)
        except (self._arrow.ArrowException, OverflowError, ValueError) as error:
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


def plain_schema(names: Sequence[str], types: Sequence[Any]) -> Any:
    """Return the Arrow schema of these columns, with plain types and without metadata."""
    return arrow().schema(list(zip(names, map(_plain, types), strict=True)))


def _plain(kind: Any) -> Any:
    pa = arrow()
    types, made = pa.types, kind
    if types.is_dictionary(kind):
        made = _plain(kind.value_type)
    elif types.is_large_string(kind) or types.is_string_view(kind):
        made = pa.string()
    elif types.is_large_binary(kind) or types.is_binary_view(kind):
        made = pa.binary()
    elif types.is_timestamp(kind):
        made = pa.timestamp("us", kind.tz and "UTC")
    elif types.is_unsigned_integer(kind):
        made = _SIGNED[str(kind)](pa)
    elif types.is_map(kind):
        made = pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    elif types.is_struct(kind):
        made = pa.struct([(field.name, _plain(field.type)) for field in kind])
    elif types.is_list(kind) or types.is_large_list(kind):
        made = pa.list_(_plain(kind.value_type))
    return made
