"""
Heavy exports, handed over to Spark: `SparkExport`, and the Spark host that runs it.

::

    job's child                     worker process                  Spark host (own session, own folder)
    ───────────                     ──────────────                  ────────────────────────────────────
    SparkExport.write ── plan ────→ SparkService ── Run ──────────→ Engine: read, query, sort, observe, write parts
      Join ←── started, progress, part, done ─────────────────────── Tasks: which are complete, and what they wrote
      publish (commit.py)             starts, watches, replaces it    JVM

| file | runs in | what it holds |
|---|---|---|
| `export.py` | child | `SparkExport`: plan, events, manifest |
| `tables.py` | child | what a query may read: `Files`, formats, paths |
| `join.py`, `groups.py` | child | parts to one file: order, SHA-256, rows; totals by group |
| `service.py`, `hosts.py` | worker process | `SparkService`: when a host starts, ends, is replaced; what runs where |
| `process.py` | worker process | one host: its process, its folder, its death |
| `settings.py`, `java.py`, `archive.py` | worker process | Spark's settings, a Java that fits, the class-data archive |
| `host.py` | host | the process: descriptors, life line, commands |
| `engine.py`, `reading.py`, `lines.py`, `tasks.py` | host | one query: sources, text of values, watching its tasks |
| `protocol.py` | all | the messages between worker process and host |

Why a process of its own: rows that Spark hands to Python hold the GIL, a JVM that dies leaves its Python process unusable,
and one that runs out of memory in the wrong thread hangs for ever.
Here all three cost a fresh host and a resubmission inside the same run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyworker.exports.spark.archive import build_archive
    from steadyworker.exports.spark.export import SparkExport
    from steadyworker.exports.spark.service import SparkService
    from steadyworker.exports.spark.settings import SparkSettings
    from steadyworker.exports.spark.tables import Files

__all__ = ["Files", "SparkExport", "SparkService", "SparkSettings", "build_archive"]

_HOMES = {
    "Files": "tables",
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
