"""
What a slot promises the runner: one place where one run at a time happens, as a child process or a thread.

The runner tells a slot what to do; everything a slot has to say comes back as a `SlotEvent` through one callable, from any thread.
A slot knows neither the broker nor the ledger.  After `run` there is exactly one `Ended` for that fence, whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct

from steadyworker.errors import InterruptReason
from steadyworker.outcome import Outcome


class Task(Struct, frozen=True, kw_only=True):
    """
    All that one run is given.

    `last_checkpoint` is the JSON text of the user's checkpoint.
    `time_limit` and `stall_limit` are seconds, or None; the slot enforces both (Interrupt 10 s before the time limit, then KILL).
    """

    key: str
    queue: str
    name: str
    uid: str
    fence: int
    attempt: int
    body: bytes
    headers: Mapping[str, str] = {}
    last_checkpoint: bytes | None = None
    export_state: bytes | None = None
    sent_at: float | None = None
    time_limit: float | None = None
    stall_limit: float | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """The slot is warm: `setup` has returned."""

    slot: int


@dataclass(frozen=True, slots=True)
class Unready:
    """
    `setup` raised, hung or died; the slot has ended and must be started again after a back-off.

    `stood` says that `setup` had returned: the child died just after it, idle.
    """

    slot: int
    reason: str
    stood: bool = False


@dataclass(frozen=True, slots=True)
class Progressed:
    """The job moved."""

    slot: int
    fence: int
    done: float | None
    total: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Asked:
    """
    The job's process asks, and waits for `reply`.

    `what` is one of `checkpoint` (data: the JSON text), `export_state` (data: bytes, or None), `may_commit` (permission to commit an export),
    `ended` (data: list of uids; which of them the ledger says are done or dead), or the name of a service that `assemble.py` wired
    (data: the request; the answer is a stream: each `reply` is one event, the last has `end` true).
    """

    slot: int
    fence: int
    id: int
    what: str
    data: Any = None


class Ended(Struct, frozen=True):
    """The run is over, and whatever ran it is reaped or ready for the next; sent once for each `run`."""

    slot: int
    fence: int
    outcome: Outcome
    seconds: float = 0.0
    killed: bool = False


SlotEvent = Ready | Unready | Progressed | Asked | Ended
SlotSink = Callable[[SlotEvent], None]


class Slot(Protocol):
    """One place where one run at a time happens."""

    @property
    def id(self) -> int:
        """The number of this slot within its Worker, from 0."""
        ...

    def start(self, sink: SlotSink) -> None:
        """Begin to warm up; `Ready` or `Unready` follows; returns at once.  Also after `Unready` or a death, to begin again."""
        ...

    def run(self, task: Task) -> None:
        """
        Begin a run; only on a slot that was warm and idle; returns at once.

        One that was given up meanwhile answers `Ended` with `Interrupted`.
        """
        ...

    def reply(
        self, fence: int, id: int, answer: Any, *, refused: InterruptReason | None = None, end: bool = True
    ) -> None:
        """
        Answer what the job asked; ignored when that run has ended.

        `refused` makes the waiting call raise Interrupt with that reason instead.
        """
        ...

    def interrupt(self, fence: int, reason: InterruptReason, *, hard: bool) -> None:
        """
        Tell the job: soft makes `check()` raise Interrupt (draining), hard makes every Job call raise and sends TERM to the child's group.

        For a thread slot hard cannot reach a handler that makes no Job call.
        """
        ...

    def kill(self, fence: int, outcome: Outcome) -> None:
        """
        End this run now, by SIGKILL of its process group; `Ended` follows with this outcome when it is reaped.

        Ignored when the run has ended already.  A thread that does not end is abandoned: `Ended` follows, and `stuck` becomes true.
        """
        ...

    @property
    def warm(self) -> bool:
        """Warm and idle: `run` may be called; after `Ended` it may be false until the next `Ready`."""
        ...

    @property
    def stuck(self) -> bool:
        """A thread that must end and won't: the worker process has to exit 70."""
        ...

    @property
    def last_progress(self) -> float:
        """When (monotonic) anything was last heard from what runs here."""
        ...

    def stopping(self) -> None:
        """A stop signal came: from now on a child's death by a signal is `Interrupted`, and the child lets TERM end its job."""
        ...

    def close(self, within: float) -> None:
        """`teardown`, then end the child or thread, by force after `within` seconds; safe twice and in any order."""
        ...


class ServiceCall(Protocol):
    """One request to a service, under way."""

    def cancel(self) -> None:
        """End it; returns at once; a last event with `end` true may still come."""
        ...


class JobService(Protocol):
    """
    Something that lives in the worker process and that jobs may ask (the Spark host).

    `assemble.py` wires services by name; the runner relays requests and events between job and service, and cancels a call when its run ends.
    """

    def open(
        self, request: Mapping[str, Any], uid: str, fence: int, emit: Callable[[Mapping[str, Any]], None]
    ) -> ServiceCall:
        """Begin; `emit` is called from any thread with each event, the last one with `"end": True`; returns at once."""
        ...

    def stop(self, within: float) -> None:
        """End every call and the service itself; safe twice."""
        ...
