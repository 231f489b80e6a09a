"""
Converts a parameter to a literal of exactly the parameter's type.

So a database can evaluate a comparison of the parameter with a column.

PySpark binds a timestamp without a zone as a timestamp with a zone.
PySpark also shifts a timestamp of the year 1 by two days, because PySpark uses the Julian calendar.
If parameter and column have different types, Spark casts the *column*, and does not pass the cast to a database.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from steadyworker.exports.params import Param, from_param

_LONG = 2**63


def bound(param: Param) -> Any:
    """Return the argument of `SparkSession.sql(args=…)`: the value, or a literal if PySpark would change the value."""
    match from_param(param):
        # Each literal contains only digits and signs that the Python type has formatted, never the user's text.
        case datetime(tzinfo=None) as moment:
            return F.expr(f"TIMESTAMP_NTZ '{moment.isoformat(' ')}'")
        case datetime() as moment:
            return F.expr(f"TIMESTAMP_LTZ '{moment.astimezone(UTC).isoformat(' ')}'")
        case date() as day:
            return F.expr(f"DATE '{day.isoformat()}'")
        case Decimal() as number:
            return F.expr(f"{number:f}BD")
        case int() as number if not -_LONG <= number < _LONG:
            return F.expr(f"{number}BD")
        case value:
            return value
