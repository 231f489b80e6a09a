"""
Lets Spark read a SQLite file in one snapshot: `sqlite3` copies the file in one read transaction, and Spark reads the copy.

Several connections to the file itself could not share a snapshot.
Each connection would block writers (in WAL mode, the checkpoint) while it reads.
A column gets the type that all its values have, because SQLite does not enforce declared types.
Of the declared types, only DECIMAL is used, because its values would otherwise be binary floats.
The export refuses a value with more digits than the DECIMAL, because Spark would round it.
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from pyspark.sql.types import ByteType, DataType, DecimalType, IntegerType, LongType, ShortType, StringType, StructType

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.spark.drivers import DRIVERS
from steadyworker.exports.spark.exact import places, rounded
from steadyworker.exports.spark.postgres import declares
from steadyworker.exports.spark.protocol import Database

_PAGES = 4096  # pages of the copy between two checks for a cancel
_BUSY = 30.0  # seconds to wait for a writer
_STEPS = 100_000  # SQLite's instructions (some milliseconds) between two checks for a cancel during a scan
_ROWS_A_RANGE = 250_000
_BITS: Mapping[type[DataType], int] = MappingProxyType({ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64})
_DECIMAL = re.compile(r"(?:decimal|numeric)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]+")
# From the types of a column's values, without NULL, to Spark's type.
# Integers and reals together have no type: as DOUBLE, 10 would become 10.0, and an integer above 2^53 would change.
_TYPES: Mapping[frozenset[str], str] = MappingProxyType(
    {
        frozenset(): "STRING",
        frozenset({"integer"}): "BIGINT",
        frozenset({"real"}): "DOUBLE",
        frozenset({"text"}): "STRING",
        frozenset({"blob"}): "BINARY",
    }
)


class Sqlite:
    """
    A copy of one SQLite file.

    Args:
        source: A table of the file.
        copy: The path of the copy; the caller removes its folder.
        check: A function that is called regularly during the copy and the scans; its exception ends the copy or the scan.
        now: The present time, as text.

    Raises:
        ExportError: The file does not exist, or is not a SQLite database.
    """

    def __init__(self, source: Database, copy: Path, check: Callable[[], None], now: str) -> None:
        self._copy, self._check = copy, check
        self._seen: dict[str, Mapping[str, frozenset[str]]] = {}
        self.version = sqlite3.sqlite_version
        self.snapshot = f"sqlite:{source.place} at {now}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            # Only this user can read the copy, because other users can perhaps read the folder, but not the database.
            os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            undo.callback(copy.unlink, missing_ok=True)
            self._fill(source, check)
            undo.pop_all()

    def _fill(self, source: Database, check: Callable[[], None]) -> None:
        try:
            with (
                closing(
                    sqlite3.connect(_uri(source.place, "ro"), uri=True, timeout=_BUSY, isolation_level=None)
                ) as there,
                closing(sqlite3.connect(self._copy, isolation_level=None)) as here,
            ):
                there.execute("BEGIN")
                there.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # this read begins the snapshot
                there.backup(here, pages=_PAGES, progress=lambda *_: check())
                here.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            raise ExportError(
                f"Expected a SQLite database at {source.place}, got {error}: correct sqlite:PATH, or the file's permissions."
            ) from error

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._copy.stat().st_size

    def options(self, name: str, source: Database) -> dict[str, str]:
        """
        Return Spark's options to read a table of this file.

        Raises:
            ExportError: SQLite cannot read the table.
            ExportRejected: A column has values of several types, or `partition_by` is not of integers.
        """
        with self._reading(name) as here:
            schema = self._schema(here, name, source)
            ranges = self._ranges(here, name, source)
        return {
            "url": f"jdbc:sqlite:{_uri(str(self._copy), 'ro')}&immutable=1",
            "driver": DRIVERS["sqlite"].class_name,
            "dbtable": source.relation,
            "fetchsize": str(source.fetch_rows),
            "customSchema": schema,
            **ranges,
        }

    def check(self, name: str, source: Database, kinds: StructType) -> None:
        """
        Check that Spark can read the table as these types without losing a digit.

        The check takes one pass over the table for each column of decimals, and for each column of integers.
        No pass is necessary for a column whose values SQLite has stored as integers.

        Raises:
            ExportRejected: A number has more digits than the type of its column, or a value does not fit an integer column.
        """
        with self._reading(name) as here:
            for column, after in places(kinds).items():
                kind = kinds[column].dataType
                if not self._seen[name][column] <= {"integer"} or not isinstance(kind, DecimalType | LongType):
                    _check(here, name, source, column, after, kind)
            for column, seen in self._seen[name].items():
                if "real" in seen and isinstance(kinds[column].dataType, StringType):
                    _check_text(here, name, source, column)

    def cancel(self) -> None:
        """Do nothing, because the copy and the scans check for a cancel themselves."""

    def close(self) -> None:
        """Remove the copy."""
        self._copy.unlink(missing_ok=True)

    @contextmanager
    def _reading(self, name: str) -> Iterator[sqlite3.Connection]:
        """Open the copy so that its scans can be cancelled, and count as progress."""
        try:
            with closing(sqlite3.connect(_uri(str(self._copy), "ro"), uri=True)) as here:
                here.set_progress_handler(self._ended, _STEPS)
                yield here
        except sqlite3.Error as error:
            self._check()
            raise ExportError(
                f"Expected a table or query that SQLite can read for {name!r}, got {error}: correct it."
            ) from error

    def _ended(self) -> bool:
        """Return whether SQLite must interrupt its scan; SQLite calls this regularly."""
        try:
            self._check()
        except ExportError:
            return True
        return False

    def _schema(self, here: sqlite3.Connection, name: str, source: Database) -> str:
        """Return the schema in DDL: the user's types, and a type for each other column."""
        columns = [column[0] for column in here.execute(f"SELECT * FROM {source.relation} LIMIT 0").description]  # noqa: S608 - the user's own SQL
        declared = _declared(here, source.relation)
        kinds = ", ".join(f"group_concat(DISTINCT typeof({_quoted(column)}))" for column in columns)
        found = here.execute(f"SELECT {kinds} FROM {source.relation}").fetchone()  # noqa: S608
        kinds_of = {
            column: frozenset((seen or "").split(",")) - {"null", ""}
            for column, seen in zip(columns, found, strict=True)
        }
        self._seen[name] = kinds_of
        types = [source.schema] if source.schema else []
        for column, seen in zip(columns, found, strict=True):
            if declares(source.schema, column):
                continue
            kind = _kind(kinds_of[column], declared.get(column, ""))
            if kind is None:
                raise ExportRejected(
                    f"Expected values of one kind in column {column!r} of table {name!r}, got {seen}: "
                    f'declare the type, Jdbc(schema="{column} STRING").'
                )
            types.append(f"`{column.replace('`', '``')}` {kind}")
        return ", ".join(types)

    def _ranges(self, here: sqlite3.Connection, name: str, source: Database) -> dict[str, str]:
        if source.partition_by is None:
            return {}
        column = _quoted(source.partition_by)
        lower, upper, count, kinds = here.execute(
            f"SELECT min({column}), max({column}), count(*), group_concat(DISTINCT typeof({column})) FROM {source.relation}"  # noqa: S608
        ).fetchone()
        if set((kinds or "").split(",")) - {"null", "", "integer"}:
            raise ExportRejected(
                f"Expected a column of integers as partition_by of table {name!r}, got {source.partition_by!r}, {kinds}: choose another."
            )
        parts = source.partitions or max(1, math.ceil(count / _ROWS_A_RANGE))
        if parts == 1 or lower is None or lower == upper:
            return {}
        bounds = {"lowerBound": str(lower), "upperBound": str(upper), "numPartitions": str(parts)}
        return {"partitionColumn": source.partition_by, **bounds}


