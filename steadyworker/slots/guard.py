"""
The guard: a small process that kills the sessions of all children after the worker process has died.

::

    SIGKILL ──→ worker process ┐
                               ├── PDEATHSIG ──→ each child dies, and cannot end its own subprocesses any more
                               └── end of stream ──→ the guard kills the sessions of all children,
                                                     then ends, which releases the owner's lock

The guard receives a child's session before the child's first task, and forgets the session when all processes of the session are dead.
Handlers in threads start their processes in the worker process's own session.
If the worker process leads this session, the guard ends the session, too.
A process that calls setsid leaves the session; only a cgroup (systemd, Kubernetes) can end such a process.
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
"""The shortest time in seconds between two starts of a guard process, also after a failed start."""

_LEAVES_WITHIN = 1.0
_REMEDIES = {
    errno.EMFILE: "raise this process's limit of open files (`ulimit -n`)",
    errno.ENFILE: "raise this system's limit of open files (`fs.file-max`)",
}


class Guard:
    """
    The worker process's side of its guard process; thread-safe.

    The class starts the guard process for the first session, and replaces a guard process that has died.

    Args:
        held: Descriptors of the owner's lock, which the guard process keeps open until it ends.
        clock: The clock that measures the time between two replacements.
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
        """Add the session of this leader, which the guard process kills when the worker process dies."""
        with self._lock:
            self._sessions.add(leader)
            if not self._send(f"+{leader}\n"):
                self._replace()

    def watch_own_session(self) -> None:
        """Add the session of this process; do nothing if another process leads the session."""
        if os.getsid(0) == os.getpid():
            self.watch(os.getpid())

    def forget(self, leader: int) -> None:
        """Remove this leader's session, when all processes of the session are dead; call this method before the leader is reaped."""
        with self._lock:
            self._sessions.discard(leader)
            if not self._send(f"-{leader}\n"):
                self._replace()

    def check(self) -> None:
        """Start a guard process if there is none, or if the last one has died; call this method once a second."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._replace()

    def close(self) -> None:
        """
        End the guard process, which first kills the remaining sessions; a second call does nothing.

        The guard process does not kill this process's own session.
        """
        with self._lock:
            self._closed = True
            own = os.getpid()
            if own in self._sessions and not self._send(f"-{own}\n") and self._process is not None:
                self._process.kill()  # before the pipe is closed: at the end of its stream, the guard would kill this session
            process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LEAVES_WITHIN)

    def _send(self, line: str) -> bool:
        """Send a line to the guard process without waiting; return False if this fails."""
        if self._process is None or self._process.stdin is None:
            return False
        try:
            os.write(self._process.stdin.fileno(), line.encode())  # atomic, because it is shorter than PIPE_BUF
        except OSError:  # the guard is dead, or is stopped while the pipe is full
            return False
        return True

    def _replace(self) -> None:
        """
        Start a guard process that knows every session; the caller holds the lock.

        The sessions are arguments, because the worker process can be killed before it writes a first line.
        """
        now = self._clock.monotonic()
        if self._closed or not self._sessions or now < self._start_after:
            return
        if (old := self._process) is not None:
            old.kill()  # before the pipe is closed, because at the end of its stream a live guard would kill the sessions
            old.wait()
            if old.stdin is not None:
                old.stdin.close()
            self._process, self._start_after = None, now + _PAUSE
            entry = "steadyworker.guard-replaced"
            self._log.warning("guard_replaced", pid=old.pid, code=old.returncode, explain=entry)
        try:
            self._process = self._started()
        except OSError as error:
            self._start_after = now + _PAUSE
            remedy = _REMEDIES.get(error.errno or 0, "allow this user one more process")
            entry = "steadyworker.guard-missing"
            self._log.warning("guard_missing", error=str(error), remedy=remedy, explain=entry)

    def _started(self) -> subprocess.Popen[bytes]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the guard inherits this mask
        try:
            process = subprocess.Popen(
                command("steadyworker.slots.guard_process", *map(str, (os.getpid(), *self._sessions)), bare=True),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a guard that waits for a reader would keep the owner's lock
                pass_fds=self._held,
                start_new_session=True,
                cwd="/",
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert process.stdin is not None  # stdin=PIPE makes it a pipe
        os.set_blocking(process.stdin.fileno(), False)
        return process
