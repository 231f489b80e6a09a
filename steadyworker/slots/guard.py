"""
The guard: one small process that outlives the worker process by moments, and ends what its children have started.

::

    SIGKILL ──→ worker process ┐
                               ├── PDEATHSIG ──→ each child dies, and cannot end its own subprocesses any more
                               └── end of stream ──→ the guard kills the sessions of all children,
                                                     then ends, and with it the last hold on the owner's lock

It knows the session of each child from before the child's first task until all its processes are dead.
What handlers in threads start is in the worker process's own session, which the guard ends too if the worker process leads it.
A process that has called setsid itself has left the session: only a cgroup (systemd, Kubernetes) ends it.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

from steadyworker.clock import Clock
from steadyworker.system.interpreter import command
from steadyworker.telemetry.logs import get_logger

_PAUSE = 10.0
"""Seconds between two starts of a guard, except that the first one that dies is replaced at once."""

_LEAVES_WITHIN = 1.0
_REMEDIES = {
    errno.EMFILE: "raise this process's limit of open files (`ulimit -n`)",
    errno.ENFILE: "raise this system's limit of open files (`fs.file-max`)",
}


class Guard:
    """
    The worker process's side of its guard process; thread-safe.

    The guard process is started for the first session, and replaced when it dies.

    Args:
        held: Descriptors that the guard holds open to its end: the owner's lock.
        clock: The clock whose monotonic time spaces the starts.
    """

    def __init__(self, held: Sequence[int], clock: Clock) -> None:
        self._held = tuple(held)
        self._clock = clock
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: set[int] = set()
        self._start_after = float("-inf")
        self._closed = False
        self._log = get_logger("steadyworker.slots")

    @property
    def pid(self) -> int | None:
        """The guard's process id; None while there is no guard."""
        process = self._process
        return None if process is None else process.pid

    def watch(self, leader: int) -> None:
        """End this session when the worker process dies."""
        with self._lock:
            self._sessions.add(leader)
            if not self._say(f"+{leader}\n"):
                self._replace()

    def watch_own_session(self) -> None:
        """End the session of this process when it dies; ignored if it does not lead it, because others are in it too."""
        if os.getsid(0) == os.getpid():
            self.watch(os.getpid())

    def forget(self, leader: int) -> None:
        """Note that no process of this session lives; call it before the leader is reaped."""
        with self._lock:
            self._sessions.discard(leader)
            if not self._say(f"-{leader}\n"):
                self._replace()

    def check(self) -> None:
        """Start a guard process if there is none, or if it has died; call it once a second."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._replace()

    def close(self) -> None:
        """End the guard process, and with it every session that is left, except this process's own; may be called twice."""
        with self._lock:
            self._closed = True
            own = os.getpid()
            if own in self._sessions and not self._say(f"-{own}\n") and self._process is not None:
                self._process.kill()  # before its stream ends: it would end this session later
            process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LEAVES_WITHIN)

    def _say(self, line: str) -> bool:
        """Send a line without waiting; return False if the guard does not read."""
        if self._process is None or self._process.stdin is None:
            return False
        try:
            os.write(self._process.stdin.fileno(), line.encode())  # shorter than PIPE_BUF: it goes as a whole
        except OSError:  # it is dead, or is stopped and the pipe is full
            return False
        return True

    def _replace(self) -> None:
        """Start a guard process that knows every session; the lock is held."""
        now = self._clock.monotonic()
        if self._closed or not self._sessions or now < self._start_after:
            return
        if (old := self._process) is not None:
            old.kill()  # before its stream ends, because at that end it would kill the sessions
            old.wait()
            if old.stdin is not None:
                old.stdin.close()
            self._process, self._start_after = None, now + _PAUSE
            self._log.warning("guard_replaced", pid=old.pid, code=old.returncode)
        try:
            self._process = self._started()
        except OSError as error:
            self._start_after = now + _PAUSE
            remedy = _REMEDIES.get(error.errno or 0, "allow this user one more process")
            self._log.warning("guard_missing", error=str(error), remedy=remedy)
            return
        for leader in self._sessions:
            self._say(f"+{leader}\n")

    def _started(self) -> subprocess.Popen[bytes]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the guard inherits it
        try:
            process = subprocess.Popen(
                command("steadyworker.slots.guard_process", str(os.getpid()), bare=True),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=self._held,
                start_new_session=True,
                cwd="/",
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert process.stdin is not None  # it was asked for
        os.set_blocking(process.stdin.fileno(), False)
        return process
