"""
A row as one line, as expressions: the text that `values.py`, `formats.py` and `jsonl.py` describe, computed by Spark.

The line is written by Spark's *text* writer, which adds nothing: its CSV writer trims blanks, escapes with backslashes,
and has its own mind about when to quote; its JSON writer leaves NULL out and writes decimals as numbers.
Bytes that are no UTF-8 pass here and end the export where parts are joined, which costs a tenth.
"""

from __future__ import annotations

import re
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
_BREAKING = '"\r\n'
_HARMLESS = re.compile(r"""[A-Za-z0-9 ",.:;|_/+-]*""")
_APOSTROPHE = "CAST(X'27' AS STRING)"
VARIABLE = "${"
"""
In a column's name, what Hadoop replaces on its way to Parquet and from there, since schemas are told as configuration.

Spark 4.3.0 reads such a column as NULL, and writes it under the name that the variable has as its value.
"""

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

    As SQL: of the two thousand calls that the same takes as Columns, each is a round trip to the JVM (0.3 s for ten columns).

    In steps that Spark does not fold into one, because text is looked at many times: first each text becomes one that is
    not NULL, then all of a row's are searched at once for what has to be escaped, which few rows have.
    That keeps the code that Spark makes of it small enough for Java to compile it.
    """
    fields = frame.schema.fields
    texts = [number for number, field in enumerate(fields) if _is_text(field)]
    named = frame.toDF(*(f"value{number}" for number in range(len(fields))))  # no name of the user's is read as SQL
    found = named.selectExpr(
        *(
            f"coalesce(CAST(value{number} AS STRING), '') AS text{number}" if number in texts else f"value{number}"
            for number in range(len(fields))
        ),
        *(f"value{number} IS NULL AS null{number}" for number in texts),
    )
    json = lines.form == "jsonl"
    if texts:
        together = f"concat_ws(' ', {', '.join(f'text{number}' for number in texts)})"
        odd = f"rlike({together}, {_literal(_ESCAPED)})" if json else _special(together, lines)
        found = found.selectExpr("*", f"{odd} AS odd")
    if json:
        parts = _between([_json_member(field, number, lines) for number, field in enumerate(fields)], ",")
        return found.selectExpr(f"concat('{{', {', '.join(parts)}, '}}') AS value")
    null = _literal('""' if len(fields) == 1 and not lines.null else lines.null)
    cells = [f"coalesce({_cell(field, number, lines)}, {null})" for number, field in enumerate(fields)]
    return found.selectExpr(f"concat({', '.join(_between(cells, lines.delimiter))}) AS value")


def storable(frame: DataFrame) -> DataFrame:
    """
    The rows as Parquet holds them: a column that is NULL and nothing else is text there.

    Raises:
        ExportError: A name that would become another one.
    """
    for name in frame.columns:
        if VARIABLE in name:
            raise ExportError(
                f"Expected no {VARIABLE} in the name of a Parquet file's column, got {name!r}: "
                "Hadoop would put a variable's value there; give it another name in the query."
            )
    return frame.select(
        *(
            column(field.name).cast("string").alias(field.name)
            if _is_text(field) or isinstance(field.dataType, NullType)
            else column(field.name)
            for field in frame.schema.fields
        )
    )


def _literal(text: str) -> str:
    """Text as SQL reads it under every setting: what might be an escape, or a variable, is told in hexadecimal."""
    return f"'{text}'" if _HARMLESS.fullmatch(text) else f"CAST(X'{text.encode().hex()}' AS STRING)"


def _between(cells: Sequence[str], separator: str) -> list[str]:
    return [part for cell in cells for part in (_literal(separator), cell)][1:]


def _is_text(field: StructField) -> bool:
    return isinstance(field.dataType, StringType | CharType | VarcharType)


def _cell(field: StructField, number: int, lines: Lines) -> str:
    """The cell of one value; NULL stays NULL."""
    return _text(number, lines) if _is_text(field) else _shown(field, f"value{number}", lines)


def _shown(field: StructField, value: str, lines: Lines) -> str:
    """The text of a value that is not text."""
    shown = _TEXTS[type(field.dataType)](value, lines)
    if lines.decimal_comma and isinstance(field.dataType, DecimalType | DoubleType | FloatType):
        return f"replace({shown}, '.', ',')"
    return shown


def _text(number: int, lines: Lines) -> str:
    """Text, guarded and quoted as `formats.Csv` says."""
    value, null = f"text{number}", _literal(lines.null)
    formula = f"ascii({value}) IN ({', '.join(map(str, _FORMULA))})" if lines.guard_formulas else "false"
    guard = f"CASE WHEN {formula} THEN {_APOSTROPHE} ELSE '' END"
    quoted = f"""concat('"', {guard}, replace({value}, '"', '""'), '"')"""
    # A row that has nothing of it is not searched again, cell by cell.
    special = f"odd AND length(translate({value}, {_literal(lines.delimiter + _BREAKING)}, '')) < length({value})"
    # Most text begins with a letter: that is neither a formula nor nothing.
    plain = f"NOT odd AND {value} >= 'A'"
    if lines.null >= "A":
        plain += f" AND {value} != {null}"
    return f"""CASE
        WHEN {plain} THEN {value}
        WHEN null{number} THEN NULL
        WHEN {value} = '' THEN '""'
        WHEN {value} = {null} OR ({special}) THEN {quoted}
        WHEN {formula} THEN concat({_APOSTROPHE}, {value})
        ELSE {value}
    END"""


def _special(value: str, lines: Lines) -> str:
    return (
        f"({' OR '.join(f'contains({value}, {_literal(character)})' for character in (lines.delimiter, *_BREAKING))})"
    )


def _json_member(field: StructField, number: int, lines: Lines) -> str:
    return f"concat({_literal(escaped(field.name) + ':')}, {_json_cell(field, number, lines)})"


def _json_cell(field: StructField, number: int, lines: Lines) -> str:
    """A value of JSON, as `jsonl.py` says."""
    if _is_text(field):
        value = f"text{number}"
        array = f"to_json(array({value}))"
        return f"""CASE
            WHEN null{number} THEN 'null'
            WHEN NOT odd THEN {_quoted(value)}
            ELSE substr({array}, 2, length({array}) - 2)
        END"""
    value = f"value{number}"
    shown = _shown(field, value, lines)
    if isinstance(field.dataType, DoubleType | FloatType):
        odd = f"isnan({value}) OR abs({value}) = CAST('Infinity' AS DOUBLE)"
        shown = f"CASE WHEN {odd} THEN {_quoted(shown)} ELSE {shown} END"
    elif not isinstance(field.dataType, (*WHOLE, BooleanType)):
        shown = _quoted(shown)
    return f"coalesce({shown}, 'null')"


def _quoted(value: str) -> str:
    return f"""concat('"', {value}, '"')"""


def _plain(value: str, lines: Lines) -> str:  # noqa: ARG001 - others need it
    return f"CAST({value} AS STRING)"


def _float(value: str, lines: Lines) -> str:  # noqa: ARG001 - others need it
    """As Python's, which has no short floats."""
    return f"CAST(CAST({value} AS DOUBLE) AS STRING)"


