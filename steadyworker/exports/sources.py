"""Rows out of what a user gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from steadyworker.errors import ExportError
from steadyworker.exports.parquet import arrow

Row = Sequence[object]


class Source:
    """
    Rows as they are, Arrow batches row by row.

    Iterating raises ExportError for what is neither, for a row that has not one value per column, and for a moment that
    Python's datetime does not hold.
    """

    def __init__(self, items: Iterable[Any], columns: Sequence[str]) -> None:
        self._items, self._columns = items, columns
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
                yield from zip(*map(_values, self._columns, item.columns), strict=True)
            else:
                self._check(item)
                yield tuple(item)  # its source may write the next row into the same list

    def _check(self, row: Sequence[Any]) -> None:
        width = len(self._columns)
        if len(row) != width:
            raise ExportError(f"Expected rows of {width} values, one per column, got {len(row)}: {row!r:.200}")

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


def columns_of(items: Any) -> tuple[str, ...]:
    """
    The columns that a DB-API cursor or an Arrow reader tells of.

    Raises:
        ExportError: It is neither, or tells of none.
    """
    if hasattr(items, "schema"):
        names = list(items.schema.names)
    else:
        names = [column[0] for column in getattr(items, "description", None) or ()]
    if not names:
        raise ExportError(
            f"Expected a cursor that has executed its query, or an Arrow reader, got {type(items).__name__}: "
            'name the columns, RowExport(rows, columns=("id", "amount")).'
        )
    check_columns(names)
    return tuple(names)


def check_columns(columns: Sequence[str]) -> None:
    """
    Whether these can be columns.

    Raises:
        ExportError: None, two of the same name, or a name that is no text.
    """
    names = tuple(columns)
    text = not isinstance(columns, str) and all(isinstance(name, str) for name in names)
    if not text or not names or len(set(names)) < len(names):
        raise ExportError(f"Expected columns with different names, got {columns!r}: name each column once.")


def _values(name: str, column: Any) -> list[Any]:
    """An Arrow column's values; nanoseconds are refused, if they are not whole microseconds."""
    kind = column.type
    try:
        if str(kind).startswith("timestamp[ns"):
            column = column.cast(arrow().timestamp("us", kind.tz))
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:
        raise ExportError(
            f"Column {name!r}: expected values that Python has, but {error}. Cast it at its source."
        ) from error
    return values
