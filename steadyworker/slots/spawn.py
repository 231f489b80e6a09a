"""
One child process, from its start to its end: start, send, receive, signal, kill, reap.

A child is always a new program, started by exec, and never a bare fork.
Each child has a session of its own, so that a terminal's Ctrl-C does not reach the child.
Linux kills a child (PDEATHSIG) when the *thread* that started the child ends.
So this thread must live as long as the child.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from steadyworker.lifecycle import PAUSE_SIGNALS, STOP_SIGNALS
from steadyworker.slots.frames import PROTOCOL, FromChild, Hello, ToChild, Unpacker, packed
from steadyworker.slots.guard import Guard
from steadyworker.system.interpreter import command
from steadyworker.system.procfs import end_sessions, kill_sessions

_CHUNK = 1 << 16
_POLL_EVERY = 0.25


class NewChild(NamedTuple):
    """A child before Hello: its process, and the worker process's end of the socket."""

    process: subprocess.Popen[bytes]
    wire: socket.socket

    def end(self) -> None:
        """Kill the child, which has started no process yet, and wait for the child's end."""
        self.wire.close()
        self.process.kill()
        self.process.wait()


def start_child() -> NewChild:
    """
    Start a child; raise OSError when the system allows no further process.

    The child inherits this process's environment, so that a handler's `Client()` can read the worker process's settings.
    The settings are never part of the command line, because every user of the machine can read command lines.
    """
    ours, theirs = socket.socketpair()
    # These signals stay blocked in the child until the child has set its handlers; then the child unblocks the signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS | PAUSE_SIGNALS)
    try:
        with theirs:
            process = subprocess.Popen(
                command("steadyworker.slots.child", *map(str, (theirs.fileno(), os.getpid(), PROTOCOL))),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return NewChild(process, ours)


class Waker:
    """A means to wake a thread that waits in `ChildProcess.wait`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None

    def fileno(self) -> int:
        """Return the descriptor that `wake` makes readable."""
        with self._lock:
            if self._pipe is None:
                self._pipe = os.pipe()
                for end in self._pipe:
                    os.set_blocking(end, False)
            return self._pipe[0]

    def wake(self) -> None:
        """Wake the thread; callable from any thread, any number of times."""
        with self._lock, suppress(BlockingIOError):
            if self._pipe is not None:
                os.write(self._pipe[1], b"!")

    def rest(self) -> None:
        """Clear the wake-up."""
        with suppress(BlockingIOError):
            os.read(self.fileno(), _CHUNK)

    def close(self) -> None:
        """Close the descriptors; a second call does nothing."""
        with self._lock:
            pipe, self._pipe = self._pipe, None
            for end in pipe or ():
                os.close(end)


class ChildProcess:
    """
    A running child.

    The constructor sends Hello and the descriptors `held` to the child, which keeps these descriptors open until its end.
    Only one thread calls `wait`, `receive` and `reap`; the other methods are thread-safe.
    `silent` is true when the child has closed its end of the socket: the child is exiting, or is broken.
    `waker` interrupts `wait`.
    `guard` kills the child's session when the worker process dies.
    """

    def __init__(
        self, new: NewChild, hello: Hello, held: Sequence[int], waker: Waker, guard: Guard | None = None
    ) -> None:
        self._process, self._wire = new
        self.pid = self._process.pid
        self.silent = False
        self._guard = guard
        with suppress(OSError):  # the child has died: `receive` finds the end of the stream
            socket.send_fds(self._wire, [packed(hello)], held)
        self._wire.setblocking(False)  # noqa: FBT003 - its name in the standard library
        self._frames: Unpacker[FromChild] = Unpacker(FromChild)
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._reaped = False
        self._waker = waker
        self._poll = select.poll()
        self._poll.register(self._wire, select.POLLIN)
        self._poll.register(waker, select.POLLIN)
        # Without a pidfd (macOS), only polling finds a death, so `wait` returns every 0.25 s.
        self._death = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        if self._death is not None:
            self._poll.register(self._death, select.POLLIN)

    def send(self, frame: ToChild) -> bool:
        """
        Send a frame without waiting; return False if bytes are left.

        After False, the caller must wake `wait`, which sends the rest.
        """
        data = packed(frame)
        with self._lock:
            if self._reaped:
                return True
            self._unsent += data
            return self._flush()

    def wait(self, seconds: float) -> None:
        """Wait at most this many seconds, until the child sends a frame or dies, or the waker wakes this thread."""
        if not self.silent:
            self._poll.modify(self._wire, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        longest = seconds if self._death is not None else min(seconds, _POLL_EVERY)
        for descriptor, _ in self._poll.poll(max(0.0, longest) * 1000):
            if descriptor == self._waker.fileno():
                self._waker.rest()
        with self._lock:
            self._flush()

    def receive(self) -> Iterator[FromChild]:
        """
        Yield the frames that have arrived; set `silent` at the end of the stream.

        Raise ValueError or MsgspecError for invalid data.
        """
        while not self.silent:
            try:
                data = self._wire.recv(_CHUNK)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self.silent = True
                self._poll.unregister(self._wire)
                return
            yield from self._frames.feed(data)
            if len(data) < _CHUNK:
                return

    @property
    def dead(self) -> bool:
        """True when the child has ended; the system does not reuse the child's process id before `reap`."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def signal(self, number: signal.Signals, *, group: bool) -> None:
        """Signal the child, or its whole process group."""
        with self._lock, suppress(ProcessLookupError):
            if not self._reaped:
                (os.killpg if group else os.kill)(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL to every process of the child's session."""
        with self._lock:
            if not self._reaped:
                kill_sessions([self.pid])

    def reap(self) -> int:
        """
        Kill the child's session, wait for the child's end, and close its descriptors.

        Return the code of `Popen.returncode`; a second call returns the same code.
        """
        if self._process.returncode is None:
            end_sessions([self.pid])
            if self._guard is not None:
                self._guard.forget(self.pid)
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:  # meanwhile no thread may signal the child, because the system can reuse the pid
            code = self._process.wait()
            self._reaped = True
            self._wire.close()
            if self._death is not None:
                os.close(self._death)
                self._death = None
        return code

    def _flush(self) -> bool:
        """Send the bytes that the socket accepts; return True if no bytes are left."""
        while self._unsent:
            try:
                sent = self._wire.send(self._unsent)
            except BlockingIOError:
                return False
            except OSError:  # the child is dying: `receive` finds the end of the stream
                self._unsent.clear()
                break
            del self._unsent[:sent]
        return True


def cause_of(code: int) -> str:
    """Return a text for a process's return code, such as `SIGKILL` or `exit 3`."""
    if code >= 0:
        return f"exit {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
