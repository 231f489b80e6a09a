"""The parameters of a query, for Spark and for DuckDB; each parameter keeps its type, which JSON would lose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import msgspec

from steadyworker.errors import ExportRejected

Value = str | int | float | bool | Decimal | date | datetime | None
"""The value of a parameter."""

_DIGITS = 38


class Param(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the query as text, with its type."""

    type: str
    text: str | None = None


def to_param(name: str, value: object) -> Param:
    """
    Return the parameter as text with its type.

    Raises:
        ExportRejected: Spark has no literal for this type or value.
    """
    if isinstance(value, Decimal | int) and (not Decimal(value).is_finite() or _digits(Decimal(value)) > _DIGITS):
        raise ExportRejected(
            f"Expected a number of at most {_DIGITS} digits as parameter {name!r}, got {value}: round it."
        )
    match value:
        case None:
            return Param(type="null")
        case bool():
            return Param(type="bool", text=str(int(value)))
        case int() | float() | str() | Decimal():
            kind: Any = next(known for known in (int, float, str, Decimal) if isinstance(value, known))
            return Param(type=kind.__name__, text=kind.__str__(value))
        case datetime() | date():
            return Param(type="datetime" if isinstance(value, datetime) else "date", text=value.isoformat())
    raise ExportRejected(
        f"Expected text, a number, a date, a time or None as parameter {name!r}, got {type(value).__name__}: "
        "convert it, and the query can cast it back."
    )


def _digits(number: Decimal) -> int:
    """Return the number of digits of a Spark decimal for this number."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # because the number is finite
    return max(len(digits) + max(exponent, 0), -exponent)


def from_param(param: Param) -> object:
    """Return the value from which `to_param` made this parameter."""
    return None if param.text is None else _PARAMS[param.type](param.text)


_PARAMS: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {
        "bool": lambda text: text == "1",
        "int": int,
        "float": float,
        "str": str,
        "Decimal": Decimal,
        "datetime": datetime.fromisoformat,
        "date": date.fromisoformat,
    }
)
