"""
The output of one run of an export: a file or a folder of files in the run's stage, and its manifest.

::

    ExportOutput ── publish ──→ the export's `write` ──→ check columns ─→ rows into `writing` ─→ manifest

`RowExport`, `DuckDBExport` and `SparkExport` have only their rows; all that is equal for them is here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from steadyworker.clock import Clock
from steadyworker.export import Services
from steadyworker.exports.formats import format_of
from steadyworker.exports.hashed import OutFile
from steadyworker.exports.manifest import Manifest, Total, plain, timestamp, versions
from steadyworker.exports.s3.address import S3
from steadyworker.exports.several import FilesWriting, Split
from steadyworker.exports.stage import ExportTarget, StagingDir
from steadyworker.exports.targets import PublishTarget, target_of
from steadyworker.exports.totals import Totals
from steadyworker.exports.writing import FileWriting, writing


class ExportOutput:
    """
    The output of one run.

    Attributes:
        services: The job's services.
        clock: The clock of the run.
        form: The format of each file.
        split: The rule that divides the rows into files; None for one file.
        sums: The columns to sum, as `Job.export` gets them.
        by: The columns to group the sums by.
        place: The target of the export.
        target: The path on this host beside which the run has its stage.
        stage: The stage of this run; it is known when `publish` writes.
        totals: The counts and sums of the rows so far; they are known in `writing`.

    Raises:
        ExportRejected: The format does not fit the target.
    """

    place: PublishTarget
    target: ExportTarget
    stage: StagingDir
    totals: Totals
    _columns: Sequence[str]
    _made: FileWriting | FilesWriting
    _bytes: OutFile | FilesWriting
    _sorted: bool

    def __init__(
        self,
        services: Services,
        to: str | os.PathLike[str] | S3,
        clock: Clock,
        *,
        format: Any,
        totals: Mapping[str, str] | None,
        by: Sequence[str],
        split: Split | None,
    ) -> None:
        self.services, self.clock, self.split = services, clock, split
        self.place = target_of(to, several=split is not None)
        self.target = self.place.staged
        self.form = format_of(self.target, format)
        self.sums, self.by = dict(totals or {}), tuple(by)
        self._began = clock.monotonic()

    def publish(self, write: Callable[[], Manifest], *, if_exists: str) -> Manifest:
        """Make the output with `write`, and publish it; raise the errors of `PublishTarget.publish`."""

        def staged(stage: StagingDir) -> Manifest:
            self.stage, self._began = stage, self.clock.monotonic()
            return write()

        return self.place.publish(self.services, staged, if_exists=if_exists)

    def check(self, columns: Sequence[str]) -> Totals:
        """
        Return empty totals for rows with these columns.

        Raises:
            ExportRejected: The totals, the format or the split name a column that does not exist.
        """
        found = Totals(columns, self.sums, self.by, self.form.texts)
        self.form.head(columns)
        if self.split is not None:
            self.split.check(columns, self.form)
        return found

    @contextmanager
    def writing(
        self,
        columns: Sequence[str],
        *,
        keys: Sequence[int] = (),
        out: OutFile | None = None,
        rows: int = 0,
        totals: Sequence[Total] = (),
    ) -> Iterator[FileWriting | FilesWriting]:
        """
        Yield the writing of the rows; at the normal end of the `with` block, all files are complete and durable.

        Args:
            columns: The columns' names.
            keys: The places of the columns by which the rows are sorted; none if the export does not sort.
            out: A file that has rows of an earlier run already.
            rows: The number of these rows.
            totals: The totals of these rows.

        Raises:
            ExportRejected: The format cannot represent a value, or the totals cannot sum it.
        """
        self._columns, self._sorted = columns, bool(keys)
        self.totals = self.check(columns)
        self.totals.include(totals)
        if self.split is not None:
            with FilesWriting(
                self.stage.data,
                self.form,
                columns,
                self.totals,
                split=self.split,
                new_totals=partial(self.check, columns),
                keys=keys,
            ) as self._bytes:
                self._made = self._bytes
                yield self._made
        else:
            with out or self.place.open(self.stage) as self._bytes:
                with writing(self._bytes, self.form, columns, self.totals, rows=rows, keys=keys) as self._made:
                    yield self._made
                self._bytes.sync()

    def manifest(
        self,
        query: str,
        parameters: Mapping[str, Any],
        *,
        tools: Mapping[str, str] | None = None,
        timings: Mapping[str, float] | None = None,
        snapshot: str | None = None,
    ) -> Manifest:
        """
        Return the description of the complete output.

        Args:
            query: The query, or a description of the rows.
            parameters: The query's parameters.
            tools: The versions of more software than Python, SteadyWorker and pyarrow.
            timings: The seconds of some steps, beside those of the whole run.
            snapshot: The snapshot of the source.
        """
        services, made = self.services, self._bytes
        return Manifest(
            uid=services.uid,
            key=services.key,
            queue=services.queue,
            namespace=services.namespace,
            fence=self.stage.fence,
            name=self.place.name,
            query=query,
            parameters=plain(parameters),
            snapshot=snapshot,
            columns=tuple(self._columns),
            rows=self._made.rows,
            ties=self._made.ties.count if self._sorted else None,
            totals=self.totals.result(),
            bytes=made.bytes,
            sha256=made.sha256,
            files=tuple(made.files) if isinstance(made, FilesWriting) else None,
            format=self.form.options(),
            versions=versions("pyarrow") | dict(tools or {}),
            timings=dict(timings or {}) | {"write": round(self.clock.monotonic() - self._began, 3)},
            limits=self.place.limits,
            created_at=timestamp(self.clock),
        )
