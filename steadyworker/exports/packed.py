"""
gzip and zstd in members of a fixed size: equal input gives equal output, whatever the sizes of the writes.

Each member except the last has 4 MiB of input; the last member has the rest.
Members of gzip contain no file name and no time; members of zstd are frames that state their size.
A thread for each core compresses members in parallel, because zlib and pyarrow release the GIL while they work.
Every reader of the format reads the members as one file.

gzip has level 6, as `gzip` itself, and zstd level 3, as `zstd` itself.
"""

from __future__ import annotations

import gzip
import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType, TracebackType
from typing import Literal, Self

from steadyworker.errors import ExportRejected
from steadyworker.exports.render import Out
from steadyworker.exports.sources import arrow

Compression = Literal["gzip", "zstd"]

MEMBER = 4 << 20
"""The size of a member before compression, in bytes."""

SUFFIXES: Mapping[str, Compression] = MappingProxyType({".gz": "gzip", ".zst": "zstd"})
"""The compression that the end of a file's name sets."""


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 6, mtime=0)


def _zstd(data: bytes) -> bytes:
    member: bytes = arrow().Codec("zstd", compression_level=3).compress(data, asbytes=True)
    return member


_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType({"gzip": _gzip, "zstd": _zstd})


def check_compression(compression: object) -> None:
    """
    Check that this compression is supported.

    Raises:
        ExportRejected: The compression is neither "gzip", "zstd" nor None.
    """
    if compression not in (None, *_COMPRESS):
        raise ExportRejected(
            f'Expected "gzip", "zstd" or None as compression, got {compression!r}: choose one of them.'
        )


class Packer:
    """A compressor that writes the compressed bytes to `out`; the last of them at the normal end of its `with` block."""

    def __init__(self, out: Out, compression: Compression) -> None:
        self._out, self._compress = out, _COMPRESS[compression]
        self._rest = bytearray()
        self._members = 0
        workers = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(workers, compression)
        self._most = 2 * workers
        self._under_way: deque[Future[bytes]] = deque()

    def write(self, data: bytes | memoryview, /) -> int:
        """Accept all these bytes, and return their number."""
        self._rest += data
        while len(self._rest) >= MEMBER:
            self._submit(bytes(self._rest[:MEMBER]))
            del self._rest[:MEMBER]
        return len(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and (self._rest or not self._members):  # without input, there is one empty member
                self._submit(bytes(self._rest))
            while kind is None and self._under_way:
                self._out.write(self._under_way.popleft().result())
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _submit(self, data: bytes) -> None:
        self._members += 1
        self._under_way.append(self._pool.submit(self._compress, data))
        if len(self._under_way) > self._most:
            self._out.write(self._under_way.popleft().result())
