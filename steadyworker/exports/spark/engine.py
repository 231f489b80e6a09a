"""
Spark, in the host: one session, many jobs at once, each in a session, a thread, a job group and a fair pool of its own.

What a job does there, `query.py` says; this file begins it, watches it and ends it.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from steadyworker.errors import ExportError
from steadyworker.exports.spark.cuts import PIECE
from steadyworker.exports.spark.databases import Databases, patience
from steadyworker.exports.spark.pace import Ratio
from steadyworker.exports.spark.protocol import (
    Done,
    Failed,
    JobEvent,
    Lines,
    Part,
    Plan,
    Progress,
    Run,
    Stuck,
)
from steadyworker.exports.spark.query import FEW, Estimate, first_line, kind_of, settle_in, write
from steadyworker.exports.spark.sharing import probe
from steadyworker.exports.spark.tasks import Tasks

_JAVA = re.compile(r"\b(reflect|java_method|try_reflect)\(")
_LOOK = 0.2  # seconds between two looks at the books, and between two calls of cancel


class Engine:
    """
    One SparkSession and the jobs that run in it.

    To be made by the main thread before there is any other: PySpark forks to start its JVM.

    Args:
        emit: Called with each event, from any thread.
        lost: Called, and not expected to return, when the JVM does not answer any longer.
    """

    def __init__(self, emit: Callable[[JobEvent | Stuck], None], lost: Callable[[], None]) -> None:
        self._emit, self._lost = emit, lost
        self._session = SparkSession.builder.getOrCreate()
        self._context = self._session.sparkContext
        self._jobs: dict[str, _Job] = {}
        self._pools: set[int] = set()
        self._changes = threading.Lock()
        self._ratio = Ratio()
        self._groups = itertools.count(1)
        self._spare: SparkSession | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Of what runs here."""
        jvm: Any = self._context._jvm  # noqa: SLF001 - the bridge has no public door
        return {"pyspark": self._context.version, "java": str(jvm.System.getProperty("java.version"))}

    @property
    def _jvm(self) -> Any:
        """The JVM's process (subprocess.Popen)."""
        gateway: Any = self._context._gateway  # noqa: SLF001
        return gateway.proc

    def outlive(self) -> None:
        """Wait for the JVM's death."""
        self._jvm.wait()

    def alive(self) -> bool:
        """Whether the JVM answers; waits for as long as it hangs."""
        jvm: Any = self._context._jvm  # noqa: SLF001
        try:
            jvm.System.nanoTime()
        except Exception:  # noqa: BLE001 - py4j raises what its socket raises
            return False
        return True

    def warm_up(self, folder: Path) -> None:
        """
        Run one tiny export, so that the first real one finds its classes loaded.

        Not in a cluster: it may have no core free for hours, and its executors do not see this folder.
        """
        if not _is_local(self._context):
            return
        lines = Lines(delimiter=",", null="", guard_formulas=True)
        query = "SELECT id, CAST(id AS STRING) AS text, CAST(id AS DECIMAL(12,2)) AS amount FROM range(10)"
        plan = Plan(query=query, tables={}, order_by=("id",), sums=("amount",), lines=lines, parts=str(folder))
        self._job(Run("warm-up", plan), lambda _: None).write()
        self._spare = self._fresh()

    def run(self, run: Run) -> None:
        """Begin a job; returns at once.  Its last event is `done` or `failed`."""
        job = self._job(run, self._emit)
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

    def abandon(self) -> None:
        """Nothing: executors end when their driver does."""

    def stop(self) -> None:
        """End Spark in good order: a cluster is told, the class-data archive is written."""
        self._session.stop()
        self._jvm.stdin.close()
        self._jvm.wait()

    def _job(self, run: Run, emit: Callable[[JobEvent | Stuck], None]) -> _Job:
        with self._changes:
            session, self._spare = self._spare, None
        session = session or self._fresh()
        group = f"{run.job}/{next(self._groups)}"  # a job that is begun here a second time begins to count anew
        tasks = Tasks(session, group, Path(run.plan.parts), patience(run), self._ratio)
        return _Job(run, session, group, tasks, emit, self._dump)

    def _fresh(self) -> SparkSession:
        """A job's session: made ahead, because Spark takes longer for its parser and planner than for a small query."""
        session = settle_in(self._session.newSession())
        _estimate(session.range(1))
        return session

    def _dump(self, why: str) -> None:
        """Write to the log what every thread does, of this process and of the JVM."""
        sys.stderr.write(f"{why}; all threads:\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
        os.kill(self._jvm.pid, signal.SIGQUIT)  # it writes them, and goes on

    def _drive(self, job: _Job, pool: int) -> None:
        watcher = threading.Thread(target=job.watch, name=f"{job.id}-watch", daemon=True)
        try:
            self._context.setLocalProperty("spark.scheduler.pool", f"pool-{pool}")
            watcher.start()
            last: JobEvent = job.write()
        except Exception as error:  # noqa: BLE001 - ours, Spark's, py4j's and its socket's: all end this job only
            if not self.alive():
                self._lost()
            ours = isinstance(error, ExportError)
            text = job.databases.redact(str(error) if ours else first_line(error))
            last = Failed(job.id, kind_of(error), text)
        finally:
            job.ended.set()
        job.databases.close(failed=isinstance(last, Failed))
        watcher.join()
        if isinstance(last, Failed):
            shutil.rmtree(job.parts, ignore_errors=True)  # its disk may be full, and whoever asked may be gone
        with self._changes:
            del self._jobs[job.id]
            self._pools.discard(pool)
        self._emit(
            Failed(job.id, "cancelled", "cancelled") if job.cancelled.is_set() and isinstance(last, Failed) else last
        )
        with suppress(Exception):  # the JVM went away: whoever waits for it hears that
            self._spare = self._spare or self._fresh()


class _Job:
    """One job: `write` in its own thread, `watch` beside it."""

    def __init__(
        self,
        run: Run,
        session: SparkSession,
        group: str,
        tasks: Tasks,
        emit: Callable[[JobEvent | Stuck], None],
        dump: Callable[[str], None],
    ) -> None:
        self.id, self._run, self._group, self._probe = run.job, run, group, f"{group}/probe"
        self.parts = Path(run.plan.parts)
        self.session, self._tasks, self._emit, self._dump = session, tasks, emit, dump
        context: Any = session.sparkContext
        self._context = context
        self._where = {} if _is_local(context) else {"master": context.master, "application": context.applicationId}
        self.cancelled, self.ended = threading.Event(), threading.Event()
        jvm = self._context._jvm  # noqa: SLF001
        self.databases = Databases(session, jvm, group, self.parts, self.cancelled)

    def write(self) -> Done:
        """Make the parts; raises what `probe` and `query.write` raise."""
        if self._where:
            self._context.setJobGroup(self._probe, "whether the executors share a folder", interruptOnCancel=True)
            probe(self.session, self._run.plan.parts)
        self._context.setJobGroup(self._group, self._run.plan.query[:200], interruptOnCancel=True)
        done = write(self.session, self._run, self._emit, _estimate, self._where, self.databases)
        self._tasks.ended()
        return done

    def watch(self) -> None:
        """
        Tell what has moved until the job has ended, and once that it is stuck.

        Cancel until then, because a cancel before a job begins is lost.
        """
        told = False
        try:
            while not self.ended.wait(_LOOK):
                if self.cancelled.is_set():
                    self._context.cancelJobGroup(self._probe)
                    self._context.cancelJobGroup(self._group)
                    self.databases.cancel()
                    continue
                for index, path, size in self._tasks.complete():
                    self._emit(Part(self.id, index, path, size))
                if self._tasks.look(self.databases.moved):
                    seen = self._tasks
                    self._emit(Progress(self.id, seen.done, seen.total, seen.rows, seen.rate, seen.left))
                elif not told and (why := self._tasks.stuck()):
                    told = True
                    self._dump(f"job {self.id}: {why}")
                    self._emit(Stuck(self.id, why))
        except Exception:  # noqa: BLE001 - the JVM went away: the thread that writes hears it, too
            return


def _is_local(context: Any) -> bool:
    """Whether the JVM is all of Spark."""
    return str(context.master).startswith("local")


def _estimate(result: DataFrame) -> Estimate:
    """
    The bytes that Spark thinks a result has, as EXPLAIN COST shows them; 0 where all that it is made of is one task's work.

    Where even the tables of a query are few, that is enough: what they are without its filters is known before it is optimised.
    """
    frame: Any = result._jdf  # noqa: SLF001
    query = frame.queryExecution()
    plan = query.analyzed()
    size = _bytes_of(plan)
    if size > FEW:
        return Estimate(_bytes_of(query.optimizedPlan()))
    return (size <= PIECE and _few(result, plan)) or Estimate(size)


def _few(result: DataFrame, plan: Any) -> Estimate | None:
    """
    Something where Spark would put all rows of these tables into one task anyway; then it need not sample them to sort.

    Not where a query makes many rows of one, or asks others within itself, which are no part of this plan.
    That task reads them, too, if they are files, and no Java is called (`reflect`): else the tasks that do are somebody's wish.
    """
    session: Any = result.sparkSession
    said = session.conf.get("spark.sql.adaptive.advisoryPartitionSizeInBytes")
    most = min(PIECE, session._jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(said))  # noqa: SLF001
    found = plan.collectLeaves()
    tables = [found.apply(number) for number in range(found.size())]
    text = plan.toString()
    if sum(map(_bytes_of, tables)) > most or not plan.subqueriesAll().isEmpty() or "Generate " in text:
        return None
    files = all(table.getClass().getSimpleName() == "LogicalRelation" for table in tables)
    return Estimate(0, whole=files and not _JAVA.search(text))


def _bytes_of(plan: Any) -> int:
    return int(str(plan.stats().sizeInBytes()))
