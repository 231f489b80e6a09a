"""
Cuts a log into records; a record is a line with the lines that belong to it.

| format | a record begins with | lines that belong to the record |
|---|---|---|
| RabbitMQ from 3.9 | a time, a level and a process | the lines with exactly the same time, level and process |
| RabbitMQ 3.7 and 3.8, ActiveMQ, Artemis, RocketMQ, Python, Ruby, PHP, structlog | a time | all lines up to the next time |
| RabbitMQ up to 3.6 | `=ERROR REPORT==== 1-May-2018::10:00:00 ===` | all lines up to the next report |
| JSON Lines | each line | its fields, as a line of text that the same expressions match |
| anything else | each line | indented lines, stack traces, and the rest of a Python traceback |

First, the prefix of a collector is removed from each line.
The known collectors are journald, syslog, docker, docker compose, kubectl and CRI.
If the prefix names the process, lines of several processes may be mixed: each process has its own open record.

The input may be any bytes, and the memory is bounded.
A line of more than 64 KiB loses its middle.
A record of more than 64 KiB ends, and the lines that follow become another record.
Colours and NULs are removed, and bytes that are not UTF-8 become U+FFFD.

A block of ordinary lines is not cut at all, because `Skip` recognises such a block much faster than it can be cut.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from steadyworker.diagnosis.formats import Start, as_line, continues, prefix, start

LONGEST = 64 << 10
"""The largest size of a line and of a record, in bytes and in characters."""

_TAIL = 16 << 10
_MOST_LINES = 2000
_MOST_OPEN = 64
_PIECE = 32 << 10
_EDGE = 8  # the number of lines at each end of a skipped block that are always cut
_BACK = 200  # lines
_ANSI = re.compile(rb"\x1b(?:\[[0-9:;<=>?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_HOLE = re.compile(rb"\0{8,}")
_START = re.compile(rb"[\[(]?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:|=[A-Z]+ REPORT====|\{|[A-Z][a-z]{2} [ \d]\d \d\d:")

Skip = Callable[[bytes], bool]
"""A function that returns whether whole lines contain nothing of interest."""


@dataclass(frozen=True, slots=True)
class Record:
    """
    One message of a log.

    Attributes:
        source: The name of the file, or "-".
        line: The number of the record's first line in the source, counted from 1.
        text: The record's lines, joined by newlines, without a collector's prefix.
        stamp: The record's time, as it is written in the log; empty if there is no time.
        process: The process that wrote the record, if a collector names the process.
    """

    source: str
    line: int
    text: str
    stamp: str = ""
    process: str = ""


@dataclass(slots=True)
class _Open:
    """A record to which further lines may belong."""

    line: int
    start: Start
    lines: list[str] = field(default_factory=list)
    size: int = 0


class Cutter:
    """The records of one source, made from blocks of bytes as they come."""

    def __init__(self, source: str, skip: Skip | None = None) -> None:
        self.source = source
        self.lines = 0
        self._skip = skip
        self._rest = b""
        self._open: dict[str, _Open] = {}

    def feed(self, block: bytes) -> Iterator[Record]:
        """Yield the records that end within this block; the last record stays open until a later line or `flush`."""
        data = self._rest + block if self._rest or self.lines else block.removeprefix(codecs.BOM_UTF8)
        end = data.rfind(b"\n") + 1
        self._rest = _shortened(data[end:])
        begin = 0
        while begin < end:  # in pieces, because a line of interest causes a search of its whole piece
            piece = data.rfind(b"\n", begin, begin + _PIECE) + 1 or data.find(b"\n", begin) + 1
            yield from self._cut(data[begin:piece])
            begin = piece

    def flush(self) -> Iterator[Record]:
        """Yield the open records, because no further line is expected soon."""
        for process, record in list(self._open.items()):
            yield from self._close(process, record)

    def end(self) -> Iterator[Record]:
        """Yield the remaining records; the last line need not have a newline."""
        if self._rest:
            rest, self._rest = self._rest, b""
            yield from self._cut(rest + b"\n")
        yield from self.flush()

    def _cut(self, block: bytes) -> Iterator[Record]:
        """Cut a block of whole lines; if a part is of no interest, cut only its two ends."""
        if b"\x1b" in block:
            block = _ANSI.sub(b"", block)
        if b"\0" in block:
            block = _without_nuls(block)
        head, tail = _edges(block)
        middle = block.rfind(b"\n", 0, len(block) // 2) + 1
        if self._skip is None or head >= tail or not middle:
            yield from self._lines(block)
        elif self._skip(block):
            yield from self._lines(block[:head])
            yield from self.flush()
            self.lines += block.count(b"\n", head, tail)
            yield from self._lines(block[tail:])
        else:
            yield from self._cut(block[:middle])
            yield from self._cut(block[middle:])

    def _lines(self, block: bytes) -> Iterator[Record]:
        for raw in block.split(b"\n")[:-1]:
            self.lines += 1
            line = _shortened(raw.removesuffix(b"\r")).decode("utf-8", "replace")
            process, text, stamp = prefix(line)
            yield from self._add(process, text, stamp)

    def _add(self, process: str, line: str, stamp: str) -> Iterator[Record]:
        """Add a line to the open record of its process, or open a new record."""
        record = self._open.get(process)
        text = as_line(line) if line.startswith("{") else line
        begins = start(text)
        if text is not line and begins is not None:
            begins = Start(begins.stamp, whole=True)  # each line of JSON is a whole record
        if record is not None:
            if begins is not None and begins.head and begins.head == record.start.head:
                text, begins = text[len(begins.head) :], None  # RabbitMQ repeats time, level and process on each line
                belongs = True
            else:
                belongs = continues(record.lines, record.start, text, begins)
            full = record.size + len(text) > LONGEST or len(record.lines) >= _MOST_LINES
            if belongs and not full:
                record.lines.append(text)
                record.size += len(text) + 1
                return
            yield from self._close(process, record)
        if not text and begins is None:
            return
        if len(self._open) >= _MOST_OPEN:
            oldest = next(iter(self._open))
            yield from self._close(oldest, self._open[oldest])
        begins = begins or Start()
        self._open[process] = _Open(
            self.lines, Start(begins.stamp or stamp, begins.head, begins.whole), [text], len(text)
        )

    def _close(self, process: str, record: _Open) -> Iterator[Record]:
        del self._open[process]
        while record.lines and not record.lines[-1].strip():
            record.lines.pop()
        if record.lines:
            yield Record(self.source, record.line, "\n".join(record.lines), record.start.stamp, process)


def _shortened(line: bytes) -> bytes:
    """Return the line without its middle if it is too long."""
    return line if len(line) <= LONGEST else line[: LONGEST - _TAIL] + line[-_TAIL:]


def _without_nuls(text: bytes) -> bytes:
    """
    Return a text without its NULs, but with a single one, which can be part of a log's text.

    A program that still writes to a truncated file leaves NULs before its next line; in UTF-16, every second byte is a NUL.
    """
    return text.replace(b"\0", b"") if text.count(b"\0") * 4 > len(text) else _HOLE.sub(b"", text)


def _edges(block: bytes) -> tuple[int, int]:
    """Return where the first lines end and the last lines begin; the last lines begin with the start of a record."""
    head, tail = 0, len(block)
    for _ in range(_EDGE):
        head = block.find(b"\n", head) + 1
        if not head:
            return 0, 0
    for back in range(_BACK):
        tail = block.rfind(b"\n", head, tail - 1) + 1
        if not tail:
            return 0, 0
        if back >= _EDGE and _START.match(block, tail):
            break
    return head, tail
