"""
The facts that people read: the attempts of a job, the reports of worker processes, what waits, and what people have done.

A fact decides nothing: neither the decision table nor any write of a job reads a fact.
Two facts have an effect, and only on the prefetch: a pause of a queue, and a command to one worker process.
The transactions of a job record its attempts.
A worker process records all other facts in separate calls, never in the transaction of a job.
If the ledger does not respond then, the process drops these facts: the lists of `steadyworker` then have a gap, but jobs go on.

Every text passes `steadyworker.text.plain_text`, so no recognised secret reaches the ledger, and a long text is cut.
The ledger's clock sets the time of a pause, a command, an action and a depth; a worker process sets the other times.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct, field

from steadyworker.adapter import Depth
from steadyworker.ledger.job_id import JobId

MOST_ATTEMPTS = 20
"""The largest number of runs that the ledger keeps of one job; a claim deletes the oldest."""

CHECKPOINT_SHOWN = 200
"""The largest number of characters of a checkpoint that an attempt keeps."""

TRACEBACK_END = 4000
"""The number of characters of each traceback that `Facts.tracebacks` returns; the last frames are at the end."""

LOST = "lost"
"""The outcome of a run that ended without one, because its worker process died, froze, or lost the job."""
LinkChange = Literal["connected", "lost", "blocked", "unblocked", "draining", "adopted", "delivery-lost"]
"""
The kinds of events of a link, which is the connection of one worker process to the broker of one queue.

