"""
The start of a child process.

A child is always a new program, started by exec, and never a bare fork.
Each child has a session of its own, so that a terminal's Ctrl-C does not reach the child.
Linux kills a child (PDEATHSIG) when the *thread* that started the child ends.
So the runner's thread starts the children, and lives longer than each of them.

If the log is not for a terminal, standard output and standard error of a child are pipes, which the runner reads.
The child's own log lines do not go through these pipes: the child writes them to this process's standard error.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

from steadyworker.lifecycle import PAUSE_SIGNALS, STOP_SIGNALS
from steadyworker.slots.dispositions import STDERR
from steadyworker.slots.frames import PROTOCOL
from steadyworker.system.interpreter import command
from steadyworker.system.procfs import end_sessions

STREAMS: Mapping[str, int] = MappingProxyType({"stdout": 1, "stderr": 2})
"""The streams of a child's output, with their descriptors."""


PIPE_BYTES = 256 << 10
"""The size of an output pipe: with the system's 64 KiB, a handler that prints much would wait for the runner more often."""


class NewChild(NamedTuple):
    """
    A child before Hello: its process, the worker process's end of the socket, and its ends of the child's output pipes.

    `stacks` is the file into which the child writes the stacks of its threads; None where the child writes them to standard error.
    `output` has the end of each stream that is a pipe, by the stream's name.
    """

    process: subprocess.Popen[bytes]
    wire: socket.socket
    stacks: BinaryIO | None = None
    output: Mapping[str, int] = MappingProxyType({})

    def end(self) -> None:
        """Kill every process of the child's session, and wait for the child's end."""
        self.wire.close()
        if self.stacks is not None:
            self.stacks.close()
        for end in self.output.values():
            os.close(end)
        end_sessions([self.process.pid])
        self.process.wait()


def start_child(*, lines: bool) -> NewChild:
    """
    Start a child; raise OSError when the system allows no further process.

    With `lines`, standard output and standard error of the child are pipes, unless the stream is a terminal.
    The child inherits this process's environment, so that a handler's `Client()` can read the worker process's settings.
    The settings are never part of the command line, because every user of the machine can read command lines.
    """
    ours, theirs = socket.socketpair()
    stacks = _stacks_file()
    # These signals stay blocked in the child until the child has set its handlers; then the child unblocks the signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS | PAUSE_SIGNALS)
    try:
        with theirs, _pipes(lines=lines) as (output, ends, log):
            passed = (theirs.fileno(), *log) if stacks is None else (theirs.fileno(), stacks.fileno(), *log)
            file = STDERR if stacks is None else stacks.fileno()
            process = subprocess.Popen(
                command("steadyworker.slots.child", *map(str, (theirs.fileno(), os.getpid(), PROTOCOL, file, *log))),
                stdin=subprocess.DEVNULL,
                stdout=ends.get("stdout"),
                stderr=ends.get("stderr"),
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
    return NewChild(process, ours, stacks, output)


def _stacks_file() -> BinaryIO | None:
    """Return a file in memory that this process and a child can share; None where the system has none."""
    with suppress(AttributeError, OSError):
        return os.fdopen(os.memfd_create("steadyworker-stacks"), "w+b", buffering=0)
    return None


@contextmanager
def _pipes(*, lines: bool) -> Iterator[tuple[dict[str, int], dict[str, int], tuple[int, ...]]]:
    """
    Open the pipes of a child's output; on leaving the block, close the child's ends, and after an error all ends.

    Yield this process's ends, the child's ends, and the descriptor for the child's log lines if standard error is a pipe.
    """
    ours: dict[str, int] = {}
    theirs: dict[str, int] = {}
    log: tuple[int, ...] = ()
    try:
        for name, descriptor in STREAMS.items():
            if lines and not os.isatty(descriptor):
                ours[name], theirs[name] = os.pipe()
                os.set_blocking(ours[name], False)
                with suppress(AttributeError, OSError):  # not on Linux, or this user has many large pipes
                    fcntl.fcntl(theirs[name], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        if "stderr" in theirs:
            log = (os.dup(STREAMS["stderr"]),)
        yield ours, theirs, log
    except BaseException:
        for end in ours.values():
            os.close(end)
        raise
    finally:
        for end in (*theirs.values(), *log):
            os.close(end)
