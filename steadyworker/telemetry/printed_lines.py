"""
The prints of this process as lines of the log, if the log is JSON.

A handler in a thread prints to the streams of the worker process itself, and a pipe there would mix the output of all slots.
So `sys.stdout` and `sys.stderr` become streams that write each line as a line `output` of the log.
A line has the fields of the context in which it was printed: in a run, the job's key.
What C libraries and subprocesses write to descriptors 1 and 2 stays as it is.
A pipe would lose the last words of a crash, because only this process could read the pipe.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from steadyworker.clock import SystemClock
from steadyworker.telemetry.logs import context_fields, get_logger, settle, writes_json
from steadyworker.telemetry.output_log import HalfLine, OutputLog

_STREAMS = ("stdout", "stderr")


def log_prints(format: str) -> Callable[[], None]:
    """
    Log what this process prints from now on; return a function that restores the previous streams.

    `format` is the format of the log (`configure`); a stream that is a terminal stays as it is.
    """
    before = {name: getattr(sys, name) for name in _STREAMS}
    printed: list[_Printed] = []
    if writes_json(format, sys.stderr):
        for name, stream in before.items():
            if (descriptor := _descriptor(stream)) is not None and not os.isatty(descriptor):
                printed.append(_Printed(name, descriptor))
                buffer: Any = printed[-1]
                text = io.TextIOWrapper(buffer, "utf-8", "backslashreplace", newline="\n", write_through=True)
                setattr(sys, name, text)
        settle()

    def give_back() -> None:
        for name, stream in before.items():
            setattr(sys, name, stream)
        for each in printed:
            each.finish()

    return give_back


def _descriptor(stream: Any) -> int | None:
    """Return the descriptor of a stream, or None if it has none, because a program can replace a stream by any object."""
    try:
        return int(stream.fileno())
    except Exception:  # noqa: BLE001 - an object of a user can raise anything
        return None


class _Printed(io.BufferedIOBase):
    """The bytes that one stream gets; each thread has its own half line, and its own limit."""

    def __init__(self, name: str, descriptor: int) -> None:
        super().__init__()
        self._name = name
        self._descriptor = descriptor
        self._threads = threading.local()
        self._all: weakref.WeakSet[_OfThread] = weakref.WeakSet()

    @override
    def write(self, data: Any) -> int:
        if not hasattr(self._threads, "own"):
            self._threads.own = _OfThread(self._name)
            self._all.add(self._threads.own)
        self._threads.own.write(bytes(data))
        return len(data)

    @override
    def writable(self) -> bool:
        return True

    @override
    def fileno(self) -> int:
        return self._descriptor

    def finish(self) -> None:
        """Log half lines, and what the limits left out."""
        for each in list(self._all):
            each.finish()


class _OfThread:
    """What one thread prints to one stream."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._half = HalfLine()
        self._fields: dict[str, Any] | None = None
        self._log: OutputLog | None = None
        self._writing = False

    def write(self, data: bytes) -> None:
        """Log the lines that this data completes."""
        if self._writing:  # a logging handler of a user prints the line that is being logged
            return
        self._writing = True
        try:
            fields = context_fields()
            if self._log is None or fields != self._fields:
                self._end()
                self._fields, self._log = (
                    fields,
                    OutputLog(get_logger("steadyworker.output").bind(**fields), SystemClock()),
                )
            self._log.lines(self._name, self._half.feed(data) if data else [])
        finally:
            self._writing = False

    def finish(self) -> None:
        """Log the half line, and what the limit left out."""
        self._writing = True
        try:
            self._end()
        finally:
            self._writing = False

    def _end(self) -> None:
        if self._log is not None:
            self._log.lines(self._name, self._half.feed(b""))
            self._log.close()
            self._log = None
