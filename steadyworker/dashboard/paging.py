"""The parts of long lists: `?page=2` and the links to the parts beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar
from urllib.parse import urlencode

from msgspec import Struct
from starlette.datastructures import QueryParams

MOST_PAGES = 10_000
"""The largest number of a part that an address can name."""

Row = TypeVar("Row")


class ListPart(Struct, Generic[Row], frozen=True):
    """
    A part of a list.

    Attributes:
        rows: Its rows.
        number: The number of rows of the whole list, as far as it is known.
        offset, size: The number of rows before this part, and of rows of a whole part.
    """

    rows: Sequence[Row]
    number: int
    offset: int
    size: int

    @property
    def page(self) -> int:
        """The number of this part, from 1."""
        return self.offset // self.size + 1

    @property
    def pages(self) -> int:
        """The number of parts."""
        return max(1, -(-self.number // self.size))


def part_of(rows: Sequence[Row], page: int, size: int) -> ListPart[Row]:
    """Return a part of these rows; a part beyond the end is the first."""
    offset = (page - 1) * size if (page - 1) * size < len(rows) else 0
    return ListPart(rows[offset : offset + size], len(rows), offset, size)


def page_of(query: QueryParams, name: str = "page") -> int:
    """Return the part that an address names, from 1; a text that is no such number means 1."""
    text = query.get(name, "")
    return (
        min(int(text), MOST_PAGES) or 1
        if text.isascii() and text.isdigit() and len(text) < len(str(MOST_PAGES)) + 1
        else 1
    )


def turned(query: QueryParams, name: str, page: int) -> str:
    """Return the query of the same address with another part; the result of an action is left out."""
    others = [(key, value) for key, value in query.multi_items() if key not in (name, "did")]
    return urlencode([*others, *([(name, str(page))] if page > 1 else [])])
