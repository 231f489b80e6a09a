"""
Parquet, written by pyarrow (extra `spark`), which is imported when the first one is written.

Columns have the types of the source's Arrow batches where it gives batches, the plain one of each kind: `string` for all
text, microseconds, UTC for all moments that have a zone; and all may be NULL.
Else they have those that pyarrow sees in the first rows, widened: decimals have 38 digits, and a column that begins
with NULLs only is text.

Row groups have 65,536 rows, whatever pieces the rows came in: the same rows of the same types are the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from steadyworker.errors import ExportError
from steadyworker.exports.values import text

ROW_GROUP = 65_536
"""Rows of a row group."""


class Out(Protocol):
    """Where the bytes go: a file that is written from start to end."""

    def write(self, data: bytes, /) -> int:
        """Take all of them."""
        ...


@dataclass(frozen=True, slots=True)
class Parquet:
    """
    Parquet, compressed with zstd.

    Its index stands at the end, so that half a file is no file: an interrupted export starts from its first row.
    """

    name: ClassVar[str] = "parquet"

    @property
    def resumable(self) -> bool:
        """Never."""
        return False

    @property
    def compression(self) -> None:
        """It is compressed inside."""

    def options(self) -> dict[str, Any]:
        """Name and compression, for the manifest."""
        return {"name": self.name, "compression": "zstd"}

    def head(self, columns: Sequence[str]) -> bytes:  # noqa: ARG002 - pyarrow writes what stands before the first row
        """Nothing."""
        return b""

    def text(self, value: object) -> str:
        """The text of a value."""
        return text(value)

    def writer(self, out: Out, columns: Sequence[str], schema: Callable[[], Any]) -> ParquetWriter:
        """
        A writer of rows.

        Raises:
            ExportError: pyarrow is not installed.
        """
        return ParquetWriter(out, columns, schema)


class RowGroups:
    """Arrow tables of one schema to one file."""

    def __init__(self, out: Out, schema: Any) -> None:
        import pyarrow.parquet  # the extra is there: `arrow()` has answered

        self._schema = schema
        self._waiting: list[Any] = []
        self._rows = 0
        self._writer = pyarrow.parquet.ParquetWriter(out, schema, compression="zstd")

    def add(self, table: Any) -> None:
        """Write these rows as soon as there are enough for a row group."""
        self._waiting.append(table)
        self._rows += len(table)
        if self._rows >= ROW_GROUP:
            waiting = self._together()
            whole = self._rows - self._rows % ROW_GROUP
            for first in range(0, whole, ROW_GROUP):
                self._write(waiting.slice(first, ROW_GROUP))
            self._waiting, self._rows = [waiting.slice(whole)], self._rows - whole

    def finish(self) -> None:
        """Write the rest, and the index; of no rows at all, too."""
        if self._rows:
            self._write(self._together())
        self._writer.close()

    def close(self) -> None:
        """End pyarrow's writer, which would else try to when it is collected; of an unfinished file nothing is used."""
        if self._writer.is_open:
            with suppress(OSError):
                self._writer.close()

    def _together(self) -> Any:
        return arrow().concat_tables(self._waiting)

    def _write(self, table: Any) -> None:
        # In one piece each: pages end where pieces do.
        self._writer.write_table(table.combine_chunks(), ROW_GROUP)


class ParquetWriter:
    """Writes rows; knows its schema from the first."""

    def __init__(self, out: Out, columns: Sequence[str], schema: Callable[[], Any]) -> None:
        self._arrow = arrow()
        self._out, self._columns, self._schema_of = out, columns, schema
        self._schema: Any = None
        self._groups: RowGroups | None = None

    def write(self, rows: Sequence[Sequence[object]], first: int) -> None:  # noqa: ARG002 - an array's error has no row
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
        """Write the rest and the index; of no rows at all, too."""
        groups = self._groups or self._open([()] * len(self._columns))
        groups.finish()

    def close(self) -> None:
        """End the writer."""
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
            raise ExportError(
                f"Column {name!r}: expected values of type {kind or 'one type'}, but {error}. "
                "Give rows as Arrow batches, whose schema says the types."
            ) from error

    def _widened(self, kind: Any) -> Any:
        types = self._arrow.types
        if types.is_null(kind):
            return self._arrow.string()
        if types.is_decimal(kind):
            return self._arrow.decimal128(38, kind.scale)
        return kind


def plain_schema(names: Sequence[str], types: Sequence[Any]) -> Any:
    """The Arrow schema of these columns, with the plain type of each kind, without metadata."""
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
    The pyarrow module, for what it is needed for.

    Raises:
        ExportError: It is not installed.
    """
    try:
        import pyarrow  # noqa: ICN001 - its own name says more than "pa"
    except ImportError as error:
        raise ExportError(f"Expected pyarrow for {purpose}, got none: pip install 'steadyworker[spark]'.") from error
    return pyarrow