def _date(value: str, lines: Lines) -> str:
    if lines.dates == DATE:
        return f"CAST({value} AS STRING)"
    return f"date_format({value}, {_literal(''.join(java_pieces(lines.dates)))})"


def _moment(value: str, lines: Lines) -> str:
    """A moment without a zone."""
    pieces = [piece for piece in java_pieces(lines.moments) if piece != OFFSET]
    return f"concat({', '.join(f'date_format({value}, {_literal(piece)})' for piece in pieces)})"


def _instant(value: str, lines: Lines) -> str:
    """A moment with a zone: shifted to what the clocks there show, and then told as if it were UTC."""
    if lines.zone == UTC:
        local, offset = value, "'Z'"
    else:
        local = f"from_utc_timestamp({value}, {_literal(lines.zone)})"
        offset = _offset(f"CAST((unix_micros({local}) - unix_micros({value})) / 1000000 AS INT)")
    pieces = java_pieces(lines.moments)
    shown = (offset if piece == OFFSET else f"date_format({local}, {_literal(piece)})" for piece in pieces)
    return f"concat({', '.join(shown)})"


def _offset(seconds: str) -> str:
    """`+02:00`, `Z`, and seconds where zones of long ago have some."""
    size = f"abs({seconds})"

    def two(number: str) -> str:
        return f"lpad(CAST(CAST({number} AS INT) AS STRING), 2, '0')"

    return f"""CASE WHEN {seconds} = 0 THEN 'Z' ELSE concat(
        CASE WHEN {seconds} < 0 THEN '-' ELSE '+' END,
        {two(f"floor({size} / 3600)")}, ':', {two(f"floor({size} % 3600 / 60)")},
        CASE WHEN {size} % 60 != 0 THEN concat(':', {two(f"{size} % 60")}) ELSE '' END
    ) END"""


_TEXTS: Mapping[type[DataType], Callable[[str, Lines], str]] = MappingProxyType(
    {
        **dict.fromkeys((*WHOLE, BooleanType, DecimalType, DoubleType, NullType), _plain),
        FloatType: _float,
        DateType: _date,
        TimestampType: _instant,
        TimestampNTZType: _moment,
    }
)
