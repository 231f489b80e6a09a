"""
gzip in members of a fixed size: equal input gives equal output, whatever the sizes of the writes.

Each member except the last has 4 MiB of input; the last member has the rest.
Members contain no file name and no time.
Several threads compress members in parallel, because zlib releases the GIL while it works.
Every reader of gzip reads the members as one file.
"""

from __future__ import annotations

import gzip
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from steadyworker.exports.render import Out

MEMBER = 4 << 20
"""The size of a member before compression, in bytes."""

_LEVEL = 6


class Gzip:
    """A compressor that writes the compressed bytes to `out`; the caller must call `finish`."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._rest = bytearray()
        self._members = 0
        workers = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(workers, "gzip")
        self._most = 2 * workers
        self._under_way: deque[Future[bytes]] = deque()

    def write(self, data: bytes | memoryview, /) -> int:
        """Accept all these bytes, and return their number."""
        self._rest += data
        while len(self._rest) >= MEMBER:
            self._submit(bytes(self._rest[:MEMBER]))
            del self._rest[:MEMBER]
        return len(data)

    def finish(self) -> None:
        """Write the remaining bytes; if there was no input, write one empty member."""
        if self._rest or not self._members:
            self._submit(bytes(self._rest))
            self._rest.clear()
        while self._under_way:
            self._out.write(self._under_way.popleft().result())

    def close(self) -> None:
        """End the threads, even if `finish` was not called."""
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, data: bytes) -> None:
        self._members += 1
        self._under_way.append(self._pool.submit(gzip.compress, data, _LEVEL, mtime=0))
        if len(self._under_way) > self._most:
            self._out.write(self._under_way.popleft().result())
