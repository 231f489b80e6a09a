"""
A parameter as Spark binds it: a literal of exactly its type, so that a comparison with a column is one that a database can judge.

PySpark takes a moment without a zone for one with, and one of year 1 for another two days later (it counts by the Julian
calendar); a comparison with a column of the other kind casts the *column*, and no database is asked for a cast.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from steadyworker.exports.spark.params import Param, from_param

_LONG = 2**63


def bound(param: Param) -> Any:
    """What `SparkSession.sql(args=…)` is given for a parameter: the value, or a literal where PySpark would bend it."""
    match from_param(param):
        # The text of each literal is ours: made of digits and signs by the type itself, never by who gave the value.
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
