"""
The text of one value in Python.

`verifying.py` compares these texts with a file's; `render.py` makes the same texts of whole columns, and uses this file for the few floats and decimals that Arrow writes otherwise.

| Python | text |
|---|---|
| str | itself |
| bool | `true`, `false` |
| int | digits |
| Decimal | plain, all its digits, never an exponent, no negative zero |
| float | the shortest digits that read back equal, in Java's layout: `1.5`, `1.0E-8`, `NaN` |
| date | `2024-03-31`, year 1 is `0001` |
| datetime, naive | `2024-03-31T02:30:00.123456`, always six digits |
| datetime, aware | in UTC, `2024-03-31T00:30:00.123456Z` |
| time | `02:30:00.123456` |
| UUID | with hyphens, lower case |

All other types are refused: lists, mappings and bytes have no single obvious text, so the query must choose a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from math import isfinite
from types import MappingProxyType
from uuid import UUID

from steadyworker.errors import ExportRejected

_PLAIN_FROM, _PLAIN_BELOW = 1e-3, 1e7  # between these two limits, Java and Python write a float without an exponent


def text(value: object) -> str:
    """
    Return the text of one value that is not None.

    Raises:
        ExportRejected: The value's type is refused, or a moment is outside the years 1 to 9999 in UTC.
    """
    kind = type(value)
    try:
        convert = TEXTS.get(kind) or next(TEXTS[base] for base in kind.__mro__ if base in TEXTS)
    except StopIteration:
        raise ExportRejected(
            f"Expected text, a number, a date, a time or None, got {kind.__name__}: "
            "turn it into one of these in the query (bytes into base64 or hex, lists and mappings into JSON)."
        ) from None
    return convert(value)


def decimal_text(value: Decimal) -> str:
    """Return plain digits: `0.00000001`, never `1E-8`; zero has no sign."""
    return format(value or value.copy_abs(), "f")


def float_text(value: float) -> str:
    """Return the shortest digits that read back equal, in the layout of Java's `Double.toString`."""
    plain = float.__repr__(value)  # not `repr`, because a subclass such as NumPy's can change the result of `repr`
    if not isfinite(value):
        return plain.replace("nan", "NaN").replace("inf", "Infinity")
    if value == 0 or _PLAIN_FROM <= abs(value) < _PLAIN_BELOW:
        return plain
    sign, digits, exponent = Decimal(plain).as_tuple()
    shown = "".join(map(str, digits)).rstrip("0")
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:] or '0'}E{len(digits) + int(exponent) - 1}"


def datetime_text(value: datetime) -> str:
    """Return ISO 8601 to the microsecond; a moment with a zone is converted to UTC."""
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    try:
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    except OverflowError:
        raise ExportRejected(
            f"Expected a moment between year 1 and 9999 in UTC, got {value!r}: correct it in the query."
        ) from None


def _time_text(value: time) -> str:
    return value.isoformat(timespec="microseconds")


def _bool_text(value: bool) -> str:  # noqa: FBT001 - the value itself, no switch
    return "true" if value else "false"


TEXTS: Mapping[type, Callable[..., str]] = MappingProxyType(
    {
        str: str.__str__,  # for a StrEnum, this is the text of the member, not its name
        bool: _bool_text,
        int: int.__repr__,  # for an IntEnum, this is the number of the member, not its name
        Decimal: decimal_text,
        float: float_text,
        datetime: datetime_text,
        date: date.isoformat,
        time: _time_text,
        UUID: str,
    }
)
"""The converter of each type; hot loops use this table directly, to save the call of `text`."""
