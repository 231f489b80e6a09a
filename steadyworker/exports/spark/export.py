"""
`SparkExport`: the plan of an export for Spark, and the work on it in the job's own process (the child).

The child sends the plan, and waits until Spark has written the sorted parts.
Then the child writes the rows of the parts to the file, with the code of every export (`writing.py`).
The child compares its row count with the row counts in the parts' own indexes.
The child publishes the file like any other export (`commit.py`).
This module does not import Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import msgspec

from steadyworker.clock import SystemClock
from steadyworker.errors import ExportError, ExportRejected
from steadyworker.export import Services
from steadyworker.exports.formats import Format
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.manifest import Manifest, valid_unicode
from steadyworker.exports.output import ExportOutput
from steadyworker.exports.params import Value, to_param
from steadyworker.exports.s3.address import S3
from steadyworker.exports.several import FilesWriting, Split
from steadyworker.exports.sorting import check_sorted
from steadyworker.exports.sources import arrow
from steadyworker.exports.spark.build import Build
from steadyworker.exports.spark.handle import SessionNames
from steadyworker.exports.spark.parts import ALL, PartsFolder, opened, parts_folder, rows_of
from steadyworker.exports.spark.protocol import (
    ExportDone,
    ExportFailed,
    ExportPlan,
    ExportProgress,
    ExportStarted,
    from_event,
)
from steadyworker.exports.stage import drop_incomplete
from steadyworker.exports.tables import CommonTable, FileSource, Table, check_table_name, source_of
from steadyworker.exports.writing import FileWriting
from steadyworker.text.redaction import redact

_BATCH_ROWS, _BATCH_BYTES = 65_536, 16 << 20
_SORTS = "Spark sorts the rows"
_SORTED = 80.0  # percent of the work; of 5 million rows on two cores, Spark's part took 82 to 84 % of the time

_MINUTES, _HOURS = 90.0, 5400.0  # seconds from which the remaining time is shown in minutes, or in hours

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
            A table can also be `Jdbc`, a table of a database, or `Table`, a table of a catalog, such as one of Iceberg or Delta.
        order_by: Columns of the result to sort by, ascending, or descending with `"paid_at DESC"`.
            Rows with equal values there are sorted by at most 16 more columns, in the order of the result.
            If two rows are equal in all these columns, a second run can write them in another order; `Manifest.ties` counts such rows.
        params: The values of the parameters; Spark binds them, and never formats them into the query.
            The manifest contains these values, so they must not contain a credential.

    Raises:
        ExportRejected: The query is empty, or there is no column to sort by.
    """

    query: str | Build
    _: KW_ONLY
    tables: Mapping[str, CommonTable | Table]
    order_by: Sequence[str]
    params: Mapping[str, Value] | None = None

    def __post_init__(self) -> None:
        check_sorted(self.text, self.order_by, "Spark SQL")

    @property
    def text(self) -> str:
        """The query, or the name of the function that builds it."""
        return self.query.name if isinstance(self.query, Build) else self.query

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
            ExportRejected: No retry can make the export possible; the message has Spark's error.
                A query, table, format, total or value is invalid, or the query reads files of Delta, Iceberg or Hudi.
            ExportError: Spark failed, or a table does not exist; the message has Spark's error.
            Interrupt: The run must end; Spark's job is cancelled, too.
        """
        split = Split.of(split_rows, split_bytes, partition_by)
        output = ExportOutput(services, to, SystemClock(), format=format, totals=totals, by=by, split=split)
        return output.publish(_SparkRun(self, output).write, if_exists=if_exists)

    def plan(self, form: Format, sums: Sequence[str], by: Sequence[str], parts: Path) -> ExportPlan:
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
            tables={name: _checked(name, table) for name, table in self.tables.items()},
            params={name: to_param(name, value) for name, value in (self.params or {}).items()},
            order_by=tuple(self.order_by),
            sums=tuple(sums),
            by=tuple(by),
            nested=form.name == "parquet",
            parts=str(parts),
        )
        with valid_unicode():
            msgspec.json.encode(plan)
        return plan


class _SparkRun:
    """One run of one export, in its stage."""

    def __init__(self, export: SparkExport, output: ExportOutput) -> None:
        self._export, self._output = export, output
        self._services, self._clock = output.services, output.clock
        self._started = ExportStarted("", ())
        self._percent = 0.0
        self._job = ""
        self._folder: PartsFolder | None = None

    def write(self) -> Manifest:
        """Write `stage.data`, durably, and return its manifest."""
        began, stage = self._clock.monotonic(), self._output.stage
        arrow("SparkExport")
        drop_incomplete(self._output.target, self._services.uid, stage.fence)
        try:
            done, versions = self._sorted(stage.path / "parts")
            spark = self._clock.monotonic()
            columns = self._started.columns
            with self._output.writing(columns, keys=[*map(columns.index, self._started.sorted_by)]) as made:
                self._join(made, done.parts)
        finally:
            self._drop()
        ended = self._clock.monotonic()
        return self._output.manifest(
            self._export.text,
            self._export.params or {},
            tools=versions | self._started.versions,
            timings={"spark": round(spark - began, 3), "join": round(ended - spark, 3)},
            snapshot=done.snapshot,
        )

    def _sorted(self, parts: Path) -> tuple[ExportDone, dict[str, str]]:
        """Let Spark write sorted parts; return its last event, and the versions of its software."""
        output = self._output
        plan = self._export.plan(output.form, tuple(output.sums), output.by, parts)
        names = SessionNames(self._services)
        last: ExportDone | None = None
        versions_: dict[str, str] = {}
        plan = msgspec.structs.replace(plan, session=names.own, earlier=names.earlier, snapshots=names.snapshots)
        request = msgspec.to_builtins(plan)
        with closing(self._services.call(SERVICE, request)) as events:  # type: ignore[type-var]
            for event in events:
                self._job, self._folder = event["job"], self._folder or parts_folder(event["parts_folder"])
                match from_event(event):
                    case ExportStarted() as started:
                        self._started = started
                        names.began(started.where, started.snapshots)
                        self._drop(before=event["submissions"])
                        output.check(started.columns)  # raises before the query runs
                    case ExportProgress() as moved:
                        # Spark plans one stage after another, so its number of tasks grows, and a percentage would go down.
                        self._percent = max(self._percent, _SORTED * moved.done / max(1, moved.total))
                        self._services.progress(round(self._percent, 1), 100, _SORTS)
                    case ExportFailed(kind=kind, text=text):
                        output.stage.remove()
                        failure = ExportRejected if kind == "rejected" else ExportError
                        raise failure(f"Spark did not make the export ({kind}): {redact(text)}")
                    case ExportDone() as done:
                        last, versions_ = done, event.get("versions", {})
        if last is None:
            raise ExportError("Expected the result of Spark's job, got none: the next run repeats the export.")
        return last, versions_

    def _drop(self, before: int = ALL) -> None:
        """Remove the parts of earlier tries, because this try needs the space; or, at the end of the run, all of its parts."""
        if self._folder is not None:
            self._folder.drop(self._job, before)

    def _join(self, made: FileWriting | FilesWriting, parts: Sequence[str]) -> None:
        """Write the rows of the parts."""
        folder = self._folder
        assert folder is not None, "an event has named it"
        expected, began = sum(rows_of(folder, part) for part in parts), self._clock.monotonic()
        for part in parts:
            for batch in _batches(folder, part):
                made.add([batch])
                percent = _SORTED + (100 - _SORTED) * made.rows / max(1, expected)
                self._services.progress(
                    round(percent, 1), 100, note(made.rows, expected, self._clock.monotonic() - began)
                )
                self._services.check()
        if made.rows != expected:
            raise ExportError(
                f"Expected {expected} rows, as in the indexes of Spark's parts, got {made.rows}, so nothing was published: "
                f"see what changes files under {self._output.stage.path}; the next run repeats the export."
            )


def _checked(name: str, table: CommonTable | Table) -> FileSource | Jdbc | Table:
    """Return the table in its checked form; raise the errors of `source_of`."""
    check_table_name(name)
    return table if isinstance(table, Table | Jdbc) else source_of(name, table)


def _batches(folder: PartsFolder, part: str) -> Iterator[Any]:
    """Yield the rows of a part, in batches of limited size; a part without rows has one empty batch with its types."""
    with opened(folder, part) as source:
        if not source.metadata.num_rows:
            yield arrow().RecordBatch.from_pylist([], source.schema_arrow)
        groups = [source.metadata.row_group(number) for number in range(source.metadata.num_row_groups)]
        width = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
        yield from source.iter_batches(max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, width))))


def note(rows: int, total: int, seconds: float) -> str:
    """Return the facts of a file after these seconds of writing: `1,200,000 rows written, 84,000 rows/s, about 2 min left`."""
    facts = [f"{rows:,} rows written"]
    if rows and seconds > 0:
        facts.append(f"{_rounded(rows / seconds):,} rows/s")
        facts.append(f"about {_length((total - rows) * seconds / rows)} left")
    return ", ".join(facts)


def _rounded(value: float) -> int:
    """Return the number rounded to two significant digits, because further digits would change at each call."""
    whole = max(1, round(value))
    return round(whole, 2 - len(str(whole)))


def _length(seconds: float) -> str:
    if seconds < _MINUTES:
        return f"{max(1, round(seconds))} s"
    if seconds < _HOURS:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
