"""
A slot that is a child process: warm, reused, limited, killed as a group, replaced at once.

::

               ┌───────── died idle, retired ─────────┐
               ↓                                      │
    start → WARMING ──Warm──→ IDLE ⇄ BUSY ──→ LEAVING ┤
               │               │      │               │
               │ setup raised, │      └─ died, killed ┘
               │ hung or died  │ died within 10 s, before its first run
               ↓               ↓
            Unready, until `start` is called again

Each slot has one thread, which starts the child and lives longer than it: it waits for frames, for the child's death and
for the next limit.  Calls from other threads write to the child themselves, and wake that thread only when it would sleep
past a limit: a run costs one wake-up on each side.

Every ending of a child during a run is an Outcome: what was decided for it (`kill`, a limit), or the way it died.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from steadyworker.clock import Clock
from steadyworker.errors import InterruptReason
from steadyworker.outcome import Crashed, Interrupted, Outcome
from steadyworker.slots.base import Asked, Ended, Progressed, Ready, SlotEvent, SlotSink, Task, Unready
from steadyworker.slots.child_state import NEVER, PARTING, ChildState, Phase, Run
from steadyworker.slots.execute import outcome_of_interrupt
from steadyworker.slots.frames import (
    Cold,
    Hello,
    Moved,
    Over,
    Question,
    Reply,
    Upward,
    Warm,
    outcome_of,
)
from steadyworker.slots.limits import Limits
from steadyworker.slots.spare import Spare, start
from steadyworker.slots.spawn import ChildProcess, Waker
from steadyworker.spec import WorkerSpec


class ProcessSlot:
    """
    One child process that runs one handler at a time.

    Args:
        id: Its number within its Worker.
        spec: What it runs, and the memory limit.
        clock: Its monotonic time is what limits are judged by.
        spare: A child that is running already, for whichever slot needs one first.
        held: Descriptors that every child holds open: the owner's lock.
        log_format: Of the child's log lines, as for `logs.configure`.
        log_level: Of the child's log lines.
        setup_limit: Seconds until `setup` must have returned, the import included.
        ping: Seconds between two signs of life to the child.
        silence: Seconds without any after which a child ends itself.
    """

    def __init__(
        self,
        id: int,
        spec: WorkerSpec,
        *,
        clock: Clock,
        spare: Spare | None = None,
        held: Sequence[int] = (),
        log_format: str = "auto",
        log_level: str = "info",
        setup_limit: float = 60.0,
        ping: float = 15.0,
        silence: float = 60.0,
    ) -> None:
        self._id = id
        self._spec = spec
        self._clock = clock
        self._spare = spare
        self._held = tuple(held)
        self._log = (log_format, log_level)
        self._setup_limit = setup_limit
        self._ping = ping
        self._silence = silence
        self._lock = threading.Lock()
        self._waker = Waker()
        self._sink: SlotSink = _nobody
        self._thread: threading.Thread | None = None
        self._tenure: ChildState | None = None
        self._run: Run | None = None
        self._stopping = False
        self._close_by = NEVER
        self._last_beat = clock.monotonic()

    @property
    def id(self) -> int:
        """The number of this slot within its Worker, from 0."""
        return self._id

    @property
    def warm(self) -> bool:
        """Warm and idle."""
        tenure = self._tenure
        return tenure is not None and tenure.phase is Phase.IDLE and self._run is None and self._close_by == NEVER

    @property
    def stuck(self) -> bool:
        """Never: what does not end is killed."""
        return False

    @property
    def last_progress(self) -> float:
        """When (monotonic) the child was last heard of."""
        return self._last_beat

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        tenure = self._tenure
        return None if tenure is None else tenure.child.pid

    # --- Called by the runner, from any thread ---

    def start(self, sink: SlotSink) -> None:
        """Begin to warm up; ignored while there is a child."""
        with self._lock:
            if self._thread is not None or self._close_by < NEVER:
                return
            self._sink = sink
            self._thread = threading.Thread(target=self._live, name=f"{self._spec.queue}-{self._id}", daemon=True)
            self._thread.start()

    def run(self, task: Task) -> None:
        """Begin a run; while the child warms up it waits for that; a slot that was just given up interrupts it."""
        run = Run(task, Limits(self._clock.monotonic(), task.time_limit, task.stall_limit))
        with self._lock:
            if self._run is not None:
                raise RuntimeError(f"Expected slot {self._id} to be idle: a run needs a slot of its own.")
            given_up = self._thread is None
            if not given_up:
                self._run = run
                if self._tenure is not None and self._tenure.phase is Phase.IDLE:
                    self._tenure.begin(run)
        if given_up:
            self._sink(self._ended(run, Interrupted()))

    def reply(
        self, fence: int, id: int, answer: Any, *, refused: InterruptReason | None = None, end: bool = True
    ) -> None:
        """Answer what the job asked."""
        with self._lock:
            if (tenure := self._tenure_of(fence)) is not None:
                tenure.send(Reply(fence, id, answer, refused, end))

    def interrupt(self, fence: int, reason: InterruptReason, *, hard: bool) -> None:
        """Tell the job; hard raises Interrupt in its handler, and sends TERM to whatever it has started."""
        with self._lock:
            if (tenure := self._tenure_of(fence)) is not None:
                tenure.stop(reason, hard=hard)
                return
            if self._run is not None and self._run.task.fence == fence:  # it waits for a child
                self._run.soft = reason
        if hard:
            self.kill(fence, outcome_of_interrupt(reason))

    def kill(self, fence: int, outcome: Outcome) -> None:
        """End the run with this outcome, by SIGKILL to all its processes."""
        with self._lock:
            run = self._run
            if run is None or run.task.fence != fence or run.forced_outcome is not None:
                return
            if (tenure := self._tenure_of(fence)) is not None:
                tenure.kill(outcome)
                return
            self._run, run.forced_outcome = None, outcome
        self._sink(self._ended(run, outcome))

    def stopping(self) -> None:
        """From now on a child that dies by a signal was interrupted: whoever stops us may signal it too."""
        self._stopping = True

    def close(self, within: float) -> None:
        """`teardown`, then the end of the child, by force after that many seconds; returns when all of it is gone."""
        with self._lock:
            self._close_by = min(self._close_by, self._clock.monotonic() + within)
            thread = self._thread
            if self._tenure is not None:
                self._tenure.leave(self._close_by, closing=True)
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._waker.close()

    # --- The slot's thread; the runner is told without the lock, for it may call back ---

    def _live(self) -> None:
        """One child after another, until one cannot be replaced."""
        while self._thread is not None:
            try:
                tenure = self._spawn()
            except OSError as error:
                last = self._give_up(f"a child could not be started: {error}")
            else:
                last = self._reap(tenure, self._serve(tenure))
            for event in last:
                self._sink(event)

    def _spawn(self) -> ChildState:
        started = (self._spare.take() if self._spare is not None else None) or start()
        hello = Hello(self._spec.target, list(sys.path), *self._log, self._silence)
        child = ChildProcess(started, hello, self._held, self._waker)
        with self._lock:
            self._tenure = tenure = ChildState(
                child,
                self._waker,
                self._clock,
                setup_limit=self._setup_limit,
                ping=self._ping,
                memory_limit=self._spec.memory_limit,
            )
            if self._close_by < NEVER:
                tenure.leave(self._close_by, closing=True)
        return tenure

    def _serve(self, tenure: ChildState) -> int:
        """Listen to the child and enforce its limits until it has died; answers its return code."""
        child = tenure.child
        while not child.dead:
            with self._lock:
                now = self._clock.monotonic()
                wakes_at = tenure.sleep_until(now)
            child.wait(wakes_at - now)
            self._listen(tenure)
            with self._lock:
                tenure.enforce(self._clock.monotonic())
        self._listen(tenure)  # what it said before it died
        return child.reap()

    def _listen(self, tenure: ChildState) -> None:
        try:
            for frame in tenure.child.receive():
                with self._lock:
                    event = self._hear(tenure, frame)
                if event is not None:
                    self._sink(event)
        except (ValueError, msgspec.MsgspecError) as error:
            with self._lock:
                tenure.kill(Crashed(f"wrote to its worker process's socket: {error}"))

    def _hear(self, tenure: ChildState, frame: Upward) -> SlotEvent | None:
        """What the runner is told of a frame."""
        now = self._last_beat = self._clock.monotonic()
        run = tenure.run
        match frame:
            case Warm():
                tenure.enter(Phase.IDLE)
                if self._run is not None:
                    tenure.begin(self._run)
                return Ready(self._id)
            case Cold(reason=reason):
                tenure.cold = f"setup raised {reason}"
                tenure.leave(now + PARTING, closing=False)
            case Moved() if run is not None and run.task.fence == frame.fence:
                run.limits.moved = now
                return Progressed(self._id, frame.fence, frame.done, frame.total, frame.note)
            case Question() if run is not None and run.task.fence == frame.fence:
                run.limits.moved = now
                return Asked(self._id, frame.fence, frame.id, frame.what, frame.data)
            case Over() if run is not None and run.task.fence == frame.fence and run.forced_outcome is None:
                outcome = outcome_of(frame)
                self._run = None
                tenure.over()
                if self._close_by < NEVER:
                    tenure.leave(self._close_by, closing=True)
                elif tenure.runs == self._spec.jobs_per_child:
                    tenure.leave(now + PARTING, closing=False)
                return self._ended(run, outcome)
            case _:
                pass  # a sign of life, or of a run that has ended
        return None

    def _reap(self, tenure: ChildState, code: int) -> list[SlotEvent]:
        """A child is dead and reaped: what the runner is told, and whether there will be another."""
        with self._lock:
            run, self._tenure = tenure.run, None
            self._run = self._run if run is None else None
        said: list[SlotEvent] = [] if run is None else [self._ended(run, run.ending(code, stopping=self._stopping))]
        reason, stood = tenure.unready(code), tenure.phase is not Phase.WARMING
        over = reason is not None or self._close_by < NEVER
        return said + (self._give_up(reason, stood=stood) if over else [])

    def _give_up(self, reason: str | None, *, stood: bool = False) -> list[SlotEvent]:
        """No further child; a run that waited for one has not begun."""
        with self._lock:
            run, self._run, self._thread = self._run, None, None
            said: list[SlotEvent] = [] if run is None else [self._ended(run, Interrupted())]
            if reason is not None and self._close_by == NEVER:
                said.append(Unready(self._id, reason, stood))
        return said

    def _tenure_of(self, fence: int) -> ChildState | None:
        """The child that has this run; None when the run has ended, or waits for a child."""
        tenure = self._tenure
        return tenure if tenure is not None and tenure.run is not None and tenure.run.task.fence == fence else None

    def _ended(self, run: Run, outcome: Outcome) -> Ended:
        seconds = self._clock.monotonic() - run.limits.began
        return Ended(self._id, run.task.fence, outcome, seconds, run.forced_outcome is not None)


def _nobody(_event: SlotEvent) -> None:
    """Before `start` nobody listens."""
