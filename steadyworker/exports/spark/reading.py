"""
Reads a table in the host: Parquet unchanged, JSON Lines with exact decimals, CSV with types that lose no text.

Spark's own inference would turn `007` into 7, `+49 30` into a number, and money into binary floats.
SteadyWorker reads each CSV column as text once, and gives it a type only if every value is in that type's own notation:

| every value (that is not NULL) looks like | type |
|---|---|
| `0`, `-17`, at most 18 digits | BIGINT |
| `12.50`, `-0.001`, at most 38 digits in all | DECIMAL, with the longest fraction found |
| `2024-03-31` | DATE |
| `2024-03-31 02:30:00`, with `T`, with up to six digits of a fraction | TIMESTAMP_NTZ |
| `true`, `false` | BOOLEAN |
| anything else | STRING |

This inference takes one more pass over the files; a `schema` in `Files` saves this pass.
An empty cell is NULL; a quoted empty cell is "" in a column of text, and NULL in other columns.
With a `schema`, a quoted empty cell is NULL in all columns, because Spark's parser would refuse it as a number.
With a `schema`, a decimal has every digit of the file, in CSV and in JSON Lines, or the export fails (`exact.py`).

Spark assigns cells to columns by position, so each file's header must have the same columns in the same order.
With a `schema`, each header must have the schema's columns; `options={"enforceSchema": "true"}` lets the schema rename them.

Spark's parser replaces bytes that are not UTF-8 by U+FFFD, so SteadyWorker checks the bytes itself.
Without a `schema`, SteadyWorker checks the bytes only if the pass for the inference has found U+FFFD.
With a `schema`, SteadyWorker always checks the bytes, in one cheap pass.
`options={"encoding": "windows-1252"}` declares another encoding; `options={"encoding": "UTF-8"}` switches the check of the bytes off.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DoubleType, StructType

from steadyworker.errors import ExportRejected
from steadyworker.exports.spark.exact import exact, holds
from steadyworker.exports.spark.lines import VARIABLE, column
from steadyworker.exports.spark.protocol import FileSource

_CSV = {
    "header": "true",
    "enforceSchema": "false",  # with the default, Spark would mix up two swapped columns
    "escape": '"',
    "multiLine": "false",
    "mode": "FAILFAST",
    "emptyValue": "",
    "nullValue": "",
    "inferSchema": "false",
}
_EMPTY = "\ufffe"  # the null text for the parser: no text has this character, so that "" is not NULL
_REPLACED = "\ufffd"
_DIGITS = 38
_WHOLE = r"^(0|-?[1-9]\d{0,17})$"
_DECIMAL = r"^-?(0|[1-9]\d*)\.\d+$"
_MOMENT = r"^\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?$"
_DATE = r"^\d{4}-\d{2}-\d{2}$"
_PATTERN = re.compile(r"[\[\]{}*?\\]")  # escaped in paths, because Hadoop reads a path as a pattern
_BOOLEAN = r"^(true|false)$"


def read(session: SparkSession, source: FileSource) -> DataFrame:
    """Return the table; raise Spark's errors for invalid files."""
    path = source.path if "://" in source.path else "file://" + _PATTERN.sub(r"\\\g<0>", source.path)
    match source.format:
        case "csv":
            return _csv(session, source, path)
        case "json":
            options = {"prefersDecimal": "true", "mode": "FAILFAST", **source.options}
        case _:
            options = source.options
    if source.schema:
        found = _declared(session, source, source.schema, options, path)
    elif source.format == "json":
        found = _json(session, source, options, path)
    else:
        found = session.read.format(source.format).options(**options).load(path)
    if source.format == "parquet" and VARIABLE in found.schema.simpleString():
        raise ExportRejected(
            f"Expected Parquet files without {VARIABLE} in a column's name, got {', '.join(found.columns)} in {source.path}: "
            "Hadoop takes it for a variable, and Spark then reads NULL; give the column another name where the file is written."
        )
    return found


def _json(session: SparkSession, source: FileSource, options: Mapping[str, str], path: str) -> DataFrame:
    """Return JSON Lines with inferred types; raise ExportRejected if Spark would read a number as a binary float."""
    decimals = {name.lower(): value.lower() for name, value in options.items()}["prefersdecimal"] == "true"
    try:
        found = session.read.format("json").options(**options).load(path)
        others = [repr(field.name) for field in found.schema.fields if decimals and holds(field.dataType, DoubleType)]
        if not others:
            return found
    except AnalysisException as error:
        if error.getCondition() != "NEGATIVE_SCALE_DISALLOWED":  # only numbers like 1e3 have an exponent
            raise
        others = ["at least one column (a number such as 1e3)"]
    raise ExportRejected(
        f"Expected each column of numbers in {source.path} to fit into one decimal of {_DIGITS} digits, got others in {', '.join(others)}: "
        'Spark would read them as binary floats; declare the types, Files(path, schema="id BIGINT, ratio DOUBLE"), or STRING.'
    )


