"""
Spark Connect, in the host: a server that the user runs; each job has a session of its own on it.

::

    what the client hears                                          what becomes of the job
    ─────────────────────────────────────────────────────────────  ──────────────────────────────────────────────────
    nothing, for less than the retry policy's 4 tries (some 4 s)    goes on: its operation is attached again
    nothing for longer, or a server that knows nothing of the job   the host ends, and the next one, once the server is
                                                                    back, begins it again: its parts in a folder of its own
    a ping that is not answered (`SparkSettings.hung_after`)        the same
    nothing has moved for too long (`remote.py`)                    it is cancelled and begun again, in another session
    any other error                                                 it failed

A session is named by the run (`Plan.session`), which stored that name before Spark heard of it.
So whatever a lost host or an earlier run has left running is ended before anything new begins.
A cancelled job has ended for us as soon as its call has, or the server is slow to end it; its session is watched for two
minutes more, because an operation that is interrupted begins jobs of Spark's after its end (`kills.py`).
A job whose tasks do not move any longer is told of (`Stuck`), and its parts are passed on while later ones are written.
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
from steadyworker.errors import ExportError
from steadyworker.exports.spark.kills import Closed, Kills, mark
from steadyworker.exports.spark.pace import Ratio
from steadyworker.exports.spark.protocol import Connect, Done, Failed, JobEvent, Part, Progress, Run, Started, Stuck
from steadyworker.exports.spark.query import kind_of, settle_in, write
from steadyworker.exports.spark.remote import RemoteTasks, estimate
from steadyworker.exports.spark.server import PAUSE, Server, is_answer, tag, words
from steadyworker.exports.spark.sharing import probe

_LOOK = 1.0  # seconds between two looks at what a job has done
_BYE = 1.5  # seconds for all that runs when the worker process is gone
_PATIENCE = 5.0  # seconds for an interrupted operation to end before its job is told to have
# Seconds between two cancels of all that a job runs, 116 in all: what begins late runs for half as long again.
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
        emit: Called with each event, from any thread.
        lost: Called with the reason, and not expected to return, when the server is gone or has forgotten a job.
        asked: Which server.

    Raises:
        ExportError: It does not answer within the time.
        Exception: What the server says of a client or of a setting that it does not want.
    """

    def __init__(
        self, emit: Callable[[JobEvent | Stuck], None], lost: Callable[[str], NoReturn], asked: Connect
    ) -> None:
        self._emit, self._lost, self._conf = emit, lost, asked.conf
        self._server = Server(asked.url)
        self._version = self._server.wait(asked.within)
        self._server.try_out(asked.conf)
        self._clock = SystemClock()
        self._ratio = Ratio()
        self._jobs: dict[str, _Job] = {}
        self._ending: set[threading.Thread] = set()
        self._leaving = threading.Event()
        self._changes = threading.Lock()

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the server."""
        return {"pyspark": self._version}

    def warm_up(self, folder: Path) -> None:
        """Nothing: the server serves others, too."""

    def run(self, run: Run) -> None:
        """Begin a job; returns at once.  Its last event is `done` or `failed`."""
        tasks = RemoteTasks(run, self._ratio)
        job = _Job(run, self._server, self._conf, tasks, self._emit)
        with self._changes:
            self._jobs[run.job] = job
        threading.Thread(target=self._drive, args=(job,), name=run.job, daemon=True).start()

    def _drive(self, job: _Job) -> None:
        try:
            last: JobEvent = job.write()
        except ExportError as error:
            last = Failed(job.id, kind_of(error), str(error))
        except Closed:
            last = Failed(job.id, "job", "a later run of this job has ended it at the Spark Connect server")
        except _Lost as error:
            if not job.cancelled.is_set():
                self._lost(f"the Spark Connect server at {self._server} was lost: {error}")
            last = Failed(job.id, "job", str(error))
        except Exception as error:  # noqa: BLE001 - the server's and the client's: all end this job only
            last = Failed(job.id, kind_of(error), words(error))
        finally:
            job.ended.set()
        self._tell(job, last)

    def _tell(self, job: _Job, last: JobEvent) -> None:
        """The last event of a job, once: by now another of its name may have begun."""
        with self._changes:
            if self._jobs.get(job.id) is not job:
                return
            del self._jobs[job.id]
        self._emit(
            Failed(job.id, "cancelled", "cancelled") if job.cancelled.is_set() and isinstance(last, Failed) else last
        )

    def cancel(self, job: str) -> None:
        """End a job; returns at once, ignored when it has ended."""
        with self._changes:
            found = self._jobs.get(job)
        if found is not None and not found.cancelled.is_set():
            found.cancelled.set()
            thread = threading.Thread(target=self._end, args=(found,), name=f"{job}-cancel", daemon=True)
            with self._changes:
                thread.start()
                self._ending.add(thread)

    def _end(self, job: _Job) -> None:
        job.end(self._leaving, lambda: self._tell(job, Failed(job.id, "cancelled", "cancelled")))
        with self._changes:
            self._ending.discard(threading.current_thread())

    def alive(self) -> bool:
        """Whether the server answers; waits for as long as it hangs."""
        return self._server.answers()

    def outlive(self) -> None:
        """Never: that the server is gone is found by those who ask it."""
        threading.Event().wait()

    def abandon(self) -> None:
        """End what runs at the server, in the time that there is."""
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
        """End what runs, and leave."""
        self.abandon()
        self._server.close()


class _Job:
    """One job: `write` in a thread of its own, which has another one look at what is done; `end` in a third."""

    def __init__(
        self,
        run: Run,
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
        self._started: Started | None = None
        self._written = threading.Event()
        self.cancelled, self.ended = threading.Event(), threading.Event()

    def write(self) -> Done | Failed:
        """
        Make the parts; raises what `query.write` raises.

        Raises:
            _Lost: The server is gone, or does not know the job any longer; what may be there is left to the next host.
            Closed: Somebody else has ended the job.
        """
        try:
            for earlier in self._run.plan.earlier:
                self._server.end(earlier)
            session = self._session = self._server.attach(self._name)
            last = self._write(session)
        except Exception as error:
            if self._forgotten(error) or not self._server.answers():
                raise _Lost(words(error)) from error
            if self._session is not None and not self.cancelled.is_set():
                self._server.release(self._session)
            raise
        if not self.cancelled.is_set():  # otherwise `end` needs it
            self._server.release(session)
        return last

    def _write(self, session: SparkSession) -> Done | Failed:
        self._server.clear(session, self._name)  # what a host that died has left there
        if self.cancelled.is_set():
            return Failed(self.id, "cancelled", "cancelled")
        self._kills = mark(session, self._name)
        session.addTag(tag(self._name))
        for key, value in self._conf.items():
            session.conf.set(key, value)
        probe(settle_in(session), self._run.plan.parts)
        session.registerProgressHandler(self._told)  # type: ignore[arg-type] # a plain function will do
        where = {"server": str(self._server), "session": self._name, "tag": tag(self._name)}
        watcher = threading.Thread(target=self._watch, name=f"{self.id}-watch", daemon=True)
        watcher.start()
        try:
            done = write(session, self._run, self._begun, estimate, where)
        finally:
            self._written.set()
            watcher.join()
        if self.cancelled.is_set():
            return Failed(self.id, "cancelled", "cancelled")
        self._tasks.ended()
        if self._started is not None and self._tasks.replaced():
            self._say(self._started)  # whatever was joined is void
        return done

    def _begun(self, event: JobEvent) -> None:
        if isinstance(event, Started):
            self._started = event
        self._say(event)

    def _say(self, event: JobEvent | Stuck) -> None:
        """Nothing of a job that is cancelled is heard: another of its name may have begun."""
        if not self.cancelled.is_set():
            self._emit(event)

    def _forgotten(self, error: Exception) -> bool:
        """Whether the server is gone or knows nothing of the job; or knows too much, because the client sent it twice."""
        text = str(error)
        if not is_answer(error) or any(name in text for name in _FORGOTTEN):
            return True
        return "ALREADY_EXISTS" in text and self._run.plan.parts in text

    def _told(self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:  # noqa: ARG002, FBT001 - as Spark calls it
        self._tasks.told(stages or (), 0 if done else inflight_tasks)  # in its last message the count is an old one

    def _watch(self) -> None:
        """Tell what has moved until all is written, and once that it is stuck."""
        told = False
        while not self._written.wait(_LOOK):
            if self.cancelled.is_set():
                return
            moved = self._tasks.look()
            for index, path, size in self._tasks.complete():
                self._say(Part(self.id, index, path, size))
            if moved:
                self._say(Progress(self.id, self._tasks.done, self._tasks.total, None, left=self._tasks.left))
            elif not told and (why := self._tasks.stuck()):
                told = True
                self._say(Stuck(self.id, why))

    def end(self, leaving: threading.Event, tell: Callable[[], None]) -> None:
        """
        Cancel until the job has ended at the server, with all that it begins there late; then release its session.

        Args:
            leaving: The host ends: do what can be done at once, and leave the session to whoever runs this job again.
            tell: To be called when the caller shall wait no longer.
        """
        asked, running = self._clock.monotonic(), False
        for pause in _PAUSES:
            self._kill()
            until = self._clock.monotonic() + pause
            while not self.ended.wait(PAUSE):
                running = self._interrupt() or running
                now = self._clock.monotonic()
                if running and now >= asked + _PATIENCE:
                    tell()
                if now >= until:
                    break
            if not self.ended.is_set():
                continue
            if self._kills is None:  # it had begun nothing
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
        """Whether an operation was interrupted now that was not before."""
        try:
            return self._session is not None and self._server.interrupt(self._session)
        except Exception:  # noqa: BLE001 - the server went away, or the session: the thread that writes hears it, too
            return False


class _Lost(Exception):
    """The server is gone, or does not know the job any longer."""
