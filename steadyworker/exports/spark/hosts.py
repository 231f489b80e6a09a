"""The records of `SparkService`: calls, and hosts with their deadlines."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from steadyworker.exports.spark.process import HostProcess
from steadyworker.exports.spark.protocol import (
    Cancel,
    Database,
    ExportDone,
    ExportFailed,
    ExportPlan,
    PingHost,
    RunExport,
    as_event,
    parts_of,
)
from steadyworker.exports.spark.settings import SparkSettings

Emit = Callable[[Mapping[str, Any]], None]
_STOP_WITHIN = 15.0  # seconds for a host's normal end
_ARCHIVE_WITHIN = 120.0  # seconds for a host's normal end if its JVM writes the class-data archive
_LATE = 5.0  # seconds after a deadline; if a check is later than this, this process itself stood still
_SHARE = 0.02  # the share of one core; a host that uses less processor time than this stands still
_LONGEST = 5  # the factor of a limit; after so long a time, the limit passes even if the host uses processor time


@dataclass(slots=True)
class Patience:
    """
    A time limit for one step of a host; the host gets more time while it uses processor time.

    The extra time is necessary because a starved machine makes each step slow.

    Attributes:
        within: Seconds in which the host must finish the step, or use processor time.
        began: The monotonic time at which the step began.
        due: The monotonic time of the next check.
        cpu: The host's processor time at the last check.
    """

    within: float
    began: float
    due: float
    cpu: float

    @classmethod
    def of(cls, within: float, now: float, cpu: float) -> Patience:
        """Return the limit for a step that begins now."""
        return cls(within, now, now + within, cpu)

    def over(self, now: float, cpu: Callable[[], float]) -> bool:
        """Return whether the limit has passed; if it has not passed, set the time of the next check."""
        if now < self.due:
            return False
        used, last = cpu(), self.began + _LONGEST * self.within
        # The sum becomes smaller when a process ends, and that counts as movement, too.
        if now >= last or abs(used - self.cpu) < _SHARE * self.within:
            return True
        self.due, self.cpu = min(now + self.within, last), used
        return False


@dataclass(eq=False, slots=True)
class Call:
    """
    One export's request.

    Attributes:
        job: The job's name for the hosts.
        plan: The export's plan; each submission makes a folder inside the folder `parts`.
        submissions: How many times the call was submitted to a host.
        deaths: The number of hosts that died before they were ready for the call, or while the call ran alone,
            plus the number of times that the call was stuck.
        suspect: True if a host has died during the call; the call then runs alone until it ends.
        cancelled: True if the child no longer waits for the call.
        stuck: The reason why the service ends a call without progress, or an empty text.
        left: The session names of stuck submissions at a Spark Connect server, each with the host that ends the session.
        kill_at: The monotonic time at which the call's host is killed, if the cancelled call has not ended.
    """

    job: str
    plan: ExportPlan
    emit: Emit
    submissions: int = 0
    deaths: int = 0
    suspect: bool = False
    cancelled: bool = False
    stuck: str = ""
    left: list[tuple[str, SparkHost]] = field(default_factory=list)
    kill_at: float | None = None

    @property
    def parts(self) -> Path:
        """The folder of the submission that runs."""
        return parts_of(self.plan.parts, self.job, self.submissions)

    def rename(self, host: SparkHost) -> None:
        """Give the stuck call a new session name, because this host can need minutes to end the old session."""
        self.left.append((self.plan.session, host))
        fresh = str(uuid.uuid5(uuid.NAMESPACE_OID, self.plan.session))
        self.plan = msgspec.structs.replace(self.plan, session=fresh)

    def end(self, event: ExportDone | ExportFailed, versions: Mapping[str, str] | None = None) -> None:
        """Emit the last event."""
        self.emit(as_event(event, submissions=self.submissions, versions=dict(versions or {})))

    def fail(self, kind: str, text: str) -> None:
        """Emit a failure as the last event."""
        self.end(ExportFailed(self.job, kind, text))


@dataclass(eq=False, slots=True)
class SparkHost:
    """
    One host and its calls; all times are monotonic.

    Attributes:
        limit: The limit for the host's start, or for its end after a stop; None between start and stop.
        deadline: The time at which the host is killed if the host still exists, even if the host uses processor time.
            None means that there is no deadline.
        begun: The number of calls that the host has got.
        retiring: True if the host takes no more calls.
        stopping: True if the host was asked to end.
        idle_since: The time at which the host's last call ended.
        asked: The limit for the reply to a ping; None if the host has replied.
        answered_at: The time of the host's last reply to a ping.
        left: The names and part folders of cancelled jobs that have not ended in time, while other calls need the host.
        problem: The known reason for a kill of the host, or an empty text.
    """

    process: HostProcess
    settings: SparkSettings
    limit: Patience | None
    deadline: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    begun: int = 0
    ready: bool = False
    retiring: bool = False
    stopping: bool = False
    idle_since: float | None = None
    asked: Patience | None = None
    answered_at: float = 0.0
    left: dict[str, Path] = field(default_factory=dict)
    problem: str = ""

    def accepts(self, call: Call) -> bool:
        """Return whether this call can run here; a suspect call runs alone."""
        company = call.suspect or any(other.suspect for other in self.calls.values())
        return not self.retiring and not (self.calls and company)

    def submit(self, call: Call) -> None:
        """Begin the call on this host, as soon as the host is ready."""
        call.submissions += 1
        call.stuck, call.kill_at = "", None
        self.begun += 1
        self.calls[call.job] = call
        self.idle_since = None
        if self.ready:
            self._send(call)

    def became_ready(self, versions: dict[str, str], now: float) -> None:
        """Note that the host is ready, and send it the waiting calls."""
        self.ready, self.versions, self.answered_at = True, versions, now
        if not self.stopping:
            self.limit = None
        for call in self.calls.values():
            self._send(call)

    def _send(self, call: Call) -> None:
        left = (name for name, host in call.left if host is not self)  # another host can be dead, and so end no session
        plan = msgspec.structs.replace(call.plan, parts=str(call.parts), earlier=(*call.plan.earlier, *left))
        # A database can take as long as `statement_timeout` before its first row.
        silent = [table.statement_timeout for table in plan.tables.values() if isinstance(table, Database)]
        self.process.send(RunExport(call.job, plan, max(self.settings.stuck_after, *silent, 0.0), len(call.left)))

    def cancel(self, call: Call, now: float) -> None:
        """Ask the host to end a call."""
        if call.kill_at is None:
            call.kill_at = now + self.settings.cancel_within
            self.process.send(Cancel(call.job))

    def ended(self, call: Call) -> None:
        """Remove an ended call, and retire the host after too many calls or with too much memory."""
        del self.calls[call.job]
        limit = self.settings.max_rss
        if self.begun >= self.settings.jobs_per_host or (limit is not None and self.process.rss > limit):
            self.retiring = True

    def kill(self, problem: str = "") -> None:
        """Kill the host now."""
        self.problem = self.problem or problem
        self.process.kill()

    def stop(self, now: float) -> None:
        """Ask the host to end; only the first call sends the request."""
        self.retiring = True
        if not self.stopping:
            self.stopping = True
            self.limit = self._patience(_ARCHIVE_WITHIN if self.process.records else _STOP_WITHIN, now)
            self.process.stop()

    def attend(self, now: float) -> list[Call]:
        """
        Act on the limits: kill a late or hung host, ping a busy host, stop an idle or retired host, shorten a long log.

        Return the cancelled calls that have not ended in time, if other calls still need the host.
        In this case, the host takes no more calls, and is killed after its last call.
        """
        self.process.bound_log()
        late = [call for call in self.calls.values() if call.kill_at is not None and now >= call.kill_at]
        for call in late:
            call.kill_at = None
            self.left[call.job] = call.parts
            self.retiring = True
        if late and len(late) == len(self.calls):
            self.kill(self._unended)
            late = []
        for call in late:
            del self.calls[call.job]
        limit = self.limit
        if limit is not None and (limit.over(now, self._cpu) or (self.deadline is not None and now >= self.deadline)):
            self.limit = None
            self.kill(f"the host was not {'gone' if self.stopping else 'ready'} after {now - limit.began:.0f} s")
        if self.ready and not self.stopping:
            self._attend_ready(now)
        return late

    def _attend_ready(self, now: float) -> None:
        if self.calls:
            self._ping(now)
        elif self.left:
            self.kill(self._unended)
        elif self.retiring:
            self.stop(now)
        elif self.idle_since is None:
            self.idle_since, self.asked = now, None
        elif now - self.idle_since >= self.settings.idle_stop:
            self.stop(now)

    @property
    def _unended(self) -> str:
        return f"a cancelled job did not end within {self.settings.cancel_within:g} s"

    def _cpu(self) -> float:
        return self.process.cpu

    def _patience(self, within: float, now: float) -> Patience:
        return Patience.of(within, now, self.process.cpu)

    def _ping(self, now: float) -> None:
        """Ping the host's JVM, and kill the host if the JVM does not reply; slow jobs do not delay the reply."""
        within = self.settings.hung_after
        if self.asked is None:
            if now - self.answered_at >= self.settings.ping_every:
                self.asked = self._patience(within, now)
                self.process.send(PingHost(self.begun))
        elif now >= self.asked.due + _LATE:  # this process stood still, as in a paused container
            self.asked = self._patience(within, now)
        elif self.asked.over(now, self._cpu):
            silent, self.answered_at, self.asked = now - self.asked.began, now, None
            self.kill(f"the host's JVM did not respond for {silent:.0f} s")

    def due(self) -> Iterator[float]:
        """Yield the monotonic times at which `attend` must be called again."""
        limits = (self.limit.due, self.deadline) if self.limit else ()
        for moment in (*limits, *(call.kill_at for call in self.calls.values())):
            if moment is not None:
                yield moment
        if self.ready and not self.stopping:
            if self.calls and self.asked is None:
                yield self.answered_at + self.settings.ping_every
            elif self.calls and self.asked is not None:
                yield self.asked.due
            elif self.idle_since is not None:
                yield self.idle_since + self.settings.idle_stop
