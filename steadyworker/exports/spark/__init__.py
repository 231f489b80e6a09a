"""
Heavy exports: a job runs `SparkExport`, and the Spark host runs Spark for this export.

::

    job's child                     worker process                  Spark host (own session, own folder)
    ───────────                     ──────────────                  ────────────────────────────────────
    SparkExport.write ── plan ────→ SparkService ── Run ──────────→ Engine: read, query, sort, write Parquet parts
      ←── started, progress, done ─────────────────────────────────── Tasks: complete tasks
      writing.py: parts → file        starts, watches, replaces it    JVM: all of Spark, or the driver of a cluster,
      publish (commit.py)                                             or no JVM with a Spark Connect server

| file | runs in | content |
|---|---|---|
| `export.py`, `build.py` | child | `SparkExport`: plan, events, parts to one file, manifest; `Build` |
| `handle.py` | child | names in the ledger, by which the next run finds Spark jobs that this run has left |
| `installed.py` | worker process | the entry point: Spark's options, and the start of the service |
| `service.py`, `hosts.py` | worker process | `SparkService`: start, end and replacement of hosts; assignment of jobs to hosts |
| `process.py` | worker process | one host: its process, its folder, its death |
| `submitted.py` | worker process | the settings that `spark-submit` has given, if it runs the worker |
| `settings.py`, `java.py` | worker process | Spark's settings, suitable Java, the JDBC driver |
| `address.py` | worker process, host | a Spark Connect server's address, and its form without secrets |
| `host.py` | host | the process: descriptors, its lifeline to the worker process, commands |
| `engine.py` | host | the engine with a Spark driver: starts jobs, watches their tasks, ends them |
| `tasks.py` | host | the tasks of a job, the files of its parts, and whether it still moves |
| `connect.py`, `server.py` | host | the engine for a Spark Connect server, with the same methods; the meaning of the server's errors |
| `sharing.py` | host | the check that the executors can write parts, and that the worker process can read them |
| `parts.py` | all | the folder of the parts, on a file system or in a bucket: list, read, remove |
| `query.py`, `reading.py`, `exact.py` | host | one query: exact sources, errors |
| `result.py` | host | the query's result: types, sort, parts |
| `catalogs.py` | host | tables of catalogs, of Iceberg and Delta in one snapshot |
| `inputs.py` | host | what a query will read: plain files, which must not belong to a lake table, and snapshots |
| `postgres.py`, `databases.py` | host | tables of PostgreSQL, and of other databases without a snapshot: Spark's options, exact types, ranges |
| `building.py` | host | the user's function that `Build` names |
| `binding.py` | host | parameters as SQL literals of exactly their types |
| `protocol.py` | all | the messages between worker process and host |

Spark has a process of its own for three reasons.
While Spark passes rows to a function of `Build`, Python's GIL is held.
A JVM that dies leaves its Python process unusable.
A JVM that runs out of memory in the wrong thread hangs indefinitely.
A separate process limits the damage of each problem: a new host starts, and gets the job again inside the same run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyworker.exports.jdbc import Jdbc
    from steadyworker.exports.spark.build import Build
    from steadyworker.exports.spark.export import SparkExport
    from steadyworker.exports.spark.service import SparkService
    from steadyworker.exports.spark.settings import SparkSettings
    from steadyworker.exports.tables import Files, Table

__all__ = ["Build", "Files", "Jdbc", "SparkExport", "SparkService", "SparkSettings", "Table"]

_HOMES = {
    "Build": "steadyworker.exports.spark.build",
    "Files": "steadyworker.exports.tables",
    "Jdbc": "steadyworker.exports.jdbc",
    "SparkExport": "steadyworker.exports.spark.export",
    "SparkService": "steadyworker.exports.spark.service",
    "SparkSettings": "steadyworker.exports.spark.settings",
    "Table": "steadyworker.exports.tables",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use, because child, worker process and host each need only some of the modules."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
