"""
How the host reads a table: Parquet as it is, JSON Lines with exact decimals, CSV typed only where no text is lost.

Spark's own inference would turn `007` into 7, `+49 30` into a number, and money into binary floats.
Ours reads each column as text once, and gives it a type only if every value of it is in that type's own notation:

| every value (that is not NULL) looks like | type |
|---|---|
| `0`, `-17`, at most 18 digits | BIGINT |
| `12.50`, `-0.001`, at most 38 digits in all | DECIMAL, with the longest fraction found |
| `2024-03-31` | DATE |
| `2024-03-31 02:30:00`, with `T`, with up to six digits of a fraction | TIMESTAMP_NTZ |
| `true`, `false` | BOOLEAN |
| anything else | STRING |

That is one more pass over the files; a `schema` in `Files` saves it.
An empty cell is NULL, a quoted empty one is "".
"""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from steadyworker.exports.spark.lines import column
from steadyworker.exports.spark.protocol import Source

_CSV = {
    "header": "true",
    "escape": '"',
    "multiLine": "false",
    "mode": "FAILFAST",
    "emptyValue": "",
    "nullValue": "",
    "inferSchema": "false",
}
_DIGITS = 38
_WHOLE = r"^(0|-?[1-9]\d{0,17})$"
_DECIMAL = r"^-?(0|[1-9]\d*)\.\d+$"
_MOMENT = r"^\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?$"
_DATE = r"^\d{4}-\d{2}-\d{2}$"
_PATTERN = re.compile(r"[\[\]{}*?\\]")  # a path is none: Hadoop is told so
_BOOLEAN = r"^(true|false)$"


def read(session: SparkSession, source: Source) -> DataFrame:
    """The table; raises what Spark raises for files that are not what they should be."""
    path = source.path if "://" in source.path else "file://" + _PATTERN.sub(r"\\\g<0>", source.path)
    match source.format:
        case "csv":
            return _csv(session, source, path)
        case "json":
            options = {"prefersDecimal": "true", "mode": "FAILFAST", **source.options}
        case _:
            options = source.options
    reader = session.read.format(source.format).options(**options)
    return (reader.schema(source.schema) if source.schema else reader).load(path)


def _csv(session: SparkSession, source: Source, path: str) -> DataFrame:
    options = {**_CSV, **source.options}
    if source.schema:
        return session.read.format("csv").options(**options).schema(source.schema).load(path)
    text = session.read.format("csv").options(**options).load(path)
    texts = [name for name, kind in text.dtypes if kind == "string"]  # a partition's column has its type already
    if not texts:
        return text
    found = text.agg(*(_look(number, name) for number, name in enumerate(texts))).head()
    kinds = {name: kind for number, name in enumerate(texts) if found and (kind := _kind(found[number]))}
    return text.select(
        *(column(name).cast(kinds[name]).alias(name) if name in kinds else column(name) for name in text.columns)
    )


def _look(number: int, name: str) -> Column:
    """One pass's findings about a column."""
    value = column(name)
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
    """The type that all values of a column have; None for text."""
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
