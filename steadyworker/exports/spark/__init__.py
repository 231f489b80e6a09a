"""
Heavy exports, handed over to Spark: `SparkExport`, and the Spark host that runs it.

::

    job's child                     worker process                  Spark host (own session, own folder)
    ───────────                     ──────────────                  ────────────────────────────────────
    SparkExport.write ── plan ────→ SparkService ── Run ──────────→ Engine: read, query, sort, observe, write parts
      Join ←── started, progress, part, done ─────────────────────── Tasks: which are complete, and what they wrote
      publish (commit.py)             starts, watches, replaces it    JVM: all of Spark, or the driver of a cluster,
                                                                      or none: a Spark Connect server

| file | runs in | what it holds |
|---|---|---|
| `export.py`, `build.py` | child | `SparkExport`: plan, events, manifest; `Build` |
| `tables.py`, `jdbc.py` | child | what a query may read: `Files`, formats, paths; `Jdbc`, tables of databases |
| `handle.py` | child | what the ledger holds meanwhile, so that the next run finds what this one has left |
| `join.py`, `recast.py`, `groups.py` | child | parts to one file: order, SHA-256, rows; Parquet; totals by group |
| `service.py`, `hosts.py` | worker process | `SparkService`: when a host starts, ends, is replaced; what runs where |
| `process.py` | worker process | one host: its process, its folder, its death |
| `settings.py`, `java.py`, `drivers.py`, `archive.py` | worker process | Spark's settings, a Java and JDBC drivers that fit, the class-data archive |
| `address.py` | worker process, host | a Spark Connect server's address, and as it may be shown |
| `host.py` | host | the process: descriptors, life line, commands |
| `backend.py` | host | what `host.py` asks of its engine, which is one of the next two |
| `engine.py`, `tasks.py`, `priority.py` | host | Spark's session; begins jobs, watches their tasks, ends them |
| `pace.py`, `live.py` | host | how fast, for how long still, whether it stands still; what moves inside of tasks |
| `connect.py`, `server.py`, `kills.py` | host | the same with a session per job at a Spark Connect server; what its errors mean |
| `remote.py` | host | what can be known of a job there |
| `query.py`, `reading.py`, `exact.py` | host | one query: sources with all their digits, totals, the writer |
| `cuts.py`, `lines.py` | host | its sort; the text of its values |
| `databases.py`, `postgres.py`, `sqlite.py` | host | one moment of each database, its queries cancelled with the job |
| `building.py` | host | the user's function that `Build` names |
| `binding.py` | host | parameters as literals of exactly their types |
| `protocol.py`, `params.py` | all | the messages between worker process and host |

Why a process of its own: rows that Spark hands to Python hold the GIL, a JVM that dies leaves its Python process unusable,
and one that runs out of memory in the wrong thread hangs for ever.
Here all three cost a fresh host and a resubmission inside the same run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyworker.exports.spark.archive import build_archive
    from steadyworker.exports.spark.build import Build
    from steadyworker.exports.spark.export import SparkExport
    from steadyworker.exports.spark.jdbc import Jdbc
    from steadyworker.exports.spark.service import SparkService
    from steadyworker.exports.spark.settings import SparkSettings
    from steadyworker.exports.spark.tables import Files

__all__ = ["Build", "Files", "Jdbc", "SparkExport", "SparkService", "SparkSettings", "build_archive"]

_HOMES = {
    "Build": "build",
    "Files": "tables",
    "Jdbc": "jdbc",
    "SparkExport": "export",
    "SparkService": "service",
    "SparkSettings": "settings",
    "build_archive": "archive",
}


def __getattr__(name: str) -> Any:
    """Import late: child, worker process and host each need their own part."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
