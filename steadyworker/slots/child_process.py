"""
One child of a process slot, from Hello until it is reaped: its frames, its run, its deadlines and its end.

Only the runner's thread uses a child, and no call waits for the child.
Bytes that the socket does not accept are sent at a later turn of the slot.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from steadyworker.clock import Clock
from steadyworker.errors import InterruptReason
from steadyworker.outcome import Crashed, Failed, Interrupted, Outcome
from steadyworker.slots.base import PolledSlot, SlotPoll
from steadyworker.slots.child_output import ChildOutput
from steadyworker.slots.execute import outcome_of_interrupt
from steadyworker.slots.frames import (
    STACKS_SIGNAL,
    Begin,
    Close,
    FromChild,
    Hello,
    Ping,
    Stop,
    ToChild,
    Unpacker,
    packed,
)
from steadyworker.slots.guard import Guard
from steadyworker.slots.runs import Due, Limits, SlotRun
from steadyworker.slots.spawn import NewChild
from steadyworker.slots.tracebacks import stacks_text
from steadyworker.system.procfs import end_sessions, kill_sessions, max_rss, peak_memory, tree_rss
from steadyworker.units import size_text

NEVER = float("inf")
PARTING = 5.0
"""The seconds that a child gets to exit by itself."""

STEADY = 10.0
"""If a child dies before its first run, within this many seconds after `setup`, the slot becomes Unready."""

_CHUNK = 1 << 16
_MOST_CHUNKS = 64
"""The largest number of chunks in one turn: 4 MiB, more than a socket holds, so that a child that sends without end delays no other slot."""

_TICK = 0.5  # seconds between two checks of a run's memory
_STACKS_TIME = 0.5  # seconds that a stalled child gets to write its stacks
_QUICK_STACKS_TIME = 0.1  # the same for a child that may eat memory, or that has reached its time limit
_LAST_BREATH = 1.0  # seconds that a child gets to exit after it has closed its socket
_POLL_EVERY = 0.25  # seconds between two checks for a death without a pidfd (macOS)
_KILL_EVERY = 0.01  # seconds between the first two kills of what is left of a dead child's session; the pause doubles
_KILL_SELDOM = 0.5
_KILL_FOR = 5.0
_LATE = 1.0  # seconds after which another thread sends a Ping for a runner that is late


@dataclass(slots=True, eq=False)
class ChildRun(SlotRun):
    """
    One run in a process slot.

    `soft_reason` is the reason of a soft stop that came before the child was ready.
    `hard_reason` is the reason of the first hard stop.
    At the time `check_memory_at` the slot checks the run's memory; at `kill_at` the slot kills a run with a forced outcome.
    """

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
        return Crashed(_cause_of(code))


class ChildProcess:
    """
    A running child.

    The constructor sends Hello and the descriptors `held` to the child, which keeps these descriptors open until its end.
    `poll` gives `slot` a turn when the child sends a frame or dies.
    `guard` kills the child's session when the worker process dies.

    Attributes:
        output: What the child prints.
        run: The run that the child executes, or None.
        ended_runs: The number of the child's ended runs.
        setup_error: The reason for which `setup` failed, or None.
        closes_by: The monotonic time by which the child must exit because its slot closes.
    """

    def __init__(
        self,
        new: NewChild,
        hello: Hello,
        held: Sequence[int],
        queue: str,
        slot: PolledSlot,
        poll: SlotPoll,
        clock: Clock,
        *,
        guard: Guard | None,
        setup_limit: float,
        ping: float,
        memory_limit: int | None,
    ) -> None:
        self._process, self._wire, self._stacks, ends = new
        self.pid = self._process.pid
        self.run: ChildRun | None = None
        self.ended_runs = 0
        self.setup_error: str | None = None
        self.closes_by = NEVER
        self._slot = slot
        self._poll = poll
        self._clock = clock
        self._guard = guard
        self._setup_limit = setup_limit
        self._ping = ping
        self._memory_limit = memory_limit
        self._started_at = clock.monotonic()
        self._ready_at: float | None = None
        self._ping_at = self._started_at + ping
        self._leave_by = NEVER
        self._leaving = self._silent = self._dead = False
        self._kill_pause = _KILL_EVERY
        self._reap_at = NEVER
        self._sending = threading.Lock()
        self._frames: Unpacker[FromChild] = Unpacker(FromChild)
        self._wire.setblocking(False)  # noqa: FBT003 - its name in the standard library
        self._unsent = bytearray(packed(hello))
        try:
            del self._unsent[: socket.send_fds(self._wire, [self._unsent], held)]
        except ConnectionError:  # the child has died: `receive` finds the end of the stream
            self._unsent.clear()
        # Without a pidfd (macOS), only regular checks find a death.
        self._death = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        self._blocked = bool(self._unsent)
        self._watch_wire()
        if self._death is not None:
            poll.watch(self._death, slot)
        self.output = ChildOutput(ends, queue, slot, poll, clock)

    # --- its state and its deadlines -------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """True once `setup` has returned."""
        return self._ready_at is not None

    @property
    def idle(self) -> bool:
        """True if the child can begin a run."""
        return self._ready_at is not None and not self._leaving and self.run is None

    @property
    def dead(self) -> bool:
        """True when the child has ended; the system does not reuse the child's process id before `reaped`."""
        try:
            self._dead = self._dead or os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # another part of this process has reaped it
            self._dead = True
        return self._dead

    def due(self) -> float:
        """Return the monotonic time at which the slot must have its next turn."""
        if self._dead:
            return self._clock.monotonic() + self._kill_pause
        due = min(self._ping_at, self._leave_by)
        if self._ready_at is None:
            due = min(due, self._started_at + self._setup_limit)
        if self.run is not None:
            due = min(due, self.run.due())
        return due if self._death is not None else min(due, self._clock.monotonic() + _POLL_EVERY)

    def enforce(self, now: float) -> None:
        """Send a due Ping, and enforce the limits that are reached at the time `now`."""
        if self._silent and self._leave_by == NEVER:
            self._leave_by = now + _LAST_BREATH
        if now >= self._ping_at:
            self._ping_at = now + self._ping
            self.send(Ping())
        if self._ready_at is None and now >= self._started_at + self._setup_limit:
            self.setup_error = f"setup took more than {self._setup_limit:g} s"
            self._setup_limit = NEVER
            self._kill_session()
        elif now >= self._leave_by:
            closing = self.closes_by < NEVER
            self.kill(Interrupted() if closing else Crashed("the child closed its socket to the worker process"))
        elif self.run is not None:
            self._enforce_limits(self.run, now)

    def _enforce_limits(self, run: ChildRun, now: float) -> None:
        if run.forced_outcome is not None:
            if now >= run.kill_at:
                run.kill_at = NEVER
                self._kill_session()
            return
        match run.limits.due(now):
            case Due.WARN:
                self.stop("time-limit", hard=True)
            case Due.TIME_LIMIT:
                self._kill_with_stacks(run, Failed("time-limit"), now + _QUICK_STACKS_TIME)
            case Due.STALLED:
                self._kill_with_stacks(run, Failed("stalled"), now + _STACKS_TIME)
            case None:
                pass
        if self._memory_limit is not None and now >= run.check_memory_at:
            run.check_memory_at = now + _TICK
            if (used := tree_rss(self.pid)) > self._memory_limit:
                cause = f"memory-limit: {size_text(used)} of {size_text(self._memory_limit)}"
                self._kill_with_stacks(run, Crashed(cause), now + _QUICK_STACKS_TIME)

    def _kill_with_stacks(self, run: ChildRun, outcome: Outcome, at: float) -> None:
        """Let the child write its stacks, and kill it at this monotonic time; the run ends with this outcome."""
        if run.forced_outcome is None:
            run.forced_outcome, run.kill_at = outcome, at
            self._signal(STACKS_SIGNAL, group=False)

    # --- orders to the child ---------------------------------------------------------------------------------------

    def setup_done(self) -> None:
        """Note that `setup` has returned."""
        self._ready_at = self._clock.monotonic()
        self.output.switch(None)

    def begin(self, run: ChildRun) -> None:
        """Send a run to the idle child; the run's limits count from now."""
        now = self._clock.monotonic()
        self.run = run
        self.output.switch(run.task)
        run.limits = Limits(now, run.task.time_limit, run.task.stall_limit)
        if self._memory_limit is not None:
            run.check_memory_at = now + _TICK
        self.send(Begin(run.task))
        if run.soft_reason is not None:
            self.stop(run.soft_reason, hard=False)

    def stop(self, reason: InterruptReason, *, hard: bool) -> None:
        """Ask the run to end; `hard` also sends SIGTERM to the child's process group."""
        if (run := self.run) is None:
            return
        self.send(Stop(run.task.fence, reason, hard))
        if hard:
            run.hard_reason = run.hard_reason or reason
            self._signal(signal.SIGTERM, group=True)

    def leave(self, by: float, *, closing: bool) -> None:
        """
        Ask the child to exit after its run and `teardown`; kill the child if it still runs at the time `by`.

        If the child still warms up, kill it at once.
        """
        self._leave_by = min(self._leave_by, by)
        if closing:
            self.closes_by = by
        self._leaving = True
        if not self.ready:
            self._kill_session()
        self.send(Close())

    def kill(self, outcome: Outcome) -> None:
        """Kill the child now; the run ends with this outcome, unless the run has a forced outcome already."""
        if self.run is not None:
            self.run.forced_outcome = self.run.forced_outcome or outcome
        self._leave_by = NEVER
        self._kill_session()

    def ping_if_late(self) -> None:
        """
        Send a Ping if it is due for more than a second; any thread may call this.

        A runner that waits for a slow ledger gives its slots no turn, and a child without Pings ends itself.
        """
        with self._sending:
            if self._wire.fileno() < 0 or self._unsent or self._clock.monotonic() < self._ping_at + _LATE:
                return
            self._ping_at = self._clock.monotonic() + self._ping
            self._unsent += packed(Ping())
            with suppress(OSError):
                del self._unsent[: self._wire.send(self._unsent)]

    # --- frames ----------------------------------------------------------------------------------------------------

    def send(self, frame: ToChild) -> None:
        """Send a frame; bytes that the socket does not accept wait for `flush`."""
        with self._sending:
            self._unsent += packed(frame)
        if not self._blocked:
            self.flush()

    def flush(self) -> None:
        """Send the bytes that the socket accepts; if bytes are left, the slot gets a turn when the socket accepts more."""
        blocked = False
        with self._sending:
            while self._unsent and not blocked:
                try:
                    del self._unsent[: self._wire.send(self._unsent)]
                except BlockingIOError:
                    blocked = True
                except OSError:  # the child is dying: `receive` finds the end of the stream
                    self._unsent.clear()
        if blocked != self._blocked and not self._silent:
            self._blocked = blocked
            self._watch_wire()

    def receive(self) -> Iterator[FromChild]:
        """
        Yield frames that have arrived, of at most 4 MiB; of a dead child, all frames.

        Raise ValueError or MsgspecError for invalid data.
        """
        for _ in range(_MOST_CHUNKS):
            if self._silent:
                return
            try:
                data = self._wire.recv(_CHUNK)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self._silent = True
                self._poll.forget(self._wire.fileno())
                return
            yield from self._frames.feed(data)
            if len(data) < _CHUNK and not self._dead:
                return

    # --- its end ---------------------------------------------------------------------------------------------------

    def reaped(self) -> int | None:
        """
        Kill the rest of a dead child's session, and reap the child once nothing of its session is alive.

        Return the code of `Popen.returncode`, or None if this method must be called again.
        After 5 s, reap the child at the next call in any case, because another process of the session can hang.
        """
        now = self._clock.monotonic()
        self._reap_at = min(self._reap_at, now + _KILL_FOR)
        if kill_sessions([self.pid]) and now < self._reap_at:
            self._forget()
            self._kill_pause = min(2 * self._kill_pause, _KILL_SELDOM)
            return None
        return self._reap()

    def end(self) -> None:
        """Kill the child's session, wait for its end, and reap the child; only for a slot that has failed."""
        if self._process.returncode is None:
            end_sessions([self.pid])
            self._reap()

    def unready(self, code: int) -> str | None:
        """
        Return the reason for which the slot must wait before it replaces this dead child, or None if it need not wait.

        `code` is the child's return code.
        """
        if self._ready_at is None:
            return self.setup_error or f"the child died before it was ready: {_cause_of(code)}"
        if self.idle and not self.ended_runs and self._clock.monotonic() - self._ready_at < STEADY:
            return f"the child died just after its setup: {_cause_of(code)}"
        return None

    def _reap(self) -> int:
        self._forget()
        if self._guard is not None:
            self._guard.forget(self.pid)
        code = self._waited()
        with self._sending:
            self._wire.close()
        self.keep_stacks()
        if self._stacks is not None:
            self._stacks.close()
        self.output.close()
        if self._death is not None:
            death, self._death = self._death, None
            os.close(death)
        return code

    def _waited(self) -> int:
        """Wait for the dead child, and keep the peak of its memory over its whole life, if the peak of its run is not known."""
        with suppress(ChildProcessError):  # another part of this process has reaped it
            _, status, usage = os.wait4(self.pid, 0)
            self._process.returncode = os.waitstatus_to_exitcode(status)
            if self.run is not None and self.run.peak_memory is None:
                self.run.peak_memory = max_rss(usage)
        return self._process.wait()

    def keep_stacks(self) -> None:
        """Keep the stacks that the run has written, and add them to its output, where other errors of the child are."""
        if self._stacks is None:
            return
        file = self._stacks.fileno()
        # The child writes at the position that both processes share, which `pread` does not move.
        data = os.pread(file, _CHUNK, 0)
        if data:
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)
            text = stacks_text(data)
            if self.run is not None:
                self.run.traceback = text
            self.output.add_error(text)

    def _forget(self) -> None:
        """End the watch of the descriptors, because they stay readable once the child is dead."""
        self._silent = True
        self._poll.forget(self._wire.fileno())
        if self._death is not None:
            self._poll.forget(self._death)

    def _watch_wire(self) -> None:
        self._poll.watch(self._wire.fileno(), self._slot, send=self._blocked)

    def _signal(self, number: signal.Signals, *, group: bool) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses to signal a zombie
            (os.killpg if group else os.kill)(self.pid, number)

    def _kill_session(self) -> None:
        """Read the peak of the child's memory, before it is lost; then send SIGKILL to every process of the session."""
        if self.run is not None:
            self.run.peak_memory = peak_memory(self.pid)
        kill_sessions([self.pid])


def _cause_of(code: int) -> str:
    """Return a text for a process's return code, such as `SIGKILL` or `exit 3`."""
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
