"""
Lets Spark read PostgreSQL in one snapshot.

::

    holder, in the driver   BEGIN REPEATABLE READ, pg_export_snapshot() ──────────────── ROLLBACK when the job has ended
    readers, in the tasks        BEGIN REPEATABLE READ, SET TRANSACTION SNAPSHOT: each range sees what the holder sees

The holder uses the JVM's JDBC driver, so that no other client library is necessary.
All connections of a job have its name as `application_name`, and a cancel finds them by that name.
Spark cannot interrupt a task that waits for the database, so the cancel goes to the database.
When the host dies, the server closes the holder and the idle readers, because their sockets are closed.
The server also ends a busy reader, because the server checks the reader's socket each second.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.types import StructType

from steadyworker.errors import ExportRejected
from steadyworker.exports.spark.drivers import DRIVERS
from steadyworker.exports.spark.exact import places, rounded
from steadyworker.exports.spark.jdbc import STATE
from steadyworker.exports.spark.protocol import Database

_ROWS_A_RANGE = 250_000
_MOST_RANGES = 1000
_ASKS_FOR_CLIENT = 140000  # the first server version with `client_connection_check_interval`
_CONNECTION = {"connectTimeout": "10", "loginTimeout": "30", "tcpKeepAlive": "true"}
_SLACK = 30  # seconds from the server's limit to the driver's cancel, and from this cancel to the close of the socket
# Without these settings, a server that ends idle transactions would end the snapshot.
_HOLD = """SELECT set_config(name, '0', true) FROM pg_settings
           WHERE name IN ('idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')"""
_ASK = "SET LOCAL client_connection_check_interval = 1000"
_SNAPSHOT = f"SELECT pg_export_snapshot(), current_setting('server_version_num'), {STATE}"
_CANCEL = """SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
             WHERE application_name = current_setting('application_name') AND usename = current_user AND pid <> pg_backend_pid()"""
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


class Postgres:
    """
    One database, with one snapshot until `close`.

    Args:
        jvm: py4j's view of the JVM.
        source: A table of the database.
        password: The password for the login, or None.
        application: The `application_name` of all connections.

    Raises:
        Py4JError: The JDBC driver raised an error.
    """

    def __init__(self, jvm: Any, source: Database, password: str | None, application: str) -> None:
        self._jvm, self._url = jvm, f"jdbc:postgresql://{source.place}"
        self._properties = {
            **_CONNECTION,
            **source.properties,
            **({"user": source.user} if source.user else {}),
            **({"password": password} if password is not None else {}),
            "ApplicationName": application,
        }
        self._holder = self._connect()
        try:
            self._holder.setAutoCommit(False)
            for statement in (
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
                "SET LOCAL TimeZone = 'UTC'",
            ):
                self._execute(statement)
            self._rows(_HOLD)
            ((self._id, number, self.version, state),) = self._rows(_SNAPSHOT)
            self._asks = int(number) >= _ASKS_FOR_CLIENT and self._ask()
        except Py4JError:
            self.close()
            raise
        self.snapshot = f"postgresql://{source.place} {state}"

    def options(self, name: str, source: Database) -> dict[str, str]:
        """
        Return Spark's options to read a table of this database.

        Raises:
            ExportRejected: Spark cannot read a column exactly, or `partition_by` is unfit for ranges.
            Py4JError: The database refused a query about the table.
        """
        limit, timeout = math.ceil(source.statement_timeout), math.ceil(source.statement_timeout * 1000)
        self._execute(f"SET LOCAL statement_timeout = {timeout}")
        self._check(name, source)
        begin = [
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
            f"SET TRANSACTION SNAPSHOT '{self._id}'",
            f"SET LOCAL statement_timeout = {timeout}",
            "SET LOCAL TimeZone = 'UTC'",
        ]
        if self._asks:
            begin.append(_ASK)
        return {
            **self._properties,
            "url": self._url,
            "driver": DRIVERS["postgresql"].class_name,
            "dbtable": self._relation(source),
            "fetchsize": str(source.fetch_rows),
            "queryTimeout": str(limit + _SLACK),
            "socketTimeout": str(limit + 2 * _SLACK),
            "sessionInitStatement": "; ".join(begin),
            "preferTimestampNTZ": "true",
            **({"customSchema": source.schema} if source.schema else {}),
            **self._ranges(name, source),
        }

    def check(self, name: str, source: Database, kinds: StructType) -> None:
        """
        Check that Spark can read the table as these types without losing a digit.

        The check takes one pass over the table, unless the types of the columns already prove it.

        Raises:
            ExportRejected: A number has more digits after the point than the type of its column.
            Py4JError: The database refused a text that is not a number.
        """
        numbers = {}
        for column, kind, precision, scale in self._columns(source.relation):
            after = places(kinds).get(column)
            if after is not None and kind not in _WHOLE and (kind != "numeric" or not precision or scale > after):
                # A float is compared by its text, because a direct cast to numeric keeps only 15 digits.
                number = _quoted(column) + {"numeric": "", "money": "::numeric"}.get(kind, "::text::numeric")
                numbers[column] = after, f"max({number}::text) FILTER (WHERE {number} <> round({number}, {after}))"
        if not numbers:
            return
        checks = ", ".join(check for _, check in numbers.values())
        ((*found,),) = self._rows(f"SELECT {checks} FROM {source.relation}")  # noqa: S608 - the user's own SQL
        for (column, (after, _)), got in zip(numbers.items(), found, strict=True):
            if got is not None:
                needs = len(got.partition(".")[2])
                remedy = f'declare more, Jdbc(schema="{column} DECIMAL(38,{needs})"), or round it in a query, Jdbc(url, "SELECT …")'
                raise rounded(name, column, after, got, remedy)

    def cancel(self) -> None:
        """Cancel the queries of the job's connections, over a new connection, because the holder can be busy."""
        connection = self._connect()
        try:
            self._rows(_CANCEL, connection)
        finally:
            connection.close()

    def close(self) -> None:
        """Close the holder, which ends the snapshot."""
        with suppress(Py4JError):  # the connection is gone already
            self._holder.close()

    def _ask(self) -> bool:
        """Return whether a busy server can check that its client is connected; on some systems it cannot."""
        self._execute("SAVEPOINT asks")
        try:
            self._execute(_ASK)
        except Py4JError:
            self._execute("ROLLBACK TO SAVEPOINT asks")
            return False
        finally:
            self._execute("RELEASE SAVEPOINT asks")
        return True

    def _relation(self, source: Database) -> str:
        """Return the table with each `real` as PostgreSQL shows it; Spark would read 0.1 as 0.10000000149011612."""
        columns = self._columns(source.relation)
        short = {name for name, kind, *_ in columns if kind == "float4" and not declares(source.schema, name)}
        if not short:
            return source.relation
        chosen = (
            f"{_quoted(name)}{'::text::float8 AS ' + _quoted(name) if name in short else ''}" for name, *_ in columns
        )
        return f"(SELECT {', '.join(chosen)} FROM {source.relation}) AS exact"  # noqa: S608 - the user's own SQL

    def _check_finite(self, name: str, source: Database) -> None:
        """Refuse infinite dates, which Spark would read as dates of the years 1 or 9999; the check takes one pass."""
        dates = {
            column: (_HAS_INFINITE if kind.startswith("_") else "NOT isfinite({c})").format(c=_quoted(column))
            for column, kind, *_ in self._columns(source.relation)
            if kind.removeprefix("_") in _DATES and not declares(source.schema, column, "(?:STRING|VARCHAR)")
        }
        if not dates:
            return
        checks = ", ".join(f"bool_or({check})" for check in dates.values())
        ((*found,),) = self._rows(f"SELECT {checks} FROM {source.relation}")  # noqa: S608 - the user's own SQL
        infinite = [column for column, answer in zip(dates, found, strict=True) if answer == "t"]
        if infinite:
            column = _quoted(infinite[0])
            raise ExportRejected(
                f"Expected finite dates in table {name!r}, got infinity in {', '.join(map(repr, infinite))}, and Spark has no such "
                f"value: use a query that makes it NULL, Jdbc(url, \"SELECT nullif(nullif({column}, 'infinity'), '-infinity') AS {column}, …\"), "
                "or one without the column."
            )

    def _check(self, name: str, source: Database) -> None:
        """Refuse columns that Spark would round or change, unless the user's schema gives them a type."""
        self._check_finite(name, source)
        for column, kind, precision, _ in self._columns(source.relation):
            element = kind.removeprefix("_")
            why = _BENT.get(kind, _BENT.get(element, ""))
            if element == "numeric" and not precision:
                why = "without a precision Spark would round it to 18 places"
            remedy, enough = ("DECIMAL(20,4)", "") if kind == element else ("STRING", "STRING")  # `check` skips arrays
            if why and not declares(source.schema, column, enough):
                raise ExportRejected(
                    f"Expected columns that Spark reads as they are in table {name!r}, got {column!r}, {kind}: {why}. "
                    f'Declare the type, Jdbc(schema="{column} {remedy}"), or cast it in a query, Jdbc(url, "SELECT …").'
                )

    def _columns(self, relation: str) -> list[tuple[str, str, int, int]]:
        """Return the name, type, precision and scale of each column."""
        statement = self._holder.createStatement()
        try:
            found = statement.executeQuery(f"SELECT * FROM {relation} LIMIT 0").getMetaData()  # noqa: S608 - the user's own SQL
            return [
                (
                    str(found.getColumnName(at)),
                    str(found.getColumnTypeName(at)),
                    int(found.getPrecision(at)),
                    int(found.getScale(at)),
                )
                for at in range(1, found.getColumnCount() + 1)
            ]
        finally:
            statement.close()

    def _ranges(self, name: str, source: Database) -> dict[str, str]:
        """Return Spark's options for the ranges of the read, or no options if there is only one range."""
        column = source.partition_by
        rows = self._expected(source.relation)
        count = source.partitions or min(max(1, math.ceil(rows / _ROWS_A_RANGE)), _MOST_RANGES)
        if column is None or count == 1:
            return {}
        kinds = {known: kind for known, kind, *_ in self._columns(source.relation)}
        bounds = _BOUNDS.get(kinds.get(column, ""))
        if bounds is None:
            raise ExportRejected(
                f"Expected a column of integers, dates or timestamps as partition_by of table {name!r}, got {column!r}, "
                f"{kinds.get(column, 'no column of it')}: choose another."
            )
        ((lower, upper),) = self._rows(f"SELECT {bounds.format(c=_quoted(column))} FROM {source.relation}")  # noqa: S608
        if lower is None or upper is None or lower == upper:
            return {}
        return {"partitionColumn": column, "lowerBound": lower, "upperBound": upper, "numPartitions": str(count)}

    def _expected(self, relation: str) -> int:
        """Return the number of rows, as the database's planner estimates it."""
        rows = self._rows(f"EXPLAIN (FORMAT JSON) SELECT * FROM {relation}")  # noqa: S608
        return int(json.loads("".join(row[0] or "" for row in rows))[0]["Plan"]["Plan Rows"])

    def _connect(self) -> Any:
        properties = self._jvm.java.util.Properties()
        for key, value in self._properties.items():
            properties.setProperty(key, value)
        return self._jvm.org.postgresql.Driver().connect(self._url, properties)

    def _execute(self, statement: str) -> None:
        made = self._holder.createStatement()
        try:
            made.execute(statement)
        finally:
            made.close()

    def _rows(self, query: str, connection: Any = None) -> list[tuple[Any, ...]]:
        """Return all rows of a small result, with each value as text."""
        statement = (connection or self._holder).createStatement()
        try:
            result = statement.executeQuery(query)
            width, rows = range(1, result.getMetaData().getColumnCount() + 1), []
            while result.next():
                rows.append(tuple(result.getString(at) for at in width))
            return rows
        finally:
            statement.close()


def declares(schema: str | None, column: str, kind: str = "") -> bool:
    """Return whether a schema in DDL has a column of this name and type; without `kind`, of any type."""
    return re.search(rf"(?:^|,)\s*`?{re.escape(column)}`?\s+{kind}", schema or "", re.IGNORECASE) is not None


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
