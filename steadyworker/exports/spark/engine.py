"""
The engine with a Spark driver in the host.

The engine runs many jobs at once; each job has its own session, thread, job group and fair pool.

This file starts, watches and ends jobs; `query.py` does the work of one job.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark import InheritableThread, SparkConf, SparkContext
from pyspark.sql import SparkSession

from steadyworker.clock import Clock, SystemClock
from steadyworker.exports.postgres import Databases
from steadyworker.exports.spark.inputs import of_plan
from steadyworker.exports.spark.parts import remove_parts
from steadyworker.exports.spark.protocol import (
    ExportDone,
    ExportFailed,
    ExportPlan,
    ExportProgress,
    HostPong,
    JobEvent,
    RunExport,
    Stuck,
)
from steadyworker.exports.spark.query import failed, settle_in, write
from steadyworker.exports.spark.sharing import probe
from steadyworker.exports.spark.tasks import Tasks

_UNSEEN = 10.0  # factor of the limit without progress in a cluster, and at most while the host computes
_POOLS = 100  # Spark keeps each pool until its end
_ENDS = 10.0  # seconds that the tasks of a failed job get to end
_WAITS = 2.0  # seconds between two reports that the JVM responds while a cluster has no place for the application
_POLL = 0.2  # seconds between two reads of Spark's counters, and between two calls of cancel


class Engine:
    """
    One SparkSession and the jobs that run in it.

    Create the engine in the main thread before any other thread starts, because PySpark forks to start its JVM.
    One thread calls `run`, `cancel` and `stop`, another thread calls `alive`, and a third thread calls `outlive`.
    `emit` gets each event, from any thread.
    `lost` is called when the JVM no longer responds, or when its application has ended, with the reason in the second case; it does not return.
    """

    def __init__(self, emit: Callable[[JobEvent | Stuck | HostPong], None], lost: Callable[[str], None]) -> None:
        self._emit, self._lost, self._stopping = emit, lost, False
        SparkContext._ensure_initialized()  # noqa: SLF001 - starts the JVM, before any thread
        started = threading.Event()
        threading.Thread(target=self._wait, args=(started,), name="wait", daemon=True).start()
        self._session = SparkSession.builder.getOrCreate()
        started.set()
        self._context = self._session.sparkContext
        self._jobs: dict[str, _EngineJob] = {}
        self._changes = threading.Lock()
        self._numbers = itertools.count(1)
        self._spare: SparkSession | None = None

    @property
    def version(self) -> str:
        """The version of Spark."""
        return str(self._context.version)

    @property
    def _java(self) -> Any:
        """The JVM's process (subprocess.Popen)."""
        gateway: Any = self._context._gateway  # noqa: SLF001
        return gateway.proc

    def _wait(self, started: threading.Event) -> None:
        """Report that the JVM responds until Spark has started, because the queue of a cluster can be full for hours."""
        jvm: Any = SparkContext._jvm  # noqa: SLF001
        with suppress(Exception):  # the JVM is gone, and the start fails
            waits = not SparkConf().get("spark.master", "local").startswith("local")
            while waits and not started.wait(_WAITS):
                jvm.java.lang.System.nanoTime()
                self._emit(HostPong())

    def outlive(self) -> int:
        """Return the JVM's exit code when the JVM has died."""
        return int(self._java.wait())

    def alive(self) -> bool:
        """Return whether the JVM responds; while the JVM hangs, this call waits."""
        try:
            self._context.statusTracker().getActiveJobsIds()
        except Exception:  # noqa: BLE001 - py4j raises any error of its socket
            return False
        return True

    def warm_up(self, folder: Path) -> None:
        """
        Run one tiny export, so that Spark's classes are loaded before the first job.

        In a cluster, do nothing: all cores can be busy for hours, and the executors do not see this folder.
        """
        if not _is_local(self._context):
            return
        query = "SELECT id, CAST(id AS STRING) AS text, CAST(id AS DECIMAL(12,2)) AS amount FROM range(10)"
        plan = ExportPlan(query=query, tables={}, order_by=("id",), parts=str(folder))
        self._job(RunExport("warm-up", plan), lambda _: None).write()
        self._spare = self._fresh()

    def _leave_if_over(self) -> None:
        """Call `lost` if the JVM no longer responds, or if the application has ended: an operator or the cluster can end it."""
        if not self.alive():
            self._lost("")
        context: Any = self._context._jsc  # noqa: SLF001
        if context.sc().isStopped() and not self._stopping:
            self._lost(f"the application {self._context.applicationId} at {self._context.master} has ended")

    def run(self, run: RunExport) -> None:
        """Begin a job, and return at once; the job's last event is `done` or `failed`."""
        self._leave_if_over()
        job = self._job(run, self._emit)
        with self._changes:
            self._jobs[run.job] = job
        InheritableThread(target=self._drive, args=(job,), name=run.job, daemon=True).start()

    def cancel(self, job: str) -> None:
        """End a job, and return at once; do nothing if the job has ended."""
        with self._changes:
            if job in self._jobs:
                self._jobs[job].cancelled.set()

    def stop(self) -> None:
        """End Spark normally, so that a cluster gets the application's end."""
        self._stopping = True
        self._session.stop()
        self._java.stdin.close()
        self._java.wait()

    def _job(self, run: RunExport, emit: Callable[[JobEvent | Stuck], None]) -> _EngineJob:
        with self._changes:
            session, self._spare = self._spare, None
        session = session or self._fresh()
        return _EngineJob(run, session, next(self._numbers), emit, self._dump)

    def _fresh(self) -> SparkSession:
        """Return a new session for a job; making its parser and planner takes longer than a small query."""
        session = settle_in(self._session.newSession())
        _ = session.range(1).orderBy("id").schema
        return session

    def _dump(self, why: str) -> None:
        """Write the stacks of all threads of this process and of the JVM to the log."""
        sys.stderr.write(f"{why}; all threads:\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
        os.kill(self._java.pid, signal.SIGQUIT)  # the JVM writes its stacks, and continues

    def _drive(self, job: _EngineJob) -> None:
        """
        Do a job, and emit its last event, whatever fails.

        Without the last event, the child would wait until its time limit.
        """
        watcher = threading.Thread(target=job.watch, name=f"{job.id}-watch", daemon=True)
        try:
            watcher.start()
            self._context.setLocalProperty("spark.scheduler.pool", job.pool)
            last: JobEvent = job.write()
        except BaseException as error:  # noqa: BLE001 - any error ends only this job, even a SystemExit of the user's code
            self._leave_if_over()
            last = failed(job.id, error, redact=job.databases.redact)
        finally:
            job.ended.set()
        try:
            job.databases.close(failed=isinstance(last, ExportFailed))
        except Exception:  # noqa: BLE001 - for the log
            traceback.print_exc()
        if watcher.ident is not None:
            watcher.join()
        if isinstance(last, ExportFailed):
            job.give_back()
        with self._changes:
            del self._jobs[job.id]
        self._emit(last)
        with suppress(Exception):  # the JVM is gone: `outlive` returns
            self._spare = self._spare or self._fresh()


class _EngineJob:
    """One job: `write` in its own thread, `watch` beside it."""

    def __init__(
        self,
        run: RunExport,
        session: SparkSession,
        number: int,
        emit: Callable[[JobEvent | Stuck], None],
        dump: Callable[[str], None],
    ) -> None:
        self.id, self._run, self.pool = run.job, run, f"pool-{number % _POOLS}"
        self._group = group = f"{run.job}/{number}"  # a second submission of a job here has its own counters
        self._probe = f"{group}/probe"
        self.parts = run.plan.parts
        self.session, self._emit, self._dump = session, emit, dump
        self._context = context = session.sparkContext
        local = _is_local(context)
        self._where = {} if local else {"master": str(context.master), "application": str(context.applicationId)}
        self._tracker = context.statusTracker()
        self._tasks = tasks_of(run, local=local)
        self.cancelled, self.ended = threading.Event(), threading.Event()
        self.databases = Databases(group)

    def write(self) -> ExportDone:
        """Make the parts; errors of `probe` and `query.write` pass to the caller."""
        if self._where or self._run.plan.stage:
            self._context.setJobGroup(self._probe, "check that the executors share a folder", interruptOnCancel=True)
            probe(self.session, self._run.plan)
        self._context.setJobGroup(self._group, self._run.plan.query[:200], interruptOnCancel=True)
        return write(self.session, self._run, self._emit, of_plan, self._where, self.databases)

    def watch(self) -> None:
        """
        Emit progress until the job has ended; emit `Stuck` once if the job gets stuck.

        Repeat a cancel until the job has ended, because a cancel before Spark begins the job has no effect.
        """
        reported = False
        try:
            while not self.ended.wait(_POLL):
                if self.cancelled.is_set():
                    for group in (self._probe, self._group):
                        self._context.cancelJobGroup(group)
                    self.databases.cancel()
                    continue
                self._tasks.record(self._begun_stages())
                if self._tasks.poll():
                    self._emit(ExportProgress(self.id, self._tasks.done, self._tasks.total))
                elif not reported and (why := self._tasks.stuck()):
                    reported = True
                    self._dump(f"job {self.id}: {why}")
                    self._emit(Stuck(self.id, why))
        except Exception:  # noqa: BLE001 - the JVM is gone: `write` gets an error too
            return

    def give_back(self) -> None:
        """
        Remove the parts of a failed or cancelled job, and let Java close the files of its sort.

        A cancelled task can still move its part into the folder, so this method first waits until no task runs, but at most 10 s.
        Spark removes the files of the sort, but a killed task leaves them open, and then they need disk space until Java collects garbage.
        """
        try:
            clock = SystemClock()
            until = clock.monotonic() + _ENDS
            while (stages := [*self._stages()]) and any(info.numActiveTasks for info in stages):
                if clock.monotonic() > until:
                    break
                time.sleep(_POLL)
            if stages and not self._where:
                self.session.sql("SELECT java_method('java.lang.System', 'gc')").collect()
        except Exception:  # noqa: BLE001 - for the log; the JVM can be gone, and then its files are closed
            traceback.print_exc()
        remove_parts(self.parts)  # the disk can be full, and the child can be dead

    def _begun_stages(self) -> Iterator[tuple[int, int, int]]:
        """Yield the id, the complete tasks and the tasks of each stage that has begun; Spark skips a stage if its shuffle exists."""
        for info in self._stages():
            if info.numActiveTasks or info.numCompletedTasks:
                yield info.stageId, info.numCompletedTasks, info.numTasks

    def _stages(self) -> Iterator[Any]:
        """Yield the facts of each stage of the job's group that Spark still knows."""
        for job in self._tracker.getJobIdsForGroup(self._group):
            known = self._tracker.getJobInfo(job)
            yield from filter(None, map(self._tracker.getStageInfo, known.stageIds if known else ()))


def tasks_of(run: RunExport, *, local: bool, clock: Clock | None = None) -> Tasks:
    """Return the tasks of a job; in a cluster, the processor time of the host does not make the longest limit longer."""
    longest = run.stuck_after * _UNSEEN
    return Tasks(Path(run.plan.parts), run.stuck_after if local else longest, longest=longest, clock=clock)


def _is_local(context: Any) -> bool:
    """Return whether all of Spark runs in the driver's JVM."""
    return str(context.master).startswith("local")
