"""
Exports: an export makes one whole file and a manifest that describes the file, or nothing.

`job.export(RowExport(...), to)` streams rows in the job's own process.
`job.export(DuckDBExport(...), to)` runs a query in DuckDB, in the same process.
`job.export(SparkExport(...), to)` runs a query in Spark.
The contract between a job and an export is `steadyworker/export.py`.
Each export writes the file to a *stage*, a private folder next to the target.
Then `commit.py` publishes the file; its docstring shows each step.
In a bucket of S3 the stage is an upload, which no reader sees (`s3/`); to Google Cloud, Azure and others the complete file is put (`stores/`).

Every export writes its rows by `writing.py`, so equal rows give equal bytes.
Arrow's kernels make the bytes: `TextWriter.render` in `render.py` makes the lines of CSV and JSON Lines, and `ParquetWriter` in `parquet.py` the row groups; XlsxWriter makes the sheets from texts (`xlsx.py`).
A new format is one file of less than 150 lines and a reader for `verify`; `format.py` lists all that it needs.

| file | content |
|---|---|
| `stage.py` | the stage of a file, names, removal of old stages |
| `folders.py` | the folders, of this host and in stores, that have stages |
| `several.py` | the division of rows into several files |
| `targets.py` | the targets behind one Protocol: a path of this host, or an address in a store |
| `commit.py` | stage → permission → link → manifest; publication of a file that a dead run completed |
| `manifest.py` | the description of a file |
| `sources.py` | the rows of a user's source as Arrow batches |
| `render.py`, `patterns.py` | Arrow columns to text, and lines to bytes |
| `format.py` | the interface of a format; what a new format needs |
| `formats.py`, `jsonl.py`, `parquet.py`, `xlsx.py`, `packed.py` | the formats, and their cells |
| `values.py` | single values to text |
| `totals.py`, `hashed.py` | counts, sums and hashes, computed while the file is written |
| `lakes.py` | tables of Delta, Iceberg and Hudi, which are refused as files |
| `writing.py` | rows into a file: bytes in order, totals, ties |
| `output.py` | the file or the folder of one run, and its manifest |
| `sorting.py` | the columns by which DuckDB and Spark sort |
| `rows.py` | `RowExport` |
| `verifying.py`, `readers.py` | the check of a file against its manifest, with another reader |
| `tables.py`, `jdbc.py`, `params.py` | the tables and parameters of a query: `Files`, `Jdbc`, `Table` |
| `postgres.py` | the snapshots of PostgreSQL that an export reads; the cancel of its queries |
| `stores/` | stores as targets: S3, Google Cloud, Azure, and others by fsspec |
| `s3/` | the requests to S3, and the parts of its objects |
| `duckdb/` | `DuckDBExport` |
| `spark/` | `SparkExport` and the Spark host |
| `cli/` | the verb `verify` |

The core imports nothing from this package.
By entry points, the core finds the services `stages` (`folders.py`) and `spark` (`spark/installed.py`), and the verb.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadyworker.exports.duckdb.export import DuckDBExport
    from steadyworker.exports.formats import Csv
    from steadyworker.exports.jsonl import JsonLines
    from steadyworker.exports.lakes import check_files
    from steadyworker.exports.manifest import Manifest, ManifestFile
    from steadyworker.exports.parquet import Parquet
    from steadyworker.exports.rows import RowExport
    from steadyworker.exports.s3.address import S3
    from steadyworker.exports.s3.reading import DownloadLink, download_link
    from steadyworker.exports.spark import SparkExport
    from steadyworker.exports.verifying import verify
    from steadyworker.exports.xlsx import Xlsx

__all__ = [
    "S3",
    "Csv",
    "DownloadLink",
    "DuckDBExport",
    "JsonLines",
    "Manifest",
    "ManifestFile",
    "Parquet",
    "RowExport",
    "SparkExport",
    "Xlsx",
    "check_files",
    "download_link",
    "verify",
]

_HOMES = {
    "Csv": ".formats",
    "DownloadLink": ".s3.reading",
    "DuckDBExport": ".duckdb.export",
    "JsonLines": ".jsonl",
    "Manifest": ".manifest",
    "ManifestFile": ".manifest",
    "Parquet": ".parquet",
    "RowExport": ".rows",
    "S3": ".s3.address",
    "SparkExport": ".spark",
    "Xlsx": ".xlsx",
    "check_files": ".lakes",
    "download_link": ".s3.reading",
    "verify": ".verifying",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use, because each export needs few of these modules."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
