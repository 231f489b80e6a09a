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

from datetime import UTC, date, datetime, time
from decimal import Decimal
from math import isfinite
from uuid import UUID

from steadyworker.errors import ExportRejected

PLAIN_FROM, PLAIN_BELOW = 1e-3, 1e7
"""Between these two limits, Java and Python write a float without an exponent."""


def text(value: object) -> str:  # noqa: PLR0911 - one for each type
    """
    Return the text of one value that is not None.

    Raises:
        ExportRejected: The value's type is refused, or a moment is outside the years 1 to 9999 in UTC.
    """
    # The methods of the base types, because a subclass such as a StrEnum or NumPy's float can change the result of `str`.
    match value:
        case str():
            return str.__str__(value)
        case bool():
            return "true" if value else "false"
        case int():
            return int.__repr__(value)
        case Decimal():
            return decimal_text(value)
        case float():
            return float_text(value)
        case datetime():
            return _moment_text(value)
        case date():
            return value.isoformat()
        case time():
            return value.isoformat(timespec="microseconds")
        case UUID():
            return str(value)
    raise ExportRejected(
        f"Expected text, a number, a date, a time or None, got {type(value).__name__}: "
        "turn it into one of these in the query (bytes into base64 or hex, lists and mappings into JSON)."
    )


def decimal_text(value: Decimal) -> str:
    """Return plain digits: `0.00000001`, never `1E-8`; zero has no sign."""
    return format(value or value.copy_abs(), "f")


def float_text(value: float) -> str:
    """Return the shortest digits that read back equal, in the layout of Java's `Double.toString`."""
    plain = float.__repr__(value)
    if not isfinite(value):
        return plain.replace("nan", "NaN").replace("inf", "Infinity")
    if value == 0 or PLAIN_FROM <= abs(value) < PLAIN_BELOW:
        return plain
    sign, digits, exponent = Decimal(plain).as_tuple()
    shown = "".join(map(str, digits)).rstrip("0")
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:] or '0'}E{len(digits) + int(exponent) - 1}"


def _moment_text(value: datetime) -> str:
    """Return ISO 8601 to the microsecond; a moment with a zone is converted to UTC."""
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    try:
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    except OverflowError:
        raise ExportRejected(
            f"Expected a moment between year 1 and 9999 in UTC, got {value!r}: correct it in the query."
        ) from None
