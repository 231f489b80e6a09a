"""
The program of a slot's child process.

`spawn.py` starts this program with four arguments: the descriptor of the child's socket, the parent's process id, PROTOCOL,
and the descriptor of the file for the stacks of its threads.
If standard error is a pipe for output, a fifth argument is the descriptor for the log lines.
The child uses neither the broker nor the ledger: it exchanges frames with its worker process over the socket.
The main thread calls the handler, so that signals interrupt the handler.
The reader thread receives frames from the worker process.

A child ends in one of these ways, whatever its handler does:

| the worker process | the child |
|---|---|
| sends Close | calls `teardown`, waits at most 1 s for threads of the handler, and exits |
| sends Stop, hard | raises Interrupt in the handler; the worker process kills a child that does not end |
| has died | PDEATHSIG kills the child; the guard (`guard.py`) kills the rest of its session |
| sends no frame for 60 s (frozen) | ends the run as Interrupted, and kills its own session |

The child also gets stop and pause signals from other processes; for example, systemd signals every process of a service.
Until a hard Stop arrives, the child's handlers of these signals take no action.
The child does not set SIG_IGN for these signals, because processes that the user's handler starts would inherit SIG_IGN.
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Literal, NoReturn, TextIO, cast

from steadyworker.clock import Clock, SystemClock
from steadyworker.errors import Interrupt
from steadyworker.lifecycle import PAUSE_SIGNALS, STOP_SIGNALS
from steadyworker.link import Answer, JobRequest, Link, Task
from steadyworker.outcome import Done, Failed, Interrupted
from steadyworker.slots.dispositions import STDERR, Dispositions, set_handler, watch_for_stacks_signal
from steadyworker.slots.execute import Executor, Ran, class_name, error_text
from steadyworker.slots.frames import (
    ANY_FRAME,
    PROTOCOL,
    STACKS_SIGNAL,
    Begin,
    Close,
    FromChild,
    Hello,
    Ping,
    Pong,
    ProgressMade,
    Reply,
    RequestMade,
    SetupDone,
    SetupFailed,
    Stop,
    ToChild,
    Unpacker,
    packed,
    run_ended,
)
from steadyworker.system.leaving import flush_logs, flush_output, leave
from steadyworker.system.procfs import end_own_session, peak_memory, reset_peak_memory
from steadyworker.telemetry import logs
from steadyworker.telemetry.python_messages import log_python_messages
from steadyworker.worker import load_worker

_CHUNK = 1 << 16
_MOST_HELD = 8
_POKE_EVERY = 0.05
_GRACE_STEP, _GRACE_STEPS = 0.002, 10
_PR_SET_PDEATHSIG = 1
_IOLBF = 1
_HIGH = 500  # below the usual limit of 1,024 descriptors
_UNCUT = frozenset({"steadyworker.link", __name__})

# systemd sets these variables for the worker process, not for its children.
_NOT_OURS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")

_OTHER_VERSION = "the installed SteadyWorker has another version than this worker process: restart the worker process"


class Child:
    """One child: its exchange of frames with the worker process, and the runs of its handler."""

    def __init__(self, wire: socket.socket, clock: Clock, stacks: int = STDERR, log: TextIO | None = None) -> None:
        self._stacks = stacks
        self._wire = wire
        self._clock = clock
        self._log = log
        self._sending = threading.Lock()
        self._frames: Unpacker[ToChild] = Unpacker(ToChild, ANY_FRAME)
        self._orders: SimpleQueue[tuple[Task, Link] | None] = SimpleQueue()
        self._run: tuple[int, Link] | None = None
        self._executor: Executor | None = None
        self._main_thread = threading.get_ident()
        self._pid = os.getpid()
        self._log_unraisable = sys.unraisablehook

    def live(self) -> int:
        """Receive Hello, call `setup`, run tasks until Close, call `teardown`, and return the exit code."""
        hello = self._hello()
        logs.configure(cast(Literal["auto", "json", "pretty"], hello.log_format), hello.log_level, self._log)
        log = logs.get_logger("steadyworker.slots.child")
        sys.path[:] = map(os.fsdecode, hello.path)
        log_python_messages()
        self._log_unraisable, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        threading.Thread(target=self._read, args=(hello.silence,), name="steadyworker-child", daemon=True).start()
        try:
            executor = Executor(load_worker(hello.target)(), self._clock)
            executor.setup()
        except BaseException as error:  # an import or a setup can raise anything, even SystemExit
            log.exception("setup_failed", target=hello.target, explain="steadyworker.setup-failed")
            self.send(SetupFailed(f"setup raised {error_text(error)}"))
            return 1
        self._executor = executor
        self.catch_signals()  # a second time, because a user's module can have set its own handlers
        dispositions = Dispositions(self._stacks)
        executor.calm = dispositions.calm
        self.send(SetupDone())
        while (order := self._orders.get()) is not None:
            task, link = order
            reset_peak_memory()
            ran = _run(executor, task, link)
            traceback, peak = ran.traceback, peak_memory(self._pid)
            try:
                self._restore(dispositions)
            except BaseException:  # noqa: BLE001 - a signal handler of the job raised; that handler is removed before the second try
                self._restore(dispositions)
            flush_output()
            self.send(run_ended(task.fence, ran.outcome, traceback, peak))
        try:
            executor.teardown()
        except BaseException:  # the child ends even after an exception
            log.exception("teardown_failed", target=hello.target, explain="steadyworker.teardown-failed")
        executor.close()
        return 0

    def send(self, frame: FromChild) -> None:
        """Send a frame to the worker process; thread-safe."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "Expected Job to be used by the process that runs its handler, got a fork of that process: "
                "call Job only in the process that called handle."
            )
        data = packed(frame)
        with self._sending:
            self._wire.sendall(data)

    def catch_signals(self) -> None:
        """Set this process's handlers of stop and pause signals; call this method in the main thread."""
        for stop in STOP_SIGNALS:
            set_handler(stop, self.on_stop_signal)
        for pause in PAUSE_SIGNALS:
            set_handler(pause, _ignore)
            signal.siginterrupt(pause, False)  # noqa: FBT003 - its name in the standard library

    def _restore(self, dispositions: Dispositions) -> None:
        dispositions.restore(STOP_SIGNALS | PAUSE_SIGNALS)
        self.catch_signals()

    def on_stop_signal(self, _signal: int, frame: FrameType | None) -> None:
        """Raise Interrupt in the handler after a hard Stop; before that, do nothing."""
        link = self._executor.exposed if self._executor else None
        if link is None or link.in_cleanup or _uncut(frame):
            return
        for _ in range(_GRACE_STEPS):
            if link.hard is not None:
                link.interrupt_now(link.hard)
            # If Stop came while the handler held the GIL, the reader thread now gets up to 20 ms to read Stop.
            time.sleep(_GRACE_STEP)

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Signal the handler again if Python discarded its Interrupt, for example in `__del__` or a library's callback."""
        link = self._executor.exposed if self._executor else None
        if link is not None and isinstance(unraisable.exc_value, Interrupt):
            link.in_cleanup = False
        else:
            self._log_unraisable(unraisable)

    def _hello(self) -> Hello:
        while True:
            data, held, _flags, _address = socket.recv_fds(self._wire, _CHUNK, _MOST_HELD)
            if not data:
                break
            _keep(held)
            for frame in self._frames.feed(data):
                if isinstance(frame, Hello):
                    return frame
        return self._orphaned()

    def _read(self, silence: float) -> None:
        """Receive frames, as the body of the reader thread; if this fails, end this process, which can get no more orders."""
        try:
            self._receive(silence)
        except BaseException:  # noqa: BLE001 - this process ends
            with suppress(BaseException):  # a user's logging handler can raise
                logs.get_logger("steadyworker.slots.child").exception(
                    "reader_failed", explain="steadyworker.child-failed"
                )
                flush_logs()
            os._exit(1)

    def _receive(self, silence: float) -> None:
        """
        Receive frames, until the handler has closed the socket.

        This thread blocks signals, so that it does not receive a signal that the handler's thread has blocked.
        But this thread receives the signal for stacks, because a stalled handler could have blocked this signal in the main thread.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {STACKS_SIGNAL})
        poll = select.poll()
        poll.register(self._wire, select.POLLIN)
        received_at = self._clock.monotonic()
        while True:
            wait = _POKE_EVERY if self._poke() else received_at + silence - self._clock.monotonic()
            if poll.poll(max(0.0, wait) * 1000):
                try:
                    data = self._wire.recv(_CHUNK)
                except OSError:  # the handler has closed the socket, so the worker process ends this child
                    return
                if not data:
                    self._orphaned()
                for frame in self._frames.feed(data):
                    self._handle(frame)
                received_at = self._clock.monotonic()
            elif self._clock.monotonic() - received_at >= silence:
                self._deserted()

    def _handle(self, frame: ToChild) -> None:
        match frame:
            case Begin(task=task):
                link = Link(_ChildUpstream(self, task.fence), self._clock)
                self._run = (task.fence, link)
                self._orders.put((task, link))
            case Reply() if self._run is not None and self._run[0] == frame.fence:
                self._run[1].answer(frame.id, Answer(frame.data, frame.refused, frame.end))
            case Stop() if self._run is not None and self._run[0] == frame.fence:
                self._run[1].interrupt(frame.reason, hard=frame.hard)
            case Ping():
                self.send(Pong())
            case Close():
                self._orders.put(None)
            case _:
                pass  # a frame for a run that has ended

    def _poke(self) -> bool:
        """
        Signal the main thread if its handler must end and is not interrupted yet; return whether this call sent a signal.

        After True, the caller must call this method again, because one signal does not always interrupt the handler.
        A signal during a Job call raises nothing, because an exception must not cut the call in the middle.
        """
        link = self._executor.exposed if self._executor else None
        if link is None or link.hard is None or link.in_cleanup:
            return False
        signal.pthread_kill(self._main_thread, signal.SIGTERM)
        return True

    def _orphaned(self) -> NoReturn:
        """Kill this process and the rest of its session, because the worker process is dead or silent."""
        if os.getsid(0) == os.getpid():
            end_own_session()
        os._exit(1)

    def _deserted(self) -> NoReturn:
        """End this process, because its worker process is silent, and another worker process can have taken the job over."""
        if self._run is not None:
            with suppress(OSError):  # sent without a wait; if the worker process wakes up again, it reads this frame
                self._wire.send(packed(run_ended(self._run[0], Interrupted())), socket.MSG_DONTWAIT)
        self._orphaned()


class _ChildUpstream:
    """The sender of one run's progress and requests to the worker process."""

    def __init__(self, child: Child, fence: int) -> None:
        self._child = child
        self._fence = fence

    def send_progress(self, done: float | None, total: float | None, note: str) -> None:
        self._child.send(ProgressMade(self._fence, done, total, note))

    def send_request(self, id: int, request: JobRequest) -> None:
        self._child.send(RequestMade(self._fence, id, request))


