"""
`SparkService` keeps a Spark host for the jobs of a worker process; exports call it by `services.call("spark", plan)`.

One thread changes all state of the service; other threads, such as the hosts' readers, put calls into that thread's queue.

::

    call:  waiting ──place──→ running ──done, failed──→ over
              ↑                  │ host dies
              └──────────────────┘ up to `resubmissions` times, then failed("host-died")
                                   a call that is stuck is cancelled, and begun again in the same way, or failed("stuck")

    host:  starting ──ready──→ warm ──idle_stop──→ stopping ──→ gone

When a host dies, the service cannot know which of its jobs was the cause, so it begins each of these jobs again.
From its third beginning on, a job runs alone on a host, so that a job that ends each host does not take others along.
The service kills a host that does not start, reply or end, but only if the host stands still (`hosts.Limit`).
For a cancelled job that does not end, the service kills the host when no other job needs it any more.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from steadyworker.clock import Clock, SystemClock
from steadyworker.errors import ConfigError
from steadyworker.exports.spark.hosts import Call, Emit, Limit, SparkHost
from steadyworker.exports.spark.parts import reap_stage, runs_folder
from steadyworker.exports.spark.process import HostProcess, reap_folders
from steadyworker.exports.spark.protocol import (
    ExportDone,
    ExportFailed,
    ExportPlan,
    ExportStarted,
    Fatal,
    HostPong,
    HostReady,
    JobEvent,
    Message,
    Stuck,
)
from steadyworker.exports.spark.settings import SparkSettings
from steadyworker.exports.stage import remove_empty
from steadyworker.telemetry.logs import get_logger

_CHECK_EVERY = 0.5  # seconds between two checks of the hosts' limits
_MOST_HOSTS = 2  # the second is for a job that must run alone, or for new jobs while a job on the first does not end
_STOPPED = ("stopped", "the worker process stops")
_CANCELLED = ("cancelled", "cancelled")


class SparkCall:
    """One running request (`slots.base.ServiceCall`)."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    def cancel(self) -> None:
        """End the request, and return at once; a last event can still come."""
        self._cancel()


