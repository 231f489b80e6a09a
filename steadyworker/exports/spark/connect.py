"""
The engine for Spark Connect: the user runs the server, and each job has its own session on the server.

::

    event at the client                                             effect on the job
    ─────────────────────────────────────────────────────────────  ──────────────────────────────────────────────────
    no response for less than the retry policy's 4 tries (4 s)      continues: the client attaches to the operation again
    no response for longer, or the server does not know the job     the host ends; when the server is back, the next host
                                                                    begins the job again, with another folder for its parts
    no response to a ping (`SparkSettings.hung_after`)              the same
    no progress for too long (`remote.py`)                          is cancelled, and begun again in another session
    any other error                                                 fails

The run names its session (`ExportPlan.session`), and stores that name in the ledger before the first call to Spark.
So the next host or run can end the operations of a lost host or an earlier run before it begins the job.
The engine reports the end of a cancelled job when the job's call ends, or after 5 s if the server is slow.
For two more minutes, the engine cancels each Spark job that begins in the session.
This is necessary because an interrupted operation can still begin jobs (`kills.py`).
The engine reports a job without progress (`Stuck`).
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from pyspark.sql import SparkSession

from steadyworker.clock import SystemClock
from steadyworker.exports.spark.inputs import of_text
from steadyworker.exports.spark.kills import Closed, Kills, mark
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
from steadyworker.exports.spark.remote import RemoteTasks
from steadyworker.exports.spark.server import PAUSE, Server, is_answer, tag, words
from steadyworker.exports.spark.sharing import probe

_POLL = 1.0  # seconds between two reads of a job's progress
_BYE = 1.5  # seconds to end all jobs when the worker process is gone
_PATIENCE = 5.0  # seconds that an interrupted operation gets to end, before the engine reports the end of its job
# Seconds between two cancels of a job's operations, 116 s in all; each pause is 1.5 times as long as the pause before.
_PAUSES = tuple(PAUSE * 1.5**step for step in range(14))
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
    Jobs on one server (`backend.Backend`).

    Args:
        emit: A function that gets each event, from any thread.
        lost: A function that gets the reason when the server is gone or has lost a job; this function does not return.
        asked: The server's address, the settings, and the time to wait for the server.

    Raises:
        ExportError: The server does not respond within `asked.within` seconds.
        Exception: The server's error, if it refuses the client or a setting.
    """

    def __init__(
        self, emit: Callable[[JobEvent | Stuck], None], lost: Callable[[str], NoReturn], asked: Connect
    ) -> None:
        self._emit, self._lost, self._conf = emit, lost, asked.conf
        self._server = Server(asked.url)
        self._version = self._server.wait(asked.within)
        self._server.try_out(asked.conf)
        self._clock = SystemClock()
        self._jobs: dict[str, _ConnectJob] = {}
        self._ending: set[threading.Thread] = set()
        self._leaving = threading.Event()
        self._changes = threading.Lock()

    @property
    def versions(self) -> Mapping[str, str]:
        """The version of the server's Spark."""
        return {"pyspark": self._version}

    def warm_up(self, folder: Path) -> None:
        """Do nothing, because the server also serves other clients."""

    def run(self, run: RunExport) -> None:
        """Begin a job, and return at once; the job's last event is `done` or `failed`."""
        tasks = RemoteTasks(run)
        job = _ConnectJob(run, self._server, self._conf, tasks, self._emit)
        with self._changes:
            self._jobs[run.job] = job
        threading.Thread(target=self._drive, args=(job,), name=run.job, daemon=True).start()

    def _drive(self, job: _ConnectJob) -> None:
        try:
            last: JobEvent = job.write()
        except Closed:
            last = ExportFailed(
                job.id, "job", "a later run of this job has ended this run's session at the Spark Connect server"
            )
        except _ServerLost as error:
            if not job.cancelled.is_set():
                self._lost(f"the Spark Connect server at {self._server} was lost: {error}")
            last = failed(job.id, error)
        except BaseException as error:  # noqa: BLE001 - any error ends only this job, even a SystemExit of the user's code
            last = failed(job.id, error, words)
        finally:
            job.ended.set()
        self._emit_last(job, last)

    def _emit_last(self, job: _ConnectJob, last: JobEvent) -> None:
        """Emit the last event of a job once; do nothing if a newer job has taken its name."""
        with self._changes:
            if self._jobs.get(job.id) is not job:
                return
            del self._jobs[job.id]
        self._emit(
            ExportFailed(job.id, "cancelled", "cancelled")
            if job.cancelled.is_set() and isinstance(last, ExportFailed)
            else last
        )

    def cancel(self, job: str) -> None:
        """End a job, and return at once; do nothing if the job has ended."""
        with self._changes:
            found = self._jobs.get(job)
        if found is not None and not found.cancelled.is_set():
            found.cancelled.set()
            thread = threading.Thread(target=self._end, args=(found,), name=f"{job}-cancel", daemon=True)
            with self._changes:
                thread.start()
                self._ending.add(thread)

    def _end(self, job: _ConnectJob) -> None:
        job.end(self._leaving, lambda: self._emit_last(job, ExportFailed(job.id, "cancelled", "cancelled")))
        with self._changes:
            self._ending.discard(threading.current_thread())

    def alive(self) -> bool:
        """Return whether the server responds; while the server hangs, this call waits."""
        return self._server.answers()

    def outlive(self) -> None:
        """Never return, because `alive` and the jobs detect that the server is gone."""
        threading.Event().wait()

    def abandon(self) -> None:
        """End the jobs at the server, within 1.5 s."""
        deadline = self._clock.monotonic() + _BYE
        with self._changes:
            jobs = list(self._jobs)
        for job in jobs:
            self.cancel(job)
        self._leaving.set()
        with self._changes:
            ending = list(self._ending)
        for thread in ending:
            thread.join(max(0.0, deadline - self._clock.monotonic()))

    def stop(self) -> None:
        """End the jobs, and close the connection to the server."""
        self.abandon()
        self._server.close()


