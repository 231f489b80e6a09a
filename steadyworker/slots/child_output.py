"""
What a child prints: its handler, the C libraries in it, and every process that the handler starts.

Standard output and standard error of a child are two pipes.
The runner's thread reads them at the turns of the child's slot, at most 256 KiB of each pipe in one turn.
Each line becomes a line `output` of the log, with the fields of the run in which the child printed the line.
Before the runner receives the end of a run, it reads everything that the run has written.

`OutputLog` limits the lines of a run, and counts the others.
The runner also reads the lines above this limit, so a print waits at most for the runner's next turn.
A job that prints nothing causes no turn.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Mapping
from contextlib import suppress

from steadyworker.clock import Clock
from steadyworker.link import Task
from steadyworker.slots.base import PolledSlot, SlotPoll
from steadyworker.slots.spawn import PIPE_BYTES
from steadyworker.telemetry.logs import get_logger
from steadyworker.telemetry.output_log import HalfLine, OutputLog

_MOST_CHUNKS = 4
"""The most chunks that are left in a pipe: 1 MiB, the largest pipe of an unprivileged process (pipe(7))."""


class ChildOutput:
    """
    The pipes of one child, by the names of their streams; only the runner's thread uses them.

    `poll` gives `slot` a turn when the child prints.
    """

    def __init__(self, ends: Mapping[str, int], queue: str, slot: PolledSlot, poll: SlotPoll, clock: Clock) -> None:
        self._names = {end: name for name, end in ends.items()}
        self._piped = "stderr" in ends
        self._halves: dict[str, HalfLine] = {}
        self._queue = queue
        self._task: Task | None = None
        self._clock = clock
        self._poll = poll
        self._ready = select.poll()
        self._log: OutputLog | None = None
        for end in ends.values():
            self._ready.register(end, select.POLLIN)
            poll.watch(end, slot)

    def read(self) -> bool:
        """Log one chunk of each pipe that has output; return False if no pipe has output."""
        if not self._names:
            return False
        ready = self._ready.poll(0)
        for end, _ in ready:
            data = b""
            with suppress(OSError):  # macOS reports some errors of a pipe in this way
                data = os.read(end, PIPE_BYTES)
            self.add(self._names[end], data)
            if not data:  # every process that had the pipe has closed it
                self._close(end)
        return bool(ready)

    def switch(self, task: Task | None) -> None:
        """Log what was printed until now; later lines get the fields of this task (None between runs)."""
        self._complete()
        if self._log is not None:
            self._log.close()
            self._log = None
        self._task = task

    def close(self) -> None:
        """Log what is left, and close the pipes, which a daemon of the handler can still hold open; a second call does nothing."""
        self.switch(None)
        for end in tuple(self._names):
            self._close(end)

    def add(self, name: str, data: bytes) -> None:
        """Log the lines that this data of a stream completes; empty data completes the last line."""
        if name not in self._halves:
            self._halves[name] = HalfLine()
        lines = self._halves[name].feed(data)
        if not any(lines):
            return
        if self._log is None:
            fields = {"queue": self._queue} if self._task is None else self._task.context()
            self._log = OutputLog(get_logger("steadyworker.output").bind(**fields), self._clock)
        self._log.lines(name, lines)

    def add_error(self, text: str) -> None:
        """Log this text after what the child has printed, as lines of its standard error; on a terminal, write it there."""
        if self._piped:
            self._complete()
            self.add("stderr", text.encode())
            return
        with suppress(OSError, ValueError, AttributeError):  # standard error is closed
            sys.stderr.write(text)
            sys.stderr.flush()

    def _complete(self) -> None:
        """Log what was printed until now; an unfinished line counts as a whole line."""
        for _ in range(_MOST_CHUNKS):
            if not self.read():
                break
        for name in self._halves:
            self.add(name, b"")
        self._halves.clear()

    def _close(self, end: int) -> None:
        self._ready.unregister(end)
        self._poll.forget(end)
        del self._names[end]
        os.close(end)
