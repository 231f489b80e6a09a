"""A file that is counted and hashed while it is written, so that no second pass over it is needed."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from steadyworker.errors import ExportError

_PIECE = 1 << 20
_AHEAD = 8 << 20  # bytes after which the disk is told to begin, so that `sync` waits for the last of them only
_SYNC_FILE_RANGE_WRITE = 2  # sync_file_range(2), Linux


class HashedFile:
    """
    A new file, written from start to end.

    Attributes:
        bytes: How many were written.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._hash = hashlib.sha256()
        self.bytes = 0
        self._begun = 0

    def write(self, data: bytes, /) -> int:
        """Write, count and hash all of them."""
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)
        if self.bytes - self._begun >= _AHEAD:
            _begin(self._file.fileno(), self._begun, self.bytes - self._begun)
            self._begun = self.bytes
        return len(data)

    def copy(self, source: BinaryIO, length: int, moved: Callable[[], None]) -> None:
        """
        Write this many bytes from a file; `moved` is called after each MiB.

        Raises:
            ExportError: It has fewer.
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
        """Of what was written so far, in hex digits."""
        return self._hash.hexdigest()

    def sync(self) -> None:
        """Return when all that was written is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; what was not synced may still be lost."""
        self._file.close()

    def flush(self) -> None:
        """Hand what was written to the operating system; pyarrow calls it."""
        self._file.flush()

    @property
    def closed(self) -> bool:
        """Whether it was closed; pyarrow asks."""
        return self._file.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _begin(file: int, start: int, length: int) -> None:
    """Begin to bring these bytes to the disk, and do not wait; a hint, whose errors `sync` meets again."""
    if sys.platform == "linux":
        ctypes.CDLL(None).sync_file_range(
            file, ctypes.c_int64(start), ctypes.c_int64(length), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE)
        )
