"""The order of an export that sorts: the columns in `order_by`, for Spark as for DuckDB."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from steadyworker.errors import ExportRejected

# The most columns that a sort adds to those of `order_by`, so that a second run writes rows with equal keys in the same order.
_MORE_KEYS = 16

_DIRECTION = re.compile(r"(.*\S)\s+(ASC|DESC)", re.IGNORECASE | re.DOTALL)


class Key(NamedTuple):
    """A column to sort by."""

    name: str
    descending: bool = False

    @classmethod
    def of(cls, text: str, columns: Sequence[str]) -> Key:
        """Return the key for a text: the name of one of `columns`, which `ASC` or `DESC` can follow, as in SQL."""
        match = None if text in columns else _DIRECTION.fullmatch(text)
        return cls(match[1], match[2].upper() == "DESC") if match else cls(text)


def check_sorted(query: str, order_by: Sequence[str], dialect: str) -> None:
    """
    Check the query and the columns that a user gave to an export.

    Raises:
        ExportRejected: The query is empty, or there is no column to sort by.
    """
    if not query.strip():
        raise ExportRejected(f"Expected a query in {dialect}, got an empty one: write the query.")
    if isinstance(order_by, str) or not order_by:
        raise ExportRejected(
            f"Expected columns to sort by, as a tuple, got {order_by!r}: name columns that together are unique."
        )


def sort_keys(order_by: Sequence[str], columns: Sequence[str], others: Iterable[str]) -> list[Key]:
    """
    Return the columns to sort by: those of `order_by`, and at most 16 of the others.

    Raises:
        ExportRejected: Two columns have the same name, or `order_by` names no column.
    """
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise ExportRejected(f"Expected columns with different names, got {', '.join(twice)} twice: name each with AS.")
    given = [Key.of(text, columns) for text in order_by]
    for name, _ in given:
        if name not in columns:
            raise ExportRejected(
                f"Expected order_by to name columns of the query ({', '.join(columns)}), got {name!r}: correct the name."
            )
    sorted_by = {name for name, _ in given}
    return [*given, *map(Key, [name for name in others if name not in sorted_by][:_MORE_KEYS])]