class SparkService:
    """
    The Spark host as a `slots.base.JobService`: it starts with the first call, stays warm, and ends after an idle time.

    Args:
        settings: The settings of the hosts.
        environ: The environment of the hosts; the default is the environment of this process at a host's start.
    """

    def __init__(
        self, settings: SparkSettings, *, clock: Clock | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._settings, self._clock, self._environ = settings, clock or SystemClock(), environ
        self._log = get_logger("steadyworker.spark")
        self._notes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[Call] = deque()
        self._hosts: list[SparkHost] = []
        self._numbers = 0
        self._closed = self._stopped = False
        self._thread: threading.Thread | None = None
        self._opening = threading.Lock()

    # --- From any thread ---

    def open(self, request: Mapping[str, Any], uid: str, fence: int, emit: Emit) -> SparkCall:
        """
        Begin an export: `request` is a `protocol.ExportPlan`; each submission makes a folder inside its folder `parts`, or inside `spark_stage`.

        The service's thread calls `emit` with each event of `protocol`, in order; `emit` must not block.
        """
        with self._opening:
            self._numbers += 1
            plan = msgspec.convert(dict(request), ExportPlan)
            if stage := self._settings.stage:
                plan = msgspec.structs.replace(plan, parts=runs_folder(stage, uid), stage=True)
            call = Call(f"{uid}-{fence}-{self._numbers}", plan, emit)
            if self._closed:
                call.fail(*_STOPPED)
                return SparkCall(lambda: None)
            if self._thread is None:
                # This thread starts the hosts, and runs until the service stops, because Linux kills the hosts when it ends.
                thread = threading.Thread(target=self._work, name="spark-service", daemon=True)
                thread.start()
                self._thread = thread
            self._notes.put(lambda: self._waiting.append(call))
        return SparkCall(lambda: self._notes.put(lambda: self._cancel(call)))

    def reap(self) -> None:
        """Remove the folders of hosts that died together with their worker process; a new thread does this slow work."""
        if any(self._settings.hosts.glob("*/")):
            threading.Thread(target=self._reap, name="spark-reaper", daemon=True).start()

    def purge(self, ended: Callable[[Sequence[str]], Iterable[str]]) -> None:
        """
        Call `reap`, and remove the parts of ended jobs in `spark_stage`; another service removes the stages beside targets.

        Raises:
            ExportError: The bucket of `spark_stage` refused a request or did not respond.
        """
        self.reap()
        if self._settings.stage:
            reap_stage(self._settings.stage, ended)

    def stop(self, within: float) -> None:
        """End every call, then the hosts; kill the hosts after `within` seconds; it can be called twice."""
        deadline = self._clock.monotonic() + within
        with self._opening:
            self._closed = True
            self._notes.put(lambda: self._stop(deadline))
        if self._thread is not None:
            self._thread.join()

    # --- In the service's thread ---

    def _reap(self) -> None:
        try:
            reap_folders(self._settings.hosts)
        except OSError:  # no job fails because of this error; if the folder is unusable, `_start` reports that
            self._log.exception("spark_reap_failed", explain="spark.reap-failed")

    def _work(self) -> None:
        self._reap()
        while not (self._stopped and not self._hosts):
            try:
                with suppress(queue.Empty):
                    self._notes.get(timeout=_CHECK_EVERY if self._hosts else None)()
                self._place()
                for host in self._hosts:
                    for call in host.attend(self._clock.monotonic()):
                        self._log.info("spark_job_left", job=call.job, pid=host.process.pid, calls=len(host.calls))
                        self._again(call, "stuck", call.stuck)
            except Exception as error:  # noqa: BLE001 - after a bug here, no job must wait forever
                self._log.exception("spark_service_failed", explain="spark.service-failed")
                self._fail_all("unavailable", f"a fault of the Spark service: {error!r}")
                for host in self._hosts:
                    host.kill()

    def _cancel(self, call: Call) -> None:
        call.cancelled = True
        if call in self._waiting:
            self._waiting.remove(call)
            call.fail(*_CANCELLED)
        for host in self._hosts:
            if call.job in host.calls and host.ready:
                host.cancel(call, self._clock.monotonic())
            elif call.job in host.calls:
                del host.calls[call.job]
                call.fail(*_CANCELLED)

    def _fail_all(self, kind: str, text: str) -> None:
        """End every call."""
        for call in (*self._waiting, *(call for host in self._hosts for call in host.calls.values())):
            call.fail(kind, text)
        self._waiting.clear()
        for host in self._hosts:
            host.calls.clear()

    def _stop(self, deadline: float) -> None:
        self._stopped = True
        self._fail_all(*_STOPPED)
        now = self._clock.monotonic()
        for host in self._hosts:
            host.stop(now, deadline - now)
            if self._settings.local or not host.ready:
                host.kill()  # only a cluster or a server needs a normal end of the host

    def _place(self) -> None:
        """
        Give each waiting call to a host that accepts the call; if no host does, start another host within the limit.

        Calls are placed in order of arrival, because otherwise a call that must run alone would never find an empty host.
        One host starts at a time, because on a busy machine two starts would slow each other down.
        """
        while self._waiting:
            host = next((host for host in self._hosts if host.accepts(self._waiting[0])), None)
            starting = any(not host.ready and not host.stopping for host in self._hosts)
            if host is None and not starting and len(self._hosts) < _MOST_HOSTS:
                host = self._start()
            if host is None:
                return
            host.submit(self._waiting.popleft())

    def _start(self) -> SparkHost | None:
        """Return a new host; if no host can be started, fail every waiting call and return None."""
        try:
            environ = os.environ if self._environ is None else self._environ
            java = self._settings.java(environ)
            process = HostProcess(self._settings, java, environ, self._receive)
        except (ConfigError, OSError) as error:
            for call in self._waiting:
                call.fail("unavailable", str(error))
            self._waiting.clear()
            return None
        within = self._settings.hung_after + (self._settings.server_within if self._settings.server else 0.0)
        versions = {"java": java.version} if java else {}
        host = SparkHost(process, self._settings, Limit(process, within, self._clock.monotonic()), versions)
        self._hosts.append(host)
        self._log.info("spark_host_starting", pid=process.pid, master=self._settings.place, java=java and java.version)
        return host

    def _receive(self, process: HostProcess, message: Message | None) -> None:
        """Pass a host's message to the service's thread; called in the host's reader thread."""
        self._notes.put(lambda: self._handle(process, message))

    def _handle(self, process: HostProcess, message: Message | None) -> None:
        host = next(host for host in self._hosts if host.process is process)
        match message:
            case None:
                self._gone(host)
            case HostReady():
                self._log.info("spark_host_ready", pid=process.pid, **message.versions)
                host.became_ready(message.versions, self._clock.monotonic())
            case Fatal():
                host.problem = message.text
            case HostPong():
                host.replied(self._clock.monotonic())
            case Stuck():
                self._stuck(host, message)
            case _:
                self._relay(host, message)

    def _relay(self, host: SparkHost, event: JobEvent) -> None:
        call = host.calls.get(event.job)
        if call is None:  # the call has left this host
            return
        if isinstance(event, ExportStarted):  # if this host dies, the next one must read the same snapshots
            call.plan = msgspec.structs.replace(call.plan, snapshots=event.snapshots)
        if not isinstance(event, ExportDone | ExportFailed):
            call.report(event)
            return
        if call.cancelled:  # Spark's last tasks have made the removed stage's folders again
            remove_empty(Path(call.parts))
        del host.calls[call.job]
        if isinstance(event, ExportFailed) and call.stuck:
            self._again(call, "stuck", call.stuck)
        else:
            call.report(event, versions=host.versions)

    def _stuck(self, host: SparkHost, message: Stuck) -> None:
        """Cancel a stuck call; its host is killed if the call does not end."""
        call = host.calls.get(message.job)
        if call is not None and not call.cancelled:
            call.stuck = message.text
            log = host.process.keep_log()
            fields = {"job": call.job, "pid": host.process.pid, "why": message.text, "log": str(log)}
            self._log.warning("spark_job_stuck", **fields, explain="spark.job-stuck")
            host.cancel(call, self._clock.monotonic())

    def _again(self, call: Call, kind: str, text: str) -> None:
        """Begin a call again, or fail it if it is cancelled, or has no resubmission left."""
        if call.cancelled:
            call.fail(*_CANCELLED)
        elif call.submissions > self._settings.resubmissions:
            call.fail(kind, text)
        else:
            self._waiting.appendleft(call)

    def _gone(self, host: SparkHost) -> None:
        """Remove a dead host; begin its calls again, or fail them if they have no resubmission left."""
        why = host.problem or "the host or its JVM ended by itself, or was killed"
        if self._settings.server is None and (last_words := host.process.log_tail()):
            why += f"; the end of its log: {last_words}"
        calls = list(host.calls.values())
        if calls or not host.stopping:
            log = host.process.keep_log()
            fields = {"pid": host.process.pid, "calls": len(calls), "why": why, "log": str(log)}
            self._log.warning("spark_host_died", **fields, explain="spark.host-died")
        else:
            self._log.info("spark_host_ended", pid=host.process.pid)
        host.process.remove()
        self._hosts.remove(host)
        for call in reversed(calls):
            if call.stuck:
                self._again(call, "stuck", call.stuck)
            elif host.ready:
                text = f"the Spark host died {call.submissions} times during this job, the last time: {why}"
                self._again(call, "host-died", text)
            elif host.problem and self._settings.server is not None:
                call.fail(
                    "unavailable", f"Spark did not start: {why}"
                )  # the host has waited long enough for the server
            else:
                self._again(call, "unavailable", f"Spark did not start: {why}")
