"""
A slot that is a thread of the worker process: for light jobs, for debugging, and for tests.

A thread slot protects the worker process less than a child process does:

- A handler that holds the GIL, crashes or leaks memory harms the whole worker process.
- The slot does not limit memory.
- If the worker process is killed, the handler's subprocesses continue to run.
  But if the worker process leads its session, the guard (`guard.py`) ends this session.
  A systemd service and the first process of a container lead their session.
- The slot cannot end a synchronous handler that makes no Job call.
  When such a run must end, the slot abandons the run's thread; then `stuck` is true, and the worker process must exit.

Each slot has two threads: the first runs the handler, and the second, the keeper, enforces the run's limits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from steadyworker.clock import Clock
from steadyworker.errors import InterruptReason
from steadyworker.link import Answer, JobRequest, Link, Task
from steadyworker.outcome import Crashed, Failed, Interrupted, Outcome
from steadyworker.slots.base import Asked, Ended, Progressed, Ready, SlotEvent, SlotPoll, SlotSink, Unready
from steadyworker.slots.execute import Executor, error_text
from steadyworker.slots.guard import Guard
from steadyworker.slots.runs import Due, Limits, SlotRun
from steadyworker.spec import WorkerSpec
from steadyworker.telemetry.logs import get_logger

_TICK = 0.5  # seconds; a test's clock can move while the keeper waits in real time
_NEVER = float("inf")


class ThreadSlot:
    """
    One thread that runs one handler at a time.

    `guard` ends this process's session when this process dies.
    `setup_limit` is the longest time of `setup`, in seconds.
    `grace` is the number of seconds from `kill` until the slot abandons the run's thread.
    """

    def __init__(
        self,
        id: int,
        spec: WorkerSpec,
        *,
        clock: Clock,
        guard: Guard | None = None,
        setup_limit: float = 60.0,
        grace: float = 1.0,
    ) -> None:
        self._id = id
        self._spec = spec
        self._clock = clock
        self._guard = guard
        self._setup_limit = setup_limit
        self._grace = grace
        self._changed = threading.Condition()
        self._sink: SlotSink = _drop
        self._handler: _HandlerThread | None = None
        self._runs: ThreadRuns = ThreadRuns()
        self._abandoned: list[threading.Thread] = []
        self._keeper: threading.Thread | None = None
        self._keeper_wakes = _NEVER
        self._last_turn = 0.0
        self._broken = False
        self._closing = False

    @property
    def id(self) -> int:
        """The number of this slot within its Worker, from 0."""
        return self._id

    @property
    def warm(self) -> bool:
        """True when the slot is warm and idle."""
        handler = self._handler
        return handler is not None and handler.ready and self._runs.present is None and not self._closing

    @property
    def last_turn(self) -> float | None:
        """The monotonic time of the keeper's last turn; None while the keeper has no limit to enforce."""
        return None if self._keeper_wakes == _NEVER else self._last_turn

    @property
    def broken(self) -> bool:
        """True when one of the slot's two threads has died."""
        with self._changed:  # `start` holds this lock until both threads run
            threads = [self._keeper, self._handler.thread if self._handler is not None else None]
            died = self._broken or any(thread is not None and not thread.is_alive() for thread in threads)
            return died and not self._closing

    @property
    def stuck(self) -> bool:
        """True while an abandoned thread still runs."""
        return any(thread.is_alive() for thread in self._abandoned)

    def start(self, sink: SlotSink, poll: SlotPoll) -> None:
        """Start a thread, which calls `setup`; do nothing after `close`, or while the slot has a thread."""
        del poll  # this slot has its turns in threads of its own
        with self._changed:
            if self._handler is not None or self._closing:
                return
            if self._guard is not None:
                self._guard.watch_own_session()
            self._sink = sink
            self._handler = handler = _HandlerThread(SimpleQueue(), self._clock.monotonic() + self._setup_limit)
            try:
                if self._keeper is None:
                    self._keeper = self._started(self._keep, f"{self._spec.queue}-{self._id}-keeper")
                handler.thread = self._started(lambda: self._work(handler), f"{self._spec.queue}-{self._id}")
            except RuntimeError as error:  # the system allows no further thread
                reason = f"a thread could not be started: {error}"
            else:
                self._changed.notify_all()
                return
        self._not_ready(handler, reason)

    def _started(self, body: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        return thread

    def run(self, task: Task) -> None:
        """Begin a run, or let the run wait until `setup` returns; if the slot has ended, the run ends as Interrupted."""
        run = ThreadRun(self._id, task, self._clock, self._send_of)
        with self._changed:
            self._runs.add(run)
            if (handler := self._handler) is not None:
                if min(run.limits.next(), self._clock.monotonic() + _TICK) < self._keeper_wakes:
                    self._changed.notify_all()
                handler.inbox.put(run)
            else:
                run.ended = True
        if handler is None:
            self._send(self._ended(run, Interrupted(), killed=False))

    def reply(
        self, fence: int, id: int, answer: Any, *, refused: InterruptReason | None = None, end: bool = True
    ) -> None:
        """Reply to a request of the job."""
        if (run := self._runs.of(fence)) is not None:
            run.link.answer(id, Answer(answer, refused, end))

    def interrupt(self, fence: int, reason: InterruptReason, *, hard: bool) -> None:
        """
        Ask the run to end.

        `hard` cancels the task of an `async` handler; in any other handler, the next Job call raises Interrupt.
        """
        if (run := self._runs.of(fence)) is not None:
            run.link.interrupt(reason, hard=hard)

    def kill(self, fence: int, outcome: Outcome) -> None:
        """Interrupt the run, which then ends with this outcome; abandon a thread that does not end within `grace`."""
        with self._changed:
            run = self._runs.of(fence)
            if run is None or run.forced_outcome is not None:
                return
            run.forced_outcome = outcome
            run.abandon_at = self._clock.monotonic() + self._grace
            self._changed.notify_all()
        run.link.interrupt("fenced", hard=True)

    def stopping(self) -> None:
        """Do nothing, because signals do not end single threads."""

    def close(self, within: float) -> None:
        """Run `teardown` and end both threads; abandon a handler's thread that has not ended after `within` seconds."""
        with self._changed:
            self._closing = True
            handler = self._handler
        if handler is not None and handler.thread is not None:
            handler.inbox.put(None)
            if handler.thread is not threading.current_thread():
                handler.thread.join(within)
        with self._changed:
            run, self._handler = self._runs.present, None
            if run is not None:
                run.ended = True
            if handler is not None and handler.thread is not None and handler.thread.is_alive():
                self._abandoned.append(handler.thread)
            self._changed.notify_all()
        if run is not None:
            run.link.interrupt("shutdown", hard=True)
            self._send(self._ended(run, run.forced_outcome or Interrupted(), killed=True))
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join()

    def _work(self, handler: _HandlerThread) -> None:
        """Run handlers; the body of the slot's first thread."""
        try:
            self._run_handler(handler)
        except BaseException as error:  # noqa: BLE001 - the runner gets every failure as an event
            about = {"queue": self._spec.queue, "slot": self._id, "explain": "steadyworker.slot-failed"}
            get_logger("steadyworker.slots").error("slot_failed", **about, exc_info=error)
            self._not_ready(handler, f"the slot's thread failed: {error_text(error)}")

    def _run_handler(self, handler: _HandlerThread) -> None:
        try:
            executor = Executor(self._spec.cls(), self._clock)
            executor.setup()
        except BaseException as error:  # noqa: BLE001 - every exception of `setup`, even SystemExit, makes the slot unready
            about = {"slot": self._id, "explain": "steadyworker.setup-failed"}
            get_logger("steadyworker.slots").error("setup_failed", **about, exc_info=error)
            self._not_ready(handler, f"setup raised {error_text(error)}")
            return
        with self._changed:
            if self._handler is not handler:  # setup took too long, and the slot has ended
                return
            handler.ready = True
        self._send(Ready(self._id))
        while (run := handler.inbox.get()) is not None:
            ran = executor.run(run.task, run.link)
            run.traceback = ran.traceback
            with self._changed:
                if run.ended:  # the run was abandoned, and its `Ended` was sent
                    return
                run.ended = True
            self._send(self._ended(run, run.forced_outcome or ran.outcome, killed=run.forced_outcome is not None))
        try:
            executor.teardown()
        except BaseException as error:  # noqa: BLE001 - the slot ends even after an exception
            about = {"slot": self._id, "explain": "steadyworker.teardown-failed"}
            get_logger("steadyworker.slots").error("teardown_failed", **about, exc_info=error)
        executor.close()

    def _keep(self) -> None:
        """Enforce the limits, and sleep until the next one; the body of the keeper's thread."""
        while True:
            with self._changed:
                if self._closing and self._handler is None:
                    return
                self._last_turn = now = self._clock.monotonic()
                due = self._next()
                self._keeper_wakes = _NEVER if due == _NEVER else min(due, now + _TICK)
                if now < self._keeper_wakes:
                    self._changed.wait(None if self._keeper_wakes == _NEVER else self._keeper_wakes - now)
            self._enforce(self._clock.monotonic())

    def _next(self) -> float:
        run, handler = self._runs.present, self._handler
        if handler is not None and not handler.ready:
            return handler.ready_by
        if run is None:
            return _NEVER
        return min(run.limits.next(), run.abandon_at)

    def _enforce(self, now: float) -> None:
        with self._changed:
            run, handler = self._runs.present, self._handler
        if handler is not None and not handler.ready and now >= handler.ready_by:
            self._not_ready(handler, f"setup took more than {self._setup_limit:g} s")
        elif run is not None and now >= run.abandon_at:
            self._abandon(run)
        elif run is not None:
            match run.limits.due(now):
                case Due.WARN:
                    run.link.interrupt("time-limit", hard=True)
                case Due.TIME_LIMIT | Due.STALLED as due:
                    self.kill(run.task.fence, Failed(due.value))
                case None:
                    pass

    def _abandon(self, run: ThreadRun) -> None:
        with self._changed:
            if run.ended:
                return
            run.ended = True
            handler, self._handler = self._handler, None
            if handler is not None and handler.thread is not None:
                self._abandoned.append(handler.thread)
                handler.inbox.put(None)
        self._send(self._ended(run, run.forced_outcome or Interrupted(), killed=True))

    def _not_ready(self, handler: _HandlerThread, reason: str) -> None:
        with self._changed:
            if self._handler is not handler:
                return
            if handler.thread is not None and handler.thread is not threading.current_thread():
                self._abandoned.append(handler.thread)
            self._handler = None
            closing, unsent = self._closing, self._runs.unsent
            for run in unsent:
                run.ended = True
        try:
            for run in unsent:
                outcome = run.forced_outcome or (Crashed(reason) if handler.ready else Interrupted())
                self._send(self._ended(run, outcome, killed=False))
            if not closing:
                self._send(Unready(self._id, reason, handler.ready))
        except BaseException:
            self._broken = True  # the slot has ended, and the runner waits for events that this thread has not sent
            raise

    def _ended(self, run: ThreadRun, outcome: Outcome, *, killed: bool) -> Ended:
        seconds = self._clock.monotonic() - run.limits.began
        return Ended(self._id, run.task.fence, outcome, seconds, killed, run.traceback)

    def _send(self, event: SlotEvent) -> None:
        """Send an event to the runner."""
        self._sink(event)
        if isinstance(event, Ended):
            with self._changed:
                self._runs.sent(event.fence)

    def _send_of(self, run: ThreadRun, event: SlotEvent) -> None:
        """Send an event of a run to the runner, unless the run has ended."""
        if not run.ended:
            run.limits.moved = self._clock.monotonic()
            self._send(event)


@dataclass(slots=True, eq=False)
class _HandlerThread:
    """
    The thread that calls the handler, and the queue of its runs.

    `ready` is true once `setup` has returned; `setup` must return before the monotonic time `ready_by`.
    """

    inbox: SimpleQueue[ThreadRun | None]
    ready_by: float
    thread: threading.Thread | None = None
    ready: bool = False


class ThreadRun(SlotRun):
    """
    One run in a thread slot, and the connection of the run's link to the slot.

    `ended` is true once the run's outcome is known.
    The slot abandons the run's thread at the monotonic time `abandon_at`.
    """

    def __init__(self, slot: int, task: Task, clock: Clock, send: Callable[[ThreadRun, SlotEvent], None]) -> None:
        super().__init__(task, Limits(clock.monotonic(), task.time_limit, task.stall_limit))
        self.ended = False
        self.link = Link(self, clock)
        self.abandon_at = _NEVER
        self._slot = slot
        self._send = send

    def send_progress(self, done: float | None, total: float | None, note: str) -> None:
        """Send progress to the runner."""
        self._send(self, Progressed(self._slot, self.task.fence, done, total, note))

    def send_request(self, id: int, request: JobRequest) -> None:
        """Send a request to the runner."""
        self._send(self, Asked(self._slot, self.task.fence, id, request))


class ThreadRuns:
    """
    The table of one slot's runs; at most one run is present.

    ::

        Slot.run ──add──→ present ──ended = True──→ ended ──sent──→ not in the table
                             │                        │
               waits for `setup`, or runs       its `Ended` is still to be sent

    Call `add` and `sent` under the slot's lock; `present` and `of` need no lock.
    """

    def __init__(self) -> None:
        self._runs: tuple[ThreadRun, ...] = ()

    @property
    def present(self) -> ThreadRun | None:
        """The run that has not ended, or None."""
        return next((run for run in self._runs if not run.ended), None)

    @property
    def unsent(self) -> tuple[ThreadRun, ...]:
        """The runs whose `Ended` the slot has not sent yet: the present run, and runs that have ended."""
        return self._runs

    def of(self, fence: int) -> ThreadRun | None:
        """Return the present run if it has this fence, otherwise None."""
        run = self.present
        return run if run is not None and run.task.fence == fence else None

    def add(self, run: ThreadRun) -> None:
        """Add a new run; raise RuntimeError if there is a present run."""
        if self.present is not None:
            raise RuntimeError("Expected an idle slot, got a second run: wait for Ended.")
        self._runs += (run,)

    def sent(self, fence: int) -> None:
        """Remove the run with this fence, whose `Ended` the slot has sent."""
        self._runs = tuple(run for run in self._runs if run.task.fence != fence)


def _drop(_event: SlotEvent) -> None:
    """Drop an event, because before `start` the slot has no runner."""
