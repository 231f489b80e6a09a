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

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
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


def plain_schema(names: Sequence[str], types: Sequence[Any]) -> Any:
    """Return the Arrow schema of these columns, with plain types and without metadata."""
    return arrow().schema(list(zip(names, map(plain_type, types), strict=True)))
