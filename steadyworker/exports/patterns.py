"""
Patterns of dates and moments. They use the directives of strftime for which Python and Spark write the same text.

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
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import cast
from zoneinfo import ZoneInfo

from steadyworker.errors import ExportRejected

DATE = "%Y-%m-%d"
MOMENT = "%Y-%m-%dT%H:%M:%S.%f%z"
UTC = "UTC"
OFFSET = "%z"

_PIECE = re.compile(r"%.?|[^%]+", re.DOTALL)
_OF_DATES = frozenset({"%Y", "%m", "%d", "%%"})
_DIRECTIVES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "%Y": ("{0.year:04d}", "yyyy"),
        "%m": ("{0.month:02d}", "MM"),
        "%d": ("{0.day:02d}", "dd"),
        "%H": ("{0.hour:02d}", "HH"),
        "%M": ("{0.minute:02d}", "mm"),
        "%S": ("{0.second:02d}", "ss"),
        "%f": ("{0.microsecond:06d}", "SSSSSS"),
        OFFSET: ("{1}", ""),
        "%%": ("%", ""),
    }
)
"""For each directive, Python's format field and Java's pattern letters."""


def check_pattern(name: str, pattern: str, forbidden: str, *, of_dates: bool) -> None:
    """
    Check that a pattern is valid, and that the texts it writes need no quotes.

    Raises:
        ExportRejected: The pattern has an unknown directive, or a character that would need quotes or a guard.
    """
    known = _OF_DATES if of_dates else frozenset(_DIRECTIVES)
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


def date_texts(pattern: str) -> Callable[[date], str]:
    """Return the function that writes dates by this pattern."""
    return cast("Callable[[date], str]", _python(pattern).format)


def moment_texts(pattern: str, zone: str) -> Callable[[datetime], str]:
    """
    Return the function that writes moments by this pattern.

    That function raises ExportRejected for a moment outside the years 1 to 9999 in the zone.
    """
    form, there = _python(pattern).format, ZoneInfo(zone)

    def shown(value: datetime) -> str:
        if value.tzinfo is None:
            return form(value, "")
        try:
            local = value.astimezone(there)
        except OverflowError:
            raise ExportRejected(
                f"Expected a moment between year 1 and 9999 in {zone}, got {value!r}: correct it in the query."
            ) from None
        return form(local, _offset(cast("timedelta", local.utcoffset())))

    return shown


def java_pieces(pattern: str) -> list[str]:
    """Return the pattern in Java's notation, in pieces; each `%z` is a separate piece."""
    pieces: list[str] = []
    literal = ""
    for piece in [*_PIECE.findall(pattern), ""]:
        if (piece in _DIRECTIVES and piece != "%%") or not piece:
            if literal:
                pieces.append(f"'{literal}'")
            literal = ""
            pieces.append(piece if piece in {OFFSET, ""} else _DIRECTIVES[piece][1])
        else:
            literal += "%" if piece == "%%" else piece
    cut: list[str] = []
    for piece in pieces:
        if piece == OFFSET or not cut or cut[-1] == OFFSET:
            cut.append(piece)
        else:
            cut[-1] += piece
    return [piece for piece in cut if piece]


def _python(pattern: str) -> str:
    return "".join(
        _DIRECTIVES[piece][0] if piece in _DIRECTIVES else piece.replace("{", "{{").replace("}", "}}")
        for piece in _PIECE.findall(pattern)
    )


def _offset(delta: timedelta) -> str:
    seconds = int(delta.total_seconds())
    if not seconds:
        return "Z"
    minutes, second = divmod(abs(seconds), 60)
    shown = f"{'-' if seconds < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{shown}:{second:02d}" if second else shown
