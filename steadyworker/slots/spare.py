"""
The first moment of a child: a process that knows nobody yet, at the other end of a socket.

It imports what every child needs, and waits for Hello.
So one may be started before anybody knows what for: the command line starts a spare one, which imports beside its worker process.

A child is a session of its own, so that a terminal's Ctrl-C does not reach it; it is started by exec, never a bare fork.
PDEATHSIG fires when the *thread* that started a child ends: that thread has to live as long as the child.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from steadyworker.lifecycle import STOP_SIGNALS

# What systemd said to the worker process, not to its children.
_NOT_INHERITED = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}
)


class Started(NamedTuple):
    """A child that nobody has spoken to: its process, and our end of the socket."""

    process: subprocess.Popen[bytes]
    wire: socket.socket

    def end(self) -> None:
        """Kill it, and wait for its end; it has started nothing yet."""
        self.wire.close()
        self.process.kill()
        self.process.wait()


def start() -> Started:
    """Start a child; raises OSError when there can be no further process."""
    ours, theirs = socket.socketpair()
    # Blocked in the child until its handlers are there; then it unblocks them itself.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "steadyworker.slots.child", str(theirs.fileno()), str(os.getpid())],
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
    A child in reserve, for whichever slot needs one first; a context, at whose end it is gone unless it was taken.

    Its thread has to live as long as the worker process: make it in the main thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place = _place()
        self._started: Started | None = start()

    def take(self) -> Started | None:
        """
        The child, for whoever asks first.

        None when it is taken or dead, or when it has another environment or working directory than a new one would have.
        """
        with self._lock:
            started, self._started = self._started, None
        if started is not None and (started.process.poll() is not None or self._place != _place()):
            started.end()
            return None
        return started

    def close(self) -> None:
        """End it, unless it was taken; safe twice."""
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
    """What a child inherits and a user's module may change while it is imported."""
    return _environment(), Path.cwd()
