"""
Tables of PostgreSQL, read by Spark's tasks over JDBC, in the snapshot that the host holds (`exports/postgres.py`).

The checks compare the types of PostgreSQL with the types of Spark, because Spark rounds or changes some values silently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from steadyworker.errors import ExportRejected
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.postgres import (
    CHECK_CLIENT,
    READ_ONLY,
    Databases,
    HeldSnapshot,
    PostgresColumn,
    unreadable,
)
from steadyworker.exports.spark.databases import load
from steadyworker.exports.spark.exact import places
from steadyworker.exports.spark.java import DRIVER, REMEDY

_ROWS_A_RANGE = 250_000
_MOST_RANGES = 1000
# From libpq's names to the driver's; `sslrootcert` is the exception below.
_PROPERTIES: Mapping[str, str] = MappingProxyType(
    {
        "application_name": "ApplicationName",
        "connect_timeout": "connectTimeout",
        **{name: name for name in ("user", "password", "sslmode", "sslrootcert", "sslcert", "sslkey", "currentSchema")},
    }
)
_CONNECTION = {"connectTimeout": "10", "loginTimeout": "30", "tcpKeepAlive": "true"}
_JAVA_TRUSTS = {"sslfactory": "org.postgresql.ssl.DefaultJavaSSLFactory"}
_SLACK = 30  # seconds from the server's limit to the driver's cancel, and from this cancel to the close of the socket
_DAY, _MOMENT = "YYYY-MM-DD", "YYYY-MM-DD HH24:MI:SS.US"
# For each type of a partition column, the SQL of the bounds, as text for Spark.
_BOUNDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("int2", "int4", "int8"), "min({c})::text, max({c})::text"),
        "numeric": "floor(min({c}))::text, ceil(max({c}))::text",
        "date": f"to_char(min({{c}}), '{_DAY}'), to_char(max({{c}}), '{_DAY}')",
        **dict.fromkeys(
            ("timestamp", "timestamptz"), f"to_char(min({{c}}), '{_MOMENT}'), to_char(max({{c}}), '{_MOMENT}')"
        ),
    }
)
_WHOLE = frozenset({"int2", "int4", "int8", "oid"})
_DATES = frozenset({"date", "timestamp", "timestamptz"})
_HAS_INFINITE = "(SELECT bool_or(NOT isfinite(each)) FROM unnest({c}) AS each)"
# Types that Spark would change; the name of an array's type is an underscore, and then the type of the elements.
_BENT = {
    "time": "Spark reads it as a timestamp in 1970",
    "timetz": "Spark reads it as a timestamp in 1970",
    "money": "Spark reads it as a binary float",
    "_float4": "Spark reads 0.1 as 0.10000000149011612",
}


def read_table(session: SparkSession, databases: Databases, name: str, source: Jdbc) -> DataFrame:
    """
    Return the table, in the snapshot that all tables of its database share.

    Raises:
        ExportRejected: Spark cannot read a column exactly, or `partition_by` is unfit for ranges.
        ExportError: psycopg, the JDBC driver or the password is missing, or PostgreSQL cannot read the table.
    """
    with databases.reading(name, source) as held:
        columns = held.columns(source.relation)
        _check_types(name, source, columns)
        options = _connection(held, source) | _ranges(held, name, source, columns)
        options["dbtable"] = _relation(source, columns)
        frame = load(session, DRIVER, REMEDY, options)
        _check_values(held, name, source, columns, frame.schema)
    return frame


def _connection(held: HeldSnapshot, source: Jdbc) -> dict[str, str]:
    """Return Spark's options for the connections of the readers."""
    limit, timeout = math.ceil(source.statement_timeout), math.ceil(source.statement_timeout * 1000)
    given = {**source.options, **{name: value for name, value in held.login.items() if value is not None}}
    trusted = _JAVA_TRUSTS if given.get("sslrootcert") == "system" else {}
    if trusted:
        del given["sslrootcert"]
    begin = [
        READ_ONLY,
        f"SET TRANSACTION SNAPSHOT '{held.export()}'",
        f"SET LOCAL statement_timeout = {timeout}",
        "SET LOCAL TimeZone = 'UTC'",
        *([CHECK_CLIENT] if held.checks_client else []),
    ]
    return {
        **_CONNECTION,
        **trusted,
        **{_PROPERTIES[name]: value for name, value in given.items()},
        "url": f"jdbc:postgresql://{source.place}",
        "fetchsize": str(source.fetch_rows),
        "queryTimeout": str(limit + _SLACK),
        "socketTimeout": str(limit + 2 * _SLACK),
        "sessionInitStatement": "; ".join(begin),
        "preferTimestampNTZ": "true",
        **({"customSchema": source.schema} if source.schema else {}),
    }


