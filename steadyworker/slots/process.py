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

Each slot has one thread, which starts the child and lives longer than the child.
This thread waits for frames, for the child's death and for the next limit.
If another thread calls the slot, that thread writes to the child directly.
Such a call wakes the slot's thread only if this thread would sleep past a limit.
So a run costs one wake-up in each of the two processes.

If a child dies during a run, the slot reports the outcome that `kill` or a limit has set.
If neither `kill` nor a limit has set an outcome, the child's return code decides the outcome.
If the slot's own thread fails, the run ends as Crashed, and the slot sends Unready.
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
from steadyworker.slots.base import Asked, Ended, Progressed, Ready, SlotEvent, SlotSink, Unready
from steadyworker.slots.child_state import NEVER, PARTING, ChildRun, ChildState
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
from steadyworker.slots.runs import Limits, SlotRuns
from steadyworker.slots.spawn import ChildProcess, Waker, start_child
from steadyworker.spec import WorkerSpec
from steadyworker.telemetry.logs import get_logger


class ProcessSlot:
    """
    One child process that runs one handler at a time.

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
        self._id = id
        self._spec = spec
        self._clock = clock
        self._held = tuple(held)
        self._guard = guard
        self._log = (log_format, log_level)
        self._setup_limit = setup_limit
        self._ping = ping
        self._silence = silence
        self._lock = threading.Lock()
        self._waker = Waker()
        self._sink: SlotSink = _drop
        self._thread: threading.Thread | None = None
        self._state: ChildState | None = None
        self._runs: SlotRuns[ChildRun] = SlotRuns()
        self._last_turn = 0.0
        self._broken = False
        self._stopping = False
        self._close_by = NEVER

    @property
    def id(self) -> int:
        """The number of this slot within its Worker, from 0."""
        return self._id

    @property
    def warm(self) -> bool:
        """True when the child is warm and idle."""
        state = self._state
        return state is not None and state.idle and self._runs.present is None and self._close_by == NEVER

    @property
    def last_turn(self) -> float | None:
        """The monotonic time of the last turn of the slot's thread; None while the slot has no thread."""
        return None if self._thread is None else self._last_turn

    @property
    def broken(self) -> bool:
        """True when the slot's thread has died."""
        with self._lock:  # `start` holds this lock until the thread runs
            return self._broken or (self._thread is not None and not self._thread.is_alive())

    @property
    def stuck(self) -> bool:
        """False, because the slot kills a child that does not end."""
        return False

    @property
    def pid(self) -> int | None:
        """The child's process id, or None."""
        state = self._state
        return None if state is None else state.child.pid

    # --- Called by the runner, from any thread ---

    def start(self, sink: SlotSink) -> None:
        """Start the slot's thread, which starts a child; do nothing after `close`, or if the thread runs already."""
        with self._lock:
            if self._thread is not None or self._close_by < NEVER:
                return
            self._sink = sink
            self._last_turn = self._clock.monotonic()
            self._thread = threading.Thread(
                target=self._run_children, name=f"{self._spec.queue}-{self._id}", daemon=True
            )
            try:
                self._thread.start()
            except RuntimeError as error:  # the system allows no further thread
                reason = f"a thread could not be started: {error}"
            else:
                return
        for event in self._give_up(reason):
            self._send(event)

    def run(self, task: Task) -> None:
        """Begin a run, or let the run wait while the child warms up; if the slot has ended, the run ends as Interrupted."""
        run = ChildRun(task, Limits(self._clock.monotonic(), task.time_limit, task.stall_limit))
        with self._lock:
            self._runs.add(run)
            given_up = run.ended = self._thread is None
            if not given_up and self._state is not None and self._state.idle:
                self._state.begin(run)
        if given_up:
            self._send(self._ended(run, Interrupted()))

    def reply(
        self, fence: int, id: int, answer: Any, *, refused: InterruptReason | None = None, end: bool = True
    ) -> None:
        """Reply to a request of the job."""
        with self._lock:
            if (state := self._state_of(fence)) is not None:
                state.send(Reply(fence, id, answer, refused, end))

    def interrupt(self, fence: int, reason: InterruptReason, *, hard: bool) -> None:
        """Ask the run to end; `hard` raises Interrupt in the run's handler, and sends SIGTERM to the child's process group."""
        with self._lock:
            if (state := self._state_of(fence)) is not None:
                state.stop(reason, hard=hard)
                return
            if (run := self._runs.of(fence)) is not None:  # the run waits for a child
                run.soft_reason = reason
        if hard:
            self.kill(fence, outcome_of_interrupt(reason))

    def kill(self, fence: int, outcome: Outcome) -> None:
        """End the run with this outcome, by SIGKILL to every process of the child's session."""
        with self._lock:
            run = self._runs.of(fence)
            if run is None or run.forced_outcome is not None:
                return
            if (state := self._state_of(fence)) is not None:
                state.kill(outcome)
                return
            run.ended, run.forced_outcome = True, outcome
        self._send(self._ended(run, outcome))

    def stopping(self) -> None:
        """Count a child's death by a signal as Interrupted from now on, because systemd can signal the child, too."""
        self._stopping = True

    def close(self, within: float) -> None:
        """Ask the child to run `teardown` and exit; kill the child after `within` seconds, and return when the child is dead."""
        with self._lock:
            self._close_by = min(self._close_by, self._clock.monotonic() + within)
            thread = self._thread
            if self._state is not None:
                self._state.leave(self._close_by, closing=True)
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._waker.close()

    # --- The slot's thread, which sends events without the lock, because the runner's sink can call the slot ---

    def _run_children(self) -> None:
        """Run one child after another, until the slot ends."""
        try:
            while self._thread is threading.current_thread():  # after `Unready` the runner can start another thread
                try:
                    last = self._run_child()
                except Exception as error:  # noqa: BLE001 - the runner gets every failure as an event
                    last = self._fail(error)
                for event in last:
                    self._send(event)
        except BaseException:
            # `_thread` can be None already, and the runner waits for events that this thread has not sent.
            self._broken = True
            raise

    def _run_child(self) -> list[SlotEvent]:
        """Run one child from its start to its end; return the events for the runner."""
        self._last_turn = self._clock.monotonic()
        try:
            state = self._spawn()
        except OSError as error:
            return self._give_up(f"a child could not be started: {error}")
        return self._reap(state, self._serve(state))

    def _spawn(self) -> ChildState:
        new = start_child()
        child: ChildProcess | None = None
        try:
            if self._guard is not None:
                self._guard.watch(new.process.pid)
            path = [os.fsencode(each) for each in sys.path if isinstance(each, (str, bytes, os.PathLike))]
            hello = Hello(self._spec.target, path, *self._log, self._silence)
            child = ChildProcess(new, hello, self._held, self._waker, self._guard)
            with self._lock:
                self._state = state = ChildState(
                    child,
                    self._runs,
                    self._waker,
                    self._clock,
                    setup_limit=self._setup_limit,
                    ping=self._ping,
                    memory_limit=self._spec.memory_limit,
                )
                if self._close_by < NEVER:
                    state.leave(self._close_by, closing=True)
        except BaseException:
            if child is not None:
                child.reap()
            else:
                if self._guard is not None:
                    self._guard.forget(new.process.pid)
                new.end()
            raise
        return state

    def _serve(self, state: ChildState) -> int:
        """Receive the child's frames and enforce its limits until it has died; return its return code."""
        child = state.child
        while not child.dead:
            with self._lock:
                self._last_turn = now = self._clock.monotonic()
                wakes_at = state.sleep_until(now)
            child.wait(wakes_at - now)
            self._receive(state)
            with self._lock:
                state.enforce(self._clock.monotonic())
        self._receive(state)  # frames that the child sent before it died
        return child.reap()

    def _receive(self, state: ChildState) -> None:
        for event in self._events(state):
            self._send(event)

    def _events(self, state: ChildState) -> Iterator[SlotEvent]:
        """Handle the child's frames, and yield the events for the runner; kill a child that has sent invalid bytes."""
        try:
            for frame in state.child.receive():
                with self._lock:
                    event = self._handle(state, frame)
                if event is not None:
                    yield event
        except (ValueError, msgspec.MsgspecError) as error:
            with self._lock:
                state.kill(Crashed(f"the child wrote invalid bytes to its socket: {error}"))

    def _handle(self, state: ChildState, frame: FromChild) -> SlotEvent | None:
        """Handle a frame of the child; return the event for the runner, or None."""
        now = self._clock.monotonic()
        run = state.run
        match frame:
            case SetupDone():
                state.setup_done()
                return Ready(self._id)
            case SetupFailed(reason=reason):
                state.setup_error = reason
                state.leave(now + PARTING, closing=False)
            case ProgressMade() if run is not None and run.task.fence == frame.fence:
                run.limits.moved = now
                return Progressed(self._id, frame.fence, frame.done, frame.total, frame.note)
            case RequestMade() if run is not None and run.task.fence == frame.fence:
                run.limits.moved = now
                return Asked(self._id, frame.fence, frame.id, frame.request)
            case RunEnded() if run is not None and run.task.fence == frame.fence and run.forced_outcome is None:
                outcome = outcome_of(frame)
                run.ended = True
                state.ended_runs += 1
                if self._close_by < NEVER:
                    state.leave(self._close_by, closing=True)
                elif state.ended_runs == self._spec.jobs_per_child:
                    state.leave(now + PARTING, closing=False)
                return self._ended(run, outcome)
            case _:
                pass  # a Pong, or a frame of a run that has ended
        return None

    def _reap(self, state: ChildState, code: int) -> list[SlotEvent]:
        """Record the end of a reaped child, and end the slot if it starts no new child; return the events for the runner."""
        with self._lock:
            run, reason, self._state = state.run, state.unready(code), None
            if run is not None:
                run.ended = True
        events: list[SlotEvent] = [] if run is None else [self._ended(run, run.ending(code, stopping=self._stopping))]
        over = reason is not None or self._close_by < NEVER
        return events + (self._give_up(reason, after_setup=state.ready) if over else [])

    def _give_up(self, reason: str | None, *, after_setup: bool = False) -> list[SlotEvent]:
        """End the slot, and the run that waits for a child; return the events for the runner."""
        with self._lock:
            run, self._thread = self._runs.present, None
            if run is not None:
                run.ended = True
            events: list[SlotEvent] = [] if run is None else [self._ended(run, Interrupted())]
            if reason is not None and self._close_by == NEVER:
                events.append(Unready(self._id, reason, after_setup))
        return events

    def _fail(self, error: Exception) -> list[SlotEvent]:
        """End the slot after a failure of its own thread; return the events for the runner."""
        about = {"queue": self._spec.queue, "slot": self._id, "explain": "steadyworker.slot-failed"}
        get_logger("steadyworker.slots").error("slot_failed", **about, exc_info=error)
        with self._lock:
            state, self._state = self._state, None
        if state is not None:
            state.child.reap()
        reason = f"the slot's thread failed: {error_text(error)}"
        with self._lock:  # after this, `run` itself sends `Ended`
            self._thread = None
            unsent = self._runs.unsent
            for run in unsent:
                run.ended = True
        events: list[SlotEvent] = [
            self._ended(run, run.forced_outcome or (Crashed(reason) if run.begun else Interrupted())) for run in unsent
        ]
        if self._close_by == NEVER:
            events.append(Unready(self._id, reason, after_setup=state is not None and state.ready))
        return events

    def _send(self, event: SlotEvent) -> None:
        """Send an event to the runner."""
        self._sink(event)
        if isinstance(event, Ended):
            with self._lock:
                self._runs.sent(event.fence)

    def _state_of(self, fence: int) -> ChildState | None:
        """Return the child that has this run; None when the run has ended, or waits for a child."""
        state = self._state
        return state if state is not None and state.run is not None and state.run.task.fence == fence else None

    def _ended(self, run: ChildRun, outcome: Outcome) -> Ended:
        seconds = self._clock.monotonic() - run.limits.began
        return Ended(self._id, run.task.fence, outcome, seconds, run.forced_outcome is not None)


def _drop(_event: SlotEvent) -> None:
    """Drop an event, because before `start` the slot has no runner."""
