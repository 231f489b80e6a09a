"""
The tap: it passes copied bytes from the relay to the reader, which is another process.

The relay receives bytes into a ring of shared memory, and sends them on from the ring, so the copy costs no time.
Then the relay writes a record of 28 bytes into a pipe: the connection, the side, the time, and the place in the ring.
The reader reads the record, reads the bytes, and frees their place.

    relay    recv into the ring -> send on -> record into the pipe
    reader   record from the pipe -> bytes in the ring -> place freed

The relay never waits for the reader.
If the ring or the pipe is full, bytes pass without being read, and a later record has the number of these bytes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import msgspec

CHUNK = 1 << 18
"""The largest number of bytes that are received at once."""

RING = 1 << 25
"""The size of the ring: the bytes that may wait for the reader."""

OWED = 1 << 20
"""The bytes of records that may wait for room in the pipe; if more would wait, the relay makes no copies."""

_MADV_POPULATE_WRITE = 23
_PIPE = 1 << 20
_HEAD = struct.Struct("<BBHIdQI")


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


_SIDES = tuple(Side)


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
    QUEUE = 7
    """The send queue towards a side does not shrink, or is empty again."""
    CLOSED = 8
    """Both sockets are closed; `by_trace` if the trace ended first."""
    TROUBLE = 9
    """The relay cannot accept connections."""


@dataclass(frozen=True, slots=True)
class TapRecord:
    """
    One record: bytes that passed (`data`), the number of bytes without a copy (`size`), or another event (`facts`).

    `data` may be a place in the ring; this place is used again when the next record is read.
    """

    what: What
    link: int
    side: Side
    t: float
    data: bytes | memoryview = b""
    size: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


class Ring:
    """A ring of shared memory, with a counter of all bytes that the reader has freed."""

    def __init__(self, size: int = RING) -> None:
        self.size = size
        self._memory = mmap.mmap(-1, size + mmap.PAGESIZE)
        self.view = memoryview(self._memory)
        self.freed = self.view[size : size + 8].cast("Q")

    def populate(self) -> None:
        """Allocate the ring's pages now, if the kernel can (Linux 5.14); otherwise the first bytes wait for pages."""
        with suppress(OSError):
            self._memory.madvise(_MADV_POPULATE_WRITE)


class TapWriter:
    """The relay's end of the tap."""

    def __init__(self, ring: Ring, pipe: int) -> None:
        self._ring = ring
        self._pipe = pipe
        self._head = 0
        self._floor = 0  # no byte at a lower position waits, although the reader has perhaps not yet counted all these bytes as free
        self._owed = bytearray()
        os.set_blocking(pipe, False)

    def fileno(self) -> int:
        """Return the descriptor of the pipe."""
        return self._pipe

    def room(self) -> memoryview | None:
        """Return the place in the ring for the next bytes; None if the reader is too far behind."""
        ring = self._ring
        freed = max(ring.freed[0], self._floor)
        at = self._head % ring.size
        empty = freed == self._head
        if ring.size - at < CHUNK or (at and empty):
            # Go back to the ring's start at the ring's end.
            # Also go back when nothing waits, because the start is in the processor's cache.
            self._head += ring.size - at
            at = 0
            if empty:
                freed = self._floor = self._head
        if self._head + CHUNK - freed > ring.size or len(self._owed) > OWED:
            return None
        return ring.view[at : at + CHUNK]

    def data(self, link: int, side: int, t: float, size: int) -> None:
        """Report bytes to the reader; the bytes are at the place that `room` returned."""
        self._owed += _HEAD.pack(What.DATA, side, 0, link, t, self._head, size)
        self._head += size

    def skipped(self, link: int, side: int, t: float, size: int) -> None:
        """Report to the reader the number of bytes that passed without a copy."""
        self._owed += _HEAD.pack(What.SKIPPED, side, 0, link, t, size, 0)

    def note(self, what: What, link: int, side: int, t: float, **facts: Any) -> None:
        """Report another event to the reader."""
        payload = msgspec.json.encode(facts)
        self._owed += _HEAD.pack(what, side, 0, link, t, 0, len(payload)) + payload

    def flush(self) -> bool:
        """Write as many records as the pipe accepts; return whether all records are written."""
        while self._owed:
            try:
                written = os.write(self._pipe, self._owed)
            except BlockingIOError:
                return False
            del self._owed[:written]
        return True

    def finish(self) -> None:
        """Write all records; wait for the reader if necessary."""
        os.set_blocking(self._pipe, True)
        self.flush()


class TapReader:
    """
    The reader's end of the tap; `at_end` is true when the relay has ended.

    Most bytes belong to large bodies, which the trace only counts, so `records` makes no copy.
    """

    def __init__(self, ring: Ring, pipe: int) -> None:
        self._ring = ring
        self._pipe = pipe
        self._unread = bytearray()
        self.at_end = False

    def records(self) -> Iterator[TapRecord]:
        """
        Wait for records, and yield all available records.

        The bytes of a record are valid until the caller requests the next record.
        """
        got = os.read(self._pipe, _PIPE)
        if not got:
            self.at_end = True
            return
        unread = self._unread
        unread += got
        at = 0
        while len(unread) - at >= _HEAD.size:
            what, side, _, link, t, place, size = _HEAD.unpack_from(unread, at)
            if what == What.DATA:
                at += _HEAD.size
                start = place % self._ring.size
                yield TapRecord(What.DATA, link, _SIDES[side], t, self._ring.view[start : start + size])
                self._ring.freed[0] = place + size
                continue
            if len(unread) - at < _HEAD.size + size:
                break
            payload = bytes(unread[at + _HEAD.size : at + _HEAD.size + size])
            at += _HEAD.size + size
            facts = msgspec.json.decode(payload) if payload else {}
            yield TapRecord(What(what), link, _SIDES[side], t, size=place, facts=facts)
        del unread[:at]


def pipe() -> tuple[int, int]:
    """Return the read end and the write end of a pipe for records, which is as large as the system allows."""
    reads, writes = os.pipe()
    with suppress(OSError):  # the system limits a user's pages for pipes; after that, a user gets small pipes
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, _PIPE)
    return reads, writes
