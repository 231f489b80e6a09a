"""
Converts a row to one line by SQL expressions; `values.py`, `formats.py` and `jsonl.py` describe the text of the line.

Spark's *text* writer writes the line unchanged.
Spark's CSV writer is unfit: it trims blanks, escapes with backslashes, and quotes by other rules.
Spark's JSON writer is unfit too: it leaves NULL out, and writes decimals as numbers.
These expressions do not check for valid UTF-8, because the join of the parts can check it at a tenth of the cost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
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

from steadyworker.errors import ExportRejected
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
The start of a variable in Hadoop's configuration.

Hadoop replaces variables also in the names of Parquet columns, because it passes schemas as configuration.
Spark 4.3.0 reads a column with such a name as NULL, and writes the variable's value as the column's name.
"""

WHOLE = (ByteType, ShortType, IntegerType, LongType)


def column(name: str) -> Column:
    """Return the column of exactly this name, which can contain dots."""
    return F.col("`" + name.replace("`", "``") + "`")


def check(schema: StructType) -> None:
    """
    Check that each column has a type that a file can contain.

    Raises:
        ExportRejected: A column has another type.
    """
    for field in schema.fields:
        if not _is_text(field) and type(field.dataType) not in _TEXTS:
            raise ExportRejected(
                f"Expected text, numbers, dates or timestamps in column {field.name!r}, "
                f"got {field.dataType.simpleString()}: "
                "turn it into one of these in the query (binary: base64 or hex; others: to_json)."
            )


def written(frame: DataFrame, lines: Lines) -> DataFrame:
    """
    Return the lines of these rows, without line ends, as the only column.

    The expressions are SQL, because two thousand calls of Column methods take 0.3 s for ten columns.

    The expressions are in steps that Spark does not merge, because each text of a row is used many times.
    The first step replaces NULL in each text, and the second searches all texts of a row for characters to escape.
    With these steps, Spark's generated code stays small enough for Java to compile it.
    """
    fields = frame.schema.fields
    texts = [number for number, field in enumerate(fields) if _is_text(field)]
    named = frame.toDF(*(f"value{number}" for number in range(len(fields))))  # the SQL has no name of the user
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
    Return the rows with types for Parquet: a column of type NULL becomes text.

    Raises:
        ExportRejected: A column's name contains a variable, which Hadoop would replace.
    """
    for name in frame.columns:
        if VARIABLE in name:
            raise ExportRejected(
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
    """Return an SQL literal that is right under every setting: text with special characters is in hexadecimal."""
    return f"'{text}'" if _HARMLESS.fullmatch(text) else f"CAST(X'{text.encode().hex()}' AS STRING)"


def _between(cells: Sequence[str], separator: str) -> list[str]:
    return [part for cell in cells for part in (_literal(separator), cell)][1:]


def _is_text(field: StructField) -> bool:
    return isinstance(field.dataType, StringType | CharType | VarcharType)


def _cell(field: StructField, number: int, lines: Lines) -> str:
    """Return the expression of a CSV cell; NULL stays NULL."""
    return _text(number, lines) if _is_text(field) else _shown(field, f"value{number}", lines)


def _shown(field: StructField, value: str, lines: Lines) -> str:
    """Return the expression that converts a value to text; the value is not text."""
    shown = _TEXTS[type(field.dataType)](value, lines)
    if lines.decimal_comma and isinstance(field.dataType, DecimalType | DoubleType | FloatType):
        return f"replace({shown}, '.', ',')"
    return shown


def _text(number: int, lines: Lines) -> str:
    """Return the expression of a text cell, with the guard and the quotes of `formats.Csv`."""
    value, null = f"text{number}", _literal(lines.null)
    formula = f"ascii({value}) IN ({', '.join(map(str, _FORMULA))})" if lines.guard_formulas else "false"
    guard = f"CASE WHEN {formula} THEN {_APOSTROPHE} ELSE '' END"
    quoted = f"""concat('"', {guard}, replace({value}, '"', '""'), '"')"""
    # Each cell is searched only in a row with special characters (`odd`).
    special = f"odd AND length(translate({value}, {_literal(lines.delimiter + _BREAKING)}, '')) < length({value})"
    # Most texts begin with a letter: such a text is neither a formula nor empty.
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
    """Return the expression of a JSON value, by the rules of `jsonl.py`."""
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


def _plain(value: str, lines: Lines) -> str:  # noqa: ARG001 - the other converters need `lines`
    return f"CAST({value} AS STRING)"


def _date(value: str, lines: Lines) -> str:
    if lines.dates == DATE:
        return f"CAST({value} AS STRING)"
    return f"date_format({value}, {_literal(''.join(java_pieces(lines.dates)))})"


def _moment(value: str, lines: Lines) -> str:
    """Return the text of a timestamp without a zone."""
    pieces = [piece for piece in java_pieces(lines.moments) if piece != OFFSET]
    return f"concat({', '.join(f'date_format({value}, {_literal(piece)})' for piece in pieces)})"


def _instant(value: str, lines: Lines) -> str:
    """Return the text of a timestamp with a zone: its local time in the zone of `lines`, and the offset."""
    if lines.zone == UTC:
        local, offset = value, "'Z'"
    else:
        local = f"from_utc_timestamp({value}, {_literal(lines.zone)})"
        offset = _offset(f"CAST((unix_micros({local}) - unix_micros({value})) / 1000000 AS INT)")
    pieces = java_pieces(lines.moments)
    shown = (offset if piece == OFFSET else f"date_format({local}, {_literal(piece)})" for piece in pieces)
    return f"concat({', '.join(shown)})"


def _offset(seconds: str) -> str:
    """Return the text of an offset: `Z` or `+02:00`, with seconds for historical zones that have them."""
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
        **dict.fromkeys((*WHOLE, BooleanType, DecimalType, DoubleType, FloatType, NullType), _plain),
        DateType: _date,
        TimestampType: _instant,
        TimestampNTZType: _moment,
    }
)
