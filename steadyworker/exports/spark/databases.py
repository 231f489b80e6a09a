"""
Tables of databases without a snapshot, read by Spark's tasks over JDBC: MySQL, MariaDB, and each whose driver the user names.

Spark must quote names as the database does, and chooses the quotes by the URL.
In a URL of MariaDB, Spark would quote as in standard SQL, and MariaDB then returns the names of the columns as their values.
So Spark gets a URL of MySQL, which MariaDB's driver accepts with `permitMysqlScheme`.
Other databases can also take a quoted name for a text, so each read begins with one row that shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DecimalType, StructField, StructType

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.postgres import Databases
from steadyworker.exports.spark.result import WHOLE, column

_ROWS_A_RANGE = 250_000
_MOST_RANGES = 1000
_LONG = 2**63 - 1
_GREGORIAN = "1582-10-15"  # a driver counts the days before it by another calendar than Spark
_REMEDY = "set spark.jars in spark_conf to the path of the driver's jar; then restart the worker"
# The drivers of MySQL and MariaDB have the same names; a driver ignores an option that it does not know.
_MYSQL: Mapping[str, str] = MappingProxyType(
    {
        # Otherwise the zone of the JVM moves the values.
        "connectionTimeZone": "UTC",
        "forceConnectionTimeZoneToSession": "true",
        "preserveInstants": "true",
        "tinyInt1isBit": "false",  # 5 in a tinyint(1) would become true
        "yearIsDateType": "false",
        "useCursorFetch": "true",  # otherwise MySQL's driver brings all rows into memory
    }
)


def read_other_table(session: SparkSession, databases: Databases, name: str, source: Jdbc) -> DataFrame:
    """
    Return a table of another database than PostgreSQL, without a snapshot.

    Raises:
        ExportRejected: Spark cannot read a column exactly, or does not quote names as the database does, or `partition_by` is unfit for ranges.
        ExportError: The JDBC driver or the password is missing.
    """
    assert source.driver is not None
    login = {"user": source.user, "password": databases.password(source)}
    mysql = source.url.startswith(("jdbc:mysql", "jdbc:mariadb:"))  # as Spark knows MySQL, so `mysql+srv` too
    options = {
        **{option: value for option, value in login.items() if value is not None},
        **(_MYSQL if mysql else {}),
        "url": _url_for_spark(source.url),
        "fetchsize": str(source.fetch_rows),
        "queryTimeout": str(math.ceil(source.statement_timeout)),
        "preferTimestampNTZ": "true",
        "dbtable": source.relation,
    }
    _check_quotes(session, name, source.driver, options)
    frame = load(session, source.driver, _REMEDY, options)
    for field in frame.schema.fields:
        if why := _bent(field, moves=not mysql):
            raise ExportRejected(
                f"Expected columns that Spark reads as they are in table {name!r}, got {field.name!r}, "
                f'{field.dataType.simpleString()}: {why}. Cast it to text in a query, Jdbc(url, "SELECT …").'
            )
    ranges = _ranges(session, name, source, frame.schema, options)
    if ranges:
        frame = load(session, source.driver, _REMEDY, options | ranges)
    return frame.select(*(_checked(field, name) for field in frame.schema.fields))


def load(session: SparkSession, driver: str, remedy: str, options: Mapping[str, str]) -> DataFrame:
    """Return what Spark's JDBC reader reads; raise ExportError with the remedy if Spark does not have the driver's class."""
    try:
        return session.read.format("jdbc").options(driver=driver, **options).load()
    except Exception as error:
        if f"ClassNotFoundException: {driver}" not in str(error):
            raise
        raise ExportError(f"Expected the JDBC driver {driver}, got no such class in Spark: {remedy}.") from error


def _check_quotes(session: SparkSession, name: str, driver: str, options: Mapping[str, str]) -> None:
    """Raise ExportRejected if the database reads a name in Spark's quotes as a text, so that each value would be the column's name."""
    probe = f"(SELECT CASE WHEN count(*) = 0 THEN 'value' END AS sw_probe FROM {options['dbtable']} WHERE 1 = 0) probe"  # noqa: S608 - the user's own SQL
    row = load(session, driver, _REMEDY, {**options, "dbtable": probe}).first()
    if row is None or str(row[0]).strip() != "value":  # a CHAR can have blanks at its end
        raise ExportRejected(
            f"Expected a database that takes names in Spark's quotes for table {name!r}, got one that reads them as texts: "
            "export the table with RowExport, whose rows are a cursor of the database's own client."
        )


def _url_for_spark(url: str) -> str:
    """Return a URL by which Spark finds the database's own quotes."""
    if not url.startswith("jdbc:mariadb:"):
        return url
    return url.replace("mariadb", "mysql", 1) + ("&" if "?" in url else "?") + "permitMysqlScheme"


