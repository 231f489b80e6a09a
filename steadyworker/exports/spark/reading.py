"""
Reads a table in the host: Parquet unchanged, JSON Lines with exact decimals, CSV as text.

Spark's own inference for CSV would turn `007` into 7, `+49 30` into a number, and money into binary floats.
So each CSV column is text, unless a `schema` in `Files` gives it a type.
An empty cell is NULL; a quoted empty cell is "" in a table without a `schema`, and NULL with a `schema`, because "" is no number.
With a `schema`, a decimal has every digit of the file, in CSV and in JSON Lines, or the export fails (`exact.py`).

Spark assigns cells to columns by position, so each file's header must have the same columns in the same order.
With a `schema`, each header must have the schema's columns; `options={"enforceSchema": "true"}` lets the schema rename them.

Spark's parser replaces bytes that are not UTF-8 by U+FFFD, so SteadyWorker checks the bytes of CSV itself, in one cheap pass.
`options={"encoding": "windows-1252"}` declares another encoding; `options={"encoding": "UTF-8"}` switches the check of the bytes off.

Spark has no timestamp with nanoseconds.
A Parquet column with nanoseconds, the default of older pandas, is read in microseconds; the export fails if a value has more digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DoubleType, StructType

from steadyworker.errors import ExportRejected
from steadyworker.exports.spark.exact import exact, holds
from steadyworker.exports.spark.result import VARIABLE, quoted
from steadyworker.exports.tables import FileSource

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
_DIGITS = 38
_PATTERN = re.compile(r"[\[\]{}*?\\]")  # escaped in paths, because Hadoop reads a path as a pattern


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
    if source.format == "json" and session.version < "4":
        raise ExportRejected(
            f"Expected Spark 4.0 or newer for the JSON Lines in {source.path}, got {session.version}, which rounds their decimals "
            "to binary floats, also those that a schema declares: install a newer Spark, or write Parquet or CSV."
        )
    if source.schema:
        found = _declared(session, source, source.schema, options, path)
    elif source.format == "json":
        found = _json(session, source, options, path)
    else:
        nanos = _nanoseconds(Path(source.path))
        if nanos:
            session.conf.set("spark.sql.legacy.parquet.nanosAsLong", "true")
        found = session.read.format(source.format).options(**options).load(path)
        other = [name for name in nanos if name in found.columns and found.schema[name].dataType.typeName() != "long"]
        if other:  # a file out of Spark that another program has rewritten
            raise ExportRejected(
                f"Expected timestamps in microseconds in {source.path}, as in Spark's schema of the file, got nanoseconds in "
                f"{', '.join(other)}: write the file in microseconds, or without the metadata of Spark's file."
            )
        if nanos:
            found = found.withColumns({name: F.expr(_micros(name, kind)) for name, kind in nanos.items()})
    if source.format == "parquet" and VARIABLE in found.schema.simpleString():
        raise ExportRejected(
            f"Expected Parquet files without {VARIABLE} in a column's name, got {', '.join(found.columns)} in {source.path}: "
            "Hadoop takes it for a variable, and Spark then reads NULL; give the column another name where the file is written."
        )
    return found


def _nanoseconds(path: Path) -> dict[str, str]:
    """Return the columns with nanoseconds in the first Parquet file of a path, and their types in SQL; none for a URL."""
    files = [path] if path.is_file() else path.rglob("*")
    first = next((file for file in files if file.is_file() and file.name[0] not in "_."), None)
    if first is None:
        return {}
    try:
        columns = pq.read_metadata(first).schema
    except (OSError, ValueError):  # not Parquet, or not readable: Spark reports the error
        return {}
    found = {}
    for number in range(len(columns)):
        leaf = columns.column(number)
        kind = str(leaf.logical_type)
        if "Timestamp" not in kind or "timeUnit=nanoseconds" not in kind:
            continue
        if leaf.path != leaf.name:
            raise ExportRejected(
                f"Expected nanoseconds only outside of lists and structs, got {leaf.path} in {first}: write it in microseconds."
            )
        found[leaf.name] = "TIMESTAMP_NTZ" if "isAdjustedToUTC=false" in kind else "TIMESTAMP"
    return found


def _micros(name: str, kind: str) -> str:
    value = quoted(name)
    shown = "'" + re.sub(r"[^\w .-]", "?", name) + "'"
    error = f"""raise_error(concat('Expected timestamps in microseconds in column ', {shown}, ', got ', {value}, ' nanoseconds since 1970: round them where the file is written.'))"""
    return f"CASE WHEN {value} % 1000 = 0 THEN CAST(timestamp_micros({value} DIV 1000) AS {kind}) WHEN {value} IS NOT NULL THEN {error} END"


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
    return load(schema) if source.format == "parquet" else exact(load, schema, source.path)


def _csv(session: SparkSession, source: FileSource, path: str) -> DataFrame:
    if not {"encoding", "charset"} & {name.lower() for name in source.options}:
        _check_utf8(session, source, path)
    if source.schema:
        return _declared(session, source, source.schema, {**_CSV, **source.options}, path)
    reader = session.read.format("csv").options(**{**_CSV, "nullValue": _EMPTY, **source.options})
    text = reader.load(path)
    if len(text.inputFiles()) == 1:  # the header of a single file always agrees, even with invented names
        text = reader.option("enforceSchema", "true").load(path)
    return text


def _check_utf8(session: SparkSession, source: FileSource, path: str) -> None:
    """Raise ExportRejected for bytes that are not UTF-8; Spark's text reader passes them on unchanged."""
    lines = session.read.format("text").options(**source.options).load(path)
    if lines.where(~_is_valid(lines[lines.columns[0]])).limit(1).count():
        raise ExportRejected(
            f"Expected CSV in UTF-8 in {source.path}, got other bytes: "
            'declare the encoding, Files(path, options={"encoding": "windows-1252"}).'
        )


def _is_valid(text: Column) -> Column:
    if hasattr(F, "is_valid_utf8"):
        return F.is_valid_utf8(text)
    read = text.cast("binary")  # Spark 3.5 decodes other bytes to U+FFFD
    return F.encode(F.decode(read, "UTF-8"), "UTF-8") == read
