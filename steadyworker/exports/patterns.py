"""
Patterns of dates and moments, in a few directives of strftime.

| directive | writes |
|---|---|
| `%Y` | the year, four digits: year 1 is `0001` |
| `%m`, `%d`, `%H`, `%M`, `%S` | month, day, hour (00 to 23), minute, second; two digits |
| `%f` | microseconds, six digits |
| `%z` | the offset of a moment that has a zone: `+02:00`, with seconds if they are not 0; `Z` for an offset of 0 |
| `%%` | `%` |

A moment that has a zone is converted to the zone of the format.
A moment without a zone is written as it is, and `%z` writes nothing for it.
When summer time ends, a clock shows one hour twice; a pattern without `%z` writes the same text for both hours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from zoneinfo import ZoneInfo

from steadyworker.errors import ExportRejected

DATE = "%Y-%m-%d"
MOMENT = "%Y-%m-%dT%H:%M:%S.%f%z"
UTC = "UTC"
OFFSET = "%z"

_PIECE = re.compile(r"%.?|[^%]+", re.DOTALL)
_OF_DATES = frozenset({"%Y", "%m", "%d", "%%"})
_ISO = "YYYY-mm-dd HH:MM:SS.ffffff"
_PLACES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"%Y": (0, 4), "%m": (5, 7), "%d": (8, 10), "%H": (11, 13), "%M": (14, 16), "%S": (17, 19), "%f": (20, 26)}
)
"""For each directive, its place in the text of a moment."""


def check_pattern(name: str, pattern: str, forbidden: str, *, of_dates: bool) -> None:
    """
    Check that a pattern is valid, and that the texts it writes need no quotes.

    Raises:
        ExportRejected: The pattern has an unknown directive, or a character that would need quotes or a guard.
    """
    known = _OF_DATES if of_dates else frozenset({*_PLACES, OFFSET, "%%"})
    pieces = _PIECE.findall(pattern)
    for piece in pieces:
        if piece.startswith("%") and piece not in known:
            raise ExportRejected(f"Expected directives out of {' '.join(sorted(known))} in {name}, got {piece!r}.")
        if not piece.startswith("%") and any(character in forbidden for character in piece):
            raise ExportRejected(f"Expected no character out of {forbidden!r} in {name}, got {piece!r}: choose others.")
    if not pieces or pieces[0] == OFFSET or pieces[0][0] in "=+-@\t\0":
        raise ExportRejected(f"Expected {name} to begin with a directive other than {OFFSET}, got {pattern!r}.")


def check_zone(name: str) -> None:
    """
    Check that a time zone exists.

    Raises:
        ExportRejected: The time zone does not exist.
    """
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # a zone that is not found raises a KeyError
        raise ExportRejected(
            f"Expected a zone like 'Europe/Berlin' or 'UTC', got {name!r}: see IANA's list."
        ) from error


@cache
def slices(pattern: str) -> tuple[str | tuple[int, int] | None, ...]:
    """
    Return the pattern in pieces: text, slices of a moment's text `2024-03-31 02:30:00.123456`, and None for each `%z`.

    Adjacent slices are one slice if the text between them is the same there.
    """
    pieces: list[str | tuple[int, int] | None] = []
    for found in _PIECE.findall(pattern):
        if found in _PLACES:
            first, last = _PLACES[found]
            match pieces:
                case [*_, (int(start), int(end))] if end == first:
                    pieces[-1] = start, last
                case [*_, (int(start), int(end)), str(between)] if _ISO[end:first] == between:
                    pieces[-2:] = [(start, last)]
                case _:
                    pieces.append((first, last))
        elif found == OFFSET:
            pieces.append(None)
        else:
            text = "%" if found == "%%" else found
            if pieces and isinstance(pieces[-1], str):
                pieces[-1] += text
            else:
                pieces.append(text)
    return tuple(pieces)


def offset_text(seconds: int) -> str:
    """Return the text of an offset: `Z`, `+02:00`, or with seconds `-00:01:15`."""
    if not seconds:
        return "Z"
    minutes, second = divmod(abs(seconds), 60)
    shown = f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{shown}:{second:02d}" if second else shown
