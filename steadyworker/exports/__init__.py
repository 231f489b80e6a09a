"""
Exports: one whole file, or none, with a manifest that says what it is.

`job.export(RowExport(...), to)` streams rows in the job's own process.
`job.export(SparkExport(...), to)` hands a query to Spark.
Either way the file is written to a *stage* beside its target and published by `commit.py`, which draws the protocol.

| file | what it holds |
|---|---|
| `base.py` | the two Protocols: `Export`, and what it may ask of its job (`Services`) |
| `stage.py` | where a file is made; names; reaping |
| `commit.py` | stage → leave → link → manifest; rolling forward what a dead run left |
| `manifest.py` | what a file is |
| `values.py`, `patterns.py` | how a value becomes text |
| `formats.py`, `jsonl.py`, `cells.py`, `parquet.py`, `packed.py` | how rows become bytes |
| `totals.py`, `hashed.py` | what is counted, summed and hashed in the same pass |
| `rows.py`, `sources.py` | `RowExport`, and how rows are taken out of what a user gives |
| `verifying.py`, `readers.py` | reads a file back, with another reader, against its manifest |
| `spark/` | `SparkExport` and the Spark host |
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyworker.exports.formats import Csv
    from steadyworker.exports.jsonl import JsonLines
    from steadyworker.exports.manifest import Manifest
    from steadyworker.exports.parquet import Parquet
    from steadyworker.exports.rows import RowExport
    from steadyworker.exports.spark import SparkExport
    from steadyworker.exports.verifying import verify

__all__ = ["Csv", "JsonLines", "Manifest", "Parquet", "RowExport", "SparkExport", "verify"]

_HOMES = {
    "Csv": "formats",
    "JsonLines": "jsonl",
    "Manifest": "manifest",
    "Parquet": "parquet",
    "RowExport": "rows",
    "SparkExport": "spark",
    "verify": "verifying",
}


def __getattr__(name: str) -> Any:
    """Import late: every job's process imports `exports.base`, and only those that export pay for the rest."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
