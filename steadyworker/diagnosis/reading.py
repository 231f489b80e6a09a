"""
Reads logs in blocks: files, pipes, and files that grow.

A `Growing` file is read in the way of `tail -F`.
When logrotate or another program replaces the file, the rest of the old file is read first.
The writer can write to the old file until it opens the new file, so the old file stays open until the next rotation.
When the file becomes shorter, it is read again from its beginning.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

BLOCK = 256 << 10


def blocks(path: Path) -> Iterator[bytes]:
    """
    Yield the content of a file.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            yield block


class Pipe:
    """A pipe, or another stream that cannot be read again."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.ended = False

    def wait(self, seconds: float | None) -> None:
        """Wait until bytes can be read, but at most for this number of seconds."""
        select.select([self._descriptor], [], [], seconds)

    def read(self) -> bytes:
        """Return the bytes that can be read without waiting, or no bytes."""
        if self.ended or not select.select([self._descriptor], [], [], 0)[0]:
            return b""
        block = os.read(self._descriptor, BLOCK)
        self.ended = not block
        return block

    def close(self) -> None:
        """Do nothing, because the stream belongs to the process."""


class Growing:
    """A file that grows, and that another file can replace, as in a rotation of logs."""

    ended = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = cast(BinaryIO, path.open("rb", buffering=0))
        self._replaced: BinaryIO | None = None

    def read(self) -> bytes:
        """Return the new bytes, or no bytes."""
        if self._replaced is not None and (block := self._replaced.read(BLOCK)):
            return block
        if self._file is None:
            self._file = self._opened()
        if self._file is None:
            return b""
        if block := self._file.read(BLOCK):
            return block
        try:
            now, then = self._path.stat(), os.fstat(self._file.fileno())
        except FileNotFoundError:
            return b""  # the file was renamed, and the new file does not exist yet
        if (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino):
            if self._replaced is not None:
                self._replaced.close()
            self._replaced, self._file = self._file, self._opened()
        elif now.st_size < self._file.tell():
            self._file.seek(0)
        else:
            return b""
        return (self._file and self._file.read(BLOCK)) or b""

    def _opened(self) -> BinaryIO | None:
        try:
            return cast(BinaryIO, self._path.open("rb", buffering=0))
        except OSError:
            return None

    def close(self) -> None:
        """Close the file, and the file that it has replaced."""
        for file in (self._file, self._replaced):
            if file is not None:
                file.close()
