"""
What a query will read, as Spark has resolved it: plain files, and snapshots of Iceberg tables.

A check of the tables that the user named is not enough.
The query itself can name a path (``SELECT * FROM parquet.`/lake/t` ``).
A function of `Build` and a table of a catalog can name a path, too.
Spark's own `inputFiles()` is not enough either, because it leaves out subqueries and cached frames.
Also, `inputFiles()` lists files of a Delta table's folder even if the table is read correctly.
So this module reads the leaves of the analysed plan.
With Spark Connect, the plan is not in this process, and this module reads Spark's text of the plan.

| leaf | reader |
|---|---|
| `HadoopFsRelation` with a file index of Spark's own, `FileTable`, `HiveTableRelation` | Spark, as plain files |
| a relation or a file index of Delta or Hudi, a table of Iceberg | the library, by the table's log |

Rows that a `Build` function has already brought to the driver, or has checkpointed, no longer have such a leaf.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from steadyworker.exports.lakes import has_file, refuse_lakes

_FILES = "org.apache.spark.sql.execution.datasources."
_PLAIN = f"{_FILES}HadoopFsRelation"
_ICEBERG = "org.apache.iceberg.spark.source.SparkTable"
_RESULT = "_steadyworker_result"
_LENGTH = "spark.sql.maxMetadataStringLength"  # Spark cuts longer lists of paths
_LOCATION = re.compile(r"Location: (?:InMemoryFileIndex|CatalogFileIndex)\(\d+ paths\)\[(.*?)\], PartitionFilters: \[")
_NEXT = re.compile(r", (?=[A-Za-z][A-Za-z0-9+.-]*:/)")  # between two paths; a path, too, can have ", "
_EACH = 100  # so many paths of a relation are checked singly; if there are more paths, only their folders are checked


class Inputs:
    """
    The inputs of one query.

    Attributes:
        paths: The paths that Spark reads as plain files, without `file:`.
    """

    def __init__(self, paths: list[str], tables: list[Any]) -> None:
        self.paths = paths
        self._tables = [(str(table.name()), table, _snapshot_of(table)) for table in tables]

    def snapshots(self) -> list[str]:
        """
        Return a description of the snapshot of each Iceberg table.

        Call this after the read.

        If a table has got another snapshot since the query was analysed, the description names both snapshots.
        """
        found = []
        for name, table, first in self._tables:
            table.table().refresh()
            last = _current(table)
            read = first if table.snapshotId() is not None or first == last else f"{first}, or a later one up to {last}"
            found.append(f"iceberg {name} {read}")
        return found

    def refuse_lakes(self, session: SparkSession, *, here: bool) -> None:
        """
        Raise ExportRejected if Spark would read files of a Delta, Iceberg or Hudi table as plain files.

        Args:
            session: The job's session.
            here: True if Spark's driver sees the files of this machine.
        """

        @cache
        def has(folder: str, sign: str) -> bool:
            local = "://" not in folder
            return has_file(folder, sign) if local and here else _has(session, f"{'file://' * local}{folder}", sign)

        for path in self.paths:
            refuse_lakes(path, has)


def of_plan(result: DataFrame) -> Inputs:
    """Return the inputs of a query whose plan is in the driver of this process."""
    frame: Any = result._jdf  # noqa: SLF001 - py4j has no public way
    plan = frame.queryExecution().analyzed()
    paths, tables = [], []
    for tree in (plan, *_items(plan.subqueriesAll())):
        for leaf in _items(tree.collectLeaves()):
            match leaf.getClass().getSimpleName():
                case "LogicalRelation" if _class(leaf.relation()) == _PLAIN:
                    index = leaf.relation().location()
                    paths += _paths(index) if _class(index).startswith(_FILES) else []
                case "HiveTableRelation":
                    paths.append(_plain(unquote(leaf.tableMeta().location().toString())))  # a URI
                case "DataSourceV2Relation" if _class(leaf.table()) == _ICEBERG:
                    tables.append(leaf.table())
                case "DataSourceV2Relation" if _class(leaf.table()).startswith(_FILES):
                    paths += _paths(leaf.table().fileIndex())
    return Inputs([*dict.fromkeys(paths)], tables)


def of_text(result: DataFrame) -> Inputs:
    """Return the inputs of a query at a Spark Connect server, which shows no snapshots."""
    session = result.sparkSession
    before = session.conf.get(_LENGTH)
    session.conf.set(_LENGTH, str(1 << 20))
    result.createOrReplaceTempView(_RESULT)
    try:
        # This form leaves out no path of a relation; the other forms of EXPLAIN show only the first path.
        plan = session.sql(f"EXPLAIN SELECT * FROM {_RESULT}").first()  # noqa: S608 - a fixed name
    finally:
        session.catalog.dropTempView(_RESULT)
        session.conf.set(_LENGTH, before or "100")
    found = [_plain(path) for match in _LOCATION.finditer(plan[0] if plan else "") for path in _NEXT.split(match[1])]
    return Inputs([*dict.fromkeys(_few(found))], [])


def _paths(index: Any) -> list[str]:
    return _few([_plain(path.toString()) for path in _items(index.rootPaths())])


def _few(paths: list[str]) -> list[str]:
    return paths if len(paths) <= _EACH else [*{str(Path(path).parent).replace(":/", "://", 1) for path in paths}]


def _plain(path: str) -> str:
    """Return a local path without its scheme, and any other path unchanged."""
    return re.sub(r"^file:/+", "/", str(path)).rstrip("/")


def _items(found: Any) -> Iterator[Any]:
    """Yield the elements of a Scala sequence."""
    for number in range(found.size()):
        yield found.apply(number)


def _class(found: Any) -> str:
    return str(found.getClass().getName())


def _snapshot_of(table: Any) -> str:
    """Return the id of the snapshot that Iceberg reads: the snapshot that the query names, or the current snapshot."""
    named = table.snapshotId()
    return _current(table) if named is None else str(named)


def _current(table: Any) -> str:
    found = table.table().currentSnapshot()
    return "without a snapshot" if found is None else str(found.snapshotId())


def _has(session: SparkSession, folder: str, sign: str) -> bool:
    """Return whether a folder that only Spark sees has this entry; return False if Spark may not read the folder."""
    try:
        _ = session.read.format("text").load(f"{folder}/{sign}").schema  # this makes Spark read the path
    except (PySparkException, Py4JJavaError):
        return False
    return True