class _ConnectJob:
    """One job in three threads: `write` in the first, `_watch` in the second, `end` in the third."""

    def __init__(
        self,
        run: RunExport,
        server: Server,
        conf: Mapping[str, str],
        tasks: RemoteTasks,
        emit: Callable[[JobEvent | Stuck], None],
    ) -> None:
        self._clock = SystemClock()
        self.id, self._run, self._server, self._conf, self._emit = run.job, run, server, conf, emit
        self._name = run.plan.session or str(uuid.uuid4())
        self._session: SparkSession | None = None
        self._kills: Kills | None = None
        self._tasks = tasks
        self._written = threading.Event()
        self.cancelled, self.ended = threading.Event(), threading.Event()

    def write(self) -> ExportDone | ExportFailed:
        """
        Make the parts; errors of `query.write` pass to the caller.

        Raises:
            _ServerLost: The server is gone, or no longer knows the job; the next host ends the job's remaining operations.
            Closed: A later run has ended the job.
        """
        try:
            for earlier in self._run.plan.earlier:
                self._server.end(earlier)
            session = self._session = self._server.attach(self._name)
            last = self._write(session)
        except Exception as error:
            if self._forgotten(error) or not self._server.answers():
                raise _ServerLost(words(error)) from error
            if self._session is not None and not self.cancelled.is_set():
                self._server.release(self._session)
            raise
        if not self.cancelled.is_set():  # after a cancel, `end` needs the session
            self._server.release(session)
        return last

    def _write(self, session: SparkSession) -> ExportDone | ExportFailed:
        self._server.clear(session, self._name)  # end the operations that a dead host has left in the session
        if self.cancelled.is_set():
            return ExportFailed(self.id, "cancelled", "cancelled")
        self._kills = mark(session, self._name)
        session.addTag(tag(self._name))
        for key, value in self._conf.items():
            session.conf.set(key, value)
        probe(settle_in(session), self._run.plan.parts)
        session.registerProgressHandler(self._record)  # type: ignore[arg-type] # a plain function will do
        where = {"server": str(self._server), "session": self._name, "tag": tag(self._name)}
        watcher = threading.Thread(target=self._watch, name=f"{self.id}-watch", daemon=True)
        watcher.start()
        try:
            done = write(session, self._run, self._emit_live, of_text, where)
        finally:
            self._written.set()
            watcher.join()
        if self.cancelled.is_set():
            return ExportFailed(self.id, "cancelled", "cancelled")
        return done

    def _emit_live(self, event: JobEvent | Stuck) -> None:
        """Emit an event; after a cancel, emit nothing, because a newer job can then have the same name."""
        if not self.cancelled.is_set():
            self._emit(event)

    def _forgotten(self, error: Exception) -> bool:
        """Return whether the server is gone, no longer knows the job, or got the job twice from the client."""
        text = str(error)
        if not is_answer(error) or any(name in text for name in _FORGOTTEN):
            return True
        return "ALREADY_EXISTS" in text and self._run.plan.parts in text

    def _record(self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:  # noqa: ARG002, FBT001 - as Spark calls it
        self._tasks.record(stages or (), 0 if done else inflight_tasks)  # the last message has an old count

    def _watch(self) -> None:
        """Emit progress until all parts are written; emit `Stuck` once if the job gets stuck."""
        reported = False
        while not self._written.wait(_POLL):
            if self.cancelled.is_set():
                return
            if self._tasks.poll():
                self._emit_live(ExportProgress(self.id, self._tasks.done, self._tasks.total))
            elif not reported and (why := self._tasks.stuck()):
                reported = True
                self._emit_live(Stuck(self.id, why))

    def end(self, leaving: threading.Event, report: Callable[[], None]) -> None:
        """
        Cancel until the job and all its late operations have ended at the server; then release its session.

        Args:
            leaving: An event that is set when the host ends.
                This function then cancels once more, and leaves the session to the job's next run.
            report: A function that reports the end of the job; called if the server is too slow.
        """
        asked, running = self._clock.monotonic(), False
        for pause in _PAUSES:
            self._kill()
            until = self._clock.monotonic() + pause
            while not self.ended.wait(PAUSE):
                running = self._interrupt() or running
                now = self._clock.monotonic()
                if running and now >= asked + _PATIENCE:
                    report()
                if now >= until:
                    break
            if not self.ended.is_set():
                continue
            if self._kills is None:  # the job had begun no operation
                break
            if leaving.wait(max(0.0, until - self._clock.monotonic())):
                self._kill()
                return
        if self._session is not None:
            self._server.release(self._session)

    def _kill(self) -> None:
        if self._kills is not None:
            with suppress(Closed):
                self._kills.kill()

    def _interrupt(self) -> bool:
        """Interrupt the session's operations; return whether this call has interrupted a further operation."""
        try:
            return self._session is not None and self._server.interrupt(self._session)
        except Exception:  # noqa: BLE001 - the server or session is gone: `write` gets an error too
            return False


class _ServerLost(Exception):
    """The server is gone, or no longer knows the job."""
