"""
The Protocol of a slot: a place for one run at a time, in a child process or a thread.

The runner calls the slot's methods; the slot sends each `SlotEvent` to one callable, from any thread.
A slot uses neither the broker nor the ledger.
After `run` there is exactly one `Ended` for that fence, whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct

from steadyworker.errors import InterruptReason
from steadyworker.link import Task
from steadyworker.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Ready:
    """The slot is warm: `setup` has returned."""

    slot: int


@dataclass(frozen=True, slots=True)
class Unready:
    """
    `setup` raised, hung or died, or the slot's own thread failed: the slot has ended, and must be started again after a back-off.

    `stood` is true when `setup` had returned before.
    """

    slot: int
    reason: str
    stood: bool = False


@dataclass(frozen=True, slots=True)
class Progressed:
    """The job reported progress."""

    slot: int
    fence: int
    done: float | None
    total: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Asked:
    """
    A request of the job, which waits for `reply`.

    `what` is one of these:

    - `checkpoint`: store a checkpoint (data: its JSON text).
    - `export_state`: store the state of external work (data: bytes, or None).
    - `may_commit`: permit the commit of an export; refused as `fenced` or `cancelled`.
    - `ended`: return which of these jobs are done or dead in the ledger (data: a list of uids).
    - The name of a service that `assemble.py` wired (data: the request).
      Its reply is a stream: each `reply` is one event, and the last has `end` true.
    """

    slot: int
    fence: int
    id: int
    what: str
    data: Any = None


class Ended(Struct, frozen=True):
    """The run is over, and its child or thread is gone or ready for the next run; sent once for each `run`."""

    slot: int
    fence: int
    outcome: Outcome
    seconds: float = 0.0
    killed: bool = False


SlotEvent = Ready | Unready | Progressed | Asked | Ended
SlotSink = Callable[[SlotEvent], None]


class Slot(Protocol):
    """A place for one run at a time."""

    @property
    def id(self) -> int:
        """The number of this slot within its Worker, from 0."""
        ...

    def start(self, sink: SlotSink) -> None:
        """
        Begin to warm up, and return at once; the slot then sends `Ready` or `Unready`.

        Call it again after `Unready`.
        """
        ...

    def run(self, task: Task) -> None:
        """
        Begin a run on a slot that was warm and idle, and return at once.

        If the slot has ended meanwhile, it sends `Ended` with `Interrupted`.
        """
        ...

    def reply(
        self, fence: int, id: int, answer: Any, *, refused: InterruptReason | None = None, end: bool = True
    ) -> None:
        """
        Reply to a request of the job; ignored when that run has ended.

        With `refused`, the waiting call raises Interrupt with that reason instead.
        """
        ...

    def interrupt(self, fence: int, reason: InterruptReason, *, hard: bool) -> None:
        """
        Ask the run to end.

        Soft (draining): `check()` raises Interrupt.
        Hard: every Job call raises Interrupt, and the child's process group gets TERM.
        In a thread slot, hard has no effect on a handler that makes no Job call.
        """
        ...

    def kill(self, fence: int, outcome: Outcome) -> None:
        """
        End this run now, by SIGKILL of its process group; when the child is reaped, the slot sends `Ended` with this outcome.

        Ignored when the run has ended already.
        A thread that does not end is abandoned: the slot sends `Ended`, and `stuck` becomes true.
        """
        ...

    @property
    def warm(self) -> bool:
        """True when warm and idle: `run` may be called; after `Ended` it may be false until the next `Ready`."""
        ...

    @property
    def last_turn(self) -> float | None:
        """When (monotonic) the slot's own thread last turned; None while it has no reason to turn."""
        ...

    @property
    def broken(self) -> bool:
        """True when a thread of the slot has died: the worker process has to exit with code 70."""
        ...

    @property
    def stuck(self) -> bool:
        """True when a thread must end and does not: the worker process has to exit with code 70."""
        ...

    def stopping(self) -> None:
        """Note that the worker process stops: from now on a child's death by a signal is `Interrupted`."""
        ...

    def close(self, within: float) -> None:
        """
        Run `teardown`, then end the child or thread, by force after `within` seconds.

        It may be called at any time, and twice.
        """
        ...


class ServiceCall(Protocol):
    """One running request to a service."""

    def cancel(self) -> None:
        """End the request, and return at once; a last event with `end` true may still come."""
        ...


class JobService(Protocol):
    """
    A service in the worker process that jobs may call, such as the Spark host.

    `assemble.py` wires services by name.
    The runner relays requests and events between job and service, and cancels a call when its run ends.
    """

    def open(
        self, request: Mapping[str, Any], uid: str, fence: int, emit: Callable[[Mapping[str, Any]], None]
    ) -> ServiceCall:
        """Begin a call, and return at once; `emit` gets each event, from any thread, the last one with `"end": True`."""
        ...

    def stop(self, within: float) -> None:
        """End every call and the service itself; may be called twice."""
        ...
