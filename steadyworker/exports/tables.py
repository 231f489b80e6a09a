"""
The tables of a query, for Spark and for DuckDB.

`Files`, `Jdbc` and, for Spark alone, `Table` are for users; `FileSource` is the checked form of `Files`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.lakes import check_files

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PART = re.compile(r"[\w-]+|`(?:[^`]|``)+`")
_PARTS = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))+")
_VARIABLE = "${"  # Spark replaces a variable in a query by a setting's value, which an error could then show
_PACKED = frozenset({".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate"})
_FORMATS: Mapping[str, str] = MappingProxyType(
    {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
)


@dataclass(frozen=True, slots=True)
class Files:
    """
    A file, or a folder of files, as a table.

    Args:
        path: Parquet, CSV (with a header line) or JSON Lines; a folder can be partitioned (`month=2024-03/…`).
            A relative path starts at the worker's working directory.
        format: `parquet`, `csv` or `json`; the default is the format that the ending of the first file's name gives.
        schema: Column names and types as in SQL's DDL, such as `"id BIGINT, amount DECIMAL(12,2)"`.
            The export fails if a number has more digits than its DECIMAL.
            The export also fails if a number is not written like `1234.50`, or if a list, struct or map has a DECIMAL.
            Without a schema, all columns of CSV are text, and Spark reads all of a JSON table once to find the types.
        options: Spark's options for the format, like `{"sep": ";"}`, or `{"encoding": "windows-1252"}` for CSV that is not UTF-8.
    """

    path: str | os.PathLike[str]
    format: Literal["parquet", "csv", "json"] | None = None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


class FileSource(msgspec.Struct, frozen=True, kw_only=True, tag="files", tag_field="kind"):
    """A table of files: their path, and the options to read them (`Files` explains)."""

    path: str
    format: str
    schema: str | None = None
    options: dict[str, str] = {}


class Table(msgspec.Struct, frozen=True, tag="table", tag_field="kind"):
    """
    A table that Spark finds by its name in a catalog of its session, such as a table of Iceberg or Delta.

    Of Iceberg or Delta, the export reads one snapshot (for Delta: one version).
    The job's first run finds the table's current snapshot, and the ledger records it.
    Each later run of the job reads the recorded snapshot, although other programs change the table.
    If this snapshot has expired, the export fails, and the job becomes a dead letter.
    Iceberg reads a snapshot with the columns that the table had in it; so a new column appears after the table's next change.
    The manifest's `snapshot` names kind, table and snapshot; a table of another kind, or a view, has `none`.

    Args:
        name: The parts of the name, with a dot between two parts: `lake.shop.payments`, or `shop.payments` in the current catalog.
            A part in backquotes can have any character: ``delta.`/lake/payments` `` is the table in a folder of Delta.
            `spark_conf` configures the catalogs.

    Raises:
        ExportRejected: The name has a single part, a part that needs backquotes, or `${`.
    """

    name: str

    def __post_init__(self) -> None:
        if not _PARTS.fullmatch(self.name) or _VARIABLE in self.name:
            raise ExportRejected(
                f"Expected a name such as lake.shop.payments or shop.payments, without {_VARIABLE}, got {self.name!r:.200}: "
                "name the database too, and put a part with other characters than letters, digits, _ and - in backquotes."
            )

    @property
    def sql(self) -> str:
        """The name with each part in backquotes, the same for each spelling of the name."""
        return ".".join(part if part[0] == "`" else f"`{part}`" for part in _PART.findall(self.name))


CommonTable = str | os.PathLike[str] | Files | Jdbc
"""A table that Spark and DuckDB can read; Spark alone also reads a `Table`."""


def source(name: str, table: CommonTable) -> FileSource | Jdbc:
    """
    Return the table in its checked form.

    Raises:
        ExportRejected: SQL would have to quote the name, the path's ending names no format,
            the path belongs to a table of Delta, Iceberg or Hudi, or only Spark can read the table.
        ExportError: The path has no file.
    """
    check_table_name(name)
    if isinstance(table, Table) or (isinstance(table, Jdbc) and table.driver):
        got = table.place if isinstance(table, Jdbc) else table
        raise ExportRejected(
            f"Expected files or a table of PostgreSQL as table {name!r}, got {got}: export it with SparkExport."
        )
    return table if isinstance(table, Jdbc) else source_of(name, table)


def check_table_name(name: str) -> None:
    """Raise ExportRejected if SQL would have to quote the name."""
    if not _NAME.fullmatch(name):
        raise ExportRejected(
            f"Expected a table name of letters, digits and _, got {name!r}: rename it, in the query too."
        )


def source_of(name: str, table: str | os.PathLike[str] | Files) -> FileSource:
    """Return the files in their checked form; raise the same errors as `source`."""
    files = table if isinstance(table, Files) else Files(table)
    path = os.fspath(files.path)
    if "://" not in path:
        path = str(Path(path).resolve())
        check_files(path)  # the host checks a URL
    return FileSource(
        path=path,
        format=files.format or _format(name, path),
        schema=files.schema,
        options=dict(files.options),
    )


def _format(name: str, path: str) -> str:
    """Return the format of the first data file's ending."""
    file = Path(path) if "://" in path else _first(name, Path(path))
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() not in _PACKED]
    found = _FORMATS.get(suffixes[-1] if suffixes else "")
    if found is None:
        raise ExportRejected(
            f"Expected files that end in {', '.join(_FORMATS)} for table {name!r}, got {file.name!r} in {path}: "
            'name the format, Files(path, format="csv").'
        )
    return found


def data_files(path: Path) -> Iterator[Path]:
    """Yield the files that Spark would read, in the order of their names; Spark ignores names that begin with `_` or `.`."""
    if path.is_file():
        yield path
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if name[0] not in "_.")
        yield from (Path(folder, name) for name in sorted(files) if name[0] not in "_.")


def _first(name: str, path: Path) -> Path:
    for file in data_files(path):
        return file
    what = "which has no files" if path.is_dir() else "which does not exist"
    raise ExportError(f"Expected a file or a folder of files for table {name!r}, got {path}, {what}: correct the path.")
