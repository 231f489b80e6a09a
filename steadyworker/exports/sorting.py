"""The order of an export that sorts: the columns in `order_by`, for Spark as for DuckDB."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from steadyworker.errors import ExportRejected

MORE_KEYS = 16
"""The most columns that a sort adds to those of `order_by`, so that a second run writes rows with equal keys in the same order."""

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
