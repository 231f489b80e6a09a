"""
The work of one export in a Spark session, for every engine.

Spark reads the tables, runs the query, sorts the result and writes it as Parquet parts (`result.py`).
The child makes the file from the parts (`export.py`), and counts and sums the rows.
Only this export writes to the folder of the parts.
Hadoop's committer uses algorithm version 2, in which each task moves its part to the folder, so that the end of a large job is short.
This is safe, because the child reads the parts only after Spark's job has succeeded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.params import from_param
from steadyworker.exports.postgres import PASSING, Databases, is_final
from steadyworker.exports.spark.binding import bound
from steadyworker.exports.spark.building import Built, from_traceback
from steadyworker.exports.spark.catalogs import PinnedTables
from steadyworker.exports.spark.databases import read_other_table
from steadyworker.exports.spark.inputs import Inputs
from steadyworker.exports.spark.parts import parts_folder
from steadyworker.exports.spark.postgres import read_table
from steadyworker.exports.spark.protocol import ExportDone, ExportFailed, ExportStarted, JobEvent, RunExport
from steadyworker.exports.spark.reading import read
from steadyworker.exports.spark.result import in_order, keys_of
from steadyworker.exports.tables import FileSource, Table
from steadyworker.text.plain_text import plain_text

_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: P0001)?")  # the message of `raise_error`
# Spark 3.5 has it before the error of the task.
_ABORTED = re.compile(r"\S+: Job aborted due to stage failure: .*? \(TID \d+\) \(.*?\): (?:[\w.$]+: )?")
_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",  # an overflow is an error, and a decimal never shows an exponent
    # With pruning, Spark silently skips lines with too few cells, and an unused quoted cell shifts the other cells.
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    "spark.sql.legacy.javaCharsets": "true",  # allows windows-1252, which many spreadsheets use
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",  # the simplified form has no causes
    "spark.sql.classic.shuffleDependency.fileCleanup.enabled": "true",  # the files of a sort go when it ends; Spark 4.1 and newer
    "spark.sql.timeType.enabled": "true",  # Spark 4.1 and newer
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",  # days before 1582 as in other software
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol",
}
WRITE = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "compression": "none",
    "maxRecordsPerFile": "0",
}
"""The options of every write."""

_HEADER = "CSV header"  # the begin of Spark's message; Spark 3.5 has it in its first line

# Without dictionaries, Spark uses less processor time, and the parts are as small, because snappy compresses repetitions too.
_PARTS = {**WRITE, "compression": "snappy", "parquet.enable.dictionary": "false"}


def settle_in(session: SparkSession) -> SparkSession:
    """Apply the settings of every export to a job's own session, and return the session."""
    for key, value in _SESSION.items():
        session.conf.set(key, value)
    return session


def write(
    session: SparkSession,
    run: RunExport,
    emit: Callable[[JobEvent], None],
    inputs: Callable[[DataFrame], Inputs],
    where: Mapping[str, str],
    databases: Databases | None = None,
) -> ExportDone:
    """
    Make the parts; raise Spark's errors, ExportRejected if the query does not fit an export, and ExportError if no part is here.

    Args:
        session: The job's own session, after `settle_in`.
        run: The job with its plan.
        emit: A function that gets the event `started` when Spark has analysed the query.
        inputs: A function that returns the inputs that a result reads.
        where: The location of the job in a cluster.
        databases: The databases of the job; None with Spark Connect.
    """
    plan = run.plan
    pinned = PinnedTables(session, plan.snapshots)
    tables = {name: _read(session, name, source, databases, pinned) for name, source in plan.tables.items()}
    for name, table in tables.items():
        table.createOrReplaceTempView(name)
    if plan.build:
        built = Built(plan.query)
        result = built(session, tables, {name: from_param(value) for name, value in plan.params.items()})
        versions = built.versions
    else:
        result = session.sql(plan.query, args={name: bound(value) for name, value in plan.params.items()})
        versions = {}
    keys = keys_of(result.schema, plan)
    reads = inputs(result)
    reads.refuse_lakes(session, here=databases is not None)
    columns = tuple(result.schema.fieldNames())
    versions = versions | (databases.versions if databases else {})
    keyed = tuple(key.name for key in keys)
    emit(ExportStarted(run.job, columns, keyed, versions, dict(where), pinned.snapshots))
    folder = parts_folder(plan.parts)
    in_order(result, keys, len(plan.order_by)).write.options(**_PARTS).parquet(folder.url)
    if not (parts := folder.parts()):  # Spark writes at least one part, even for a result without rows
        raise ExportError(
            f"Expected Spark's rows in {folder.url}, got no file there: export to a file system that Spark's executors "
            "share with the worker, or set spark_stage."
        )
    others = [f"{table.place} none" for table in plan.tables.values() if isinstance(table, Jdbc) and table.driver]
    snapshots = [databases.snapshot if databases else None, *others, *pinned.descriptions, *reads.snapshots()]
    return ExportDone(run.job, parts, "; ".join(dict.fromkeys(filter(None, snapshots))) or None)


