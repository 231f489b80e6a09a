"""
The start of a child process, and the spare: one child that is started in advance.

A new child imports what every child needs, and waits for Hello.
Nothing in it depends on the Worker yet, so it can be started early.
The command line starts a spare, which imports at the same time as its worker process.

Each child has a session of its own, so that a terminal's Ctrl-C does not reach it.
It is started by exec, never by a bare fork.
PDEATHSIG fires when the *thread* that started a child ends: that thread must live as long as the child.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from steadyworker.lifecycle import PAUSE_SIGNALS, STOP_SIGNALS
from steadyworker.slots.inherited import PREFIX
from steadyworker.system.interpreter import command

# Variables that systemd sets for the worker process, not for its children.
_NOT_INHERITED = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}
)


class Started(NamedTuple):
    """A child before Hello: its process, and the worker process's end of the socket."""

    process: subprocess.Popen[bytes]
    wire: socket.socket

    def end(self) -> None:
        """Kill the child, and wait for its end; it has started no process yet."""
        self.wire.close()
        self.process.kill()
        self.process.wait()


def start() -> Started:
    """Start a child; raise OSError when the system allows no further process."""
    ours, theirs = socket.socketpair()
    # The signals stay blocked in the child until it has set its handlers; then it unblocks them itself.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS | PAUSE_SIGNALS)
    try:
        with theirs:
            process = subprocess.Popen(
                command("steadyworker.slots.child", str(theirs.fileno()), str(os.getpid())),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=_environment(),
            )
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Started(process, ours)


class Spare:
    """
    A child in reserve, for the slot that needs one first; a context, at whose end an untaken child is killed.

    Create it in the main thread: the thread that creates it must live as long as the worker process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place = _place()
        self._started: Started | None = start()

    def take(self) -> Started | None:
        """
        Return the child to the first caller, else None.

        Return None, too, if the child is dead, or if a new child would have another environment or working directory.
        """
        with self._lock:
            started, self._started = self._started, None
        if started is not None and (started.process.poll() is not None or self._place != _place()):
            started.end()
            return None
        return started

    def close(self) -> None:
        """End the child, unless it was taken; may be called twice."""
        with self._lock:
            started, self._started = self._started, None
        if started is not None:
            started.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}


def _place() -> tuple[dict[str, str], Path]:
    """Return what a child inherits, and a user's module may change during its import; Hello brings the settings."""
    inherited = _environment()
    return {name: value for name, value in inherited.items() if not name.startswith(PREFIX)}, Path.cwd()
