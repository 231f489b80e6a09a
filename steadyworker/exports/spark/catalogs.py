"""
Tables that Spark finds by their names in a catalog; of Iceberg and Delta, an export reads one snapshot.

| kind | the current snapshot | a snapshot has expired if |
|---|---|---|
| Iceberg | the branch `main` in the table's metadata table `refs` | its metadata table `snapshots` does not list it |
| Delta | the newest version in `DESCRIBE HISTORY` | Delta refuses to read it |

Both kinds read a snapshot by `VERSION AS OF`.
Delta always reads the newest version; it refuses an older one that was made before `delta.deletedFileRetentionDuration` (7 days) began.
The child stores the snapshots in the ledger when Spark has begun (`handle.py`); a later run gets them back in its plan.
Until then, no row of the export exists outside of its stage, so a run that dies before that leaves no trace of its snapshot.

A session of Spark loads its catalogs at their first use, and each job has a session of its own.
So a table that another program has just changed is not read in an older state of a cache.
"""

from __future__ import annotations

from collections.abc import Mapping

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.tables import Table

_DETAILS = "# Detailed Table Information"
_EMPTY, _NONE = "without a snapshot", "none"
# The conditions of Delta's errors for a version that it does not read any more.
_REFUSED = (
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION",
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_LOG_FILE_NOT_FOUND",
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
        self.snapshots: dict[str, str] = {}
        self.descriptions: list[str] = []

    def read(self, table: Table) -> DataFrame:
        """
        Return the table, in one snapshot if it is a table of Iceberg or Delta.

        Raises:
            ExportRejected: The table no longer has the snapshot that an earlier run has read.
            ExportError: A table of Delta has changed in this moment, after a long time.
        """
        name = table.sql
        found = self._known.get(name) or self.snapshots.get(name) or self._current(name)
        kind, _, version = found.partition(" ")
        self.descriptions.append(f"{kind} {table.name} {version}")
        if version == _NONE:
            return self._session.table(name)
        self.snapshots[name] = found
        if version == _EMPTY:
            return self._session.createDataFrame([], self._session.table(name).schema)
        if kind == "iceberg" and name in self._known:
            listed = self._session.table(f"{name}.snapshots")
            if not listed.where(f"snapshot_id = {int(version)}").take(1):
                raise _expired(table, found)
        try:
            frame = self._session.sql(f"SELECT * FROM {name} VERSION AS OF {int(version)}")  # noqa: S608 - quoted, and a number
            _ = frame.schema  # Spark Connect finds the table only now
        except (PySparkException, Py4JJavaError) as error:
            if not any(condition in str(error) for condition in _REFUSED):
                raise
            if name in self._known:
                raise _expired(table, found) from error
            raise ExportError(
                f"Expected the version {version} as the newest of {table.name}, got a newer one meanwhile: the next run reads that."
            ) from error
        return frame

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
        "got a table that no longer has it: it has expired. Replay the job, so that it reads the current snapshot, "
        "and keep snapshots for longer than a job can take."
    )