def _run(executor: Executor, task: Task, link: Link) -> Ran:
    """Run a task, even if the job has set a signal handler that raises after the end of the job's handler."""
    try:
        return executor.run(task, link)
    except BaseException as error:  # noqa: BLE001 - the job's signal handler can raise anything
        if executor.returned and link.raised is None:
            return Ran(Done())
        return Ran(Failed(error_text(error), class_name(error)), error)


def main() -> None:
    """Run a child process; this function is the program's entry point."""
    wire = socket.socket(fileno=int(sys.argv[1]))
    wire.set_inheritable(False)
    for name in _NOT_OURS:
        os.environ.pop(name, None)
    stacks = _own_stacks_file(sys.argv[4:5])
    child = Child(wire, SystemClock(), stacks, _log_stream(sys.argv[5:]))
    child.catch_signals()
    _let_forks_be_ended()
    # With SIG_IGN, a handler could not wait for its subprocesses.
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS | PAUSE_SIGNALS)
    _die_with(int(sys.argv[2]))
    if sys.argv[3:4] != [str(PROTOCOL)]:
        child.send(SetupFailed(_OTHER_VERSION))
        os._exit(1)
    faulthandler.enable(stacks)
    os.register_at_fork(after_in_child=lambda: faulthandler.enable(STDERR))  # the file has only stacks of this process
    watch_for_stacks_signal(stacks)
    with suppress(OSError, AttributeError):  # standard output can be closed, or an object without line buffering
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _buffer_lines_of_c()
    code = 1
    try:
        code = child.live()
    except BaseException:  # noqa: BLE001 - otherwise Python would wait for the handler's threads, and the worker process for this child
        with suppress(BaseException):  # a user's logging handler can raise
            logs.get_logger("steadyworker.slots.child").exception("child_failed", explain="steadyworker.child-failed")
    leave(code)


