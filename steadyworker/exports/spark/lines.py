"""
A row as one line, as expressions: the text that `values.py`, `formats.py` and `jsonl.py` describe, computed by Spark.

The line is written by Spark's *text* writer, which adds nothing: its CSV writer trims blanks, escapes with backslashes,
and has its own mind about when to quote; its JSON writer leaves NULL out and writes decimals as numbers.
Bytes that are no UTF-8 pass here and end the export where parts are joined, which costs a tenth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pyspark.sql import Column, DataFrame
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
from steadyworker.exports.jsonl import escaped
from steadyworker.exports.patterns import DATE, OFFSET, UTC, java_pieces
from steadyworker.exports.spark.protocol import Lines

_FORMULA = tuple(map(ord, "=+-@\t\r\0"))
_ESCAPED = r'["\\\x00-\x1f]'
WHOLE = (ByteType, ShortType, IntegerType, LongType)


def column(name: str) -> Column:
    """The column of exactly this name, dots and all."""
    return F.col("`" + name.replace("`", "``") + "`")


def check(schema: StructType) -> None:
    """
    Whether each column has a type that a file can hold.

    Raises:
        ExportError: One has not.
    """
    for field in schema.fields:
        if not _is_text(field) and type(field.dataType) not in _TEXTS:
            raise ExportError(
                f"Expected text, numbers, dates or timestamps in column {field.name!r}, "
                f"got {field.dataType.simpleString()}: "
                "turn it into one of these in the query (binary: base64 or hex; others: to_json)."
            )


def written(frame: DataFrame, lines: Lines) -> DataFrame:
    """
    The lines of these rows, without their ends, as the only column.

    In steps that Spark does not fold into one, because text is looked at many times: first each text becomes one that is
    not NULL, then all of a row's are searched at once for what has to be escaped, which few rows have.
    That keeps the code that Spark makes of it small enough for Java to compile it.
    """
    fields = frame.schema.fields
    texts = [number for number, field in enumerate(fields) if _is_text(field)]
    found = frame.select(
        *(
            F.coalesce(column(field.name).cast("string"), F.lit("")).alias(f"text{number}")
            if number in texts
            else column(field.name).alias(f"value{number}")
            for number, field in enumerate(fields)
        ),
        *(column(fields[number].name).isNull().alias(f"null{number}") for number in texts),
    )
    json = lines.form == "jsonl"
    if texts:
        together = F.concat_ws(" ", *(F.col(f"text{number}") for number in texts))
        odd = together.rlike(_ESCAPED) if json else _special(together, lines)
        found = found.select("*", odd.alias("odd"))
    cells = [(_json_cell if json else _cell)(field, number, lines) for number, field in enumerate(fields)]
    if json:
        names = [escaped(field.name) + ":" for field in fields]
        named = [F.concat(F.lit(name), cell) for name, cell in zip(names, cells, strict=True)]
        return found.select(F.concat(F.lit("{"), *_between(named, ","), F.lit("}")).alias("value"))
    null = F.lit('""' if len(fields) == 1 and not lines.null else lines.null)
    return found.select(F.concat(*_between([F.coalesce(cell, null) for cell in cells], lines.delimiter)).alias("value"))


def storable(frame: DataFrame) -> DataFrame:
    """The rows as Parquet holds them: a column that is NULL and nothing else is text there."""
    return frame.select(
        *(
            column(field.name).cast("string").alias(field.name)
            if _is_text(field) or isinstance(field.dataType, NullType)
            else column(field.name)
            for field in frame.schema.fields
        )
    )


def _between(cells: Sequence[Column], separator: str) -> list[Column]:
    return [part for cell in cells for part in (F.lit(separator), cell)][1:]


def _is_text(field: StructField) -> bool:
    return isinstance(field.dataType, StringType | CharType | VarcharType)


def _cell(field: StructField, number: int, lines: Lines) -> Column:
    """The cell of one value; NULL stays NULL."""
    return _text(number, lines) if _is_text(field) else _shown(field, F.col(f"value{number}"), lines)


def _shown(field: StructField, value: Column, lines: Lines) -> Column:
    """The text of a value that is not text."""
    shown = _TEXTS[type(field.dataType)](value, lines)
    if lines.decimal_comma and isinstance(field.dataType, DecimalType | DoubleType | FloatType):
        return F.replace(shown, F.lit("."), F.lit(","))
    return shown


def _text(number: int, lines: Lines) -> Column:
    """Text, guarded and quoted as `formats.Csv` says."""
    value = F.col(f"text{number}")
    formula = F.ascii(value).isin(*_FORMULA) if lines.guard_formulas else F.lit(False)  # noqa: FBT003 - SQL's false
    guard = F.when(formula, "'").otherwise("")
    quoted = F.concat(F.lit('"'), guard, F.replace(value, F.lit('"'), F.lit('""')), F.lit('"'))
    # Most text begins with a letter: that is neither a formula nor nothing.
    plain = ~F.col("odd") & (value >= "A")
    if lines.null >= "A":
        plain &= value != lines.null
    return (
        F.when(plain, value)
        .when(F.col(f"null{number}"), F.lit(None))
        .when(value == "", '""')
        .when((value == lines.null) | _special(value, lines), quoted)
        .when(formula, F.concat(F.lit("'"), value))
        .otherwise(value)
    )


def _special(value: Column, lines: Lines) -> Column:
    special = value.contains(lines.delimiter)
    for character in '"\r\n':
        special |= value.contains(character)
    return special


def _json_cell(field: StructField, number: int, lines: Lines) -> Column:
    """A value of JSON, as `jsonl.py` says."""
    if _is_text(field):
        value = F.col(f"text{number}")
        array = F.to_json(F.array(value))
        return (
            F.when(F.col(f"null{number}"), "null")
            .when(~F.col("odd"), F.concat(F.lit('"'), value, F.lit('"')))
            .otherwise(F.substr(array, F.lit(2), F.length(array) - 2))
        )
    value = F.col(f"value{number}")
    shown = _shown(field, value, lines)
    if isinstance(field.dataType, DoubleType | FloatType):
        shown = F.when(F.isnan(value) | (F.abs(value) == float("inf")), _quoted(shown)).otherwise(shown)
    elif not isinstance(field.dataType, (*WHOLE, BooleanType)):
        shown = _quoted(shown)
    return F.coalesce(shown, F.lit("null"))


def _quoted(value: Column) -> Column:
    return F.concat(F.lit('"'), value, F.lit('"'))


def _plain(value: Column, lines: Lines) -> Column:  # noqa: ARG001 - others need it
    return value.cast("string")


def _date(value: Column, lines: Lines) -> Column:
    return value.cast("string") if lines.dates == DATE else F.date_format(value, "".join(java_pieces(lines.dates)))


def _moment(value: Column, lines: Lines) -> Column:
    """A moment without a zone."""
    pieces = [piece for piece in java_pieces(lines.moments) if piece != OFFSET]
    return F.concat(*(F.date_format(value, piece) for piece in pieces))


def _instant(value: Column, lines: Lines) -> Column:
    """A moment with a zone: shifted to what the clocks there show, and then told as if it were UTC."""
    if lines.zone == UTC:
        local, offset = value, F.lit("Z")
    else:
        local = F.from_utc_timestamp(value, lines.zone)
        offset = _offset(((F.unix_micros(local) - F.unix_micros(value)) / 1_000_000).cast("int"))
    pieces = java_pieces(lines.moments)
    return F.concat(*(offset if piece == OFFSET else F.date_format(local, piece) for piece in pieces))


def _offset(seconds: Column) -> Column:
    """`+02:00`, `Z`, and seconds where zones of long ago have some."""
    size = F.abs(seconds)

    def two(number: Column) -> Column:
        return F.lpad(number.cast("int").cast("string"), 2, "0")

    return F.when(seconds == 0, "Z").otherwise(
        F.concat(
            F.when(seconds < 0, "-").otherwise("+"),
            two(F.floor(size / 3600)),
            F.lit(":"),
            two(F.floor(size % 3600 / 60)),
            F.when(size % 60 != 0, F.concat(F.lit(":"), two(size % 60))).otherwise(""),
        )
    )


_TEXTS: Mapping[type[DataType], Callable[[Column, Lines], Column]] = MappingProxyType(
    {
        **dict.fromkeys((*WHOLE, BooleanType, DecimalType, DoubleType, NullType), _plain),
        FloatType: lambda value, _: value.cast("double").cast("string"),  # as Python, which has no short floats
        DateType: _date,
        TimestampType: _instant,
        TimestampNTZType: _moment,
    }
)
