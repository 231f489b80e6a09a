"""
Tables that Spark finds by their names in a catalog; of Iceberg and Delta, an export reads one snapshot.

| kind | the current snapshot | snapshots that the table still has |
|---|---|---|
| Iceberg | the branch `main` in the table's metadata table `refs` | its metadata table `snapshots` |
| Delta | the newest version in `DESCRIBE HISTORY` | `DESCRIBE HISTORY` |

Both kinds read a snapshot by `VERSION AS OF`.
Iceberg forgets a snapshot before it removes the snapshot's files.
Delta's `VACUUM` removes files of a version that the history still lists, so the export finds that out only when it reads.
The child stores the snapshots in the ledger when Spark has begun (`handle.py`); a later run gets them back in its plan.
Until then, no row of the export exists outside of its stage, so a run that dies before that leaves no trace of its snapshot.

A session of Spark loads its catalogs at their first use, and each job has a session of its own.
So a table that another program has just changed is not read in an older state of a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession

from steadyworker.errors import ExportRejected
from steadyworker.exports.tables import Table

_DETAILS = "# Detailed Table Information"
_GONE = "FILE_NOT_EXIST"  # the condition of Spark's error
_EMPTY, _NONE = "without a snapshot", "none"
_KEPT: Mapping[str, str] = MappingProxyType(
    {"iceberg": "SELECT snapshot_id AS version FROM {}.snapshots", "delta": "DESCRIBE HISTORY {}"}
)


class PinnedTables:
    """
    The tables of one export that have a name in a catalog.

    Args:
        session: The job's session.
        known: The snapshots that an earlier run or submission has read, as in `snapshots`.

    Attributes:
        snapshots: For each table of Iceberg or Delta, by its name in SQL, its kind and its snapshot: `iceberg 3051729675574597004`.
        descriptions: Kind, name and snapshot of each table, for people; `none` for a table of another kind.
    """

    def __init__(self, session: SparkSession, known: Mapping[str, str]) -> None:
        self._session, self._known = session, known
        self._tables: dict[str, Table] = {}
        self.snapshots: dict[str, str] = {}
        self.descriptions: list[str] = []

    def read(self, table: Table) -> DataFrame:
        """
        Return the table, in one snapshot if it is a table of Iceberg or Delta.

        Raises:
            ExportRejected: The table no longer has the snapshot that an earlier run has read.
        """
        name = table.sql
        found = self._known.get(name) or self.snapshots.get(name) or self._current(name)
        kind, _, version = found.partition(" ")
        if name in self._known and version.isdecimal():
            kept = self._session.sql(_KEPT[kind].format(name))
            if not kept.where(f"version = {int(version)}").take(1):
                raise _expired(table, found)
        self.descriptions.append(f"{kind} {table.name} {version}")
        if version == _NONE:
            return self._session.table(name)
        self.snapshots[name], self._tables[name] = found, table
        if version == _EMPTY:
            return self._session.createDataFrame([], self._session.table(name).schema)
        return self._session.sql(f"SELECT * FROM {name} VERSION AS OF {int(version)}")  # noqa: S608 - quoted, and a number

    def refuse_expired(self, error: Exception) -> None:
        """Raise ExportRejected if this error of Spark is that a file of a version of Delta is gone, as no retry brings it back."""
        text = str(error)
        for name, table in self._tables.items() if _GONE in text else ():
            if self.snapshots[name].startswith("delta "):
                row = self._session.sql(f"DESCRIBE DETAIL {name}").select("location").first()
                _, _, folder = str(row and row[0]).partition(":")
                if f"{folder.strip('/')}/" in text:
                    raise _expired(table, self.snapshots[name]) from error

    def _current(self, name: str) -> str:
        """Return the table's kind and its current snapshot."""
        kind = self._kind(name)
        if kind == "iceberg":
            row = self._session.sql(f"SELECT snapshot_id FROM {name}.refs WHERE name = 'main'").first()  # noqa: S608 - quoted
            return f"{kind} {row[0] if row else _EMPTY}"
        if kind == "delta":
            row = self._session.sql(f"DESCRIBE HISTORY {name} LIMIT 1").select("version").first()
            assert row is not None  # a table of Delta has a first version
            return f"{kind} {row[0]}"
        return f"{kind} {_NONE}"

    def _kind(self, name: str) -> str:
        rows = [(row[0], row[1]) for row in self._session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()]
        begin = max((place for place, (field, _) in enumerate(rows) if field == _DETAILS), default=len(rows))
        details = dict(rows[begin:])  # the rows before them are the table's columns
        return str(details.get("Provider") or details.get("Type") or "table").lower()


def _expired(table: Table, found: str) -> ExportRejected:
    kind, _, version = found.partition(" ")
    return ExportRejected(
        f"Expected the {kind} snapshot {version} of the table {table.name}, which the job's first run has begun to read, "
        "got a table without this snapshot, or without its files: it has expired. Replay the job, so that it reads the current snapshot, "
        "and keep snapshots for longer than a job can take."
    )
