"""
The writing of log lines to a descriptor, so that no caller ever waits for the process that reads the lines.

::

    write ── the descriptor accepts the line at once ──→ written
          └─ its reader is late ──→ the backlog, at most 4 MiB ──→ a thread writes it when the reader returns
                                    └─ full ──→ the line is lost, and counted

The reader of a pipe can stand still: a terminal after Ctrl-S, `tee` on a full disk, a container's log driver that blocks.
A pipe holds 64 KiB (pipe(7)), and then a plain write waits until the reader returns.
The first line that a returning reader reads is the number of lost lines.

A line that can be written at once is written before `write` returns.
So the last lines before a crash are not lost, and there is no thread while the reader keeps up.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

MOST_BYTES = 4 << 20
"""The longest backlog, in bytes: about 10,000 lines of jobs."""

_AGAIN_AFTER = 1.0
"""The seconds between two tries to write to a descriptor with an error, such as a file on a full disk."""

Send = Callable[[bytes], int]
"""A function that writes what the descriptor accepts now, and returns the number of bytes; it raises OSError."""


class LineWriter:
    """
    The writer of one descriptor; thread-safe, and usable in a fork of its process.

    `lost` is the number of lost lines.

    Args:
        descriptor: The descriptor, which the caller keeps open.
        report: A function that returns the line that reports a number of lost lines.
        most: The longest backlog, in bytes.
    """

    def __init__(self, descriptor: int, report: Callable[[int], bytes], most: int = MOST_BYTES) -> None:
        self.lost = 0
        self._descriptor = descriptor
        self._report = report
        self._most = most
        self._at_once = _sends_at_once(descriptor)
        self._begin()

    def _begin(self) -> None:
        """Begin without a backlog, because a fork of this process has neither the thread nor the lines of its parent."""
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._backlog: deque[bytes] = deque()
        self._size = 0
        self._unreported = 0
        self._cut = False
        self._thread: threading.Thread | None = None

    def write(self, line: bytes) -> None:
        """
        Write the line at once, append it to the lines that wait, or count it as lost.

        This method never waits, and raises nothing.
        """
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            if not self._waits():
                rest = self._rest_of(line)
                if not rest:
                    return
                self._cut, line = rest != line, rest
            if self._backlog and self._size + len(line) > self._most:
                self.lost += 1
                self._unreported += 1
            else:
                self._backlog.append(line)
                self._size += len(line)
            self._wake()

    def drain(self, within: float) -> None:
        """Wait at most this many seconds until no line is left to write."""
        if self._pid == os.getpid():
            with self._changed:
                self._changed.wait_for(lambda: not self._waits(), within)

    def _waits(self) -> bool:
        return bool(self._backlog or self._unreported)

    def _rest_of(self, line: bytes) -> bytes:
        """Write what the descriptor accepts now, and return the rest."""
        try:
            return line if self._at_once is None else line[self._at_once(line) :]
        except OSError:  # the reader is late or gone, or the disk is full
            return line

    def _wake(self) -> None:
        """Wake the thread, or start it; the caller holds the lock."""
        if self._thread is None:
            # This is set before the start, because a signal handler that logs can run this code once more.
            self._thread = threading.Thread(target=self._run, name="steadyworker-log", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the system allows no further thread; the next line tries again
                self._thread = None
        self._changed.notify_all()

    def _run(self) -> None:
        """Write the lines that wait; only this thread waits for the reader."""
        writable = select.poll()
        writable.register(self._descriptor, select.POLLOUT)
        while True:
            with self._changed:
                self._changed.wait_for(self._waits)
            writable.poll()
            with self._changed:
                # The number comes before the lines that still wait, so that a reader that returns gets the number first.
                number = 0 if self._cut else self._unreported
                self._cut = False
                line = b"" if number else self._backlog[0]
            self._send(line or self._report(number), writable)
            with self._changed:
                if number:
                    self._unreported -= number
                else:
                    self._backlog.popleft()
                    self._size -= len(line)
                self._changed.notify_all()

    def _send(self, line: bytes, writable: select.poll) -> None:
        """Write the whole line, however long the write takes."""
        send = self._at_once or partial(os.write, self._descriptor)
        while line:
            try:
                line = line[send(line) :]
            except BlockingIOError:
                writable.poll()
            except OSError:  # the loop writes the rest a little later
                time.sleep(_AGAIN_AFTER)


def _sends_at_once(descriptor: int) -> Send | None:
    """
    Return a function that raises BlockingIOError if a plain write would wait for a reader; None if no such function exists.

    All processes that have inherited an open file share its O_NONBLOCK, so this code must not set O_NONBLOCK there.
    Linux can open a pipe or a terminal again through /proc (proc(5), /proc/pid/fd); the new open file has its own O_NONBLOCK.
    """
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return partial(os.write, descriptor)  # a write to a file waits for no reader
        if stat.S_ISSOCK(mode):  # the socket of a journal
            theirs = socket.socket(fileno=os.dup(descriptor))
            return lambda data: theirs.send(data, socket.MSG_DONTWAIT)
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # not on Linux, or another user's terminal
        return None
    return partial(os.write, own)
