"""One connection of DuckDB: its settings, the sorted query, and the meaning of its errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.duckdb.ddl import quoted
from steadyworker.exports.sorting import Key, sort_keys
from steadyworker.exports.sources import arrow
from steadyworker.text.redaction import redact
from steadyworker.units import size_text

# Bytes: with 500 MB for 3 million rows of nine columns, two threads took 710 to 790 MB in all, and one takes 650 in the same time.
_FIRST, _OF_A_THREAD = 256_000_000, 128_000_000
_CELLS, _FEWEST, _MOST = 500_000, 1_024, 16_384  # cells and rows of a batch
# Texts, names and comments are skipped, and so are casts (`::`); `a:b` in a struct or a slice is no parameter.
_PARAMETER = re.compile(
    r"""[eE]'(?:\\.|''|[^'\\])*'|'(?:''|[^'])*'|"(?:""|[^"])*"|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$|::"""
    r"""|(?<![\w'")\]}]):([A-Za-z_]\w*)""",
    re.DOTALL,
)
_NESTED = frozenset({"list", "array", "struct", "map"})
_UNSORTED = _NESTED | {"blob"}  # no tie-breakers, for Spark as for DuckDB
# Their Arrow forms lose a part of the value, or no format can write them.
_REFUSED = frozenset({"time with time zone", "interval", "bit", "bignum", "uhugeint", "variant", "union", "geometry"})


def duckdb() -> Any:
    """
    Import DuckDB and return it.

    Raises:
        ExportError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise ExportError("Expected duckdb for DuckDBExport, got none: pip install 'steadyworker[duckdb]'.") from error
    return duckdb


def connect(spill: Path, memory_limit: int, threads: int | None) -> Any:
    """
    Return a connection to an empty database in memory.

    Args:
        spill: The folder for what does not fit into the memory.
        memory_limit: The bytes of DuckDB's buffers.
        threads: The number of threads; None for as many as there are processors, but one for each 128 MB above the first 256 MB.
    """
    connection = duckdb().connect(
        ":memory:",
        config={
            "memory_limit": f"{memory_limit}B",
            "temp_directory": str(spill),
            # No code and no setting comes from the network, from the user's home, or from the caller's variables.
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_persistent_secrets": "false",
            "python_enable_replacements": "false",
        },
    )
    (processors,) = connection.execute("SELECT current_setting('threads')").fetchone()
    connection.execute(f"SET threads = {threads or max(1, min(processors, (memory_limit - _FIRST) // _OF_A_THREAD))}")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = true")  # without it, DuckDB counts no progress
    connection.execute("SET enable_progress_bar_print = false")
    return connection


def lock(connection: Any, paths: Sequence[str]) -> None:
    """Let the query read only these files, write none, and change no setting."""
    connection.execute(f"SET allowed_paths = [{', '.join(map(literal, paths))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


class SortedQuery:
    """
    A query, checked and sorted; the connection has its tables.

    Attributes:
        columns: The names of the columns.
        keys: The places of the columns by which the rows are sorted: those of `order_by`, and others that decide ties.

    Raises:
        ExportRejected: The query is not one SELECT, lacks a parameter, or has columns that an export cannot sort or write.
    """

    def __init__(self, connection: Any, text: str, params: Mapping[str, object], order_by: Sequence[str]) -> None:
        body = _PARAMETER.sub(lambda found: f"${found[2]}" if found[2] else found[0], text).strip().rstrip(";")
        statements = connection.extract_statements(body)
        if len(statements) != 1 or statements[0].type != duckdb().StatementType.SELECT:
            raise ExportRejected(f"Expected one query, got {text!r:.200}: write one SELECT.")
        named = sorted(statements[0].named_parameters)
        for name in named:
            if name not in params:
                raise ExportRejected(
                    f"Expected a value for each parameter of the query, got none for :{name}: add it to params=."
                )
        self._connection, self._params = connection, {name: params[name] for name in named} or None
        found = connection.sql(body, params=self._params)
        self._kinds = dict(zip(found.columns, found.types, strict=True))
        self.columns = tuple(found.columns)
        others = [name for name, kind in self._kinds.items() if kind.id not in _UNSORTED]
        keys = sort_keys(order_by, self.columns, others)
        self._check(keys)
        self.keys = [self.columns.index(key.name) for key in keys]
        self._sql = f"SELECT * FROM (\n{body}\n) ORDER BY {', '.join(map(self._ordered, keys))}"  # noqa: S608 - the user's own SQL

    def read(self) -> Any:
        """Run the query, and return an Arrow reader of its sorted rows."""
        rows = max(_FEWEST, min(_MOST, _CELLS // len(self._kinds)))
        return self._connection.sql(self._sql, params=self._params).to_arrow_reader(rows)

    def _check(self, keys: Sequence[Key]) -> None:
        for name, kind in self._kinds.items():
            if refused := _refused(kind):
                raise ExportRejected(
                    f"Expected columns that a file can hold exactly, got {name!r} with the type {refused}: "
                    f"cast it in the query, CAST({name} AS VARCHAR)."
                )
        for name, _ in keys:
            if self._kinds[name].id == "map":
                raise ExportRejected(
                    f"Expected columns with an order in order_by, got {name!r}, a map: choose another."
                )

    def _ordered(self, key: Key) -> str:
        """Return the key in SQL: NULL is the smallest value; DuckDB would sort an ENUM by its declaration, and not by its texts."""
        column = quoted(key.name)
        column = f"CAST({column} AS VARCHAR)" if self._kinds[key.name].id == "enum" else column
        return f"{column} {'DESC NULLS LAST' if key.descending else 'ASC NULLS FIRST'}"


def check_finite(batch: Any) -> None:
    """Raise ExportRejected for an infinite date or moment, also inside of a list or struct; only DuckDB and PostgreSQL have them."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if _has_infinite(column):
            raise ExportRejected(
                f"Expected finite dates in {name!r}, got infinity: make it NULL in the query, "
                f"CASE WHEN isfinite({name}) THEN {name} END."
            )