- `connected`, `lost`: the connection began, or ended.
- `blocked`, `unblocked`: an alarm of the broker began, or ended.
- `draining`: the worker process stops, so it receives no more messages.
- `adopted`, `delivery-lost`: a run got a new delivery, or lost its delivery; the event has the run's fence.
"""

CommandName = Literal["quiet", "resume"]
"""The commands to a worker process: receive no more messages (as SIGUSR1), and receive messages again (as SIGUSR2)."""

DURATIONS = (0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0)
"""The upper bounds, in seconds, of the classes of durations in `Minute.counts`; the last class has no bound."""

MOST_KEYS = 20
"""The largest number of keys that an action names."""

STARTING = "worker: starting"
"""The only reason in `OwnerReport.not_ready` until the process has checked itself."""

MOST_LISTED = 1000
"""The number of actions that `Facts.actions` returns by default."""


class Attempt(Struct, frozen=True):
    """
    One run of a job, from its claim to its end.

    Attributes:
        fence: The fencing token of the run.
        owner, host, pid, version: The worker process that ran the job: its owner id, its host, its process id, its version.
        slot: The number of the slot within the Worker.
        because: Why the run began: `new`, `replayed`, `retry`, `snoozed` or `interrupted` (a run before this one ended so),
            `taken over` (from a lost worker process) or `dropped` (by this worker process itself);
            then `; the broker lost its message` if the message came from the ledger.
        epoch: The number of the connection's epoch in which the message came; None if the message came from the ledger.
        started_at, ended_at: Wall clock, in seconds; `ended_at` is None while the run goes on.
        outcome: The name that the log has: `done`, `failed`, `retry`, `rejected`, `cancelled`, `snoozed`, `interrupted` or `crashed`;
            `lost` if the worker process reported none; empty while the run goes on.
            A later claim by a process of an earlier version also shows that a run is lost.
        reason, error_class, error_text: Why the run ended so.
        traceback: The traceback of a failure, at most 16 KiB, without recognised secrets; empty without one.
        checkpoint_before, checkpoint_after: The checkpoint with which the run began and ended: JSON, cut at 200 characters.
        peak_memory: The peak of the child's resident memory during the run, in bytes, as the kernel counted it.
            If something else than SteadyWorker killed the child, this is the peak of the child's whole life.
            None in a thread slot, or if the kernel reports none.
    """

    fence: int
    owner: str
    host: str
    pid: int
    slot: int
    version: str
    because: str
    epoch: int | None
    started_at: float
    ended_at: float | None = None
    outcome: str = ""
    reason: str = ""
    error_class: str = ""
    error_text: str = ""
    traceback: str = ""
    checkpoint_before: str | None = None
    checkpoint_after: str | None = None
    peak_memory: int | None = None


class QueueReport(Struct, frozen=True):
    """
    One queue of a worker process.

    Attributes:
        slots: The number of slots.
        busy: The number of slots that have a run.
        time_limit: The Worker's time limit for a run, in seconds; None without a limit.
        connected: True while the connection to the broker is open.
        paused: True while the worker process obeys a pause of this queue.
    """

    slots: int = 0
    busy: int = 0
    time_limit: float | None = None
    connected: bool = False
    paused: bool = False


class ReportedFinding(Struct, frozen=True):
    """A finding of the checks of a worker process: its entry in the catalogue, its level (`error`, `warning`), and its text."""

    id: str
    level: str
    text: str


class OwnerReport(Struct, frozen=True):
    """
    The state of a worker process at its last renewal.

    Attributes:
        pid: The process id on its host.
        version: The version of SteadyWorker.
        started_at: The wall clock at the start of the process.
        stage: The stage, such as `running` or `quiet` (`steadyworker.lifecycle.Stage`).
        ready: True if `/readyz` reports that the process is ready.
        not_ready: The reasons why the process is not ready, for people.
        queues: The queues of the process, by `steadyworker.ledger.lease.registered_name`.
        findings: The findings of the last checks, errors first.
    """

    pid: int = 0
    version: str = ""
    started_at: float = 0.0
    stage: str = ""
    ready: bool = False
    not_ready: tuple[str, ...] = ()
    queues: Mapping[str, QueueReport] = field(default_factory=dict)
    findings: tuple[ReportedFinding, ...] = ()

    @property
    def starting(self) -> bool:
        """True if the process has just started: it registers before it connects, so this report has no connections yet."""
        return self.not_ready == (STARTING,)


class LinkEvent(Struct, frozen=True):
    """
    An event of a link.

    Attributes:
        owner: The owner id of the worker process.
        queue: The queue.
        at: The wall clock of the worker process.
        epoch: The epoch of the connection, as in `steadyworker.adapter`; a delivery of an attempt has the same epoch.
        event: The kind of event.
        why: The cause, for people; empty if there is none.
        fence: The fence of the run, for `adopted` and `delivery-lost`; otherwise None.
    """

    owner: str
    queue: str
    at: float
    epoch: int
    event: LinkChange
    why: str = ""
    fence: int | None = None


class Minute(Struct, frozen=True):
    """
    The runs of one queue that ended in one minute with the same outcome.

    Attributes:
        namespace, queue: The queue.
        at: The start of the minute, in seconds since 1970, by the wall clocks of the worker processes.
        outcome: The outcome of a run, as `steadyworker.events.JobEnded` names it.
        counts: The number of runs in each class of `DURATIONS`; the last number counts the runs above the last bound.
    """

    namespace: str
    queue: str
    at: int
    outcome: str
    counts: tuple[int, ...]

    @property
    def runs(self) -> int:
        """The number of all these runs."""
        return sum(self.counts)


class Pause(Struct, frozen=True):
    """A pause of a queue: no worker process of the fleet receives messages of this queue; `at` is its begin."""

    namespace: str
    queue: str
    who: str
    reason: str
    at: float


class OwnerCommand(Struct, frozen=True):
    """A command to one worker process."""

    name: CommandName
    who: str
    at: float


class Action(Struct, frozen=True):
    """
    An entry of the log of actions: what a person has done.

    Attributes:
        who: The person, as `user@host`, or a given name.
        what: The action, such as `cancel` or `pause`.
        namespace, queue: The queue; empty if the action concerns no queue.
        keys: The keys of the jobs, at most 20 of them.
        count: The number of all these jobs.
        detail: The details, for people.
        at: The time of the action; `Facts.act` sets it.
    """

    who: str
    what: str
    namespace: str = ""
    queue: str = ""
    keys: tuple[str, ...] = ()
    count: int = 0
    detail: str = ""
    at: float = 0.0


class MeasuredDepth(Struct, frozen=True):
    """The last depth of a queue that a worker process has measured, and the seconds since then."""

    namespace: str
    queue: str
    depth: Depth
    age: float


class Facts(Protocol):
    """The facts in a ledger; every call can raise LedgerUnavailable, as every call of the ledger."""

    def attempts(self, id: JobId) -> Sequence[Attempt]:
        """
        Return the last runs of a job, the oldest first, at most `MOST_ATTEMPTS`.

        The ledger deletes the attempts together with the job's row.
        If a worker process of an earlier version began a run, its attempt is missing.
        """
        ...

    def last_runs(self, ids: Sequence[JobId]) -> Mapping[JobId, tuple[int, str]]:
        """
        Return, for each of these jobs, the number of its kept runs, and why the last of them began (`Attempt.because`).

        Jobs without an attempt are left out.
        """
        ...

    def tracebacks(self, ids: Sequence[JobId]) -> Mapping[JobId, str]:
        """
        Return, for each of these jobs, the end of the last traceback that a run left, at most `TRACEBACK_END` characters.

        Jobs without a traceback are left out.
        """
        ...

    def result(self, id: JobId) -> bytes | None:
        """Return the JSON text of the job's result, or None if the job is not done, or has no result."""
        ...

    def add_link_events(self, events: Sequence[LinkEvent]) -> None:
        """Record these events, for 24 hours; a power failure can lose them."""
        ...

    def link_events(
        self, since: float, *, owner: str | None = None, fences: Collection[int] = ()
    ) -> Sequence[LinkEvent]:
        """
        Return the events since this time, oldest first.

        With `owner`, return only events of this owner; with `fences`, only events of these runs.
        """
        ...

    def add_minutes(self, minutes: Sequence[Minute]) -> None:
        """Add these counts to the ledger's counts, for 48 hours; a power failure can lose them."""
        ...

    def minutes(self, since: float, namespace: str | None = None, queue: str | None = None) -> Sequence[Minute]:
        """Return the counts of all minutes that begin at this time or later, oldest first, then by queue and outcome."""
        ...

    def pause(self, namespace: str, queue: str, who: str, reason: str) -> None:
        """
        Pause a queue, until `resume`.

        Each worker process sets its prefetch for this queue to 0 within a few seconds; its jobs and its connection go on.
        A second pause replaces `who` and `reason`, and begins now.
        """
        ...

    def resume(self, namespace: str, queue: str) -> bool:
        """End the pause of a queue; return False if the queue is not paused."""
        ...

    def pauses(self) -> Sequence[Pause]:
        """Return all pauses, by queue."""
        ...

    def command(self, owner: str, name: CommandName, who: str) -> None:
        """Give this worker process a command; the ledger keeps the command for a day."""
        ...

    def commands(self, owner: str) -> Sequence[OwnerCommand]:
        """Return the commands to this owner, oldest first, and remove them; only this owner calls this method."""
        ...

    def act(self, action: Action) -> None:
        """Record an action now, for 90 days."""
        ...

    def actions(
        self,
        since: float | None = None,
        namespace: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        limit: int = MOST_LISTED,
    ) -> Sequence[Action]:
        """
        Return the actions since this time, newest first, at most `limit` of them.

        With `namespace` or `queue`, return only actions on these queues; with `key`, only actions that name this key.
        """
        ...

    def may_measure(self, namespace: str, queue: str, every: float) -> bool:
        """
        Return whether this process may measure the depth of this queue now.

        In each period of `every` seconds, only one call in the whole fleet returns True.
        """
        ...

    def record_depth(self, namespace: str, queue: str, depth: Depth) -> None:
        """Record the depth of a queue now; the ledger keeps the last depth for a day."""
        ...

    def depths(self) -> Sequence[MeasuredDepth]:
        """Return the last depth of each measured queue, by queue."""
        ...
