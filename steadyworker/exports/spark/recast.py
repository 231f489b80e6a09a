"""
Parquet parts to one Parquet file: the same bytes as the light path writes.

Files of Parquet cannot be joined byte by byte, because each ends in an index of its own, and Spark's row groups end where
its memory does.  So rows are read out of the parts, and written by the writer of the light path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from steadyworker.errors import ExportError
from steadyworker.exports.parquet import ROW_GROUP, Out, RowGroups, arrow, plain_schema

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
    Rewrites parts (`join.Body`).

    Args:
        out: Where to.
        moved: Called after each batch; raises what shall end the join.
        columns: (name, Spark type) of each, in order.
        seen: Called with each batch that was written.

    Raises:
        ExportError: No pyarrow.
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
        """Add a part; answers how many bytes it has."""
        import pyarrow.parquet as pq  # `arrow()` has answered

        with pq.ParquetFile(part) as source:
            for batch in source.iter_batches(ROW_GROUP):
                self._add(batch)
        return part.stat().st_size

    def finish(self) -> None:
        """Write the last row group and the index."""
        self._groups.finish()

    def close(self) -> None:
        """End the writer."""
        self._groups.close()

    def _add(self, batch: Any) -> None:
        try:
            arrays = [column.cast(kind) for column, kind in zip(batch.columns, self._schema.types, strict=True)]
            table = self._arrow.Table.from_arrays(arrays, schema=self._schema)
            table.validate(full=True)
        except self._arrow.ArrowException as error:
            raise ExportError(
                f"Expected rows of {self._schema.to_string():.500} from Spark, but {error} after {self.rows} rows: "
                "cast the column in the query; text that is no UTF-8 by make_valid_utf8."
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
