"""
The start of a child process.

A child is always a new program, started by exec, and never a bare fork.
Each child has a session of its own, so that a terminal's Ctrl-C does not reach the child.
Linux kills a child (PDEATHSIG) when the *thread* that started the child ends.
So the runner's thread starts the children, and lives longer than each of them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from steadyworker.lifecycle import PAUSE_SIGNALS, STOP_SIGNALS
from steadyworker.slots.dispositions import STDERR
from steadyworker.slots.frames import PROTOCOL
from steadyworker.system.interpreter import command
from steadyworker.system.procfs import end_sessions


class NewChild(NamedTuple):
    """
    A child before Hello: its process, and the worker process's end of the socket.

    `stacks` is the file into which the child writes the stacks of its threads; None where the child writes them to standard error.
    """

    process: subprocess.Popen[bytes]
    wire: socket.socket
    stacks: BinaryIO | None = None

    def end(self) -> None:
        """Kill every process of the child's session, and wait for the child's end."""
        self.wire.close()
        if self.stacks is not None:
            self.stacks.close()
        end_sessions([self.process.pid])
        self.process.wait()


def start_child() -> NewChild:
    """
    Start a child; raise OSError when the system allows no further process.

    The child inherits this process's environment, so that a handler's `Client()` can read the worker process's settings.
    The settings are never part of the command line, because every user of the machine can read command lines.
    """
    ours, theirs = socket.socketpair()
    stacks = _stacks_file()
    # These signals stay blocked in the child until the child has set its handlers; then the child unblocks the signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS | PAUSE_SIGNALS)
    try:
        with theirs:
            passed = [theirs.fileno()] if stacks is None else [theirs.fileno(), stacks.fileno()]
            arguments = (theirs.fileno(), os.getpid(), PROTOCOL, STDERR if stacks is None else stacks.fileno())
            process = subprocess.Popen(
                command("steadyworker.slots.child", *map(str, arguments)),
                stdin=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        if stacks is not None:
            stacks.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return NewChild(process, ours, stacks)


def _stacks_file() -> BinaryIO | None:
    """Return a file in memory that this process and a child can share; None where the system has none."""
    with suppress(AttributeError, OSError):
        return os.fdopen(os.memfd_create("steadyworker-stacks"), "w+b", buffering=0)
    return None
