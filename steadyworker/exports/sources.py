"""The rows of a user's source: plain rows, a cursor, or Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from steadyworker.errors import ExportRejected
from steadyworker.exports.parquet import arrow

Row = Sequence[object]


class Source:
    """
    An iterable of rows; Arrow batches are split into rows.

    The iteration raises ExportRejected for an item that is neither a row nor a batch.
    The iteration also raises this error for a row with too few or too many values.
    It also raises this error for a value that Python cannot represent.
    """

    def __init__(self, items: Iterable[Any], columns: Sequence[str]) -> None:
        self._items, self._columns = items, columns
        self._schema: Any = None

    def schema(self) -> Any:
        """Return the Arrow schema of the first batch; None for plain rows, and before the first batch."""
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
                yield tuple(item)  # a copy, because some sources reuse one list for every row

    def _check(self, row: Sequence[Any]) -> None:
        width = len(self._columns)
        if len(row) != width:
            raise ExportRejected(f"Expected rows of {width} values, one per column, got {len(row)}: {row!r:.200}")

    def _is_batch(self, item: object) -> bool:
        """Return whether the item is an Arrow batch; raise ExportRejected if it is neither a batch nor a row."""
        if hasattr(item, "schema") and hasattr(item, "columns"):
            return True
        if isinstance(item, (str, bytes, Mapping)) or not hasattr(item, "__getitem__") or not hasattr(item, "__len__"):
            raise ExportRejected(
                f"Expected rows as tuples or lists, or Arrow record batches, got {type(item).__name__}: "
                "turn a mapping into a tuple of its values, in the columns' order."
            )
        return False


def columns_of(items: Any) -> tuple[str, ...]:
    """
    Return the columns of a DB-API cursor or an Arrow reader.

    Raises:
        ExportRejected: `items` is neither a cursor nor a reader, or has no columns.
    """
    if hasattr(items, "schema"):
        names = list(items.schema.names)
    else:
        names = [column[0] for column in getattr(items, "description", None) or ()]
    if not names:
        raise ExportRejected(
            f"Expected a cursor that has executed its query, or an Arrow reader, got {type(items).__name__}: "
            'name the columns, RowExport(rows, columns=("id", "amount")).'
        )
    check_columns(names)
    return tuple(names)


def check_columns(columns: Sequence[str]) -> None:
    """
    Check the names of columns.

    Raises:
        ExportRejected: There are no names, two names are equal, or a name is not text.
    """
    names = tuple(columns)
    text = not isinstance(columns, str) and all(isinstance(name, str) for name in names)
    if not text or not names or len(set(names)) < len(names):
        raise ExportRejected(f"Expected columns with different names, got {columns!r}: name each column once.")


def _values(name: str, column: Any) -> list[Any]:
    """
    Return an Arrow column's values.

    Raises:
        ExportRejected: Python cannot represent a value, such as a time with nanoseconds.
    """
    kind = column.type
    try:
        if str(kind).startswith("timestamp[ns"):
            column = column.cast(arrow().timestamp("us", kind.tz))
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:
        raise ExportRejected(
            f"Column {name!r}: expected values that Python can represent, but {error}. Cast the column in the query."
        ) from error
    return values