def _log_stream(descriptor: Sequence[str]) -> TextIO | None:
    """Return the stream for the log lines, which no process of a handler inherits; None for standard error."""
    if not descriptor:
        return None
    os.set_inheritable(int(descriptor[0]), False)  # noqa: FBT003 - its name in the standard library
    return os.fdopen(int(descriptor[0]), "w", encoding="utf-8", errors="backslashreplace")


def _buffer_lines_of_c() -> None:
    """Let C libraries write each line of standard output at once, as on a terminal, so that a crash loses no line."""
    with suppress(ValueError, AttributeError):  # not every C library has this name
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)


def _own_stacks_file(arguments: Sequence[str]) -> int:
    """
    Return the descriptor to which this process writes the stacks of its threads, after a fatal error or STACKS_SIGNAL.

    The descriptor has a high number, so that no file of a handler gets this number after the handler has closed every descriptor.
    """
    file = int(arguments[0]) if arguments else STDERR
    if file == STDERR:
        return file
    try:
        high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # the limit of descriptors is lower
        os.set_inheritable(file, False)  # noqa: FBT003 - its name in the standard library
        return file
    os.close(file)
    return high


def _die_with(parent: int) -> None:
    """Ask Linux to kill this child when the thread that started it ends; if memory runs out, Linux kills this child before other processes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if os.getppid() != parent:  # the worker process ended before prctl took effect
        os._exit(1)


def _let_forks_be_ended() -> None:
    """
    Give each fork of this process the default handlers of stop signals, because `multiprocessing` ends forks by signals.

    During the fork, stop signals stay blocked until the new process has the default handlers.
    """
    forking = threading.local()

    def hold() -> None:
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)

    def set_defaults() -> None:
        for stop in STOP_SIGNALS:
            signal.signal(stop, signal.default_int_handler if stop is signal.SIGINT else signal.SIG_DFL)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=set_defaults)


def _keep(held: Sequence[int]) -> None:
    """
    Keep these descriptors open until this process ends, and close them in each fork of this process.

    Otherwise a daemon that the handler starts would hold the owner's lock for months.
    """
    left = list(held)

    def close() -> None:
        while left:  # in a fork of the fork, these numbers can belong to other files
            with suppress(OSError):
                os.close(left.pop())

    for descriptor in held:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - its name in the standard library
    if held:
        os.register_at_fork(after_in_child=close)


def _ignore(_signal: int, _frame: FrameType | None) -> None:
    """Take no action at a pause signal, because only the worker process acts on pause signals."""


def _uncut(frame: FrameType | None) -> bool:
    """Return whether a Job call is running: a signal must not raise in such a call, which raises Interrupt itself."""
    while frame is not None:
        if frame.f_globals.get("__name__") in _UNCUT:
            return True
        if frame.f_code is Executor._call.__code__:  # noqa: SLF001 - the stack frames below it are SteadyWorker's own
            return False
        frame = frame.f_back
    return False
