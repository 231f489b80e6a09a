"""
The engine for Spark Connect: the user runs the server, and each job has its own session on the server.

::

    event at the client                                             effect on the job
    ─────────────────────────────────────────────────────────────  ──────────────────────────────────────────────────
    no response for less than the retry policy's 4 tries (4 s)      continues: the client attaches to the operation again
    no response for longer, or the server does not know the job     the host ends; when the server is back, the next host
                                                                    begins the job again, with another folder for its parts
    no response to a ping (`SparkSettings.hung_after`)              the same
    no progress for too long (`tasks.py`)                           is cancelled, and begun again in another session
    any other error                                                 fails

The run names its session (`ExportPlan.session`), and stores that name in the ledger before the first call to Spark.
So the next host or run can end the operations of a lost host or an earlier run before it begins the job.
The engine interrupts a cancelled job again and again until the job's call has returned, and then releases the session.
An interrupt ends only the Spark jobs that run, and a job that the server is planning still begins, and runs to its end.
So the engine waits with its first interrupt until the server reports a running task, but at most 10 s.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from pyspark.sql import SparkSession

from steadyworker.clock import Clock, SystemClock
from steadyworker.errors import ExportRejected
from steadyworker.exports.spark.inputs import of_text
from steadyworker.exports.spark.parts import remove_parts
from steadyworker.exports.spark.protocol import (
    Connect,
    ExportDone,
    ExportFailed,
    ExportProgress,
    JobEvent,
    RunExport,
    Stuck,
)
from steadyworker.exports.spark.query import failed, settle_in, write
from steadyworker.exports.spark.server import Server, is_answer, words
from steadyworker.exports.spark.sharing import probe
from steadyworker.exports.spark.tasks import Tasks

_UNSEEN = 10.0  # factor of the limit without progress, because the server reports nothing from inside a task
_POLL, _PAUSE = 1.0, 0.2  # seconds between two reads of a job's progress, and between two interrupts
_GRACE = 10.0  # seconds that a cancelled job gets until one of its tasks runs
_BYE = 1.5  # seconds to end all jobs when the worker process is gone
_FORGOTTEN = (
    "INVALID_HANDLE.SESSION_NOT_FOUND",
    "INVALID_HANDLE.SESSION_CHANGED",
    "INVALID_HANDLE.OPERATION_NOT_FOUND",
    "INVALID_HANDLE.OPERATION_ABANDONED",
    "RESPONSE_ALREADY_RECEIVED",
    "incorrect server side session identifier",
    "NO_ACTIVE_SESSION",
)


class ConnectEngine:
    """
    Jobs on one server; it has the methods of `engine.Engine` but those for its JVM.

    Attributes:
        version: The version of the server's Spark.

    Args:
        emit: A function that gets each event, from any thread.
        lost: A function that gets the reason when the server is gone or has lost a job; this function does not return.
        asked: The server's address, the settings, and the time to wait for the server.

    Raises:
        ExportError: The server does not respond within `asked.within` seconds.
        Exception: The server's error, if it refuses the client.
    """

    def __init__(
        self, emit: Callable[[JobEvent | Stuck], None], lost: Callable[[str], NoReturn], asked: Connect
    ) -> None:
        self._emit, self._lost, self._conf = emit, lost, asked.conf
        self._server = Server(asked.url)
        self.version = self._server.wait(asked.within)
        self._clock = SystemClock()
        self._jobs: dict[str, _ConnectJob] = {}
        self._changes = threading.Lock()

    def run(self, run: RunExport) -> None:
        """Begin a job, and return at once; the job's last event is `done` or `failed`."""
        job = _ConnectJob(run, self._server, self._conf, self._emit)
        with self._changes:
            self._jobs[run.job] = job
        threading.Thread(target=self._drive, args=(job,), name=run.job, daemon=True).start()

    def _drive(self, job: _ConnectJob) -> None:
        try:
            last: JobEvent = job.write()
        except _ServerLost as error:
            if not job.cancelled.is_set():
                self._lost(f"the Spark Connect server at {self._server} was lost: {error}")
            last = failed(job.id, error)
        except BaseException as error:  # noqa: BLE001 - any error ends only this job, even a SystemExit of the user's code
            last = failed(job.id, error, words)
        if isinstance(last, ExportFailed):
            remove_parts(job.parts)  # the child can be dead
        with self._changes:
            del self._jobs[job.id]
        self._emit(last)
        job.ended.set()

    def cancel(self, job: str) -> None:
        """End a job, and return at once; do nothing if the job has ended."""
        with self._changes:
            if job in self._jobs:
                self._jobs[job].cancelled.set()

    def alive(self) -> bool:
        """Return whether the server responds; while the server hangs, this call waits."""
        return self._server.answers()

    def abandon(self) -> None:
        """End the jobs at the server, within 1.5 s."""
        deadline = self._clock.monotonic() + _BYE
        with self._changes:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.hurried.set()
            job.cancelled.set()
        for job in jobs:
            job.ended.wait(max(0.0, deadline - self._clock.monotonic()))

    def stop(self) -> None:
        """End the jobs, and close the connection to the server."""
        self.abandon()
        self._server.close()


