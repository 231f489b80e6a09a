"""
Spark, in the host: one session, many jobs at once, each in a session, a thread, a job group and a fair pool of its own.

A job reads its tables, asks its query, sorts, counts and sums on the way to the writer (`observe`), and writes headerless
parts into a folder that no one else writes to.  Hadoop's committer is version 2, so that a part appears when its task
commits: it is safe here, because nobody takes a part of a task that is not complete, nor a file of a job that failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import DecimalType, StructType

from steadyworker.errors import ExportError
from steadyworker.exports.spark.lines import WHOLE, column, line
from steadyworker.exports.spark.protocol import (
    Done,
    Failed,
    JobEvent,
    Lines,
    Part,
    Plan,
    Progress,
    Run,
    Started,
    from_param,
)
from steadyworker.exports.spark.reading import read
from steadyworker.exports.spark.tasks import Tasks, parts_in

_LOOK = 0.2  # seconds between two looks at the books, and between two calls of cancel
_PIECE = 6 << 20  # bytes of the query's estimated result for each task of a sort, before Spark knows better
_FEWEST, _MOST = 32, 4000
_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",  # an overflow is an error, and a decimal never shows an exponent
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol",
}
_WRITE = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "compression": "none",
    "lineSep": "\n",
    "maxRecordsPerFile": "0",
}


class Engine:
    """
    One SparkSession and the jobs that run in it.

    To be made by the main thread before there is any other: PySpark forks to start its JVM.

    Args:
        emit: Called with each event, from any thread.
        lost: Called, and not expected to return, when the JVM does not answer any longer.
    """

    def __init__(self, emit: Callable[[JobEvent], None], lost: Callable[[], None]) -> None:
        self._emit, self._lost = emit, lost
        self._session = SparkSession.builder.getOrCreate()
        self._context = self._session.sparkContext
        self._jobs: dict[str, _Job] = {}
        self._pools: set[int] = set()
        self._changes = threading.Lock()

    @property
    def versions(self) -> dict[str, str]:
        """Of what runs here."""
        jvm: Any = self._context._jvm  # noqa: SLF001 - the bridge has no public door
        return {"pyspark": self._context.version, "java": str(jvm.System.getProperty("java.version"))}

    @property
    def jvm(self) -> Any:
        """The JVM's process (subprocess.Popen)."""
        gateway: Any = self._context._gateway  # noqa: SLF001
        return gateway.proc

    def alive(self) -> bool:
        """Whether the JVM answers; waits for as long as it hangs."""
        jvm: Any = self._context._jvm  # noqa: SLF001
        try:
            jvm.System.nanoTime()
        except Exception:  # noqa: BLE001 - py4j raises what its socket raises
            return False
        return True

    def warm_up(self, folder: Path) -> None:
        """Run one tiny export, so that the first real one finds its classes loaded."""
        lines = Lines(delimiter=",", null="", guard_formulas=True)
        query = "SELECT id, CAST(id AS STRING) AS text, CAST(id AS DECIMAL(12,2)) AS amount FROM range(10)"
        plan = Plan(query=query, tables={}, order_by=("id",), sums=("amount",), lines=lines, parts=str(folder))
        job = _Job(Run("warm-up", plan), self._session.newSession(), self._context, lambda _: None)
        job.write()

    def run(self, run: Run) -> None:
        """Begin a job; returns at once.  Its last event is `done` or `failed`."""
        job = _Job(run, self._session.newSession(), self._context, self._emit)
        with self._changes:
            self._jobs[run.job] = job
            pool = next(number for number in range(len(self._pools) + 1) if number not in self._pools)
            self._pools.add(pool)
        InheritableThread(target=self._drive, args=(job, pool), name=run.job, daemon=True).start()

    def cancel(self, job: str) -> None:
        """End a job; ignored when it has ended."""
        with self._changes:
            if job in self._jobs:
                self._jobs[job].cancelled.set()

    def stop(self) -> None:
        """End Spark in good order: a cluster is told, the class-data archive is written."""
        self._session.stop()
        self.jvm.stdin.close()
        self.jvm.wait()

    def _drive(self, job: _Job, pool: int) -> None:
        watcher = threading.Thread(target=job.watch, name=f"{job.id}-watch", daemon=True)
        try:
            self._context.setLocalProperty("spark.scheduler.pool", f"pool-{pool}")
            watcher.start()
            last: JobEvent = job.write()
        except ExportError as error:
            last = Failed(job.id, "query", str(error))
        except Exception as error:  # noqa: BLE001 - Spark's, py4j's and its socket's: all end this job only
            if not self.alive():
                self._lost()
            last = Failed(job.id, "query" if _is_query(error) else "job", first_line(error))
        finally:
            job.ended.set()
        watcher.join()
        with self._changes:
            del self._jobs[job.id]
            self._pools.discard(pool)
        self._emit(
            Failed(job.id, "cancelled", "cancelled") if job.cancelled.is_set() and isinstance(last, Failed) else last
        )