def _check(here: sqlite3.Connection, name: str, source: Database, column: str, after: int, kind: DataType) -> None:
    """Raise ExportRejected for the first value of a column that does not fit this type."""
    c, bits = _quoted(column), _BITS.get(type(kind))
    # SQLite first selects the few suspect values, a hundred times faster than Python.
    rough = [
        f"typeof({c}) = 'real' AND {c} <> round({c}, {after})",
        f"typeof({c}) = 'text' AND ({c} GLOB '*[eE]*' OR instr({c}, '.') > 0 AND length(rtrim({c}, '0')) - instr({c}, '.') > {after})",
    ]
    if bits:
        # SQLite's JDBC driver cuts off the upper bits of a large integer, and reads a word as 0 and '1e3' as 1.
        rough = [f"typeof({c}) <> 'integer' OR {c} NOT BETWEEN {-(1 << bits - 1)} AND {(1 << bits - 1) - 1}"]
    rows = here.execute(f"SELECT {c} FROM {source.relation} WHERE {c} IS NOT NULL AND ({' OR '.join(rough)})")  # noqa: S608
    for (value,) in rows:
        number = None if bits and isinstance(value, str) and not _INTEGER.fullmatch(value) else _number(value)
        if bits and not (number is not None and _places(number) == 0 and -(1 << bits - 1) <= number < 1 << bits - 1):
            raise ExportRejected(
                f"Expected whole numbers that fit into {kind.simpleString().upper()}, the declared type of column {column!r} of table {name!r}, "
                f'got {value!r:.100}: declare what they are, Jdbc(schema="{column} DECIMAL(38,18)") or STRING.'
            )
        if not bits and number is not None and (needs := _places(number)) > after:
            remedy = (
                f'declare more, Jdbc(schema="{column} DECIMAL(38,{needs})"), or round it in a query, '
                f'Jdbc(url, "SELECT round({c}, {after}) AS {c}, …", schema=…)'
            )
            raise rounded(name, column, after, str(value), remedy)