def _read(
    session: SparkSession,
    name: str,
    source: FileSource | Jdbc | Table,
    databases: Databases | None,
    pinned: PinnedTables,
) -> DataFrame:
    if isinstance(source, FileSource):
        return read(session, source)
    if isinstance(source, Table):
        return pinned.read(source)
    if databases is None:
        raise ExportRejected(
            f"Expected a Spark driver in the Spark host for the Jdbc table {name!r}, got Spark Connect: the table's password would pass "
            "to a server that other users share; use spark_master local[*,4] or spark://…, or read files."
        )
    return (read_other_table if source.driver else read_table)(session, databases, name, source)


def first_line(error: Exception) -> str:
    """Return the useful line of a long Spark error: its first line, or the error of a Python function."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    if python := from_traceback(text):
        return python
    lines = [stripped for part in text.splitlines() if (stripped := part.strip())]
    if lines and "FAILED_JDBC" in lines[0]:
        *_, reason = (lines[0], *(str(cause.getMessage()) for cause in _causes(error)))
        return f"{lines[0]}: {' '.join(reason.split())}"
    if lines and (aborted := _ABORTED.match(lines[0])):
        lines[0] = lines[0][aborted.end() :]
    header = _header(error) if lines and ("FAILED_READ_FILE" in lines[0] or _HEADER in lines[0]) else ""
    raised = _RAISED.fullmatch(lines[0]) if lines else None
    return header or (raised[1] if raised else lines[0] if lines else type(error).__name__)


def _header(error: Exception) -> str:
    """Return the message about a CSV file's header from the causes of an error, or an empty text."""
    for cause in _causes(error):
        text = str(cause.getMessage())
        if text.startswith(_HEADER):
            return (
                " ".join(text.split())
                + ': give each file the same columns in the same order, or set your own names for all files with schema= and options={"enforceSchema": "true"}.'
            )
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
    """
    if isinstance(error, ExportRejected):
        return "rejected"
    if isinstance(error, ExportError):
        return "query"
    states = [*_states(error)]
    if any(map(is_final, states)):
        return "rejected"
    return "query" if states and states[0] in PASSING else "job"


def _states(error: Exception) -> Iterator[str]:
    """Yield the SQLSTATE of an error, and of its causes in the JVM."""
    if isinstance(error, PySparkException) and (state := error.getSqlState()):
        yield state
    for cause in _causes(error):
        for name in ("getSqlState", "getSQLState"):  # an error of Spark's, or of a database's driver
            with suppress(Py4JError):  # the error has no such method
                if state := getattr(cause, name)():
                    yield str(state)


def _causes(error: Exception) -> Iterator[Any]:
    """Yield the error in the JVM and its causes, or nothing without one; PySpark raises its own error while it handles the JVM's."""
    found = error.__context__ if isinstance(error, PySparkException) else error
    cause = found.java_exception if isinstance(found, Py4JJavaError) else None
    while cause is not None:
        yield cause
        cause = cause.getCause()
