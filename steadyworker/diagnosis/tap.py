"""
The records of a trace: what happens to connections, in the order of time, from the relay or from a file of packets.

`Tap` passes the records from the relay's thread to the reader's thread, and never waits for the reader.
If too many bytes wait for the reader, further bytes pass without a copy, and a later record has their number.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

MOST_WAITING = 1 << 25
"""The bytes that may wait for the reader; each record counts as `OVERHEAD` bytes more."""

OVERHEAD = 400


class Side(IntEnum):
    """An end of a connection; the side of some bytes is the end that sent them."""

    CLIENT = 0
    BROKER = 1

    @property
    def other(self) -> Side:
        """The other end."""
        return Side(1 - self)

    @property
    def label(self) -> str:
        """The side's name in events."""
        return "broker" if self else "client"


class What(IntEnum):
    """The kinds of records."""

    DATA = 0
    SKIPPED = 1
    """Bytes that passed without being read."""
    OPENED = 2
    """A client connected."""
    CONNECTED = 3
    """The connection to the broker is ready, too, with TLS if TLS was requested."""
    FAILED = 4
    """The broker could not be reached, or TLS failed."""
    ENDED = 5
    """A side closed its direction (FIN)."""
    RESET = 6
    """A side reset the connection (RST)."""
    BLOCKED = 7
    """The relay begins, or no longer needs, to wait for a side that does not read; meanwhile, it reads nothing of the other side."""
    CLOSED = 8
    """Both sockets are closed; `by_trace` if the trace ended first."""
    TROUBLE = 9
    """The relay cannot accept or make connections, or has made a mistake; `link` is 0 if no connection is meant."""


@dataclass(frozen=True, slots=True)
class TapRecord:
    """One record: bytes that passed (`data`), the number of bytes without a copy (`size`), or another event (`facts`)."""

    what: What
    link: int
    side: Side
    t: float
    data: bytes = b""
    size: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


class Tap:
    """A queue of records with one writer and one reader, each of which may be a thread; at most `most` bytes wait."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most = most
        self._records: queue.SimpleQueue[TapRecord | None] = queue.SimpleQueue()
        self._written = self._read = 0  # bytes; each number has one thread that changes it

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes may wait for the reader, too."""
        return self._written - self._read + size <= self._most

    def data(self, link: int, side: Side, t: float, data: bytes) -> bool:
        """Report bytes to the reader, and return True; return False if the reader is too far behind."""
        if not self.has_room(len(data)):
            return False
        self._written += len(data) + OVERHEAD
        self._records.put(TapRecord(What.DATA, link, side, t, data))
        return True

    def note(self, what: What, link: int, side: Side, t: float, size: int = 0, **facts: Any) -> None:
        """Report another event to the reader."""
        self._written += OVERHEAD
        self._records.put(TapRecord(what, link, side, t, size=size, facts=facts))

    def finish(self) -> None:
        """Report that no further record comes."""
        self._records.put(None)

    def records(self, within: float) -> Iterator[TapRecord]:
        """
        Wait for a record, and yield the records that wait.

        Raises:
            queue.Empty: No record came within this time, in seconds.
            EOFError: No further record comes.
        """
        record = self._records.get(timeout=within)
        for left in range(self._records.qsize(), -1, -1):
            if record is None:
                raise EOFError
            yield record
            self._read += len(record.data) + OVERHEAD
            if left:
                record = self._records.get()
