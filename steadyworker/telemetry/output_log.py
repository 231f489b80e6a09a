"""
The log of output: each line that a handler or a program prints becomes a line `output` of the log, with the job's key.

A job can print more than a log should contain.
Therefore a run can log 256 KiB at once, and 4 KiB more in each second (14 MiB an hour).
At this limit, the log pauses for at least 10 s, and then shows how many lines it left out.
At the end of the run, the log shows the last 20 lines that it left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from steadyworker.clock import Clock
from steadyworker.text.plain_text import plain_text

BURST, RATE = 256 << 10, 4 << 10
"""The bytes of output that a run can log at once, and the further bytes that the run can log in each second."""

LONGEST_LINE = 4 << 10
"""The longest line in bytes; a longer line is logged in pieces."""

_FIRST, _LATER = 0b1100_0000, 0b1000_0000
"""In UTF-8, each byte of a letter after the first one begins with the bits 10."""

_LETTER = 4
"""The most bytes of one letter in UTF-8."""

_LAST = 20
_RESUME = 10 * RATE


class HalfLine:
    """The end of a stream so far, which waits for the rest of its line; at most `longest` bytes wait."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that this data completes; empty data completes the last line."""
        lines = (self._rest + data).splitlines()  # of bytes, only \n and \r end a line; a progress bar writes only \r
        ended = not data or data.endswith((b"\n", b"\r")) or len(lines[-1]) > self._longest
        self._rest = b"" if ended else lines.pop()
        return lines


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

    def lines(self, stream: str, lines: Sequence[bytes]) -> None:
        """Log these lines, given without their line ends; ignore blank lines; at the limit, only count the lines."""
        pieces = [line for line in lines if line.strip()]
        if any(len(piece) > LONGEST_LINE for piece in pieces):
            pieces = [piece for line in pieces for piece in _pieces(line)]
        if not pieces:
            return
        if stream == "stderr":
            self.last = pieces[-1]
        now = self._clock.monotonic()
        self._left = min(float(BURST), self._left + (now - self._at) * RATE)
        self._at = now
        for number, piece in enumerate(pieces):
            self._paused = self._left < (_RESUME if self._paused else len(piece))
            if self._paused:  # no later line of this call ends the pause
                self._out += len(pieces) - number
                self._tail.extend((stream, each) for each in pieces[number:][-_LAST:])
                return
            self._left -= len(piece)
            self._log_left_out()
            self._write(stream, piece)

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


def _pieces(line: bytes) -> Sequence[bytes]:
    """Return the line in pieces that are short enough; between two pieces, no letter is cut."""
    if len(line) <= LONGEST_LINE:
        return (line,)
    pieces, begin = [], 0
    while begin < len(line):
        end = begin + LONGEST_LINE
        while len(line) > end > begin + LONGEST_LINE - _LETTER and line[end] & _FIRST == _LATER:
            end -= 1
        pieces.append(line[begin:end])
        begin = end
    return pieces
