"""
The start of a child process, and the spare: one child that is started in advance.

A new child imports the modules that every child needs, and waits for Hello.
Until Hello, a child does not depend on the Worker, so it can be started early.
The command line starts a spare, so that the spare and the worker process import at the same time.

Each child has a session of its own, so that a terminal's Ctrl-C does not reach it.
A child is always a new program, started by exec, and never a bare fork.
Linux kills a child (PDEATHSIG) when the *thread* that started it ends, so that thread must live as long as the child.
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
        """Kill the child, which has started no process yet, and wait for its end."""
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
    One child in reserve, for the first slot that needs a child; the end of the context kills a child that no slot took.

    Create it in the main thread, because the thread that creates it must live as long as the worker process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place = _place()
        self._started: Started | None = start()

    def take(self) -> Started | None:
        """
        Return the child to the first caller, and None to every later caller.

        The first caller also gets None if the child is dead, or if the environment or working directory has changed.
        """
        with self._lock:
            started, self._started = self._started, None
        if started is not None and (started.process.poll() is not None or self._place != _place()):
            started.end()
            return None
        return started

    def close(self) -> None:
        """End the child, unless a slot has taken it; a second call does nothing."""
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
    """
    Return the environment and working directory that a new child inherits; a user's module can change them at its import.

    SteadyWorker's own variables are left out, because Hello brings them.
    """
    inherited = _environment()
    return {name: value for name, value in inherited.items() if not name.startswith(PREFIX)}, Path.cwd()
