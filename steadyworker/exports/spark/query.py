"""
The work of one export in a Spark session, for every engine.

Spark reads the tables, runs the query and sorts the result, and writes parts without a header.
The child counts and sums the rows in the parts (`join.py`, `groups.py`).
Spark counts the rows too, on their way to the writer (`observe`), so that the child notices a part that is missing.
Spark's observed sums are unfit for the manifest, because Spark's decimals hold at most 38 digits.
Spark's listener bus computes the observed values; if a listener fails there, the caller waits without end (Spark 4.1).
So the count has a time limit.
Without a count, only the reports of single parts show that a part is missing.
Only this export writes to the folder of the parts.
Hadoop's committer uses algorithm version 2, so that a part appears when its task commits.
This is safe, because the child joins no part of an incomplete task, and publishes no file of a failed job.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import DecimalType, StructType

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.spark.binding import bound
from steadyworker.exports.spark.building import Built, from_traceback
from steadyworker.exports.spark.cuts import PIECE, Key, ordered, sorting
from steadyworker.exports.spark.databases import Databases
from steadyworker.exports.spark.inputs import Inputs
from steadyworker.exports.spark.lines import WHOLE, check, storable, written
from steadyworker.exports.spark.params import from_param
from steadyworker.exports.spark.protocol import (
    Database,
    ExportDone,
    ExportFailed,
    ExportPlan,
    ExportStarted,
    FileSource,
    JobEvent,
    RunExport,
)
from steadyworker.exports.spark.reading import read
from steadyworker.exports.spark.tasks import parts_in
from steadyworker.text.plain_text import plain_text

_UNKNOWN = 1 << 50
_ROWS = "rows"
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: P0001)?")  # the message of `raise_error`
# Not supported, too many rows of a subquery, wrong data (division by zero, overflow, a bad cast), wrong names or syntax, `raise_error`.
_FINAL = frozenset({"0A", "21", "22", "42", "P0"})
_PASSING = frozenset({"42K03", "42501"})  # a path that does not exist yet, and a permission that can still be granted
_FEWEST, _MOST = 32, 4000
_COUNTED = 20.0  # seconds for the events that lead to Spark's count; Spark drops events if the queue of events is full
FEW = PIECE * _FEWEST
"""The largest size of a result, in bytes, at which the exact size does not matter."""

# To sort, Spark's RangePartitioner brings three times the sample to the driver, by default 3 times 100 keys for each piece.
# 4000 pieces need 1,200,000 keys, more than `spark.driver.maxResultSize` (64 MB) at about 50 bytes for each key.
# Three times 20,000 keys fit if each key has at most a kilobyte, and still give five sampled keys for each piece.
_SAMPLE, _SAMPLE_OF_A_PIECE = 20_000, 100
_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",  # an overflow is an error, and a decimal never shows an exponent
    # With pruning, Spark silently skips lines with too few cells, and an unused quoted cell shifts the other cells.
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    "spark.sql.legacy.javaCharsets": "true",  # allows windows-1252, which many spreadsheets use
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",  # the simplified form has no causes
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",  # days before 1582 as in other software
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol",
}
WRITE = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "compression": "none",
    "lineSep": "\n",
    "maxRecordsPerFile": "0",
}
"""The options of every write."""


class Estimate(NamedTuple):
    """
    Spark's estimate of a result before the query runs.

    Attributes:
        bytes: The result's size; 0 if one task can sort all rows.
        whole: True if the same task can also read the rows, because no step is slow; a user's function is a slow step.
    """

    bytes: int
    whole: bool = False


def settle_in(session: SparkSession) -> SparkSession:
    """Apply the settings of every export to a job's own session, and return the session."""
    for key, value in _SESSION.items():
        session.conf.set(key, value)
    return session