def _has_infinite(column: Any) -> bool:
    pa = arrow()
    kind = column.type
    if pa.types.is_struct(kind):
        return any(map(_has_infinite, column.flatten()))
    if pa.types.is_map(kind):
        return _has_infinite(column.keys) or _has_infinite(column.items)
    if pa.types.is_nested(kind):
        return _has_infinite(column.flatten())
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return False
    most = (1 << (kind.bit_width - 1)) - 1
    found = pa.compute.min_max(column.view(f"int{kind.bit_width}")).as_py()
    return bool(found["max"] == most or found["min"] == -most)


def failure(error: BaseException, spill: Path, memory_limit: int) -> ExportError:
    """Return the export's error for an error of DuckDB, pyarrow or Python."""
    if isinstance(error, ExportError):
        return error
    duck, text = duckdb(), redact(_useful(error))
    if isinstance(error, duck.OutOfMemoryException):
        return ExportError(
            f"Expected the query to fit into {size_text(memory_limit)} of memory and the disk of {spill}, got: {text}: "
            "raise memory_limit=, lower threads=, or free disk space."
        )
    if isinstance(error, duck.IOException):
        return ExportError(
            f"Expected to read the tables, and to write what the sort cannot hold in memory to {spill}, got: {text}: "
            "free disk space, or correct the files."
        )
    if isinstance(error, duck.PermissionException):
        return ExportRejected(
            f"Expected a query that reads only its tables, got: {text}: name the file in tables=, and use that name."
        )
    final = isinstance(error, duck.Error | arrow().ArrowException) and not isinstance(error, duck.InternalException)
    kind = " (rejected)" if final else f": {type(error).__name__}"
    return (ExportRejected if final else ExportError)(f"DuckDB did not make the export{kind}: {text}")


def literal(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _refused(kind: Any) -> str:
    """Return the name of a type that an export refuses, in the type or inside of it; an empty text if there is none."""
    if kind.id in _REFUSED:
        return str(kind)
    inside = [child for _, child in kind.children if hasattr(child, "id")] if kind.id in _NESTED else []
    return next(filter(None, map(_refused, inside)), "")


def _useful(error: BaseException) -> str:
    """Return the first paragraph of a text, without the excerpt of the query, in one line."""
    return " ".join(str(error).partition("\n\n")[0].split()) or type(error).__name__
