"""The records of `SparkService`: calls, and hosts with their limits; all times are monotonic."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.spark.process import HostProcess
from steadyworker.exports.spark.protocol import (
    Cancel,
    ExportFailed,
    ExportPlan,
    JobEvent,
    PingHost,
    RunExport,
    as_event,
)
from steadyworker.exports.spark.settings import SparkSettings

Emit = Callable[[Mapping[str, Any]], None]
_SHARE = 0.005  # the share of one core that moves; a host with the priority 5 beside 12 busy programs still gets 2 % of a core
_LATE = 5.0  # seconds after the time of a check; if a check is later than this, this process itself stood still
_ALONE = 2  # the number of beginnings after which a call runs alone, because it can be what ends its hosts
_PINGS = 6  # the number of pings in the time of a limit
_SLOWER = (
    4.0  # the factor of a job's limit without progress for each time that it was stuck, because the job can be slow
)
_TIMES = 2  # how often the limit becomes longer; so it is at most 16 times as long
_LONGEST = 5  # the factor of the limit for a reply; after so long a time, a host is killed even if it moves


class Limit:
    """
    The limit for one step of a host: it passes only when the host's processes have stood still for so many seconds.

    A host moves if it uses processor time or writes to its log, because a starved machine makes each step slow.

    Attributes:
        began: The time at which the step began.
        due: The time of the next check.
    """

    def __init__(self, process: HostProcess, within: float, now: float, most: float = float("inf")) -> None:
        self._process, self._within, self._last = process, within, now + most
        self.began, self.due = now, now + min(within, most)
        self._seen = process.cpu, process.logged

    def over(self, now: float) -> bool:
        """Return whether the limit has passed; if it has not passed, set the time of the next check."""
        if now < self.due:
            return False
        (cpu, logged), self._seen = self._seen, (self._process.cpu, self._process.logged)
        # The sum of processor times becomes smaller when a process ends, and that counts as movement, too.
        moved = abs(self._seen[0] - cpu) >= _SHARE * self._within or self._seen[1] != logged
        late = now >= self.due + _LATE
        if late:
            self._last += now - self.due
        if now >= self._last or not (moved or late):
            return True
        self.due = min(now + self._within, self._last)
        return False


@dataclass(eq=False, slots=True)
class Call:
    """
    One export's request.

    Attributes:
        submissions: How many times the call was submitted to a host; each submission has its folder of parts.
        cancelled: True if the child no longer waits for the call.
        stuck: The reason why the service ends a submission without progress, or an empty text.
        stuck_before: How many earlier submissions were stuck; a submission whose host died does not count.
        ends_by: The time by which the call must end on its host, because it is cancelled or stuck.
    """

    job: str
    plan: ExportPlan
    emit: Emit
    submissions: int = 0
    cancelled: bool = False
    stuck: str = ""
    stuck_before: int = 0
    ends_by: float | None = None

    @property
    def parts(self) -> str:
        """The folder of the submission that runs."""
        return f"{self.plan.parts}/{self.job}-{self.submissions}"

    def order(self, stuck_after: float) -> RunExport:
        """
        Return the order for the submission that runs.

        Each submission has a session name of its own, and ends the sessions of the submissions before it.
        """
        own = self.plan.session
        names = [
            own,
            *(str(uuid.uuid5(uuid.NAMESPACE_OID, f"{own} {number}")) for number in range(self.submissions - 1)),
        ]
        # A database can take as long as `statement_timeout` before its first row.
        silent = [table.statement_timeout for table in self.plan.tables.values() if isinstance(table, Jdbc)]
        plan = msgspec.structs.replace(
            self.plan, parts=self.parts, session=names.pop(), earlier=(*self.plan.earlier, *names)
        )
        limit = max(stuck_after, *silent, 0.0) * _SLOWER ** min(self.stuck_before, _TIMES)
        return RunExport(self.job, plan, limit, self.stuck_before > 0)

    def report(self, event: JobEvent, **more: Any) -> None:
        """Emit an event, with the number of submissions and the folder of their parts."""
        self.emit(as_event(event, submissions=self.submissions, parts_folder=self.plan.parts, **more))

    def fail(self, kind: str, text: str) -> None:
        """Emit a failure as the last event."""
        self.report(ExportFailed(self.job, kind, text))


@dataclass(eq=False, slots=True)
class SparkHost:
    """
    One host and its calls.

    Attributes:
        limit: The limit for the host's start, or for its end after a stop; None between start and stop.
        stopping: True if the host was asked to end.
        abandoned: True if a call that did not end has left this host; the host takes no more calls, and is killed after its last call.
        idle_since: The time at which the host's last call ended.
        asked: The limit for the reply to a ping; None if the host has replied.
        answered_at: The time of the host's last reply to a ping.
        problem: The known reason for the host's end, or an empty text.
    """

    process: HostProcess
    settings: SparkSettings
    limit: Limit | None = None
    versions: dict[str, str] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    ready: bool = False
    stopping: bool = False
    abandoned: bool = False
    idle_since: float | None = None
    asked: Limit | None = None
    answered_at: float = 0.0
    problem: str = ""

    def accepts(self, call: Call) -> bool:
        """Return whether this call can run here; from its third beginning on, a call runs alone."""
        alone = call.submissions >= _ALONE or any(other.submissions > _ALONE for other in self.calls.values())
        return not self.stopping and not self.abandoned and not (self.calls and alone)

    def submit(self, call: Call) -> None:
        """Begin the call on this host, as soon as the host is ready."""
        self.calls[call.job], self.idle_since = call, None
        call.stuck_before += bool(call.stuck)
        call.submissions, call.stuck, call.ends_by = call.submissions + 1, "", None
        if self.ready:
            self.process.send(call.order(self.settings.stuck_after))

    def became_ready(self, versions: dict[str, str], now: float) -> None:
        """Note that the host is ready, and send it the waiting calls."""
        self.ready, self.answered_at = True, now
        self.versions |= versions
        if not self.stopping:
            self.limit = None
        for call in self.calls.values():
            self.process.send(call.order(self.settings.stuck_after))

    def replied(self, now: float) -> None:
        """Note that the host's JVM responds; while the host waits for a place in a cluster, it gets more time to start."""
        self.answered_at, self.asked = now, None
        if not self.ready and not self.stopping:
            self.limit = Limit(self.process, self.settings.hung_after, now)

    def cancel(self, call: Call, now: float) -> None:
        """Ask the host to end a call."""
        if call.ends_by is None:
            call.ends_by = now + self.settings.hung_after
            self.process.send(Cancel(call.job))

    def kill(self, problem: str = "") -> None:
        """Kill the host now."""
        self.problem = self.problem or problem
        self.process.kill()

    def stop(self, now: float, within: float = float("inf")) -> None:
        """Ask the host to end, and kill it after `within` seconds; only the first call sends the request."""
        self.limit = Limit(self.process, self.settings.hung_after, now, within)
        if not self.stopping:
            self.stopping = True
            self.process.stop()

    def attend(self, now: float) -> list[Call]:
        """
        Act on the limits: kill a host that stands still, ping a busy host, stop an idle host, shorten a long log.

        Return the calls that have not ended in time, if other calls still need the host.
        """
        self.process.bound_log()
        late = [call for call in self.calls.values() if call.ends_by is not None and now >= call.ends_by]
        if late and len(late) == len(self.calls):
            for call in late:
                call.ends_by = None
            self.kill(f"a cancelled job did not end within {self.settings.hung_after:g} s")
            late = []
        for call in late:
            del self.calls[call.job]
            self.abandoned = True
        if self.limit is not None and self.limit.over(now):
            passed, self.limit = now - self.limit.began, None
            self.kill(f"the host was not {'gone' if self.stopping else 'ready'} after {passed:.0f} s, and stood still")
        if self.ready and not self.stopping:
            self._attend_ready(now)
        return late

    def _attend_ready(self, now: float) -> None:
        if self.calls:
            self._ping(now)
        elif self.abandoned:
            self.kill("a cancelled job did not end")
        elif self.idle_since is None:
            self.idle_since, self.asked = now, None
        elif now - self.idle_since >= self.settings.idle_stop:
            self.stop(now)

    def _ping(self, now: float) -> None:
        """Ping the host's JVM, and kill the host if the JVM does not reply; slow jobs do not delay the reply."""
        within = self.settings.hung_after
        if self.asked is None:
            if now - self.answered_at >= within / _PINGS:
                self.asked = Limit(self.process, within, now, _LONGEST * within)
                self.process.send(PingHost())
        elif self.asked.over(now):
            silent, self.answered_at, self.asked = now - self.asked.began, now, None
            self.kill(f"the host's JVM did not respond for {silent:.0f} s")
