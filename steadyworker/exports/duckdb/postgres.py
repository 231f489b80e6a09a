"""
Tables of PostgreSQL, copied into DuckDB in one snapshot of each database, which ends before the query begins.

DuckDB's own extension for PostgreSQL is downloaded at its first use, which is impossible on many hosts.
ADBC would be a second client library; psycopg is there for the ledger, and COPY with pyarrow's CSV reader is as fast.
A copy also ends the snapshot early: the database keeps no old rows for the time of the sort, and a query can read a table twice.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from steadyworker.errors import ExportRejected
from steadyworker.exports.duckdb.ddl import DATE, ReadColumn, columns_of, quoted
from steadyworker.exports.duckdb.tables import ArrowStream, add_stream
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.postgres import Databases, PostgresColumn, unreadable
from steadyworker.exports.sources import arrow

_BLOCK = 4 << 20
_MOST_DIGITS = 38
# For each type, the Arrow type in which the text of COPY is read, and DuckDB's expression for it.
_TYPES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "bool": ("bool", "{}"),
        "int2": ("int16", "{}"),
        "int4": ("int32", "{}"),
        "int8": ("int64", "{}"),
        "oid": ("int64", "{}"),
        "float4": ("double", "{}"),  # 0.1 as PostgreSQL shows it, and not 0.10000000149011612
        "float8": ("double", "{}"),
        "date": ("string", DATE),
        "time": ("time64[us]", "{}"),
        "timestamp": ("timestamp[us]", "{}"),
        "timestamptz": ("string", "CAST({} AS TIMESTAMPTZ)"),
        "bytea": ("string", "unhex(substr({}, 3))"),  # `\x` and two digits for each byte
    }
)


def copy_table(connection: Any, databases: Databases, name: str, source: Jdbc, failures: list[Exception]) -> None:
    """
    Copy a table into DuckDB.

    Args:
        connection: The connection of DuckDB.
        databases: The databases of the export.
        name: The table's name in the query.
        source: The table.
        failures: Receives the error that ends a copy.

    Raises:
        ExportRejected: The table has a column that cannot be read exactly, or PostgreSQL refused the query.
        ExportError: psycopg or the password is missing, or PostgreSQL does not respond.
    """
    with databases.reading(name, source) as held:
        columns = _columns(name, source, held.columns(source.relation))
    schema = arrow().schema([(column.name, column.read) for column in columns])
    copied = f"{name} in PostgreSQL"
    stream = ArrowStream(schema, lambda: _rows(databases, schema, name, source), failures)
    add_stream(connection, copied, columns, stream)
    connection.execute(f"CREATE TABLE {quoted(name)} AS SELECT * FROM {quoted(copied)}")  # noqa: S608 - quoted
    connection.execute(f"DROP VIEW {quoted(copied)}")


def _columns(name: str, source: Jdbc, found: Sequence[PostgresColumn]) -> list[ReadColumn]:
    """Return the columns to read; raise ExportRejected for a type that cannot be read exactly."""
    declared = {column.name: column for column in columns_of(source.schema)} if source.schema else {}
    pa = arrow()
    columns = []
    for each in found:
        if each.name in declared:
            columns.append(declared[each.name])
        elif each.kind in _TYPES:
            read, sql = _TYPES[each.kind]
            columns.append(ReadColumn(each.name, pa.type_for_alias(read), sql))
        elif each.kind == "numeric" and 0 < each.digits <= _MOST_DIGITS and 0 <= each.after <= each.digits:
            columns.append(ReadColumn(each.name, pa.decimal128(each.digits, each.after)))
        elif each.kind in {"numeric", "money", "timetz", "interval"} or each.kind.startswith("_"):
            why = "DuckDB has no type that holds each of its values"
            raise unreadable("DuckDB", name, each, why, "DECIMAL(20,4)")
        else:
            columns.append(ReadColumn(each.name, pa.string()))  # as PostgreSQL shows it
    return columns


def _rows(databases: Databases, schema: Any, name: str, source: Jdbc) -> Iterator[Any]:
    """Yield the rows of a table as Arrow batches."""
    import pyarrow.csv

    pa = arrow()
    convert = pyarrow.csv.ConvertOptions(
        column_types=schema,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["t"],
        false_values=["f"],
    )
    read = pyarrow.csv.ReadOptions(column_names=schema.names, block_size=_BLOCK)
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    query = f"COPY (SELECT * FROM {source.relation}) TO STDOUT (FORMAT csv, ENCODING 'UTF8')"  # noqa: S608 - the user's own SQL
    with databases.reading(name, source) as held, held.connection.cursor() as cursor, cursor.copy(query) as copy:
        body = _CopyBody(copy)
        first = next(body.blocks, b"")
        if not first:
            return
        body.left = first
        try:
            with pyarrow.csv.open_csv(io.BufferedReader(body, _BLOCK), read, parse, convert) as reader:
                yield from reader
        except pa.ArrowException as error:
            raise ExportRejected(
                f"Expected values in table {name!r} that fit their columns exactly, got: {error}: "
                'declare other types, Jdbc(schema="…"), or round in a query, Jdbc(url, "SELECT …").'
            ) from error


class _CopyBody(io.RawIOBase):
    """The bytes of a COPY, as a file."""

    def __init__(self, copy: Any) -> None:
        super().__init__()
        self.blocks: Iterator[bytes] = map(bytes, copy)
        self.left = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, and return the number of bytes; 0 at the end."""
        block = self.left or next(self.blocks, b"")
        size = min(len(buffer), len(block))
        buffer[:size], self.left = block[:size], block[size:]
        return size
