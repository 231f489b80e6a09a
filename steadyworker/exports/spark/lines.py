"""
A row as one line of CSV, as an expression: the text that `values.py` and `formats.py` describe, computed by Spark.

The line is written by Spark's *text* writer, which adds nothing: its CSV writer trims blanks, escapes with backslashes,
and has its own mind about when to quote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from steadyworker.errors import ExportError
from steadyworker.exports.spark.protocol import Lines

_FORMULA = tuple(map(ord, "=+-@\t\r\0"))
_MOMENT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
WHOLE = (ByteType, ShortType, IntegerType, LongType)


def column(name: str) -> Column:
    """The column of exactly this name, dots and all."""
    return F.col("`" + name.replace("`", "``") + "`")


def line(schema: StructType, lines: Lines) -> Column:
    """
    The line of a row of this schema, without its line end.

    Raises:
        ExportError: A column whose type has no one text.
    """
    only = len(schema.fields) == 1
    null = F.lit('""' if only and not lines.null else lines.null)
    return F.concat_ws(lines.delimiter, *(F.coalesce(_cell(field, lines), null) for field in schema.fields))


def _cell(field: StructField, lines: Lines) -> Column:
    """The text of one value; NULL stays NULL."""
    value = column(field.name)
    if isinstance(field.dataType, StringType | CharType | VarcharType):
        return _text(value, lines)
    convert = _TEXTS.get(type(field.dataType))
    if convert is None:
        raise ExportError(
            f"Expected text, numbers, dates or timestamps in column {field.name!r}, got {field.dataType.simpleString()}: "
            "turn it into one of these in the query (binary: base64 or hex; others: to_json)."
        )
    return convert(value)


def _text(value: Column, lines: Lines) -> Column:
    """Text, guarded and quoted as `formats.Csv` says."""
    formula = (F.length(value) > 0) & F.ascii(value).isin(*_FORMULA) if lines.guard_formulas else F.lit(False)  # noqa: FBT003 - SQL's false
    guard = F.when(formula, "'").otherwise("")
    special = value == ""
    for character in (lines.delimiter, '"', "\r", "\n"):
        special = special | value.contains(character)
    quoted = F.concat(F.lit('"'), guard, F.replace(value, F.lit('"'), F.lit('""')), F.lit('"'))
    return F.when(special, quoted).when(formula, F.concat(F.lit("'"), value)).otherwise(value)


def _plain(value: Column) -> Column:
    return value.cast("string")


_TEXTS: Mapping[type[DataType], Callable[[Column], Column]] = MappingProxyType(
    {
        **dict.fromkeys((*WHOLE, BooleanType, DecimalType, DoubleType, DateType, NullType), _plain),
        FloatType: lambda value: value.cast("double").cast("string"),  # as Python, which has no short floats
        TimestampType: lambda value: F.date_format(value, _MOMENT + "XXX"),
        TimestampNTZType: lambda value: F.date_format(value, _MOMENT),
    }
)