class _Job:
    """One job: `write` in its own thread, `watch` beside it."""

    def __init__(self, run: Run, session: SparkSession, context: Any, emit: Callable[[JobEvent], None]) -> None:
        self.id, self._plan = run.job, run.plan
        self.session, self._context, self._emit = session, context, emit
        self._parts = Path(run.plan.parts)
        self._tasks = Tasks(context, self.id, self._parts)
        self.cancelled, self.ended = threading.Event(), threading.Event()

    def write(self) -> Done:
        """Make the parts; raises what Spark raises, and ExportError for a query that asks for what cannot be."""
        plan = self._plan
        self._context.setJobGroup(self.id, plan.query[:200], interruptOnCancel=True)
        for key, value in _SESSION.items():
            self.session.conf.set(key, value)
        for name, source in plan.tables.items():
            read(self.session, source).createOrReplaceTempView(name)
        result = self.session.sql(plan.query, args={name: from_param(value) for name, value in plan.params.items()})
        _check(result.schema, plan)
        text = line(result.schema, plan.lines)
        self.session.conf.set("spark.sql.shuffle.partitions", str(_pieces(result)))
        self._emit(
            Started(self.id, tuple((field.name, field.dataType.simpleString()) for field in result.schema.fields))
        )
        counted = Observation()
        sums = [_sum(result.schema, name).alias(f"sum {number}") for number, name in enumerate(plan.sums)]
        # Above the sort: below it Spark's sampling of the range would count every row a second time.
        ordered = result.orderBy(*map(column, plan.order_by)).observe(counted, F.count(F.lit(1)).alias("rows"), *sums)
        ordered.select(text.alias("value")).write.options(**_WRITE).text(f"file://{self._parts}")
        found = counted.get
        shown = {name: _plain(found[f"sum {number}"]) for number, name in enumerate(plan.sums)}
        return Done(self.id, int(found["rows"]), shown, tuple(parts_in(self._parts)))

    def watch(self) -> None:
        """Tell what has moved until the job has ended; cancel until then, because a cancel before a job begins is lost."""
        try:
            while not self.ended.wait(_LOOK):
                if self.cancelled.is_set():
                    self._context.cancelJobGroup(self.id)
                    continue
                for index, path, size in self._tasks.complete():
                    self._emit(Part(self.id, index, path, size))
                if self._tasks.look():
                    self._emit(Progress(self.id, self._tasks.done, self._tasks.total, self._tasks.rows))
        except Exception:  # noqa: BLE001 - the JVM went away: the thread that writes hears it, too
            return


def first_line(error: Exception) -> str:
    """What a person needs of Spark's pages: the first line that says something."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    lines = [stripped for part in text.splitlines() if (stripped := part.strip())]
    return lines[0] if lines else type(error).__name__


def _is_query(error: Exception) -> bool:
    """Whether the query, not its run, is at fault."""
    return isinstance(error, PySparkException) and type(error).__name__ in {
        "AnalysisException",
        "IllegalArgumentException",
        "ParseException",
    }


def _check(schema: StructType, plan: Plan) -> None:
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ExportError(f"Expected columns with different names, got {', '.join(twice)} twice: name each with AS.")
    for name in (*plan.order_by, *plan.sums):
        if name not in names:
            raise ExportError(
                f"Expected order_by and totals out of the query's columns {', '.join(names)}, got {name!r}: correct the name."
            )


def _sum(schema: StructType, name: str) -> Any:
    """The exact sum of a column."""
    kind = schema[name].dataType
    if isinstance(kind, WHOLE):
        return F.sum(column(name).cast("decimal(38,0)"))
    if isinstance(kind, DecimalType):
        return F.sum(column(name))
    raise ExportError(
        f"Expected integers or decimals in {name!r}, got {kind.simpleString()}: totals are exact; cast the column to a decimal in the query."
    )


def _plain(value: Decimal | None) -> str:
    """Plain digits; the sum of nothing is 0."""
    return "0" if value is None else format(value, "f")


def _pieces(result: DataFrame) -> int:
    """Into how many pieces a shuffle of this result is cut at first; Spark puts small neighbours together when it knows them."""
    frame: Any = result._jdf  # noqa: SLF001 - as EXPLAIN COST shows it
    plan = frame.queryExecution().optimizedPlan()
    size = int(str(plan.stats().sizeInBytes()))
    return min(max(size // _PIECE, _FEWEST), _MOST)
