"""Files whose size and hash are computed while they are written, so that no second read is necessary."""

from __future__ import annotations

import builtins
import ctypes
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from steadyworker.errors import ExportError

_PIECE = 1 << 20
_AHEAD = 8 << 20  # bytes; the kernel begins to write each piece of this size to disk at once, so that `sync` waits less
_SYNC_FILE_RANGE_WRITE = 2  # sync_file_range(2), Linux


class OutFile(Protocol):
    """A new file that is written from start to end, wherever its bytes go; pyarrow calls `flush` and `closed`."""

    @property
    def bytes(self) -> int:
        """The number of bytes written."""
        ...

    @property
    def sha256(self) -> str:
        """The SHA-256 of all bytes written so far, in hex digits."""
        ...

    @property
    def closed(self) -> bool:
        """True if the file was closed."""
        ...

    def write(self, data: builtins.bytes | memoryview, /) -> int:
        """Write, count and hash all these bytes."""
        ...

    def flush(self) -> None:
        """Pass the written bytes on, if that is possible at once."""
        ...

    def sync(self) -> None:
        """Return when all written bytes are durable."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class HashedFile:
    """
    A new file on this host, written from start to end.

    Attributes:
        bytes: The number of bytes written.
        path: The file's path.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("xb")
        self._hash = hashlib.sha256()
        self.bytes = 0
        self._begun = 0

    def write(self, data: bytes | memoryview, /) -> int:
        """Write, count and hash all these bytes."""
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)
        if self.bytes - self._begun >= _AHEAD:
            _begin(self._file.fileno(), self._begun, self.bytes - self._begun)
            self._begun = self.bytes
        return len(data)

    def copy(self, source: BinaryIO, length: int, moved: Callable[[], None]) -> None:
        """
        Write `length` bytes from `source`, and call `moved` after each MiB.

        Raises:
            ExportError: `source` has fewer bytes.
        """
        left = length
        while left:
            piece = source.read(min(left, _PIECE))
            if not piece:
                raise ExportError(f"Expected {length} bytes in {source.name}, got {length - left}: it was cut short.")
            self.write(piece)
            left -= len(piece)
            moved()

    @property
    def sha256(self) -> str:
        """The SHA-256 of all bytes written so far, in hex digits."""
        return self._hash.hexdigest()

    def sync(self) -> None:
        """Return when all written bytes are on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file without a sync: if the host crashes, bytes that were not synced can be lost."""
        self._file.close()

    def flush(self) -> None:
        """Pass the written bytes to the operating system; pyarrow calls this."""
        self._file.flush()

    @property
    def closed(self) -> bool:
        """True if the file was closed; pyarrow reads this."""
        return self._file.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _begin(file: int, start: int, length: int) -> None:
    """Ask the kernel to begin writing these bytes to disk; errors are ignored here, because `sync` raises them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).sync_file_range(
            file, ctypes.c_int64(start), ctypes.c_int64(length), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE)
        )
