"""Rows out of what a user gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from steadyworker.errors import ExportError

Row = Sequence[object]


class Source:
    """
    Rows as they are, Arrow batches row by row.

    Iterating raises ExportError for what is neither, and for a row that has not one value per column.
    """

    def __init__(self, items: Iterable[Any], width: int) -> None:
        self._items, self._width = items, width
        self._schema: Any = None

    def schema(self) -> Any:
        """The Arrow schema of the first batch; None for rows."""
        return self._schema

    def __iter__(self) -> Iterator[Row]:
        known: type | None = None
        batches = False
        for item in self._items:
            if type(item) is not known:
                known, batches = type(item), self._is_batch(item)
            if batches:
                self._schema = self._schema or item.schema
                self._check(item.columns)
                yield from zip(*(column.to_pylist() for column in item.columns), strict=True)
            else:
                self._check(item)
                yield item

    def _check(self, row: Sequence[Any]) -> None:
        if len(row) != self._width:
            raise ExportError(f"Expected rows of {self._width} values, one per column, got {len(row)}: {row!r:.200}")

    def _is_batch(self, item: object) -> bool:
        """Whether this is Arrow data; refuses what is neither that nor a row."""
        if hasattr(item, "schema") and hasattr(item, "columns"):
            return True
        if isinstance(item, (str, bytes, Mapping)) or not hasattr(item, "__getitem__") or not hasattr(item, "__len__"):
            raise ExportError(
                f"Expected rows as tuples or lists, or Arrow record batches, got {type(item).__name__}: "
                "a mapping becomes a row with its values in the columns' order."
            )
        return False
