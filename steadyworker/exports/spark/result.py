"""
The result of a query as sorted Parquet parts: which types a file can have, and the order of the rows.

Spark cuts the rows into ranges of the columns in `order_by`, and sorts each range.
So the parts, one after the other, are in the order of `order_by`.
Rows with equal values there are in one part, sorted by at most 16 more columns, so that a second run writes the same order.
Only the columns in `order_by` decide the ranges, because Spark's driver holds a sample of the ranges' keys, and text can be long.

The columns of the parts are `c0`, `c1`, and so on.
Hadoop passes a schema as configuration, and would replace a variable such as `${user.name}` in a name; Spark reads such a column as NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from steadyworker.errors import ExportRejected
from steadyworker.exports.sorting import Key, sort_keys
from steadyworker.exports.spark.protocol import ExportPlan

VARIABLE = "${"
"""The start of a variable in Hadoop's configuration."""

WHOLE = frozenset({"byte", "short", "integer", "long"})
"""The names of Spark's types of integers (`DataType.typeName`)."""

_WORDS = frozenset({"string", "char", "varchar", "void"})
_SORTED = WHOLE | _WORDS | {"float", "double", "decimal", "boolean", "date", "timestamp", "timestamp_ntz", "time"}
_SUMMED = WHOLE | {"decimal"}
_GROUPED = _SORTED - {"float", "double", "decimal"}


def column(name: str) -> Column:
    """Return the column of exactly this name, which can contain dots."""
    return F.col(quoted(name))


def quoted(name: str) -> str:
    """Return a column's name in SQL."""
    return "`" + name.replace("`", "``") + "`"


def keys_of(schema: StructType, plan: ExportPlan) -> list[Key]:
    """
    Return the columns to sort by: the plan's columns, and at most 16 more.

    Raises:
        ExportRejected: A column is missing, or has a type that the file or the totals cannot have.
    """
    sortable = [field.name for field in schema.fields if field.dataType.typeName() in _SORTED]
    keys = sort_keys(plan.order_by, schema.fieldNames(), sortable)
    for field in schema.fields:
        _check_type(field.name, field.dataType, nested=plan.nested)
    known = {*schema.fieldNames()}  # the child refuses other names (`Totals`), before the query runs
    for name in known.intersection(plan.sums):
        if schema[name].dataType.typeName() not in _SUMMED:
            raise ExportRejected(
                f"Expected integers or decimals in {name!r}, got {schema[name].dataType.simpleString()}: totals are exact; cast the column to a decimal in the query."
            )
    for name in known.intersection(plan.by):  # 1, 1.0 and 1.00 are equal, but have three different texts
        if schema[name].dataType.typeName() not in _GROUPED:
            raise ExportRejected(
                f"Expected text, integers or dates in {name!r} to group by, got {schema[name].dataType.simpleString()}: "
                "cast the column to text in the query."
            )
    return keys


def in_order(result: DataFrame, keys: Sequence[Key], given: int) -> DataFrame:
    """
    Return the rows in order, with the columns `c0`, `c1`, and so on; NULL is the smallest value, as Spark sorts.

    Args:
        result: The query's result.
        keys: The columns to sort by.
        given: The number of the first keys, which decide the ranges.
    """
    fields = result.schema.fields
    places = {field.name: f"c{number}" for number, field in enumerate(fields)}
    rows = result.toDF(*places.values())
    # Text is compared by its bytes, without a collation, and Parquet has no type for NULL alone.
    words = {
        name: F.col(name).cast("string")
        for field, name in zip(fields, rows.columns, strict=True)
        if _is_words(field.dataType)
    }
    rows = rows.withColumns(words) if words else rows
    columns = [F.col(places[key.name]).desc() if key.descending else F.col(places[key.name]).asc() for key in keys]
    return rows.repartitionByRange(*columns[:given]).sortWithinPartitions(*columns)


def _is_words(kind: DataType) -> bool:
    return kind.typeName() in _WORDS and kind.simpleString() != "string"


def _check_type(name: str, kind: DataType, *, nested: bool) -> None:
    """Raise ExportRejected if the file cannot have values of this type."""
    if nested and VARIABLE in kind.json():
        raise ExportRejected(
            f"Expected no {VARIABLE} in the names inside of column {name!r}, got {kind.simpleString()}: "
            "Hadoop would put a variable's value there; give the field another name in the query."
        )
    wrong = next((each for each in leaves(kind) if each.typeName() not in _SORTED | {"binary"}), None)
    if wrong is None and (nested or kind.typeName() in _SORTED):
        return
    remedy = "binary: base64 or hex; arrays, structs and maps: to_json, or export to Parquet; others: cast to text"
    raise ExportRejected(
        f"Expected text, numbers, dates or timestamps in column {name!r}, got {(wrong if nested and wrong else kind).simpleString()}: "
        f"turn it into one of these in the query ({remedy})."
    )


def leaves(kind: DataType) -> Iterator[DataType]:
    """Yield the types of single values in a type."""
    match kind:
        case StructType():
            for field in kind.fields:
                yield from leaves(field.dataType)
        case ArrayType():
            yield from leaves(kind.elementType)
        case MapType():
            yield from leaves(kind.keyType)
            yield from leaves(kind.valueType)
        case _:
            yield kind
