"""
One child in a process slot: its present activity and its deadlines.

This code neither waits nor locks.
`process.py` holds the slot's lock when it calls this code, and sends the events to the runner.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from steadyworker.clock import Clock
from steadyworker.errors import InterruptReason
from steadyworker.outcome import Crashed, Failed, Interrupted, Outcome
from steadyworker.slots.execute import outcome_of_interrupt
from steadyworker.slots.frames import STACKS_SIGNAL, Begin, Close, Ping, Stop, ToChild
from steadyworker.slots.runs import Due, Limits, SlotRun, SlotRuns
from steadyworker.slots.spawn import ChildProcess, Waker, cause_of
from steadyworker.system.procfs import tree_rss
from steadyworker.units import size_text

NEVER = float("inf")
PARTING = 5.0
"""The seconds that a child gets to exit by itself."""

STEADY = 10.0
"""If a child dies before its first run, within this many seconds after `setup`, the slot becomes Unready."""

_TICK = 0.5  # seconds between two checks of a run's memory
_STACKS_TIME = 0.5  # seconds that a stalled child gets to write its stacks
_LAST_BREATH = 1.0  # seconds that a child gets to exit after it has closed its socket


@dataclass(slots=True, eq=False)
class ChildRun(SlotRun):
    """
    One run in a process slot.

    `begun` is true once the slot has sent the task to a child; before that, the run waits for a child.
    `soft_reason` is the reason of a soft stop that came before the child was ready.
    `hard_reason` is the reason of the first hard stop.
    At the time `check_memory_at` the slot checks the run's memory; at `kill_at` the slot kills a run with a forced outcome.
    """

    begun: bool = False
    soft_reason: InterruptReason | None = None
    hard_reason: InterruptReason | None = None
    check_memory_at: float = NEVER
    kill_at: float = NEVER

    def due(self) -> float:
        """Return the monotonic time at which this run must be checked again."""
        return self.kill_at if self.forced_outcome is not None else min(self.check_memory_at, self.limits.next())

    def ending(self, code: int, *, stopping: bool) -> Outcome:
        """Return the outcome of a run whose child died with this return code."""
        if self.forced_outcome is not None:
            return self.forced_outcome
        if stopping and code < 0:
            return Interrupted()
        if self.hard_reason is not None and code == -signal.SIGTERM:
            return outcome_of_interrupt(self.hard_reason)
        return Crashed(cause_of(code))


class ChildState:
    """
    One child, from its start to its death.

    `ended_runs` is the number of the child's ended runs, and `setup_error` is the reason for which its `setup` failed.
    """

    def __init__(
        self,
        child: ChildProcess,
        runs: SlotRuns[ChildRun],
        waker: Waker,
        clock: Clock,
        *,
        setup_limit: float,
        ping: float,
        memory_limit: int | None,
    ) -> None:
        self.child = child
        self.ended_runs = 0
        self.setup_error: str | None = None
        self._runs = runs
        self._waker = waker
        self._clock = clock
        self._setup_limit = setup_limit
        self._ping = ping
        self._memory_limit = memory_limit
        self._started_at = clock.monotonic()
        self._ready_at: float | None = None
        self._ping_at = self._started_at + ping
        self._leaving = False
        self._leave_by = NEVER
        self._closing = False
        self._wakes_at = NEVER

    @property
    def ready(self) -> bool:
        """True once `setup` has returned."""
        return self._ready_at is not None

    @property
    def run(self) -> ChildRun | None:
        """The run that this child executes, or None."""
        run = self._runs.present
        return run if run is not None and run.begun else None

    @property
    def idle(self) -> bool:
        """True if the child can begin a run."""
        return self.ready and not self._leaving and self.run is None

    def setup_done(self) -> None:
        """Note that `setup` has returned, and begin the run that waits for a child."""
        self._ready_at = self._clock.monotonic()
        if (run := self._runs.present) is not None:
            self.begin(run)

    def send(self, frame: ToChild) -> None:
        """Send a frame to the child; if the socket does not accept all bytes at once, the slot's thread sends the rest."""
        if not self.child.send(frame):
            self._waker.wake()

    def begin(self, run: ChildRun) -> None:
        """Send a run to the idle child; the run's limits count from now."""
        now = self._clock.monotonic()
        run.begun = True
        run.limits = Limits(now, run.task.time_limit, run.task.stall_limit)
        if self._memory_limit is not None:
            run.check_memory_at = now + _TICK
        self.send(Begin(run.task))
        if run.soft_reason is not None:
            self.stop(run.soft_reason, hard=False)
        if self._due(now) < self._wakes_at:
            self._waker.wake()

    def stop(self, reason: InterruptReason, *, hard: bool) -> None:
        """Ask the run to end; `hard` also sends SIGTERM to the child's process group."""
        if (run := self.run) is None:
            return
        self.send(Stop(run.task.fence, reason, hard))
        if hard:
            run.hard_reason = run.hard_reason or reason
            self.child.signal(signal.SIGTERM, group=True)

    def leave(self, by: float, *, closing: bool) -> None:
        """
        Ask the child to exit after its run and `teardown`, and kill the child at the time `by`.

        If the child still warms up, kill it at once.
        """
        self._leave_by = min(self._leave_by, by)
        self._closing = self._closing or closing
        self._leaving = True
        if not self.ready:
            self.child.kill()
        self.send(Close())
        self._waker.wake()

    def kill(self, outcome: Outcome) -> None:
        """Kill the child now; the run ends with this outcome, unless the run has a forced outcome already."""
        if (run := self.run) is not None:
            run.forced_outcome = run.forced_outcome or outcome
        self._leave_by = NEVER
        self.child.kill()

    def sleep_until(self, now: float) -> float:
        """
        Return the monotonic time at which the slot's thread must check this child again.

        If the last call returned an earlier time, that time stays, so that many short runs wake the thread only once.
        """
        earlier = self._wakes_at if self._wakes_at > now else NEVER
        self._wakes_at = min(earlier, self._due(now))
        return self._wakes_at

    def enforce(self, now: float) -> None:
        """Send a due Ping, and enforce the limits that are reached at the time `now`."""
        if self.child.silent and self._leave_by == NEVER:
            self._leave_by = now + _LAST_BREATH
        if now >= self._ping_at:
            self._ping_at = now + self._ping
            self.send(Ping())
        if not self.ready and now >= self._started_at + self._setup_limit:
            self.setup_error = f"setup took more than {self._setup_limit:g} s"
            self.child.kill()
        elif now >= self._leave_by:
            self.kill(Interrupted() if self._closing else Crashed("the child closed its socket to the worker process"))
        elif (run := self.run) is not None:
            self._enforce_limits(run, now)

    def unready(self, code: int) -> str | None:
        """
        Return the reason for which the slot must wait before it replaces this dead child, or None if it need not wait.

        `code` is the child's return code.
        """
        if self._ready_at is None:
            return self.setup_error or f"the child died before it was ready: {cause_of(code)}"
        if self.idle and not self.ended_runs and self._clock.monotonic() - self._ready_at < STEADY:
            return f"the child died just after its setup: {cause_of(code)}"
        return None

    def _due(self, now: float) -> float:
        times = [self._ping_at, self._leave_by]
        if not self.ready:
            times.append(self._started_at + self._setup_limit)
        if (run := self.run) is not None:
            times += [run.due(), now + _TICK]  # a test's clock can move while this thread waits in real time
        return min(times)

    def _enforce_limits(self, run: ChildRun, now: float) -> None:
        if run.forced_outcome is not None:
            if now >= run.kill_at:
                self.child.kill()
            return
        match run.limits.due(now):
            case Due.WARN:
                self.stop("time-limit", hard=True)
            case Due.TIME_LIMIT:
                self.kill(Failed("time-limit"))
            case Due.STALLED:
                run.forced_outcome, run.kill_at = Failed("stalled"), now + _STACKS_TIME
                self.child.signal(STACKS_SIGNAL, group=False)
            case None:
                pass
        if self._memory_limit is not None and now >= run.check_memory_at:
            run.check_memory_at = now + _TICK
            if (used := tree_rss(self.child.pid)) > self._memory_limit:
                self.kill(Crashed(f"memory-limit: {size_text(used)} of {size_text(self._memory_limit)}"))
