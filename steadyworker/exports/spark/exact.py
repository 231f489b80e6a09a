"""
Reads decimals exactly, or raises an error.

Spark's own readers silently round a value that has more digits than the schema.
They also take each comma for a thousands separator, and would read `12,50` as 1250.

So a DECIMAL column of CSV or JSON Lines is read as text.
In the same pass, an expression converts the text to a decimal, and raises an error for a value with other digits.
A decimal inside a struct, array or map cannot be read in this way, so such a schema is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DataType, DecimalType, StringType, StructField, StructType

from steadyworker.errors import ExportRejected
from steadyworker.exports.spark.result import WHOLE, column, leaves, quoted

_EXPONENT = r"^[+-]?\d*\.?(\d*?)0*[eE]([+-]?\d{1,3})$"
_SHOWN = 100  # characters of a value that an error repeats


def exact(load: Callable[[str | StructType], DataFrame], schema: str, place: str) -> DataFrame:
    """
    Return a table with this schema; its decimals have every digit of the file.

    Args:
        load: A function that reads the table with a schema.
        schema: The user's schema, in DDL.
        place: The path of the table, for error messages.

    Raises:
        ExportRejected: A decimal is inside a struct, an array or a map.
    """
    frame = load(schema)
    fields = frame.schema.fields
    for field in fields:
        if holds(field.dataType, DecimalType) and not isinstance(field.dataType, DecimalType):
            raise ExportRejected(
                f"Expected each DECIMAL of {place} as a column of its own, got {_type_name(field.dataType)} in column {field.name!r}, "
                "in which Spark would round: declare STRING in its place, and cast it in the query."
            )
    if not any(isinstance(field.dataType, DecimalType) for field in fields):
        return frame
    read = load(StructType([StructField(field.name, _read_as(field.dataType)) for field in fields]))
    return read.select(*(_checked(field, place) for field in fields))


def holds(kind: DataType, what: type[DataType]) -> bool:
    """Return whether `kind` is the type of single values `what`, or contains it."""
    return any(isinstance(each, what) for each in leaves(kind))


def places(schema: StructType) -> dict[str, int]:
    """Return the number of digits after the point for each column of decimals or integers."""
    found = {field.name: field.dataType for field in schema.fields}
    return {
        name: kind.scale if isinstance(kind, DecimalType) else 0
        for name, kind in found.items()
        if isinstance(kind, DecimalType) or kind.typeName() in WHOLE
    }


def _read_as(kind: DataType) -> DataType:
    return StringType() if isinstance(kind, DecimalType) else kind


def _checked(field: StructField, place: str) -> Column:
    """Return the column with its declared type; the expression raises an error for a text that does not fit a decimal."""
    value, kind = column(field.name), field.dataType
    if not isinstance(kind, DecimalType):
        return value
    error = F.raise_error(
        F.concat(
            F.lit(f"Expected {_type_name(kind)} in column {field.name!r} of {place}, got "),
            F.substring(value, 1, _SHOWN),
            F.lit(
                ": declare as many digits as there are, or STRING, in its schema=, because Spark would round; "
                f"cast a number such as 1.234,50 in the query, CAST(translate({field.name}, ',.', '.') AS {_type_name(kind)})."
            ),
        )
    )
    return F.coalesce(_of_text(field.name, kind), F.when(value.isNotNull(), error)).alias(field.name)


def _of_text(name: str, kind: DecimalType) -> Column:
    """Return the text's number, with or without an exponent; NULL if it is not a number, or has too many digits."""
    value = column(name)
    exponent = F.regexp_extract(value, _EXPONENT, 2)
    after = F.length(F.regexp_extract(value, _EXPONENT, 1)) - F.when(exponent != "", exponent.cast("int"))
    fits = value.rlike(rf"^[+-]?\d*(\.\d{{0,{kind.scale}}}0*)?$") | (after <= kind.scale)
    return F.when(fits, F.expr(f"try_cast({quoted(name)} AS {kind.simpleString()})"))  # a function only from Spark 4.0


def _type_name(kind: DataType) -> str:
    return kind.simpleString().upper()
