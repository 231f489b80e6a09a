"""
Converts Parquet parts to one Parquet file, with the same bytes as `RowExport` writes.

Parquet files cannot be joined byte by byte, because each ends in its own index, and Spark's row groups have any size.
So this module reads the rows of the parts, and writes them with the writer of `RowExport`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from steadyworker.errors import ExportRejected
from steadyworker.exports.parquet import ROW_GROUP, RowGroups, plain_schema
from steadyworker.exports.render import Out
from steadyworker.exports.sources import arrow

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "tinyint": "int8",
        "smallint": "int16",
        "int": "int32",
        "bigint": "int64",
        "float": "float32",
        "double": "float64",
        "boolean": "bool",
        "date": "date32",
    }
)


class Recast:
    """
    A `join.Body` that rewrites Parquet parts.

    Args:
        out: The output for the file's bytes.
        moved: A function that is called after each batch; its exception ends the join.
        columns: The name and the Spark type of each column, in order.
        seen: A function that is called with each batch after it is written.

    Raises:
        ExportError: pyarrow is missing.
    """

    def __init__(
        self, out: Out, moved: Callable[[], None], columns: Sequence[tuple[str, str]], seen: Callable[[Any], None]
    ) -> None:
        self._arrow = arrow()
        self._moved, self._seen = moved, seen
        self._schema = plain_schema([name for name, _ in columns], [self._type(kind) for _, kind in columns])
        self._groups = RowGroups(out, self._schema)
        self.rows = 0

    def add(self, part: Path) -> int:
        """Add a part, and return its size in bytes."""
        import pyarrow.parquet as pq  # `arrow()` has checked that it is installed

        with pq.ParquetFile(part) as source:
            for batch in source.iter_batches(ROW_GROUP):
                self._add(batch)
        return part.stat().st_size

    def finish(self) -> None:
        """Write the last row group and the index."""
        self._groups.finish()

    def close(self) -> None:
        """Close the writer."""
        self._groups.close()

    def _add(self, batch: Any) -> None:
        try:
            arrays = [column.cast(kind) for column, kind in zip(batch.columns, self._schema.types, strict=True)]
            table = self._arrow.Table.from_arrays(arrays, schema=self._schema)
            table.validate(full=True)
        except self._arrow.ArrowException as error:
            raise ExportRejected(
                f"Expected rows of {self._schema.to_string():.500} from Spark, but {error} after {self.rows} rows: "
                "cast the column in the query; convert text that is not UTF-8 with make_valid_utf8."
            ) from error
        self._groups.add(table)
        self.rows += len(table)
        self._seen(table)
        self._moved()

    def _type(self, kind: str) -> Any:
        pa = self._arrow
        if match := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(match[1]), int(match[2]))
        if kind.startswith("timestamp"):
            return pa.timestamp("us", "UTC" if kind == "timestamp" else None)
        return pa.type_for_alias(_TYPES.get(kind, "string"))
