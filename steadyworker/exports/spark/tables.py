"""What a query may read, as a user names it and as the host gets it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from steadyworker.errors import ExportError
from steadyworker.exports.spark.jdbc import Jdbc
from steadyworker.exports.spark.protocol import Database, Source

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PACKED = frozenset({".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate"})
_FORMATS: Mapping[str, str] = MappingProxyType(
    {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
)


@dataclass(frozen=True, slots=True)
class Files:
    """
    A file, or a folder of files, as a table.

    Args:
        path: Parquet, CSV (with a header line) or JSON Lines; a folder may be partitioned (`month=2024-03/…`).
            Relative ones count from the worker's working directory.
        format: `parquet`, `csv` or `json`; by default what the first file's name ends in.
        schema: Column names and types as in SQL's DDL, `"id BIGINT, amount DECIMAL(12,2)"`.
            A number that has other digits than its DECIMAL, or is written in another way than `1234.50` where no `locale` is
            among the options, ends the export.
            Without one the types of CSV and JSON are found by reading all of it once (`reading.py` has the rules for CSV).
        options: Spark's options for the format, like `{"sep": ";"}`, or `{"encoding": "windows-1252"}` for CSV that is not UTF-8.
    """

    path: str | os.PathLike[str]
    format: Literal["parquet", "csv", "json"] | None = None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


Table = str | os.PathLike[str] | Files | Jdbc


def source(name: str, table: Table) -> Source | Database:
    """
    The table as the host reads it.

    Raises:
        ExportError: A name that SQL would have to quote, nothing at the path, or no format to be told from it.
    """
    if not _NAME.fullmatch(name):
        raise ExportError(f"Expected a table name of letters, digits and _, got {name!r}: rename it, in the query too.")
    return table.database() if isinstance(table, Jdbc) else source_of(name, table)


def source_of(name: str, table: str | os.PathLike[str] | Files) -> Source:
    """Files as the host reads them; raises as `source` does."""
    files = table if isinstance(table, Files) else Files(table)
    path = os.fspath(files.path)
    if "://" not in path:
        path = str(Path(path).resolve())
    return Source(
        path=path,
        format=files.format or _format(name, path),
        schema=files.schema,
        options=dict(files.options),
    )


def _format(name: str, path: str) -> str:
    """What the name of the first data file ends in."""
    file = Path(path) if "://" in path else _first(name, Path(path))
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() not in _PACKED]
    found = _FORMATS.get(suffixes[-1] if suffixes else "")
    if found is None:
        raise ExportError(
            f"Expected files that end in {', '.join(_FORMATS)} for table {name!r}, got {file.name!r} in {path}: "
            'say what it is, Files(path, format="csv").'
        )
    return found


def _first(name: str, path: Path) -> Path:
    """The first file that Spark would read: names that begin with `_` or `.` are hidden from it."""
    if path.is_file():
        return path
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if name[0] not in "_.")
        seen = sorted(name for name in files if name[0] not in "_.")
        if seen:
            return Path(folder, seen[0])
    what = "no files in it" if path.is_dir() else "nothing there"
    raise ExportError(f"Expected a file or a folder of files for table {name!r}, got {path}: {what}. Correct the path.")