def write(
    session: SparkSession,
    run: RunExport,
    emit: Callable[[JobEvent], None],
    estimate: Callable[[DataFrame], Estimate],
    inputs: Callable[[DataFrame], Inputs],
    where: Mapping[str, str],
    databases: Databases | None = None,
) -> ExportDone:
    """
    Make the parts; raise Spark's errors, and ExportRejected if the query does not fit an export.

    Args:
        session: The job's own session, after `settle_in`.
        run: The job with its plan.
        emit: A function that gets the event `started` when Spark has analysed the query.
        estimate: A function that returns Spark's estimate of a result.
        inputs: A function that returns the inputs that a result reads.
        where: The location of the job in a cluster.
        databases: The databases of the job; None without a JVM in the host.
    """
    plan = run.plan
    tables = {name: _read(session, name, source, databases) for name, source in plan.tables.items()}
    for name, table in tables.items():
        table.createOrReplaceTempView(name)
    if plan.build:
        built = Built(plan.query)
        result = built(session, tables, {name: from_param(value) for name, value in plan.params.items()})
        versions = built.versions
    else:
        result = session.sql(plan.query, args={name: bound(value) for name, value in plan.params.items()})
        versions = {}
    order = _check(result.schema, plan)
    check(result.schema)
    reads = inputs(result)
    reads.refuse_lakes(session, here=databases is not None)
    expected = estimate(result)
    size = _size(expected.bytes, databases)
    pieces = _pieces(size)
    session.conf.set("spark.sql.shuffle.partitions", str(pieces))
    session.conf.set("spark.sql.execution.rangeExchange.sampleSizePerPartition", str(_sampled(pieces)))
    columns = tuple((field.name, field.dataType.simpleString()) for field in result.schema.fields)
    emit(ExportStarted(run.job, columns, versions | (databases.versions if databases else {}), dict(where)))
    if expected.whole and not plan.build:  # one task reads and sorts, without a shuffle
        rows = result.coalesce(1).sortWithinPartitions(*map(sorting, order))
    else:
        rows = ordered(result, order, size, pieces)
    counted = Observation()
    # After the sort, because before it, Spark's sampling of the ranges would count every row twice.
    rows = rows.observe(counted, F.count(F.lit(1)).alias(_ROWS))
    if plan.lines.form == "parquet":
        storable(rows).write.options(**WRITE).parquet(f"file://{plan.parts}")
    else:
        written(rows, plan.lines).write.options(**WRITE).text(f"file://{plan.parts}")
    count = _count(counted)
    parts = _shared(Path(plan.parts))
    snapshots = [found for found in (databases.snapshot if databases else None, reads.snapshot()) if found]
    return ExportDone(run.job, parts, "; ".join(snapshots) or None, count)


def _count(counted: Observation) -> int | None:
    """
    Return the number of rows that Spark has passed to its writer.

    Return None if Spark does not report it in time.
    A Spark Connect server itself waits only 0.1 s for the count (`Observation.getOrEmpty`, Spark 4.1).
    """
    found: list[int] = []

    def ask() -> None:
        with suppress(Exception):  # the export goes on without the count, because Spark's own job has succeeded
            found.append(int(counted.get[_ROWS]))

    thread = threading.Thread(target=ask, name="count", daemon=True)
    thread.start()
    thread.join(_COUNTED)
    return found[0] if found else None


def _shared(folder: Path) -> tuple[tuple[int, str, int], ...]:
    """
    Return the parts; Spark writes at least one part, even for a result without rows.

    Raises:
        ExportError: The executors have written the parts to folders of their own machines.
    """
    with suppress(OSError):  # the folder is missing, or belongs to another user
        # A network file system can list an old state of a folder, unless this machine has changed the folder.
        tempfile.TemporaryFile(dir=folder).close()
    parts = tuple(parts_in(folder)) if folder.is_dir() else ()
    if not parts:
        raise ExportError(
            f"Expected Spark's rows in {folder}, got no file there: "
            "export to a file system that Spark's executors share with the worker."
        )
    return parts


def _read(session: SparkSession, name: str, source: FileSource | Database, databases: Databases | None) -> DataFrame:
    if isinstance(source, FileSource):
        return read(session, source)
    if databases is None:
        raise ExportRejected(
            f"Expected a Spark driver in the Spark host for the Jdbc table {name!r}, got Spark Connect: it has no JVM here that could "
            "hold a snapshot of the database; use spark_master local[*,4] or spark://…, or read files."
        )
    return databases.read(name, source)


def _size(estimate: int, databases: Databases | None) -> int:
    """Return the size of the result in bytes; Spark's estimate is useless for tables of a database."""
    return databases.size if databases and databases.size and estimate > _UNKNOWN else estimate


