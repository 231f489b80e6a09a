"""
One child in a process slot: its phases, its run, and their deadlines.

This code neither waits nor locks.
`process.py` holds the slot's lock when it calls this code, and sends the events to the runner.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from steadyworker.clock import Clock
from steadyworker.errors import InterruptReason
from steadyworker.link import Task
from steadyworker.outcome import Crashed, Failed, Interrupted, Outcome
from steadyworker.slots.execute import outcome_of_interrupt
from steadyworker.slots.frames import STACKS_SIGNAL, Begin, Close, Downward, Ping, Stop
from steadyworker.slots.limits import Due, Limits
from steadyworker.slots.spawn import ChildProcess, Waker, cause_of
from steadyworker.system.procfs import tree_rss
from steadyworker.units import size_text

NEVER = float("inf")
PARTING = 5.0
"""Seconds that a child gets to exit by itself."""

STEADY = 10.0
"""Seconds after `setup`: if the child dies in this time, before its first run, its slot is Unready."""

_TICK = 0.5  # seconds between two checks of a run's memory
_STACKS_TIME = 0.5  # seconds that a stalled child gets to write its stacks
_LAST_BREATH = 1.0  # seconds that a child gets to exit after it has closed its socket


class Phase(Enum):
    """The phase of a child; the picture is in `process.py`."""

    WARMING = "warming"
    IDLE = "idle"
    BUSY = "busy"
    LEAVING = "leaving"


@dataclass(slots=True, eq=False)
class Run:
    """
    One run, from `Slot.run` to `Ended`.

    `begun` is true once the slot has sent the task to a child.
    `soft` is the reason of a soft stop that came before the child was ready.
    `told` is the reason of the first hard stop; `forced_outcome` is the outcome that `kill` or a limit has set.
    At the time `look_at` the slot checks the run's memory; at `kill_at` it kills a run with a forced outcome.
    """

    task: Task
    limits: Limits
    begun: bool = False
    soft: InterruptReason | None = None
    told: InterruptReason | None = None
    forced_outcome: Outcome | None = None
    look_at: float = NEVER
    kill_at: float = NEVER

    def due(self) -> float:
        """Return the monotonic time at which this run must be checked again."""
        return self.kill_at if self.forced_outcome is not None else min(self.look_at, self.limits.next())

    def ending(self, code: int, *, stopping: bool) -> Outcome:
        """Return the outcome of a run whose child died with this return code."""
        if self.forced_outcome is not None:
            return self.forced_outcome
        if stopping and code < 0:
            return Interrupted()
        if self.told is not None and code == -signal.SIGTERM:
            return outcome_of_interrupt(self.told)
        return Crashed(cause_of(code))


class ChildState:
    """
    One child, from its start to its death.

    `run` is the present run, `runs` the number of runs that have ended, and `cold` the reason why `setup` failed.
    """

    def __init__(
        self,
        child: ChildProcess,
        waker: Waker,
        clock: Clock,
        *,
        setup_limit: float,
        ping: float,
        memory_limit: int | None,
    ) -> None:
        self.child = child
        self.phase = Phase.WARMING
        self.run: Run | None = None
        self.runs = 0
        self.cold: str | None = None
        self._waker = waker
        self._clock = clock
        self._setup_limit = setup_limit
        self._ping = ping
        self._memory_limit = memory_limit
        self._since = clock.monotonic()
        self._ping_at = self._since + ping
        self._leave_by = NEVER
        self._closing = False
        self._wakes_at = NEVER

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        self.phase, self._since = phase, self._clock.monotonic()

    def send(self, frame: Downward) -> None:
        """Send a frame to the child; the slot's thread sends the bytes that the socket does not accept at once."""
        if not self.child.send(frame):
            self._waker.wake()

    def begin(self, run: Run) -> None:
        """Send a run to the idle child; the run's limits count from now."""
        self.enter(Phase.BUSY)
        self.run = run
        run.begun = True
        run.limits = Limits(self._since, run.task.time_limit, run.task.stall_limit)
        if self._memory_limit is not None:
            run.look_at = self._since + _TICK
        self.send(Begin(run.task))
        if run.soft is not None:
            self.stop(run.soft, hard=False)
        if self._due(self._since) < self._wakes_at:
            self._waker.wake()

    def stop(self, reason: InterruptReason, *, hard: bool) -> None:
        """Ask the run to end; `hard` also sends SIGTERM to the child's process group."""
        if self.run is None:
            return
        self.send(Stop(self.run.task.fence, reason, hard))
        if hard:
            self.run.told = self.run.told or reason
            self.child.signal(signal.SIGTERM, group=True)

    def over(self) -> None:
        """Note that the child has reported the end of its run, and is idle."""
        self.run = None
        self.runs += 1
        self.enter(Phase.IDLE)

    def leave(self, by: float, *, closing: bool) -> None:
        """Ask the child to exit after its run and `teardown`; kill it at the time `by`, or at once if it still warms up."""
        self._leave_by = min(self._leave_by, by)
        self._closing = self._closing or closing
        if self.phase is Phase.WARMING:
            self.child.kill()
        elif self.run is None:
            self.enter(Phase.LEAVING)
        self.send(Close())
        self._waker.wake()

    def kill(self, outcome: Outcome) -> None:
        """Kill the child now; its run ends with this outcome, unless it has a forced outcome already."""
        if self.run is not None:
            self.run.forced_outcome = self.run.forced_outcome or outcome
        self._leave_by = NEVER
        self.child.kill()

    def sleep_until(self, now: float) -> float:
        """
        Return the monotonic time at which the slot's thread must check this child again.

        An earlier time from the last call is kept, so that many short runs wake the thread once, and not for each run.
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
        if self.phase is Phase.WARMING and now >= self._since + self._setup_limit:
            self.cold = f"setup took more than {self._setup_limit:g} s"
            self.child.kill()
        elif now >= self._leave_by:
            self.kill(Interrupted() if self._closing else Crashed("the child closed its socket to the worker process"))
        elif self.run is not None:
            self._enforce_limits(self.run, now)

    def unready(self, code: int) -> str | None:
        """Return the reason to wait before this dead child is replaced; None to replace it at once. `code` is the return code."""
        if self.phase is Phase.WARMING:
            return self.cold or f"the child died before it was ready: {cause_of(code)}"
        if self.phase is Phase.IDLE and not self.runs and self._clock.monotonic() - self._since < STEADY:
            return f"the child died just after its setup: {cause_of(code)}"
        return None

    def _due(self, now: float) -> float:
        times = [self._ping_at, self._leave_by]
        if self.phase is Phase.WARMING:
            times.append(self._since + self._setup_limit)
        if self.run is not None:
            times += [self.run.due(), now + _TICK]  # a test's clock can move while this thread waits in real time
        return min(times)

    def _enforce_limits(self, run: Run, now: float) -> None:
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
        if self._memory_limit is not None and now >= run.look_at:
            run.look_at = now + _TICK
            if (used := tree_rss(self.child.pid)) > self._memory_limit:
                self.kill(Crashed(f"memory-limit: {size_text(used)} of {size_text(self._memory_limit)}"))
