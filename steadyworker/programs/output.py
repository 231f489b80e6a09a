"""
The log of a program's output: each line of output becomes a line of the log, with the job's key.

A program can write more than a log should contain.
Therefore a run can log 256 KiB at once, and 4 KiB more in each second (14 MiB an hour).
At this limit, the log pauses for at least 10 s, and then shows how many lines it left out.
At the end of the run, the log shows the last 20 lines that it left out.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from steadyworker.clock import Clock
from steadyworker.text.plain_text import plain_text

BURST, RATE = 256 << 10, 4 << 10
"""The bytes of output that a run can log at once, and the further bytes that the run can log in each second."""

LONGEST_LINE = 4 << 10
"""The longest line in bytes; a longer line is logged in pieces."""

_LAST = 20
_RESUME = 10 * RATE


class OutputLog:
    """The log of one run's output, for one thread; `last` is the last line of standard error that is not blank."""

    def __init__(self, log: Any, clock: Clock) -> None:
        self.last = b""
        self._log = log
        self._clock = clock
        self._left = float(BURST)
        self._at = clock.monotonic()
        self._out = 0
        self._paused = False
        self._tail: deque[tuple[str, bytes]] = deque(maxlen=_LAST)

    def line(self, stream: str, line: bytes) -> None:
        """Log one line, given without its line end; ignore a blank line; at the limit, only count the line."""
        if not line.strip():
            return
        if stream == "stderr":
            self.last = line
        now = self._clock.monotonic()
        self._left = min(float(BURST), self._left + (now - self._at) * RATE)
        self._at = now
        self._paused = self._left < (_RESUME if self._paused else len(line))
        if self._paused:
            self._out += 1
            self._tail.append((stream, line))
            return
        self._left -= len(line)
        self._log_left_out()
        self._write(stream, line)

    def close(self) -> None:
        """Log the last omitted lines, and the number of omitted lines before them."""
        self._out -= len(self._tail)
        tail = list(self._tail)
        self._tail.clear()
        self._log_left_out()
        for stream, line in tail:
            self._write(stream, line)

    def _log_left_out(self) -> None:
        if self._out > 0:
            limit, entry = f"{BURST} bytes at once, {RATE} a second", "steadyworker.output-left-out"
            self._log.warning("output_left_out", lines=self._out, limit=limit, explain=entry)
        self._out = 0
        self._tail.clear()

    def _write(self, stream: str, line: bytes) -> None:
        self._log.info("output", stream=stream, line=plain_text(line, LONGEST_LINE))
