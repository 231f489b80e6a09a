"""
SQLite's file read by Spark, in one moment: a copy that `sqlite3` makes in one read transaction, and any number of readers of it.

Connections to the file itself could share no moment, and each would hold writers up (or, in WAL mode, the checkpoint) for as
long as it reads.
A column gets the type that all its values have, for SQLite holds none to what was declared; only a declared DECIMAL is taken
at its word, because its values are binary floats otherwise: but not by a value that has other digits, which Spark would round.
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

from steadyworker.errors import ExportError
from steadyworker.exports.spark.drivers import DRIVERS
from steadyworker.exports.spark.exact import places, rounded
from steadyworker.exports.spark.postgres import says
from steadyworker.exports.spark.protocol import Database

_PAGES = 4096  # between two looks whether the job was cancelled
_BUSY = 30.0  # seconds that a writer is waited for
_STEPS = 100_000  # of SQLite's machine between two of them while it looks for types and bounds: some milliseconds
_ROWS_A_RANGE = 250_000
_BITS: Mapping[type[DataType], int] = MappingProxyType({ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64})
_DECIMAL = re.compile(r"(?:decimal|numeric)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]+")
# What the values of a column are -> its type; NULLs count for nothing.
# Integers and reals are a mixture: as DOUBLE a 10 would become 10.0, and one above 2^53 another number.
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
    A copy of one file.

    Args:
        source: A table of it.
        copy: Where the copy is made; who gives the folder removes it.
        check: Called now and then, while it is copied and while it is looked through; what it raises ends that.
        now: The time, as text.

    Raises:
        ExportError: No such file, or none of SQLite's.
    """

    def __init__(self, source: Database, copy: Path, check: Callable[[], None], now: str) -> None:
        self._copy, self._check = copy, check
        self._seen: dict[str, Mapping[str, frozenset[str]]] = {}
        self.version = sqlite3.sqlite_version
        self.snapshot = f"sqlite:{source.place} at {now}"
        copy.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo:
            # All of the database, in a folder that others may read: its own permissions were meant for somebody.
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
                there.execute(
                    "SELECT count(*) FROM sqlite_schema"
                ).fetchone()  # begins to read: nothing moves from here on
                there.backup(here, pages=_PAGES, progress=lambda *_: check())
                here.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            raise ExportError(
                f"Expected a SQLite database at {source.place}, got {error}: correct sqlite:PATH, or the file's permissions."
            ) from error

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._copy.stat().st_size

    def options(self, name: str, source: Database) -> dict[str, str]:
        """
        Spark's options to read one of its tables.

        Raises:
            ExportError: No such table, a column of values of several kinds, or no range to be cut.
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
        Whether the table can be read as these types without a digit being lost: one pass for each column of numbers that are no integers.

        Raises:
            ExportError: A number has more digits after the point than its column is to have, or is none or too large for integers.
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
        """What works on a file asks for itself."""

    def close(self) -> None:
        """Remove the copy."""
        self._copy.unlink(missing_ok=True)

    @contextmanager
    def _reading(self, name: str) -> Iterator[sqlite3.Connection]:
        """The copy; what looks through all of it can be cancelled, and counts as movement."""
        try:
            with closing(sqlite3.connect(_uri(str(self._copy), "ro"), uri=True)) as here:
                here.set_progress_handler(self._ended, _STEPS)
                yield here
        except sqlite3.Error as error:
            self._check()
            raise ExportError(
                f"Expected what SQLite can read as table {name!r}, got {error}: correct the query."
            ) from error

    def _ended(self) -> bool:
        """What SQLite asks: whether to interrupt what it does."""
        try:
            self._check()
        except ExportError:
            return True
        return False

    def _schema(self, here: sqlite3.Connection, name: str, source: Database) -> str:
        """A type for each column that nobody has given one."""
        columns = [column[0] for column in here.execute(f"SELECT * FROM {source.relation} LIMIT 0").description]  # noqa: S608 - the user's own
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
            if says(source.schema, column):
                continue
            kind = _kind(kinds_of[column], declared.get(column, ""))
            if kind is None:
                raise ExportError(
                    f"Expected values of one kind in column {column!r} of table {name!r}, got {seen}: "
                    f'say what they are, Jdbc(schema="{column} STRING").'
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
            raise ExportError(
                f"Expected a column of integers as partition_by of table {name!r}, got {source.partition_by!r}, {kinds}: choose another."
            )
        parts = source.partitions or max(1, math.ceil(count / _ROWS_A_RANGE))
        if parts == 1 or lower is None or lower == upper:
            return {}
        bounds = {"lowerBound": str(lower), "upperBound": str(upper), "numPartitions": str(parts)}
        return {"partitionColumn": source.partition_by, **bounds}


def _check(here: sqlite3.Connection, name: str, source: Database, column: str, after: int, kind: DataType) -> None:
    """Raise for the first value of a column that this type does not hold."""
    c, bits = _quoted(column), _BITS.get(type(kind))
    # In few of the rows, if any: SQLite makes the first, rough choice, a hundred times faster than Python.
    rough = [
        f"typeof({c}) = 'real' AND {c} <> round({c}, {after})",
        f"typeof({c}) = 'text' AND ({c} GLOB '*[eE]*' OR instr({c}, '.') > 0 AND length(rtrim({c}, '0')) - instr({c}, '.') > {after})",
    ]
    if bits:
        # Its driver cuts off what an integer has no bits for, and makes 0 of a word and 1 of '1e3'.
        rough = [f"typeof({c}) <> 'integer' OR {c} NOT BETWEEN {-(1 << bits - 1)} AND {(1 << bits - 1) - 1}"]
    rows = here.execute(f"SELECT {c} FROM {source.relation} WHERE {c} IS NOT NULL AND ({' OR '.join(rough)})")  # noqa: S608
    for (value,) in rows:
        number = None if bits and isinstance(value, str) and not _INTEGER.fullmatch(value) else _number(value)
        if bits and not (number is not None and _places(number) == 0 and -(1 << bits - 1) <= number < 1 << bits - 1):
            raise ExportError(
                f"Expected whole numbers that {kind.simpleString().upper()} holds in column {column!r} of table {name!r}, as it is "
                f'declared, got {value!r:.100}: declare what they are, Jdbc(schema="{column} DECIMAL(38,18)") or STRING.'
            )
        if not bits and number is not None and (needs := _places(number)) > after:
            remedy = (
                f'declare more, Jdbc(schema="{column} DECIMAL(38,{needs})"), or round it in a query, '
                f'Jdbc(url, "SELECT round({c}, {after}) AS {c}, …", schema=…)'
            )
            raise rounded(name, column, after, str(value), remedy)


def _check_text(here: sqlite3.Connection, name: str, source: Database, column: str) -> None:
    """Raise for the first number whose text is another one: SQLite writes 15 digits of it, and some have 17."""
    c = _quoted(column)
    query = f"SELECT {c} FROM {source.relation} WHERE typeof({c}) = 'real' AND CAST(CAST({c} AS TEXT) AS REAL) <> {c} LIMIT 1"  # noqa: S608
    for (value,) in here.execute(query):
        raise ExportError(
            f"Expected numbers that SQLite writes with 15 digits in column {column!r} of table {name!r}, which is declared as text, "
            f"got {value!r}: declare DOUBLE, or write all digits in a query, "
            f"Jdbc(url, \"SELECT CASE typeof({c}) WHEN 'real' THEN printf('%!.17g', {c}) ELSE {c} END AS {c}, …\")."
        )


def _number(value: object) -> Decimal | None:
    """The number that is shown; None for what is none, which Spark refuses as a decimal."""
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _places(number: Decimal) -> int:
    """Digits after the point, without zeros at the end."""
    if not number:
        return 0
    _, digits, exponent = number.as_tuple()
    zeros = next(at for at, digit in enumerate(reversed(digits)) if digit)
    return max(0, -int(exponent) - zeros)


def _kind(seen: frozenset[str], declared: str) -> str | None:
    """Spark's type for what is there; None for a mixture."""
    decimal = _DECIMAL.match(declared)
    if decimal and seen <= {"integer", "real", "text"}:
        return f"DECIMAL({decimal[1]},{decimal[2] or 0})"
    return _TYPES.get(seen)


def _declared(here: sqlite3.Connection, relation: str) -> dict[str, str]:
    """Column to declared type; nothing for a query."""
    table = relation.rpartition(".")[2].strip('"').replace('""', '"')
    return (
        {} if relation.startswith("(") else dict(here.execute("SELECT name, type FROM pragma_table_info(?)", (table,)))
    )


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _uri(path: str, mode: str) -> str:
    return f"file:{quote(path)}?mode={mode}"
