"""What `SparkService` keeps books of: calls, and hosts with what is due on them and when."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from steadyworker.exports.spark.process import HostProcess
from steadyworker.exports.spark.protocol import Cancel, Database, Done, Failed, Ping, Plan, Run, as_event, parts_of
from steadyworker.exports.spark.settings import SparkSettings

Emit = Callable[[Mapping[str, Any]], None]
_STOP_WITHIN = 15.0  # seconds for a host that ends in good order,
_ARCHIVE_WITHIN = 120.0  # and for one that writes the class-data archive then
_LATE = 5.0  # seconds past what was due: this process stood still itself


@dataclass(eq=False, slots=True)
class Call:
    """
    One export's request.

    Attributes:
        job: The name that hosts know it by.
        plan: What is asked; `parts` is the folder that each submission makes a folder in.
        submissions: How often it was given to a host.
        deaths: How many hosts died under it while it ran alone, and how often it was stuck.
        suspect: A host died under it, alone or not: it runs alone until it has ended.
        cancelled: Nobody waits for it any longer.
        stuck: Why it is being ended although somebody waits for it: nothing of it moved any longer.
        left: The names that it had at a Spark Connect server when it was stuck, and the host that sees to the end of each.
        kill_at: When its host is killed, because it did not end when it was cancelled.
    """

    job: str
    plan: Plan
    emit: Emit
    submissions: int = 0
    deaths: int = 0
    suspect: bool = False
    cancelled: bool = False
    stuck: str = ""
    left: list[tuple[str, Host]] = field(default_factory=list)
    kill_at: float | None = None

    @property
    def parts(self) -> Path:
        """The folder of the submission that runs."""
        return parts_of(self.plan.parts, self.job, self.submissions)

    def rename(self, host: Host) -> None:
        """It was stuck at this host, which may go on to end it for minutes: the next submission has another name."""
        self.left.append((self.plan.session, host))
        fresh = str(uuid.uuid5(uuid.NAMESPACE_OID, self.plan.session))
        self.plan = msgspec.structs.replace(self.plan, session=fresh)

    def end(self, event: Done | Failed, versions: Mapping[str, str] | None = None) -> None:
        """Tell the last event."""
        self.emit(as_event(event, submissions=self.submissions, versions=dict(versions or {})))

    def fail(self, kind: str, text: str) -> None:
        """Tell that it failed."""
        self.end(Failed(self.job, kind, text))


@dataclass(eq=False, slots=True)
class Host:
    """
    One host and what runs on it.

    Attributes:
        deadline: When it is killed unless it is ready by then (or gone, if it was asked to stop).
        begun: Calls that it was ever given.
        retiring: Takes no more calls.
        stopping: Was asked to end.
        idle_since: When its last call ended.
        asked_at: When the ping was sent that it has not answered yet,
        answered_at: and when it answered the last one.
        problem: Why it will be or was killed, if we know.
    """

    process: HostProcess
    settings: SparkSettings
    deadline: float | None
    versions: dict[str, str] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    begun: int = 0
    ready: bool = False
    retiring: bool = False
    stopping: bool = False
    idle_since: float | None = None
    asked_at: float | None = None
    answered_at: float = 0.0
    problem: str = ""

    def takes(self, call: Call) -> bool:
        """Whether this call may run here: suspects run alone."""
        company = call.suspect or any(other.suspect for other in self.calls.values())
        return not self.retiring and not (self.calls and company)

    def submit(self, call: Call) -> None:
        """Begin the call here, as soon as the host is ready."""
        call.submissions += 1
        call.stuck, call.kill_at = "", None
        self.begun += 1
        self.calls[call.job] = call
        self.idle_since = None
        if self.ready:
            self._send(call)

    def became_ready(self, versions: dict[str, str], now: float) -> None:
        """Give it the calls that waited for it."""
        self.ready, self.versions, self.answered_at = True, versions, now
        if not self.stopping:
            self.deadline = None
        for call in self.calls.values():
            self._send(call)

    def _send(self, call: Call) -> None:
        left = (name for name, host in call.left if host is not self)  # that one may be gone before it has ended it
        plan = msgspec.structs.replace(call.plan, parts=str(call.parts), earlier=(*call.plan.earlier, *left))
        # A database may be silent for as long as its own limit says, before its first row.
        silent = [table.statement_timeout for table in plan.tables.values() if isinstance(table, Database)]
        self.process.send(Run(call.job, plan, max(self.settings.stuck_after, *silent, 0.0), len(call.left)))

    def cancel(self, call: Call, now: float) -> None:
        """End a call that runs here."""
        if call.kill_at is None:
            call.kill_at = now + self.settings.cancel_within
            self.process.send(Cancel(call.job))

    def ended(self, call: Call) -> None:
        """A call has ended: is it time for a fresh host?"""
        del self.calls[call.job]
        limit = self.settings.max_rss
        if self.begun >= self.settings.jobs_per_host or (limit is not None and self.process.rss > limit):
            self.retiring = True

    def kill(self, problem: str = "") -> None:
        """End it now."""
        self.problem = self.problem or problem
        self.process.kill()

    def stop(self, now: float) -> None:
        """Ask it to end, once."""
        self.retiring = True
        if not self.stopping:
            self.stopping = True
            self.deadline = now + (_ARCHIVE_WITHIN if self.process.records else _STOP_WITHIN)
            self.process.stop()

    def attend(self, now: float) -> None:
        """Do what is due: kill what is late or hung, ping what works, stop what is idle or retired; bound the log."""
        self.process.bound_log()
        for call in self.calls.values():
            if call.kill_at is not None and now >= call.kill_at:
                call.kill_at = None
                self.kill(f"a cancelled job did not end within {self.settings.cancel_within:g} s")
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self.kill(f"it was not {'gone' if self.stopping else 'ready'} in time")
        if not self.ready or self.stopping:
            return
        if self.calls:
            self._ping(now)
        elif self.retiring:
            self.stop(now)
        elif self.idle_since is None:
            self.idle_since, self.asked_at = now, None
        elif now - self.idle_since >= self.settings.idle_stop:
            self.stop(now)

    def _ping(self, now: float) -> None:
        """A JVM that hangs answers nothing; jobs that are merely slow are no business of ours."""
        if self.asked_at is None and now - self.answered_at >= self.settings.ping_every:
            self.asked_at = now
            self.process.send(Ping(self.begun))
        elif self.asked_at is not None and now - self.asked_at >= self.settings.hung_after + _LATE:
            self.asked_at = now  # we were not here when it was due: a paused container, a suspended machine
        elif self.asked_at is not None and now - self.asked_at >= self.settings.hung_after:
            self.answered_at, self.asked_at = now, None
            self.kill(f"its JVM did not answer for {self.settings.hung_after:g} s")

    def due(self) -> Iterator[float]:
        """When `attend` has to be called again."""
        for moment in (self.deadline, *(call.kill_at for call in self.calls.values())):
            if moment is not None:
                yield moment
        if self.ready and not self.stopping:
            if self.calls and self.asked_at is None:
                yield self.answered_at + self.settings.ping_every
            elif self.calls and self.asked_at is not None:
                yield self.asked_at + self.settings.hung_after
            elif self.idle_since is not None:
                yield self.idle_since + self.settings.idle_stop
