"""
Parquet, written by pyarrow (extra `spark`), which is imported when the first Parquet file is written.

If the source yields Arrow batches, each column gets the plain form of its type in the batches.
The plain types are `string` for text, microseconds for moments, and UTC for moments with a zone.
If the source yields rows, pyarrow infers the types from the first rows, and the writer widens these types.
A decimal is widened to 38 digits, and a column that has only NULLs in these rows becomes text.
Every column is nullable.

A row group has 65,536 rows, whatever the size of the batches, so equal rows of equal types give equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.values import text

ROW_GROUP = 65_536
"""The number of rows in a row group."""


class Out(Protocol):
    """An output for bytes: a file that is written from start to end."""

    def write(self, data: bytes, /) -> int:
        """Write all these bytes."""
        ...


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

    def text(self, value: object) -> str:
        """Return the text of a value."""
        return text(value)

    def writer(self, out: Out, columns: Sequence[str], schema: Callable[[], Any]) -> ParquetWriter:
        """
        Return a writer of rows.

        Raises:
            ExportError: pyarrow is not installed.
        """
        return ParquetWriter(out, columns, schema)


class RowGroups:
    """A writer of Arrow tables of one schema into one file, in row groups of equal size."""

    def __init__(self, out: Out, schema: Any) -> None:
        import pyarrow.parquet  # this import cannot fail, because `arrow()` has returned pyarrow

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
    """A writer of rows. The source's Arrow schema sets the types; without a schema, the first rows set the types."""

    def __init__(self, out: Out, columns: Sequence[str], schema: Callable[[], Any]) -> None:
        self._arrow = arrow()
        self._out, self._columns, self._schema_of = out, columns, schema
        self._schema: Any = None
        self._groups: RowGroups | None = None

    def write(self, rows: Sequence[Sequence[object]], first: int) -> None:  # noqa: ARG002 - pyarrow's error names no row
        """Write these rows."""
        if not rows:
            return
        values = list(zip(*rows, strict=True))
        groups = self._groups or self._open(values)
        arrays = [
            self._array(name, column, kind)
            for name, column, kind in zip(self._columns, values, self._schema.types, strict=True)
        ]
        groups.add(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def finish(self) -> None:
        """Write the remaining rows and the index, even for a file without rows."""
        groups = self._groups or self._open([()] * len(self._columns))
        groups.finish()

    def close(self) -> None:
        """Close the writer."""
        if self._groups is not None:
            self._groups.close()

    def _open(self, values: Sequence[Sequence[object]]) -> RowGroups:
        given = self._schema_of()
        types = (
            given.types
            if given is not None
            else [
                self._widened(self._array(name, column, None).type)
                for name, column in zip(self._columns, values, strict=True)
            ]
        )
        self._schema = plain_schema(self._columns, types)
        self._groups = RowGroups(self._out, self._schema)
        return self._groups

    def _array(self, name: str, column: Sequence[object], kind: Any) -> Any:
        try:
            return self._arrow.array(column, type=kind)
        except (self._arrow.ArrowException, OverflowError) as error:
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
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    return kind


def arrow(purpose: str = "Parquet()") -> Any:
    """
    Import pyarrow and return it.

    Args:
        purpose: The feature that needs pyarrow, for the error message.

    Raises:
        ExportError: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: ICN001 - its own name is clearer than "pa"
    except ImportError as error:
        raise ExportError(f"Expected pyarrow for {purpose}, got none: pip install 'steadyworker[spark]'.") from error
    return pyarrow
