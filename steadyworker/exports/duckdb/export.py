"""
`DuckDBExport`: the query, and its sorted rows for the file.

DuckDB works on a thread, so that the main thread can end it at any time.
The thread puts at most four batches into a queue, and then waits for the main thread.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import KW_ONLY, dataclass
from queue import Empty, Queue
from typing import Any

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportRejected
from steadyworker.export import Services
from steadyworker.exports.duckdb.postgres import copy_table
from steadyworker.exports.duckdb.session import SortedQuery, check_finite, connect, failure, lock
from steadyworker.exports.duckdb.tables import add_files
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.output import ExportOutput
from steadyworker.exports.params import Value, from_param, to_param
from steadyworker.exports.postgres import Databases
from steadyworker.exports.s3.address import S3
from steadyworker.exports.several import Split
from steadyworker.exports.sorting import check_sorted
from steadyworker.exports.sources import Source, arrow
from steadyworker.exports.stage import StagingDir, drop_incomplete
from steadyworker.exports.tables import CommonTable, FileSource, source
from steadyworker.text.versions import version
from steadyworker.units import parse_size

_BATCHES = 4
_POLL = 0.1  # seconds from a request to end until DuckDB receives it
_LEAST = 64_000_000


@dataclass(frozen=True)
class DuckDBExport:
    """
    A query's result as one sorted file, made by DuckDB in the job's own process.

    It is for what fits one machine: DuckDB sorts on the disk what does not fit into `memory_limit`.
    The file has the bytes that `SparkExport` makes of the same values.
    The types of some results differ: for example, `avg` of decimals is a float in DuckDB.

    The query can read only its tables, and no other file.
    A file named in the query would not be checked for a table of Delta, Iceberg or Hudi.

    Args:
        query: One SELECT in DuckDB's SQL, with `:name` (or `$name`) for a parameter.
        tables: The tables by their names in the query, as for `SparkExport`: a path, `Files` or `Jdbc`.
            CSV without a `schema` has columns of text; JSON Lines need a `schema`; Parquet takes none.
            The options of CSV are `sep`, `quote`, `escape`, `header`, `nullValue` and `encoding`.
            A `Jdbc` table is a table of PostgreSQL, and needs the extra `postgres`.
            It is copied to the stage before the query, over one connection: `partition_by`, `partitions` and `fetch_rows` have no effect.
            All tables of one database are copied in the same snapshot.
        order_by: Columns of the result to sort by, ascending, or descending with `"paid_at DESC"`.
            NULL is the smallest value, and NaN the largest; texts are compared by their UTF-8 bytes.
            At most 16 more columns decide between rows with equal values.
        params: The values of the parameters, which are never formatted into the query.
            The manifest contains these values, so they must not contain a credential.
        memory_limit: The memory for DuckDB's buffers, such as "1GB"; the whole process took up to 280 MB more (`bench_duckdb.py`).
            Larger sorts use a folder in the job's stage, on the disk of the target.
        threads: The number of threads; the default is the number of processors, but one for each 128 MB of `memory_limit` above the first 256 MB.

    Raises:
        ExportRejected: The query is empty, there is no column to sort by, or a size is invalid.
    """

    query: str
    _: KW_ONLY
    tables: Mapping[str, CommonTable]
    order_by: Sequence[str]
    params: Mapping[str, Value] | None = None
    memory_limit: str = "1GB"
    threads: int | None = None

    def __post_init__(self) -> None:
        check_sorted(self.query, self.order_by, "DuckDB's SQL")
        if self.memory < _LEAST:
            raise ExportRejected(f"Expected a memory_limit of at least 64 MB, got {self.memory_limit!r}: raise it.")
        if self.threads is not None and self.threads < 1:
            raise ExportRejected(f"Expected at least one thread, got threads={self.threads}: set 1 or more.")

    @property
    def memory(self) -> int:
        """The bytes of `memory_limit`."""
        try:
            return parse_size(self.memory_limit)
        except ValueError as error:
            raise ExportRejected(
                f"Expected a memory_limit such as '1GB', got {self.memory_limit!r}: correct it."
            ) from error

    def write(
        self,
        services: Services,
        to: str | os.PathLike[str] | S3,
        *,
        format: Any = None,
        totals: Mapping[str, str] | None = None,
        by: Sequence[str] = (),
        if_exists: str = "fail",
        split_rows: int | None = None,
        split_bytes: int | None = None,
        partition_by: Sequence[str] = (),
    ) -> Manifest:
        """
        Make the file or the folder of files, whole or not at all, and return its manifest.

        Raises:
            TargetExists: Another job's file is at the target.
            ExportRejected: No retry can make the export possible; the message has DuckDB's error.
            ExportError: DuckDB is not installed, memory or disk are too small, or a table cannot be read now.
            Interrupt: The run must end; DuckDB has ended, too.
        """
        split = Split.of(split_rows, split_bytes, partition_by)
        output = ExportOutput(services, to, SystemClock(), format=format, totals=totals, by=by, split=split)
        return output.publish(lambda: self._write(output), if_exists=if_exists)

    def _write(self, output: ExportOutput) -> Manifest:
        services = output.services
        drop_incomplete(output.target, services.uid, output.stage.fence)
        with closing(SortedRows(self, services, output.stage)) as rows:
            begun = rows.begin()
            with output.writing(begun.columns, keys=begun.keys) as made:
                for chunk in Source(rows, begun.columns, output.clock, lambda: sys.maxsize):
                    made.add(chunk)
                    services.progress(made.rows, None)
                    services.check()
        return output.manifest(
            self.query,
            self.params or {},
            tools={**begun.versions, "duckdb": version("duckdb")},
            snapshot=begun.snapshot,
        )


@dataclass(frozen=True, slots=True)
class BegunQuery:
    """What is known of a query before its first row: the places of the sort columns are in `keys`."""

    columns: Sequence[str]
    keys: Sequence[int]
    snapshot: str | None
    versions: Mapping[str, str]


class SortedRows:
    """The rows of an export's query, as Arrow batches; the stage exists when the query begins."""

    def __init__(self, export: DuckDBExport, services: Services, stage: StagingDir) -> None:
        self._export, self._services, self._stage = export, services, stage
        self._spill = stage.path / "spill"
        self._queue: Queue[Any] = Queue(_BATCHES)
        self._thread = threading.Thread(target=self._run, name="duckdb", daemon=True)
        self._failures: list[Exception] = []
        self._databases = Databases(f"{services.uid}-{stage.fence}-{stage.path.name[:8]}")
        self._stopped = threading.Event()
        self._connection: Any = None
        self._rows, self._moved = 0, (-1, 0)

    def begin(self) -> BegunQuery:
        """Begin the query, and return when DuckDB has checked it; raise its errors."""
        params = self._export.params or {}
        self._params = {name: from_param(to_param(name, value)) for name, value in params.items()}
        self._sources = {name: source(name, table) for name, table in self._export.tables.items()}
        self._thread.start()
        begun: BegunQuery = self._next()
        return begun

    def __iter__(self) -> Iterator[Any]:
        while (batch := self._next()) is not None:
            self._rows += batch.num_rows
            yield batch

    def close(self) -> None:
        """End the query, wait until DuckDB has ended, and remove its folder."""
        self._stopped.set()
        while self._thread.is_alive():
            # Again and again, because DuckDB forgets an interrupt that comes between two statements.
            if self._connection is not None:
                with suppress(Exception):  # the thread has just closed the connection
                    self._connection.interrupt()
            self._databases.cancel()
            with suppress(Empty):
                self._queue.get(timeout=_POLL)
            self._thread.join(0.001)
        shutil.rmtree(self._spill, ignore_errors=True)

    def _next(self) -> Any:
        """Return what the thread has put into the queue; raise its error."""
        while True:
            try:
                found = self._queue.get(timeout=_POLL)
                break
            except Empty:
                self._report()
                self._services.check()
        if isinstance(found, BaseException):
            self._stage.remove()  # a failed export leaves nothing
            error = next(iter(self._failures), found)
            raise failure(error, self._stage.path, self._export.memory) from error
        return found

    def _report(self) -> None:
        """Report progress if DuckDB has read, sorted or spilled more since the last report."""
        percent = 0
        if self._connection is not None:
            with suppress(Exception):  # the thread has just closed the connection
                percent = int(self._connection.query_progress())
        spilled = 0
        with suppress(OSError):
            spilled = sum(entry.stat().st_size for entry in self._spill.iterdir())
        if (percent, spilled) != self._moved and max(percent, spilled) > 0:
            self._moved = percent, spilled
            self._services.progress(self._rows, None, f"DuckDB has done {percent} %")

    def _run(self) -> None:
        """Run the query on the thread, and put a `BegunQuery`, the batches and None into the queue; or an error."""
        try:
            self._spill.mkdir()
            with closing(connect(self._spill, self._export.memory, self._export.threads)) as connection:
                self._connection = connection
                self._put_rows(connection)
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._put(error)

    def _put_rows(self, connection: Any) -> None:
        paths = list[str]()
        with closing(self._databases):
            for name, table in self._sources.items():
                if isinstance(table, FileSource):
                    paths += add_files(connection, name, table, self._failures)
                else:
                    copy_table(connection, self._databases, name, table, self._failures)
        lock(connection, paths)
        query = SortedQuery(connection, self._export.query, self._params, self._export.order_by)
        self._put(BegunQuery(query.columns, query.keys, self._databases.snapshot, self._databases.versions))
        reader = query.read()
        self._put(arrow().RecordBatch.from_pylist([], reader.schema))  # the types of a file without rows
        for batch in reader:
            check_finite(batch)
            self._put(batch)

    def _put(self, found: Any) -> None:
        if not self._stopped.is_set():
            self._queue.put(found)
