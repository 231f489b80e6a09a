"""
Parquet, written by pyarrow (extra `spark`), which is imported when the first one is written.

Columns have the types of the source's Arrow batches where it gives batches.
Else they have those that pyarrow sees in the first rows, widened: decimals have 38 digits, and a column that begins
with NULLs only is text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from steadyworker.errors import ExportError
from steadyworker.exports.values import text


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
    resumable: ClassVar[bool] = False

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


class ParquetWriter:
    """Writes rows as one row group per call; knows its schema from the first."""

    def __init__(self, out: Out, columns: Sequence[str], schema: Callable[[], Any]) -> None:
        self._arrow = arrow()
        self._out, self._columns, self._schema_of = out, columns, schema
        self._schema: Any = None
        self._writer: Any = None

    def write(self, rows: Sequence[Sequence[object]], first: int) -> None:  # noqa: ARG002 - an array's error has no row
        """Write these rows."""
        if not rows:
            return
        values = list(zip(*rows, strict=True))
        writer = self._writer or self._open(values)
        arrays = [
            self._array(name, column, kind)
            for name, column, kind in zip(self._columns, values, self._schema.types, strict=True)
        ]
        writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def finish(self) -> None:
        """Write the index; of no rows at all, too."""
        writer = self._writer or self._open([()] * len(self._columns))
        writer.close()

    def close(self) -> None:
        """End pyarrow's writer, which would else try to when it is collected; of an unfinished file nothing is used."""
        if self._writer is not None and self._writer.is_open:
            with suppress(OSError):
                self._writer.close()

    def _open(self, values: Sequence[Sequence[object]]) -> Any:
        import pyarrow.parquet  # the extra is there: `arrow()` has answered

        given = self._schema_of()
        types = (
            given.types
            if given is not None
            else [
                self._widened(self._array(name, column, None).type)
                for name, column in zip(self._columns, values, strict=True)
            ]
        )
        self._schema = self._arrow.schema(list(zip(self._columns, types, strict=True)))
        self._writer = pyarrow.parquet.ParquetWriter(self._out, self._schema, compression="zstd")
        return self._writer

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


def arrow() -> Any:
    """
    The pyarrow module.

    Raises:
        ExportError: It is not installed.
    """
    try:
        import pyarrow  # noqa: ICN001 - its own name says more than "pa"
    except ImportError as error:
        raise ExportError("Expected pyarrow for Parquet(), got none: pip install 'steadyworker[spark]'.") from error
    return pyarrow
