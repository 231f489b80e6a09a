"""
`SparkExport`: the plan of an export for Spark, and the work on it in the job's own process (the child).

The child sends the plan, receives an event for each complete part, and joins, hashes, counts and sums the parts.
The child compares its row count with Spark's row count, if Spark reports a count (`query.py`).
The child publishes the file like any other export (`commit.py`).
This module does not import Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import KW_ONLY, dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

import msgspec

from steadyworker.clock import Clock, SystemClock
from steadyworker.errors import ExportError, ExportRejected
from steadyworker.export import Services
from steadyworker.exports.commit import publish
from steadyworker.exports.formats import Csv, Format, Xlsx, format_of
from steadyworker.exports.manifest import Manifest, plain, timestamp, valid_unicode, versions
from steadyworker.exports.spark.build import Build
from steadyworker.exports.spark.groups import Groups
from steadyworker.exports.spark.handle import SessionNames
from steadyworker.exports.spark.join import Join, PartReplaced
from steadyworker.exports.spark.pace import Pace, Ratio, note
from steadyworker.exports.spark.params import to_param
from steadyworker.exports.spark.protocol import (
    ExportDone,
    ExportFailed,
    ExportPart,
    ExportPlan,
    ExportProgress,
    ExportStarted,
    Lines,
    from_event,
    parts_of,
)
from steadyworker.exports.spark.recast import Recast
from steadyworker.exports.spark.tables import Table, source
from steadyworker.exports.stage import ExportTarget, StagingDir, drop_incomplete
from steadyworker.exports.totals import Totals
from steadyworker.text.redaction import redact

Value = str | int | float | bool | Decimal | date | datetime | None

SERVICE = "spark"
"""The name under which a worker process registers its `SparkService`."""


@dataclass(frozen=True)
class SparkExport:
    """
    A query's result as one sorted file, made by Spark.

    Args:
        query: Spark SQL, with `:name` for a parameter; or `Build`, which names your function that builds a DataFrame.
        tables: The tables by their names in the query.
            A table is a Parquet, CSV or JSON Lines file or folder, or `Files` with more options.
            A table can also be `Jdbc`, a table of PostgreSQL or SQLite.
        order_by: Columns of the result to sort by, ascending, or descending with `"paid_at DESC"`.
            The combined values of these columns must be unique, so that a second run makes the same file.
        params: The values of the parameters; Spark binds them, and never formats them into the query.
            The manifest contains these values, so they must not contain a credential.

    Raises:
        ExportRejected: The query is empty, or there is no column to sort by.
    """

    query: str | Build
    _: KW_ONLY
    tables: Mapping[str, Table]
    order_by: Sequence[str]
    params: Mapping[str, Value] | None = None

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ExportRejected("Expected a query in Spark SQL, got an empty one: write the query.")
        if isinstance(self.order_by, str) or not self.order_by:
            raise ExportRejected(
                f"Expected columns to sort by, as a tuple, got {self.order_by!r}: name columns that together are unique."
            )

    @property
    def text(self) -> str:
        """The query, or the name of the function that builds it."""
        return self.query.name if isinstance(self.query, Build) else self.query

    def write(
        self,
        services: Services,
        to: Path,
        *,
        format: Any = None,
        totals: Mapping[str, str] | None = None,
        by: Sequence[str] = (),
        if_exists: str = "fail",
    ) -> Manifest:
        """
        Make the file, whole or not at all, and return its manifest.

        Raises:
            TargetExists: Another job's file is at the target.
            ExportRejected: No retry can make the export possible; the message has Spark's error.
                A query, table, format, total or value is invalid, or the query reads files of Delta, Iceberg or Hudi.
            ExportError: Spark failed, or a table does not exist; the message has Spark's error.
            Interrupt: The run must end; Spark's job is cancelled, too.
        """
        chosen = format_of(ExportTarget.of(to), format)
        if isinstance(chosen, Xlsx):
            raise ExportRejected(
                "Expected CSV, JSON Lines or Parquet as the format of a SparkExport, got XLSX: export with RowExport."
            )
        return publish(
            services,
            to,
            lambda target, stage: _SparkRun(
                self, services, chosen, dict(totals or {}), tuple(by), target, stage
            ).write(),
            if_exists=if_exists,
        )

    def plan(self, lines: Lines, sums: Sequence[str], parts: Path) -> ExportPlan:
        """
        Return the plan for the host.

        Raises:
            ExportRejected: A table or a parameter is invalid, a table is a folder of Delta, Iceberg or Hudi,
                or a text has a lone surrogate.
            ExportError: A table does not exist.
        """
        plan = ExportPlan(
            query=self.text,
            build=isinstance(self.query, Build),
            tables={name: source(name, table) for name, table in self.tables.items()},
            params={name: to_param(name, value) for name, value in (self.params or {}).items()},
            order_by=tuple(self.order_by),
            sums=tuple(sums),
            lines=lines,
            parts=str(parts),
        )
        with valid_unicode():
            msgspec.json.encode(plan)
        return plan


class _SparkRun:
    """One run of one export, in its stage."""

    def __init__(
        self,
        export: SparkExport,
        services: Services,
        form: Format,
        totals: Mapping[str, str],
        by: Sequence[str],
        target: ExportTarget,
        stage: StagingDir,
    ) -> None:
        self._export, self._services, self._form, self._sums, self._by = export, services, form, totals, by
        self._target, self._stage = target, stage
        self._clock: Clock = SystemClock()
        self._columns: tuple[tuple[str, str], ...] = ()
        self._join: Join | None = None
        self._groups: Groups | None = None
        self._tasks = (0, 0)
        self._note = ""
        self._pace = Pace(Ratio())
        self._started = ExportStarted("", ())

    def write(self) -> Manifest:
        """Write `stage.data`, durably, and return its manifest."""
        began = self._clock.monotonic()
        drop_incomplete(self._target, self._services.uid, self._stage.fence)
        lines = _lines(self._form)
        parts = self._stage.path / "parts"
        manifest, spark = None, began
        plan = self._export.plan(lines, tuple(self._sums), parts)
        names = SessionNames(self._services)
        request = msgspec.to_builtins(msgspec.structs.replace(plan, session=names.own, earlier=names.earlier))
        with ExitStack() as opened:
            events = opened.enter_context(closing(self._services.call(SERVICE, request)))  # type: ignore[type-var]
            opened.callback(self._close)
            for event in events:
                match from_event(event):
                    case ExportStarted() as started:
                        self._started = started
                        names.began(started.where)
                        _drop(parts, started.job, event.get("submissions", 1))
                        self._begin(started.columns)
                    case ExportProgress() as moved:
                        self._progress(moved)
                    case ExportPart(index=index, path=path, bytes=size):
                        self._add(index, path, size)
                    case ExportFailed(kind=kind, text=text):
                        self._stage.remove()
                        failure = ExportRejected if kind == "rejected" else ExportError
                        raise failure(f"Spark did not make the export ({kind}): {redact(text)}")
                    case ExportDone() as done:
                        spark = self._clock.monotonic()
                        manifest = self._finish(done, event)
        if manifest is None:
            raise ExportError("Expected the result of Spark's job, got none: the next run repeats the export.")
        shutil.rmtree(parts, ignore_errors=True)
        ended = self._clock.monotonic()
        timings = {"spark": round(spark - began, 3), "join": round(ended - spark, 3), "write": round(ended - began, 3)}
        return msgspec.structs.replace(manifest, timings=timings)

    def _begin(self, columns: tuple[tuple[str, str], ...]) -> None:
        """Start the file; start the file again if Spark's host has died and a new host begins the job."""
        if self._join is not None:
            self._close()  # otherwise the first file would take disk space while the second is written
            self._stage.data.unlink()
        self._columns, self._pace = columns, Pace(Ratio())
        names = [name for name, _ in columns]
        Totals(names, self._sums, self._by, self._form.texts)  # raises if a column cannot be summed, as in every export
        wanted = self._by or self._sums
        self._groups = Groups(columns, self._form, self._by, tuple(self._sums)) if wanted else None
        data, head, form = self._stage.data, self._form.head(names), self._form
        if form.name == "parquet":
            body = partial(Recast, columns=columns, seen=self._groups.add_batch if self._groups else lambda _: None)
            join = Join(data, head, self._moved, lambda _: None, form=form, body=body)
        else:
            join = Join(data, head, self._moved, self._groups.add if self._groups else lambda _: None, form=form)
        self._join = join
        self._pace.writing(self._clock.monotonic(), 0)

    def _close(self) -> None:
        if self._join is not None:
            self._join.close()

    def _progress(self, moved: ExportProgress) -> None:
        """Report progress in Spark; if Spark counts no rows, report the rows joined so far instead."""
        known = moved.rows is not None
        self._tasks = moved.done, moved.total
        self._note = note(moved.rows, moved.rate if known else self._pace.rate, moved.left)
        if known or self._join is None or not self._join.rows:
            self._services.progress(*self._tasks, self._note)
        else:
            self._moved()

    def _add(self, index: int, path: str | None, size: int) -> None:
        try:
            self._joined().offer(index, path, size)
        except PartReplaced:
            self._begin(self._columns)  # `finish` joins all parts again when Spark is done
        self._pace.writing(self._clock.monotonic(), self._joined().rows)

    def _moved(self) -> None:
        joined = f"{self._joined().rows:,} joined"
        self._services.progress(*self._tasks, f"{self._note}, {joined}" if self._note else joined)

    def _joined(self) -> Join:
        if self._join is None:
            raise ExportError(
                "Expected the start of Spark's job before its first part, got a part: "
                "install the same version of SteadyWorker for the worker and the Spark host."
            )
        return self._join

    def _finish(self, done: ExportDone, event: Mapping[str, Any]) -> Manifest:
        join = self._joined()
        join.finish(done.parts)
        if done.rows not in (None, join.rows):
            raise ExportError(
                f"Expected {done.rows} rows, as Spark counted them, got {join.rows} in the parts, so nothing was published: "
                f"see what removes or hides files under {self._stage.path}; the next run repeats the export."
            )
        return Manifest(
            uid=self._services.uid,
            key=self._services.key,
            queue=self._services.queue,
            namespace=self._services.namespace,
            fence=self._stage.fence,
            name=self._target.path.name,
            query=self._export.text,
            parameters=plain(self._export.params or {}),
            snapshot=done.snapshot,
            columns=tuple(name for name, _ in self._columns),
            rows=join.rows,
            totals=self._groups.result(join.rows) if self._groups else (),
            bytes=join.bytes,
            sha256=join.sha256,
            format=self._form.options(),
            versions=versions(*(["pyarrow"] if self._form.name == "parquet" else []))
            | event.get("versions", {})
            | self._started.versions,
            created_at=timestamp(self._clock),
        )


def _drop(parts: Path, job: str, submission: int) -> None:
    """
    Remove the parts of earlier tries, because this try needs the space.

    Such parts remain if a host died before the host could remove its parts.
    Only the child can remove these parts, because only the child knows that it no longer reads them.
    """
    for earlier in range(1, submission):
        folder = parts_of(parts, job, earlier)
        shutil.rmtree(folder, ignore_errors=True)
        for copy in parts.glob(f"{escape(folder.name)}-*.sqlite*"):
            copy.unlink(missing_ok=True)


def _lines(form: Format) -> Lines:
    """Return the format's options for the host."""
    if not isinstance(form, Csv):
        return Lines(form=form.name)
    return Lines(
        delimiter=form.delimiter,
        null=form.null,
        guard_formulas=form.guard_formulas,
        decimal_comma=form.decimal_comma,
        dates=form.dates,
        moments=form.moments,
        zone=form.zone,
    )