class _ConnectJob:
    """One job: `write` in its own thread, `_watch` beside it."""

    def __init__(
        self, run: RunExport, server: Server, conf: Mapping[str, str], emit: Callable[[JobEvent | Stuck], None]
    ) -> None:
        self._clock = SystemClock()
        self.id, self._run, self._server, self._conf, self._emit = run.job, run, server, conf, emit
        self.parts = run.plan.parts
        self._name = run.plan.session or str(uuid.uuid4())
        self._tasks = tasks_of(run)
        self._running, self._polled = 0, float("inf")
        self._written = threading.Event()
        self.cancelled, self.hurried, self.ended = threading.Event(), threading.Event(), threading.Event()

    def write(self) -> ExportDone:
        """
        Make the parts; errors of `query.write` pass to the caller.

        Raises:
            _ServerLost: The server is gone, or no longer knows the job; the next host ends the job's remaining operations.
        """
        session: SparkSession | None = None
        try:
            for earlier in self._run.plan.earlier:
                self._server.end(earlier)
            session = self._server.attach(self._name)
            done = self._write(session)
        except Exception as error:
            if self._forgotten(error) or not self._server.answers():
                raise _ServerLost(words(error)) from error
            if session is not None:
                session.stop()
            raise
        session.stop()
        return done

    def _write(self, session: SparkSession) -> ExportDone:
        tag = f"steadyworker-{self._name}"  # the server's web pages show it
        session.addTag(tag)
        for key, value in self._conf.items():
            try:
                session.conf.set(key, value)
            except Exception as error:
                if self._forgotten(error):
                    raise
                raise ExportRejected(
                    f"Expected settings of a session in spark_conf, got {key}, which the Spark Connect server at {self._server} "
                    f"refuses ({words(error)}): remove it from spark_conf, or set it where the server starts; then replay the job."
                ) from error
        watcher = threading.Thread(target=self._watch, args=(session,), name=f"{self.id}-watch", daemon=True)
        watcher.start()
        try:
            probe(settle_in(session), self._run.plan)
            self._polled = self._clock.monotonic()
            session.registerProgressHandler(self._record)  # type: ignore[arg-type] # a plain function will do
            where = {"server": str(self._server), "session": self._name, "tag": tag}
            return write(session, self._run, self._emit, of_text, where)
        finally:
            self._written.set()
            watcher.join()

    def _forgotten(self, error: Exception) -> bool:
        """Return whether the server is gone, no longer knows the job, or got the job twice from the client."""
        text = str(error)
        if not is_answer(error) or any(name in text for name in _FORGOTTEN):
            return True
        return "ALREADY_EXISTS" in text and self._run.plan.parts in text

    def _record(self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:  # noqa: ARG002, FBT001 - as Spark calls it
        self._running = 0 if done else inflight_tasks  # the last message has an old count
        # The server can skip a stage without a complete task.
        begun = [(stage.stage_id, stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()]
        self._tasks.record([stage for stage in begun if stage[1]], self._running)

    def _watch(self, session: SparkSession) -> None:
        """
        Emit progress until all parts are written; emit `Stuck` once if the job gets stuck.

        Repeat a cancel until then, because an interrupt reaches only the operations that the server has at that moment.
        """
        reported, asked = False, None
        while not self._written.wait(_PAUSE):
            now = self._clock.monotonic()
            if self.cancelled.is_set():
                if asked is None:
                    asked, self._running = now, 0  # an earlier report can be of a stage that has ended
                elif self._running or self.hurried.is_set() or now >= asked + _GRACE:
                    with suppress(Exception):  # the server or session is gone: `write` gets an error too
                        session.interruptAll()
                continue
            if now < self._polled + _POLL:
                continue
            self._polled = now
            if self._tasks.poll():
                self._emit(ExportProgress(self.id, self._tasks.done, self._tasks.total))
            elif not reported and (why := self._tasks.stuck()):
                reported = True
                self._emit(Stuck(self.id, why))


def tasks_of(run: RunExport, clock: Clock | None = None) -> Tasks:
    """Return the tasks of a job; if it was stuck before, its wait for a task counts, because its own tasks can hold the cores."""
    return Tasks(Path(run.plan.parts), run.stuck_after * _UNSEEN, waits=not run.stuck_before, clock=clock)


class _ServerLost(Exception):
    """The server is gone, or no longer knows the job."""
