"""
Tables of PostgreSQL, copied into DuckDB in one snapshot for each database.

::

    BEGIN REPEATABLE READ, READ ONLY ─ COPY (table) TO STDOUT ─ COPY (next table) … ─ ROLLBACK, before the query begins

DuckDB's own extension for PostgreSQL is downloaded at its first use, which is impossible on many hosts.
ADBC would be a second client library; psycopg is there for the ledger, and COPY with pyarrow's CSV reader is as fast.
A copy also ends the snapshot early: the database keeps no old rows for the time of the sort, and a query can read a table twice.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.duckdb.ddl import DATE, ReadColumn, columns_of, quoted
from steadyworker.exports.duckdb.tables import ArrowStream, add_stream
from steadyworker.exports.sources import arrow
from steadyworker.exports.spark.jdbc import STATE, read_password
from steadyworker.exports.spark.protocol import Database
from steadyworker.text.redaction import REDACTED

_BLOCK = 4 << 20
_MOST_DIGITS = 38
_NAMES = MappingProxyType({"connectTimeout": "connect_timeout"})  # from the JDBC driver's names to libpq's
# No retry helps: not supported, wrong data, wrong names or syntax.
_FINAL = ("0A", "21", "22", "42")
_PASSING = ("42501",)  # a permission can still be granted
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


class PostgresCopies:
    """
    The databases of one export.

    Args:
        uid: The job's uid, for the `application_name` of the connections.
        failures: Receives the error that ends a copy.
        cancels: Receives a function that ends a copy from another thread.

    Attributes:
        versions: The versions of the databases, by name.
    """

    def __init__(self, uid: str, failures: list[Exception], cancels: list[Callable[[], object]]) -> None:
        self._uid, self._failures, self._cancels = uid, failures, cancels
        self._opened: dict[tuple[Any, ...], Any] = {}
        self._snapshots: list[str] = []
        self._stack = ExitStack()
        self.versions: dict[str, str] = {}

    @property
    def snapshot(self) -> str | None:
        """A description of the databases' snapshots, or None if no table was copied."""
        return "; ".join(self._snapshots) or None

    def copy(self, connection: Any, name: str, source: Database) -> None:
        """
        Copy a table into DuckDB.

        Raises:
            ExportRejected: The table has a column that cannot be read exactly, or PostgreSQL refused the query.
            ExportError: psycopg or the password is missing, or PostgreSQL does not respond.
        """
        if source.place.startswith("/"):
            raise ExportRejected(
                f"Expected a table of PostgreSQL as table {name!r}, got one of SQLite: use RowExport with a cursor of sqlite3."
            )
        psycopg = _psycopg()
        password = read_password(source, os.environ)
        try:
            opened = self._open(psycopg, source, password)
            opened.execute(f"SET LOCAL statement_timeout = {int(source.statement_timeout * 1000)}")
            columns = _columns(opened, name, source)
            schema = arrow().schema([(column.name, column.read) for column in columns])
            copied = f"{name} in PostgreSQL"
            add_stream(
                connection,
                copied,
                columns,
                ArrowStream(schema, lambda: _rows(opened, schema, source, name), self._failures),
            )
            connection.execute(f"CREATE TABLE {quoted(name)} AS SELECT * FROM {quoted(copied)}")  # noqa: S608 - quoted
            connection.execute(f"DROP VIEW {quoted(copied)}")
        except Exception as error:
            cause: Any = next((failure for failure in self._failures if isinstance(failure, psycopg.Error)), error)
            if not isinstance(cause, psycopg.Error):
                raise
            self._failures.clear()
            text = str(cause).strip().partition("\n")[0].replace(password or REDACTED, REDACTED)
            state = cause.sqlstate or ""
            final = state.startswith(_FINAL) and state not in _PASSING
            raise (ExportRejected if final else ExportError)(
                f"Expected to read table {name!r} at {source.place}, got: {text}: correct the table, or see the database's log."
            ) from None  # the cause can have the connection's parameters

    def close(self) -> None:
        """End the snapshots."""
        self._stack.close()

    def _open(self, psycopg: Any, source: Database, password: str | None) -> Any:
        """Return the connection to a database, in a transaction with one snapshot."""
        key = source.place, source.user, source.password_env, source.password_file
        if key not in self._opened:
            place, _, database = source.place.partition("/")
            host, _, port = place.rpartition(":")
            given = {_NAMES.get(name, name): value for name, value in source.properties.items()}
            if given.pop("sslfactory", None):  # trust the authorities of the system
                given["sslrootcert"] = "system"
            path = given.pop("currentSchema", None)
            opened = psycopg.connect(
                host=host.strip("[]"),
                port=port,
                dbname=unquote(database),
                user=source.user,
                password=password,
                application_name=f"steadyworker {self._uid}"[:63],
                **{"connect_timeout": "10", **given},
            )
            self._stack.callback(opened.close)
            self._cancels.append(opened.cancel)
            opened.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            for setting, value in {
                "TimeZone": "UTC",
                "DateStyle": "ISO",
                "bytea_output": "hex",
                "extra_float_digits": "3",
                **({"search_path": path} if path else {}),
            }.items():
                opened.execute("SELECT set_config(%s, %s, true)", (setting, value))
            self.versions["postgres"], state = opened.execute(f"SELECT {STATE}").fetchone()
            self._snapshots.append(f"postgresql://{source.place} {state}")
            self._opened[key] = opened
        return self._opened[key]


def _columns(opened: Any, name: str, source: Database) -> list[ReadColumn]:
    """Return the columns of a table; raise ExportRejected for a type that cannot be read exactly."""
    found = opened.execute(f"SELECT * FROM {source.relation} LIMIT 0").description  # noqa: S608 - the user's own SQL
    kinds = dict(
        opened.execute("SELECT oid, typname FROM pg_type WHERE oid = ANY(%s)", ([each.type_code for each in found],))
    )
    declared = {column.name: column for column in columns_of(source.schema)} if source.schema else {}
    pa = arrow()
    columns = []
    for each in found:
        kind = kinds[each.type_code]
        digits, after = each.precision or 0, each.scale or 0
        if each.name in declared:
            columns.append(declared[each.name])
        elif kind in _TYPES:
            read, sql = _TYPES[kind]
            columns.append(ReadColumn(each.name, pa.type_for_alias(read), sql))
        elif kind == "numeric" and 0 < digits <= _MOST_DIGITS and 0 <= after <= digits:
            columns.append(ReadColumn(each.name, pa.decimal128(digits, after)))
        elif kind in {"numeric", "money", "timetz", "interval"} or kind.startswith("_"):
            raise ExportRejected(
                f"Expected columns that DuckDB reads as they are in table {name!r}, got {each.name!r}, {each.type_display}: "
                f'declare the type, Jdbc(schema="{each.name} DECIMAL(20,4)"), or cast it in a query, Jdbc(url, "SELECT …").'
            )
        else:
            columns.append(ReadColumn(each.name, pa.string()))  # as PostgreSQL shows it
    return columns


def _rows(opened: Any, schema: Any, source: Database, name: str) -> Iterator[Any]:
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
    with opened.cursor() as cursor, cursor.copy(query) as copy:
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


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise ExportError(
            "Expected psycopg for a table of PostgreSQL, got none: pip install 'steadyworker[postgres]'."
        ) from error
    return psycopg