def _declared(
    session: SparkSession, source: FileSource, schema: str, options: Mapping[str, str], path: str
) -> DataFrame:
    def load(schema: str | StructType) -> DataFrame:
        return session.read.format(source.format).options(**options).schema(schema).load(path)

    # Parquet files have types: Spark refuses to read a decimal as another type.
    return load(schema) if source.format == "parquet" else exact(load, schema, options, source.path)


def _csv(session: SparkSession, source: FileSource, path: str) -> DataFrame:
    options = {**_CSV, **source.options}
    declared = bool({"encoding", "charset"} & {name.lower() for name in source.options})
    if source.schema:
        if not declared:
            _check_utf8(session, source, path)
        return _declared(session, source, source.schema, options, path)
    options = {**_CSV, "nullValue": _EMPTY, **source.options}
    text = session.read.format("csv").options(**options).load(path)
    if len(text.inputFiles()) == 1:  # the header of a single file always agrees, even with invented names
        text = session.read.format("csv").options(**options | {"enforceSchema": "true"}).load(path)
    texts = [name for name, kind in text.dtypes if kind == "string"]  # a partition column has a type already
    if not texts:
        return text
    counts = [_counts(number, name) for number, name in enumerate(texts)]
    found = text.agg(*counts, F.coalesce(F.bool_or(_replaced(texts)), F.lit(False)).alias("replaced")).head()  # noqa: FBT003 - SQL's false
    if not declared and (found is None or found["replaced"] or any(_REPLACED in name for name in text.columns)):
        _check_utf8(session, source, path)
    kinds = {name: kind for number, name in enumerate(texts) if found and (kind := _kind(found[number]))}
    return text.select(
        *(_filled(name).cast(kinds[name]).alias(name) if name in kinds else column(name) for name in text.columns)
    )


def _check_utf8(session: SparkSession, source: FileSource, path: str) -> None:
    """Raise ExportRejected for bytes that are not UTF-8; Spark's text reader passes them on unchanged."""
    lines = session.read.format("text").options(**source.options).load(path)
    if lines.where(~F.is_valid_utf8(lines[lines.columns[0]])).limit(1).count():
        raise ExportRejected(
            f"Expected CSV in UTF-8 in {source.path}, got other bytes: "
            'declare the encoding, Files(path, options={"encoding": "windows-1252"}).'
        )


def _replaced(names: list[str]) -> Column:
    """Return the expression that finds U+FFFD in a row, a sign of bytes that are not UTF-8."""
    return F.concat_ws("", *(column(name) for name in names)).contains(_REPLACED)


def _filled(name: str) -> Column:
    """Return the column with NULL in place of a quoted empty cell, which is neither a number nor a date."""
    return F.nullif(column(name), F.lit(""))


def _counts(number: int, name: str) -> Column:
    """Return the expression that counts a column's values by notation."""
    value = _filled(name)
    parts = F.split(F.ltrim(value, F.lit("-")), F.lit(r"\."))
    return F.struct(
        F.count(value).alias("values"),
        F.count_if(value.rlike(_WHOLE)).alias("whole"),
        F.count_if(value.rlike(_WHOLE) | value.rlike(_DECIMAL)).alias("decimal"),
        F.max(F.length(F.get(parts, F.lit(0)))).alias("before"),
        F.max(F.length(F.get(parts, F.lit(1)))).alias("after"),
        F.count_if(value.rlike(_DATE) & value.try_cast("date").isNotNull()).alias("date"),
        F.count_if(value.rlike(_MOMENT) & value.try_cast("timestamp_ntz").isNotNull()).alias("moment"),
        F.count_if(value.rlike(_BOOLEAN)).alias("boolean"),
    ).alias(str(number))


def _kind(found: dict[str, int]) -> str | None:
    """Return the type of all values of a column, or None for text."""
    every = found["values"]
    if not every:
        return None
    if found["whole"] == every:
        return "bigint"
    after = found["after"] or 0
    if found["decimal"] == every and found["before"] + after <= _DIGITS:
        return f"decimal({found['before'] + after},{after})"
    named = {"date": "date", "moment": "timestamp_ntz", "boolean": "boolean"}
    return next((kind for name, kind in named.items() if found[name] == every), None)
