"""
The Protocol of a slot: a place for one run at a time, in a child process or a thread.

The runner calls the slot's methods.
The slot calls the runner's `SlotSink` with each `SlotEvent`, from any thread.
A slot without a thread has its turns in the runner's thread, by the runner's `SlotPoll`.
A slot uses neither the broker nor the ledger.
For each call of `run`, the slot sends exactly one `Ended` with the fence of that run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct

from steadyworker.errors import InterruptReason
from steadyworker.link import JobRequest, Task
from steadyworker.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Ready:
    """The event that the slot is warm: `setup` has returned."""

    slot: int


@dataclass(frozen=True, slots=True)
class Unready:
    """
    The event that the slot has ended; the runner must start the slot again after a back-off.

    There are three causes: `setup` raised, hung or died; the child died just after `setup`; or the slot's own code failed.
    `after_setup` is true if the slot ended after `setup` had returned.
    """

    slot: int
    reason: str
    after_setup: bool = False


@dataclass(frozen=True, slots=True)
class Progressed:
    """The event that the job has reported progress."""

    slot: int
    fence: int
    done: float | None
    total: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The event that the job has sent a request; the job waits for the runner's `reply` with the same id."""

    slot: int
    fence: int
    id: int
    request: JobRequest


class Ended(Struct, frozen=True):
    """
    The event that the run has ended; the slot sends this event once for each call of `run`.

    `traceback` is the traceback of a failure, or the stacks of a child that a fatal signal ended; otherwise empty.
    `peak_memory` is the peak of the run's resident memory in bytes; None in a thread, or if it is not known.
    """

    slot: int
    fence: int
    outcome: Outcome
    seconds: float = 0.0
    killed: bool = False
    traceback: str = ""
    peak_memory: int | None = None


SlotEvent = Ready | Unready | Progressed | Asked | Ended
SlotSink = Callable[[SlotEvent], None]
EndedJobs = Callable[[Sequence[str]], Iterable[str]]


class PolledSlot(Protocol):
    """A slot without a thread, which has its turns in the runner's thread."""

    @property
    def due(self) -> float:
        """The monotonic time of the slot's next turn, if no descriptor is ready before."""
        ...

    def turn(self) -> None:
        """Do everything that is due now, without waiting."""
        ...

    def ping_if_late(self) -> None:
        """Send a Ping that is overdue; any thread may call this."""
        ...


class SlotPoll(Protocol):
    """The poll of the runner's thread; only this thread calls `add`, `watch`, `forget` and `remove`."""

    def add(self, slot: PolledSlot) -> None:
        """Give this slot a turn at each of its due times, until `remove`."""
        ...

    def watch(self, descriptor: int, slot: PolledSlot, *, send: bool = False) -> None:
        """Give this slot a turn while the descriptor can be read; with `send`, also while the descriptor accepts bytes."""
        ...

    def forget(self, descriptor: int) -> None:
        """End the watch of a descriptor, before it is closed; do nothing if it is not watched."""
        ...

    def remove(self, slot: PolledSlot) -> None:
        """Give this slot no more turns, and end the watch of its descriptors."""
        ...

    def wake(self, slot: PolledSlot) -> None:
        """Give this slot a turn soon; any thread may call this."""
        ...

    def until(self, over: threading.Event, seconds: float) -> bool:
        """
        Return True when a turn has set this event; any thread may call this.

        Return False after this many seconds, or when the runner's thread has ended.
        """
        ...


class Slot(Protocol):
    """A place for one run at a time."""

    @property
    def id(self) -> int:
        """The number of this slot within its Worker, from 0."""
        ...

    def start(self, sink: SlotSink, poll: SlotPoll) -> None:
        """
        Start the slot's child or thread, and return at once.

        The slot sends `Ready` when `setup` has returned, otherwise `Unready`.
        After `Unready`, the runner calls `start` again.
        """
        ...

    def run(self, task: Task) -> None:
        """
        Begin a run, and return at once.

        The runner calls this method only after it has read that `warm` is true.
        If the slot has ended in the meantime, the slot sends `Ended` with `Interrupted`.
        """
        ...

    def reply(
        self, fence: int, id: int, answer: Any, *, refused: InterruptReason | None = None, end: bool = True
    ) -> None:
        """
        Reply to a request of the job; do nothing if that run has ended.

        If `refused` is a reason, the job's waiting call raises Interrupt with that reason.
        """
        ...

    def interrupt(self, fence: int, reason: InterruptReason, *, hard: bool) -> None:
        """
        Ask the run to end.

        After a soft interrupt (stage draining), `check()` raises Interrupt.
        After a hard interrupt, every Job call raises Interrupt; a process slot also sends SIGTERM to the child's process group.
        A thread slot cannot interrupt a synchronous handler that makes no Job call.
        """
        ...

    def kill(self, fence: int, outcome: Outcome) -> None:
        """
        End this run now, by SIGKILL to its processes; do nothing if the run has ended already.

        When the slot has reaped the child, the slot sends `Ended` with this outcome.
        A thread slot abandons a thread that does not end: the slot sends `Ended`, and `stuck` becomes true.
        """
        ...

    @property
    def warm(self) -> bool:
        """True when `setup` has returned and no run is under way; after `Ended`, `warm` can be false until the next `Ready`."""
        ...

    @property
    def last_turn(self) -> float | None:
        """The monotonic time of the last turn of the slot's own thread; None without a thread that must make turns."""
        ...

    @property
    def broken(self) -> bool:
        """True when a thread of the slot has died: the worker process must exit with code 70."""
        ...

    @property
    def stuck(self) -> bool:
        """True when a thread must end but still runs: the worker process must exit with code 70."""
        ...

    def stopping(self) -> None:
        """Note that the worker process stops; from now on, a child's death by a signal counts as `Interrupted`."""
        ...

    def close(self, within: float) -> None:
        """
        Run `teardown`, then end the child or thread; the runner can call this method at any time, and twice.

        After `within` seconds, the slot kills the child, or abandons the thread.
        """
        ...


class ServiceCall(Protocol):
    """One running request to a service."""

    def cancel(self) -> None:
        """End the request, and return at once; the service can still send a last event with `end` true."""
        ...


class JobService(Protocol):
    """
    A service in the worker process that jobs can call.

    The module `service/job_services.py` finds services by name.
    The runner relays requests and events between the job and the service, and cancels a call when the job's run ends.
    """

    def open(
        self, request: Mapping[str, Any], uid: str, fence: int, emit: Callable[[Mapping[str, Any]], None]
    ) -> ServiceCall:
        """
        Begin a call, and return at once.

        The service calls `emit` with each event, from any thread; the last event has `"end": True`.
        """
        ...

    def purge(self, ended: EndedJobs) -> None:
        """
        Remove the remains of ended jobs and dead worker processes from this host.

        The purge thread of the worker process calls this method about once an hour; the call can take long.

        Args:
            ended: Receives uids, and returns the uids of jobs that are done or dead (`Ledger.ended`).
        """
        ...

    def stop(self, within: float) -> None:
        """End every call and the service itself, within `within` seconds; a second call does nothing."""
        ...