def first_line(error: Exception) -> str:
    """Return the useful line of a long Spark error: its first line, or the error of a Python function."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    if python := from_traceback(text):
        return python
    lines = [stripped for part in text.splitlines() if (stripped := part.strip())]
    header = _header(error) if lines and "FAILED_READ_FILE" in lines[0] else ""
    raised = _RAISED.fullmatch(lines[0]) if lines else None
    return header or (raised[1] if raised else lines[0] if lines else type(error).__name__)


def _header(error: Exception) -> str:
    """Return the message about a CSV file's header from the causes of an error, or an empty text."""
    cause = _java(error)
    while cause is not None:
        text = str(cause.getMessage())
        if text.startswith("CSV header"):
            return (
                " ".join(text.split())
                + ': give each file the same columns in the same order, or set your own names for all files with schema= and options={"enforceSchema": "true"}.'
            )
        cause = cause.getCause()
    return ""


def failed(
    job: str,
    error: BaseException,
    words: Callable[[Exception], str] = first_line,
    redact: Callable[[str], str] = str,
) -> ExportFailed:
    """
    Return the last event of a job that ended with this error.

    This function raises nothing, because without this event the child waits until its time limit.
    A class of the user can raise any error.

    Args:
        job: The job's name.
        error: The error; its text becomes valid Unicode without recognised secrets.
        words: A function that returns the useful line of an error that is not SteadyWorker's.
        redact: A function that removes the secrets that the job itself has read.
    """
    try:
        if not isinstance(error, Exception):  # `sys.exit` in a user's `__str__`
            return ExportFailed(job, "job", plain_text(redact(repr(error))))
        text = str(error) if isinstance(error, ExportError) else words(error)
        return ExportFailed(job, kind_of(error), plain_text(redact(text)))
    except BaseException:  # noqa: BLE001 - see above
        return ExportFailed(job, "job", "an error that cannot be printed")


def kind_of(error: Exception) -> str:
    """
    Return the kind of `ExportFailed` for this error (`protocol.py`).

    An error is `rejected` if each retry would meet the error again; it does not matter which code has raised the error.
    The errors of Spark and PostgreSQL, and their causes, have the SQLSTATE of the SQL standard.
    The first two characters of a SQLSTATE are its class.
    """
    if isinstance(error, ExportRejected):
        return "rejected"
    if isinstance(error, ExportError):
        return "query"
    states = [*_states(error)]
    if any(state[:2] in _FINAL and state not in _PASSING for state in states):
        return "rejected"
    return "query" if states and states[0] in _PASSING else "job"


def _states(error: Exception) -> Iterator[str]:
    """Yield the SQLSTATE of an error, and of its causes in the JVM."""
    if isinstance(error, PySparkException) and (state := error.getSqlState()):
        yield state
    cause = _java(error)
    while cause is not None:
        for name in ("getSqlState", "getSQLState"):  # an error of Spark's, or of a database's driver
            with suppress(Py4JError):  # the error has no such method
                if state := getattr(cause, name)():
                    yield str(state)
        cause = cause.getCause()


def _java(error: Exception) -> Any:
    """Return the error in the JVM, or None without one."""
    return error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)


def _check(schema: StructType, plan: ExportPlan) -> list[Key]:
    """Return the columns to sort by; raise ExportRejected if the columns do not fit the plan."""
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ExportRejected(f"Expected columns with different names, got {', '.join(twice)} twice: name each with AS.")
    keys = [Key.of(text, names) for text in plan.order_by]
    for name in (*(key.name for key in keys), *plan.sums):
        if name not in names:
            raise ExportRejected(
                f"Expected order_by and totals to name columns of the query ({', '.join(names)}), got {name!r}: correct the name."
            )
    for name in plan.sums:
        kind = schema[name].dataType
        if not isinstance(kind, (*WHOLE, DecimalType)):
            raise ExportRejected(
                f"Expected integers or decimals in {name!r}, got {kind.simpleString()}: totals are exact; cast the column to a decimal in the query."
            )
    return keys


def _sampled(pieces: int) -> int:
    """Return the number of sampled keys for each piece, from which Spark finds the bounds between pieces."""
    return min(_SAMPLE // pieces, _SAMPLE_OF_A_PIECE)


def _pieces(size: int) -> int:
    """
    Return the first number of pieces for a shuffle of this many bytes; Spark later combines small neighbouring pieces.

    If the result is a single piece, Spark sorts without an extra run of the query for a sample.
    """
    return 1 if not size else min(max(size // PIECE, _FEWEST), _MOST)
