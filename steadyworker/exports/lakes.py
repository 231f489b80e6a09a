"""
Tables of Delta, Iceberg and Hudi: folders of data files, with a log that lists the valid files.

An export that reads only the data files contains rows that were deleted or replaced.
So an export refuses each path to a folder or file of such a table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from steadyworker.errors import ExportRejected

_SIGNS = (
    ("Delta", "_delta_log"),
    ("Hudi", ".hoodie"),
    # Other programs also use a folder `metadata`; only Iceberg numbers its files there: `00001-<uuid>` or `v1`.
    ("Iceberg", "metadata/[0-9][0-9][0-9][0-9][0-9]-*.metadata.json"),
    ("Iceberg", "metadata/v[0-9]*.metadata.json"),
)
_BELOW = (
    "*/",
    "*/*/",
)  # for example the table of one region; a reader of the outer folder also reads the table's files


def check_files(path: str | os.PathLike[str]) -> None:
    """
    Check that a file or folder does not belong to a table of Delta, Iceberg or Hudi.

    Raises:
        ExportRejected: The path belongs to such a table, or a folder up to two levels below the path has such a table.
            The message has the line of Python that reads the table.
    """
    refuse_lakes(str(Path(path).resolve()), has_file)


def has_file(folder: str, sign: str) -> bool:
    """Return whether a local folder has an entry of this name or pattern."""
    return any(Path(folder).glob(sign))


def refuse_lakes(path: str, has: Callable[[str, str], bool]) -> None:
    """
    Raise ExportRejected if a path, one of its parents, or a folder up to two levels below it is the folder of a table.

    Args:
        path: An absolute path, or a URL.
        has: Returns True if a folder has an entry of this name or pattern.
    """
    scheme, mark, rest = path.rpartition("://")
    parts = rest.rstrip("/").split("/")
    for inside in ("/".join(parts[:length]) for length in range(len(parts), 0, -1)):
        folder = scheme + mark + inside
        for form, sign in _SIGNS:
            if inside and has(folder, sign):
                raise ExportRejected(
                    f"Expected plain files, got {path} of the {form} table {folder} (it has {sign}): {_remedy(form, folder)}"
                )
    for form, sign in _SIGNS:
        for below in _BELOW:
            if has(path, below + sign):
                table = f"{path.rstrip('/')}/{below.rstrip('/')}"
                raise ExportRejected(
                    f"Expected plain files, got {path}, in which {table} is a {form} table (it has {sign}): {_remedy(form, table)}"
                )


def _remedy(form: str, table: str) -> str:
    line = f"spark.read.format({json.dumps(form.lower())}).load({json.dumps(table, ensure_ascii=False)})"
    name = "delta.`" + table.replace("`", "``") + "`" if form == "Delta" else "catalog.database.table"
    return (
        "its files hold deleted rows too. "
        f"Export the table with SparkExport, by its name, Table({json.dumps(name, ensure_ascii=False)}), "
        f"or with Build('module:function'), where the function returns {line}."
    )