def _bent(field: StructField, *, moves: bool) -> str:
    """Return why Spark, or the driver, would change values of the column; an empty text if they would not."""
    kind = field.dataType
    if isinstance(kind, DecimalType) and not 0 <= field.metadata["scale"] <= kind.scale:
        return f"Spark would round it to {kind.scale} places"
    if field.metadata.get("logical_time_type"):
        return "Spark can read it as a timestamp in 1970"
    if "binarylong" in field.metadata:
        return "Spark reads it as the text of its bits"
    if moves and kind.typeName().startswith("timestamp"):
        return "the zone of Spark's JVM would move it"
    return ""


def _checked(field: StructField, name: str) -> Column:
    """Return the column; for times without a zone, the expression raises an error for one that Spark would move by days."""
    value = column(field.name)
    if field.dataType.typeName() != "timestamp_ntz":
        return value
    error = F.raise_error(
        F.concat(
            F.lit(f"Expected times since {_GREGORIAN} in column {field.name!r} of table {name!r}, got about "),
            value.cast("string"),
            F.lit(', which Spark would move by days: cast it to text in a query, Jdbc(url, "SELECT …").'),
        )
    )
    return F.when(value < F.lit(_GREGORIAN).cast("timestamp_ntz"), error).otherwise(value).alias(field.name)


def _ranges(
    session: SparkSession, name: str, source: Jdbc, schema: StructType, options: Mapping[str, str]
) -> dict[str, str]:
    """Return Spark's options for the ranges of the read, or no options if there is only one range."""
    if (by := source.partition_by) is None:
        return {}
    kind = next((field.dataType for field in schema.fields if field.name == by), None)
    if kind is None or not (kind.typeName() in WHOLE or (isinstance(kind, DecimalType) and kind.scale == 0)):
        raise ExportRejected(
            f"Expected a column of whole numbers as partition_by of table {name!r}, got {by!r}, "
            f"{kind.simpleString() if kind else 'no column of it'}: choose another."
        )
    quoted = f"`{by}`" if options["url"].startswith("jdbc:mysql") else f'"{by}"'  # as Spark quotes it in the ranges
    count = "0" if source.partitions else "count(*)"
    bounds = f"(SELECT min({quoted}) low, max({quoted}) high, {count} many FROM {source.relation}) bounds"  # noqa: S608 - the user's own SQL
    assert source.driver is not None
    row = load(session, source.driver, _REMEDY, {**options, "dbtable": bounds}).first()
    assert row is not None  # of an aggregate
    low, high, many = row
    if low is None:
        return {}
    try:
        low, high = int(low), int(high)
    except (TypeError, ValueError, OverflowError):  # the values are not shown, because they are the user's data
        raise ExportRejected(
            f"Expected whole numbers as the smallest and largest {by!r} of table {name!r}, got {type(low).__name__} "
            f"and {type(high).__name__}: leave partition_by out, and one connection reads all rows."
        ) from None
    ranges = source.partitions or min(max(1, math.ceil(many / _ROWS_A_RANGE)), _MOST_RANGES)
    if ranges == 1 or low == high:
        return {}
    lower, upper = (str(max(-_LONG, min(bound, _LONG))) for bound in (low, high))  # Spark's bounds are longs
    return {"partitionColumn": by, "lowerBound": lower, "upperBound": upper, "numPartitions": str(ranges)}
