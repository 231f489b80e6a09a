"""
A slot that is a child process: the slot keeps the child warm, reuses, limits and replaces the child, and kills the child's whole group.

::

               ┌──────── died idle, asked to leave ───────┐
               ↓                                          │
    start → warming ──SetupDone──→ idle ⇄ busy → leaving ─┤
               │                    │      │              │
               │ setup raised,      │      └─ died, killed┘
               │ hung or died       │ died within 10 s, before its first run
               ↓                    ↓
            Unready, until `start` is called again

The slot has no thread: the runner's thread starts the child, polls the child's socket and death, and gives the slot its turns.
No turn waits for the child.
A slot has a turn in three cases: its child sends a frame or dies, the child's next deadline (`due`) comes, or another thread closes the slot.

If a child dies during a run, the slot reports the outcome that `kill` or a limit has set.
If neither `kill` nor a limit has set an outcome, the child's return code decides the outcome.
If a turn raises an exception, the run ends as Crashed, and the slot sends Unready.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from steadyworker.clock import Clock
from steadyworker.errors import InterruptReason
from steadyworker.link import Task
from steadyworker.outcome import Crashed, Interrupted, Outcome
from steadyworker.slots.base import Asked, Ended, Progressed, Ready, SlotEvent, SlotPoll, SlotSink, Unready
from steadyworker.slots.child_process import NEVER, PARTING, ChildProcess, ChildRun
from steadyworker.slots.execute import error_text, outcome_of_interrupt
from steadyworker.slots.frames import (
    FromChild,
    Hello,
    ProgressMade,
    Reply,
    RequestMade,
    RunEnded,
    SetupDone,
    SetupFailed,
    outcome_of,
)
from steadyworker.slots.guard import Guard
from steadyworker.slots.runs import Limits
from steadyworker.slots.spawn import start_child
from steadyworker.spec import WorkerSpec
from steadyworker.system.procfs import kill_sessions
from steadyworker.telemetry import logs


class ProcessSlot:
    """
    One child process that runs one handler at a time.

    Only the runner's thread calls its methods, but any thread may call `close`, and read the properties.
    `due` is the monotonic time of the slot's next turn.

    Args:
        id: The slot's number within its Worker.
        spec: The Worker to run, and its memory limit.
        clock: The clock that measures the limits.
        held: Descriptors of the owner's lock, which every child keeps open.
        guard: The guard, which kills the children's sessions when the worker process dies.
        log_format: The format of the child's log lines, as for `logs.configure`.
        log_level: The level of the child's log lines.
        setup_limit: The longest time from the child's start to the return of `setup`, in seconds.
        ping: Seconds between two Pings to the child.
        silence: Seconds without a frame after which the child ends itself.
    """

    def __init__(
        self,
        id: int,
        spec: WorkerSpec,
        *,
        clock: Clock,
        held: Sequence[int] = (),
        guard: Guard | None = None,
        log_format: str = "auto",
        log_level: str = "info",
        setup_limit: float = 60.0,
        ping: float = 15.0,
        silence: float = 60.0,
    ) -> None:
        self.due = NEVER
        self._id = id
        self._spec = spec
        self._clock = clock
        self._held = tuple(held)
        self._guard = guard
        self._log = (log_format, log_level)
        self._lines = logs.writes_json(log_format, sys.stderr)
        self._setup_limit = setup_limit
        self._ping = ping
        self._silence = silence
        self._sink: SlotSink = _drop
        self._poll: SlotPoll | None = None
        self._child: ChildProcess | None = None
        self._waiting: ChildRun | None = None
        self._stopping = False
        self._close_by = NEVER
        self._ended = threading.Event()
        self._ended.set()

    @property
    def id(self) -> int:
        """The number of this slot within its Worker, from 0."""
        return self._id

    @property
    def warm(self) -> bool:
        """True when the child is warm and idle."""
        child = self._child
        return child is not None and child.idle and self._waiting is None and self._close_by == NEVER

    @property
    def last_turn(self) -> float | None:
        """None, because the slot has no thread."""
        return None

    @property
    def broken(self) -> bool:
        """False, because the slot has no thread."""
        return False

    @property
    def stuck(self) -> bool:
        """False, because the slot kills a child that does not end."""
        return False

    @property
    def pid(self) -> int | None:
        """The child's process id, or None."""
        child = self._child
        return None if child is None else child.pid

    # --- Called by the runner --------------------------------------------------------------------------------------

    def start(self, sink: SlotSink, poll: SlotPoll) -> None:
        """Start a child at the slot's first turn; do nothing after `close`, or if the slot is started already."""
        if not self._ended.is_set() or self._close_by < NEVER:
            return
        self._sink, self._poll, self.due = sink, poll, 0.0
        self._ended.clear()
        poll.add(self)

    def run(self, task: Task) -> None:
        """Begin a run, or let the run wait while the child warms up; if the slot has ended, the run ends as Interrupted."""
        child = self._child
        if self._waiting is not None or (child is not None and child.run is not None):
            raise RuntimeError("Expected an idle slot, got a second run: wait for Ended.")
        run = ChildRun(task, Limits(self._clock.monotonic(), task.time_limit, task.stall_limit))
        if self._ended.is_set():
            self._sink(self._end_of(run, Interrupted()))
        elif child is not None and child.idle and not child.dead:  # the next turn replaces a dead child
            child.begin(run)
            self.due = child.due()
        else:
            self._waiting = run

    def reply(
        self, fence: int, id: int, answer: Any, *, refused: InterruptReason | None = None, end: bool = True
    ) -> None:
        """Reply to a request of the job."""
        if (child := self._child_with(fence)) is not None:
            child.send(Reply(fence, id, answer, refused, end))

    def interrupt(self, fence: int, reason: InterruptReason, *, hard: bool) -> None:
        """Ask the run to end; `hard` raises Interrupt in the run's handler, and sends SIGTERM to the child's process group."""
        if (child := self._child_with(fence)) is not None:
            child.stop(reason, hard=hard)
        elif hard:
            self.kill(fence, outcome_of_interrupt(reason))
        elif self._waiting is not None and self._waiting.task.fence == fence:
            self._waiting.soft_reason = reason

    def kill(self, fence: int, outcome: Outcome) -> None:
        """End the run with this outcome, by SIGKILL to every process of the child's session."""
        child, waiting = self._child_with(fence), self._waiting
        if child is not None and child.run is not None and child.run.forced_outcome is None:
            child.kill(outcome)
        elif waiting is not None and waiting.task.fence == fence:
            waiting.forced_outcome = outcome
            self._end_waiting(outcome)

    def stopping(self) -> None:
        """Count a child's death by a signal as Interrupted from now on, because systemd can signal the child, too."""
        self._stopping = True

    def close(self, within: float) -> None:
        """
        Ask the child to run `teardown` and exit; kill the child after `within` seconds, and return when the child is dead.

        If the runner's thread gives the slot no turn, kill the child 5 s later, without `teardown`.
        """
        self._close_by = min(self._close_by, self._clock.monotonic() + within)
        if self._poll is not None and not self._ended.is_set():
            self._poll.wake(self)
            if not self._poll.until(self._ended, within + PARTING) and (child := self._child) is not None:
                kill_sessions([child.pid])  # the runner gives no turns, for example because it waits for the ledger

    def ping_if_late(self) -> None:
        """Send the child a Ping that is overdue, because the runner gives the slot no turn; any thread may call this."""
        if (child := self._child) is not None:
            child.ping_if_late()

    # --- The turns of the slot -------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Start a child if there is none, handle the child's frames and its death, and enforce the limits; the poll calls this."""
        if self._ended.is_set():
            return
        try:
            if self._child is None:
                self._spawn()
            else:
                self._serve(self._child)
            if self._child is not None:
                self.due = self._child.due()
        except Exception as error:  # noqa: BLE001 - the runner gets every failure as an event
            self._fail(error)

    def _spawn(self) -> None:
        assert self._poll is not None, "a slot without a poll has no turns"
        if self._close_by < NEVER:
            self._give_up(None)
            return
        try:
            new = start_child(lines=self._lines)
            try:
                if self._guard is not None:
                    self._guard.watch(new.process.pid)
                path = [os.fsencode(each) for each in sys.path if isinstance(each, (str, bytes, os.PathLike))]
                self._child = ChildProcess(
                    new,
                    Hello(self._spec.target, path, *self._log, self._silence),
                    self._held,
                    self._spec.queue,
                    self,
                    self._poll,
                    self._clock,
                    guard=self._guard,
                    setup_limit=self._setup_limit,
                    ping=self._ping,
                    memory_limit=self._spec.memory_limit,
                )
            except BaseException:
                if self._guard is not None:
                    self._guard.forget(new.process.pid)
                new.end()
                raise
        except OSError as error:
            self._give_up(f"a child could not be started: {error}")

    def _serve(self, child: ChildProcess) -> None:
        """Handle the child's frames, then its death or its limits."""
        dead = child.dead  # before the frames, so that the slot reads all frames of a dead child
        child.output.read()
        for event in self._events(child):
            self._sink(event)
            if isinstance(event, Ended):
                child.run = None
        if dead:
            if (code := child.reaped()) is not None:
                self._replace(child, code)
            return
        child.flush()
        if self._close_by < child.closes_by:
            child.leave(self._close_by, closing=True)
        child.enforce(self._clock.monotonic())

    def _events(self, child: ChildProcess) -> Iterator[SlotEvent]:
        """Handle the child's frames, and yield the events for the runner; kill a child that has sent invalid bytes."""
        try:
            for frame in child.receive():
                if (event := self._handle(child, frame)) is not None:
                    yield event
        except (ValueError, msgspec.MsgspecError) as error:
            child.kill(Crashed(f"the child wrote invalid bytes to its socket: {error}"))

    def _handle(self, child: ChildProcess, frame: FromChild) -> SlotEvent | None:
        """Handle a frame of the child; return the event for the runner, or None."""
        now, run = self._clock.monotonic(), child.run
        match frame:
            case SetupDone():
                child.setup_done()
                if self._waiting is not None:
                    run, self._waiting = self._waiting, None
                    child.begin(run)
                return Ready(self._id)
            case SetupFailed(reason=reason):
                child.setup_error = reason
                child.leave(now + PARTING, closing=False)
            case ProgressMade() if run is not None and run.task.fence == frame.fence:
                run.limits.moved = now
                return Progressed(self._id, frame.fence, frame.done, frame.total, frame.note)
            case RequestMade() if run is not None and run.task.fence == frame.fence:
                run.limits.moved = now
                return Asked(self._id, frame.fence, frame.id, frame.request)
            case RunEnded() if run is not None and run.task.fence == frame.fence and run.forced_outcome is None:
                outcome = outcome_of(frame)
                child.keep_stacks()
                child.output.switch(None)
                run.traceback, run.peak_memory = frame.traceback, frame.peak_memory
                child.ended_runs += 1
                if child.ended_runs == self._spec.jobs_per_child:
                    child.leave(now + PARTING, closing=False)
                return self._end_of(run, outcome)
            case _:
                pass  # a Pong, or a frame of a run that has ended
        return None

    def _replace(self, child: ChildProcess, code: int) -> None:
        """Report the end of a reaped child and of its run, and let the next turn start another child; or end the slot."""
        run, reason = child.run, child.unready(code)
        if run is not None:
            self._sink(self._end_of(run, run.ending(code, stopping=self._stopping)))
        self._child, self.due = None, 0.0
        if reason is not None or self._close_by < NEVER:
            self._give_up(reason, after_setup=child.ready)

    def _give_up(self, reason: str | None, *, after_setup: bool = False) -> None:
        """End the slot, and the run that waits for a child."""
        assert self._poll is not None, "a slot without a poll has no turns"
        self._poll.remove(self)
        self.due = NEVER
        if self._waiting is not None:
            self._end_waiting(Interrupted())
        if reason is not None and self._close_by == NEVER:
            self._sink(Unready(self._id, reason, after_setup))
        self._ended.set()

    def _fail(self, error: Exception) -> None:
        """End the slot after a failure of its own turn."""
        about = {"queue": self._spec.queue, "slot": self._id, "explain": "steadyworker.slot-failed"}
        logs.get_logger("steadyworker.slots").error("slot_failed", **about, exc_info=error)
        child, self._child = self._child, None
        reason = f"the slot failed: {error_text(error)}"
        try:
            if child is not None:
                child.end()
        finally:
            if child is not None and (run := child.run) is not None:
                self._sink(self._end_of(run, run.forced_outcome or Crashed(reason)))
            self._give_up(reason, after_setup=child is not None and child.ready)

    def _end_waiting(self, outcome: Outcome) -> None:
        assert self._waiting is not None, "the caller has checked this"
        self._sink(self._end_of(self._waiting, outcome))
        self._waiting = None

    def _child_with(self, fence: int) -> ChildProcess | None:
        """Return the child that has this run; None when the run has ended, or waits for a child."""
        child = self._child
        return child if child is not None and child.run is not None and child.run.task.fence == fence else None

    def _end_of(self, run: ChildRun, outcome: Outcome) -> Ended:
        seconds = self._clock.monotonic() - run.limits.began
        killed = run.forced_outcome is not None
        return Ended(self._id, run.task.fence, outcome, seconds, killed, run.traceback, run.peak_memory)


def _drop(_event: SlotEvent) -> None:
    """Drop an event, because before `start` the slot has no runner."""