def _ranges(held: HeldSnapshot, name: str, source: Jdbc, columns: Sequence[PostgresColumn]) -> dict[str, str]:
    """Return Spark's options for the ranges of the read, or no options if there is only one range."""
    if (column := source.partition_by) is None:
        return {}
    count = source.partitions or min(max(1, math.ceil(_expected(held, source) / _ROWS_A_RANGE)), _MOST_RANGES)
    if count == 1:
        return {}
    kind = next((each.kind for each in columns if each.name == column), "no column of it")
    if kind not in _BOUNDS:
        raise ExportRejected(
            f"Expected a column of integers, dates or timestamps as partition_by of table {name!r}, got {column!r}, "
            f"{kind}: choose another."
        )
    ((lower, upper),) = held.rows(f"SELECT {_BOUNDS[kind].format(c=_quoted(column))} FROM {source.relation}")  # noqa: S608 - the user's own SQL
    if lower is None or upper is None or lower == upper:
        return {}
    return {"partitionColumn": column, "lowerBound": lower, "upperBound": upper, "numPartitions": str(count)}


def _expected(held: HeldSnapshot, source: Jdbc) -> int:
    """Return the number of rows, as the database's planner estimates it."""
    ((plan,),) = held.rows(f"EXPLAIN (FORMAT JSON) SELECT * FROM {source.relation}")  # noqa: S608 - the user's own SQL
    return int(plan[0]["Plan"]["Plan Rows"])


def _relation(source: Jdbc, columns: Sequence[PostgresColumn]) -> str:
    """Return the table with each `real` as PostgreSQL shows it; Spark would read 0.1 as 0.10000000149011612."""
    short = {each.name for each in columns if each.kind == "float4" and not _declares(source, each.name)}
    if not short:
        return source.relation
    chosen = (
        f"{column}::text::float8 AS {column}" if each.name in short else column
        for each in columns
        for column in [_quoted(each.name)]
    )
    return f"(SELECT {', '.join(chosen)} FROM {source.relation}) AS exact"  # noqa: S608 - the user's own SQL


def _check_types(name: str, source: Jdbc, columns: Sequence[PostgresColumn]) -> None:
    """Refuse columns that Spark would round or change, unless the user's schema gives them a type."""
    for each in columns:
        element = each.kind.removeprefix("_")
        why = _BENT.get(each.kind, _BENT.get(element, ""))
        if element == "numeric" and not each.digits:
            why = "without a precision Spark would round it to 18 places"
        # `_check_values` skips the digits of arrays.
        remedy, enough = ("DECIMAL(20,4)", "") if each.kind == element else ("STRING", "STRING")
        if why and not _declares(source, each.name, enough):
            raise unreadable("Spark", name, each, why, remedy)


def _check_values(
    held: HeldSnapshot, name: str, source: Jdbc, columns: Sequence[PostgresColumn], read: StructType
) -> None:
    """
    Refuse values that Spark would change: infinite dates, and more digits after the point than the type that Spark reads.

    The check takes one pass over the table, unless the types of the columns already prove it.
    """
    dates = {
        each.name: (_HAS_INFINITE if each.kind.startswith("_") else "NOT isfinite({c})").format(c=_quoted(each.name))
        for each in columns
        if each.kind.removeprefix("_") in _DATES and not _declares(source, each.name, "(?:STRING|VARCHAR)")
    }
    numbers = {}
    for each in columns:
        after = places(read).get(each.name)
        if after is None or each.kind in _WHOLE or (each.kind == "numeric" and each.digits and each.after <= after):
            continue
        # A float is compared by its text, because a direct cast to numeric keeps only 15 digits.
        number = _quoted(each.name) + {"numeric": "", "money": "::numeric"}.get(each.kind, "::text::numeric")
        numbers[each.name] = after, f"max({number}::text) FILTER (WHERE {number} <> round({number}, {after}))"
    checks = [*(f"bool_or({check})" for check in dates.values()), *(check for _, check in numbers.values())]
    if not checks:
        return
    (found,) = held.rows(f"SELECT {', '.join(checks)} FROM {source.relation}")  # noqa: S608 - the user's own SQL
    infinite = [column for column, got in zip(dates, found, strict=False) if got]
    if infinite:
        column = _quoted(infinite[0])
        raise ExportRejected(
            f"Expected finite dates in table {name!r}, got infinity in {', '.join(map(repr, infinite))}, and Spark has no such "
            f"value: use a query that makes it NULL, Jdbc(url, \"SELECT nullif(nullif({column}, 'infinity'), '-infinity') AS {column}, …\"), "
            "or one without the column."
        )
    for (column, (after, _)), got in zip(numbers.items(), found[len(dates) :], strict=True):
        if got is not None:
            needs = len(got.partition(".")[2])
            raise ExportRejected(
                f"Expected at most {after} digits after the point in column {column!r} of table {name!r}, as it is declared, "
                f'got {got:.100}, which Spark would round: declare more, Jdbc(schema="{column} DECIMAL(38,{needs})"), '
                'or round it in a query, Jdbc(url, "SELECT …").'
            )


def _declares(source: Jdbc, column: str, kind: str = "") -> bool:
    """Return whether the user's schema has a column of this name and type; without `kind`, of any type."""
    pattern = rf"(?:^|,)\s*`?{re.escape(column)}`?\s+{kind}"
    return re.search(pattern, source.schema or "", re.IGNORECASE) is not None


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