def _check_text(here: sqlite3.Connection, name: str, source: Database, column: str) -> None:
    """Raise ExportRejected for the first float that SQLite's text with 15 digits changes; some floats need 17 digits."""
    c = _quoted(column)
    query = f"SELECT {c} FROM {source.relation} WHERE typeof({c}) = 'real' AND CAST(CAST({c} AS TEXT) AS REAL) <> {c} LIMIT 1"  # noqa: S608
    for (value,) in here.execute(query):
        raise ExportRejected(
            f"Expected numbers of at most 15 digits in column {column!r} of table {name!r}, because the column is declared as text "
            f"and SQLite writes no more digits, got {value!r}: declare DOUBLE, or write all digits in a query, "
            f"Jdbc(url, \"SELECT CASE typeof({c}) WHEN 'real' THEN printf('%!.17g', {c}) ELSE {c} END AS {c}, …\")."
        )


def _number(value: object) -> Decimal | None:
    """Return the value as a number, or None if it is not a finite number; Spark refuses such a value as a decimal."""
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _places(number: Decimal) -> int:
    """Return the number of digits after the point, without zeros at the end."""
    if not number:
        return 0
    _, digits, exponent = number.as_tuple()
    zeros = next(at for at, digit in enumerate(reversed(digits)) if digit)
    return max(0, -int(exponent) - zeros)


def _kind(seen: frozenset[str], declared: str) -> str | None:
    """Return Spark's type for values of these types, or None if there is no common type."""
    decimal = _DECIMAL.match(declared)
    if decimal and seen <= {"integer", "real", "text"}:
        return f"DECIMAL({decimal[1]},{decimal[2] or 0})"
    return _TYPES.get(seen)


def _declared(here: sqlite3.Connection, relation: str) -> dict[str, str]:
    """Return the declared type of each column of a table; return nothing for a query."""
    table = relation.rpartition(".")[2].strip('"').replace('""', '"')
    return (
        {} if relation.startswith("(") else dict(here.execute("SELECT name, type FROM pragma_table_info(?)", (table,)))
    )


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _uri(path: str, mode: str) -> str:
    return f"file:{quote(path)}?mode={mode}"
