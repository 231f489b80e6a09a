"""
Reads logs in blocks: files, pipes, and files that grow.

A `Growing` file is read as `tail -F` reads it.
When another file takes its place, as logrotate does, the rest of the old one is read first.
The writer can write to the old one until it opens the new one, so the old one stays open until the next rotation.
When it becomes shorter, it is read from its beginning.
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
        OSError: It cannot be read.
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
        """Wait until there is something to read, or for as many seconds."""
        select.select([self._descriptor], [], [], seconds)

    def read(self) -> bytes:
        """Return what can be read without waiting; nothing if there is nothing."""
        if self.ended or not select.select([self._descriptor], [], [], 0)[0]:
            return b""
        block = os.read(self._descriptor, BLOCK)
        self.ended = not block
        return block

    def close(self) -> None:
        """Do nothing: the stream belongs to the process."""


class Growing:
    """A file that grows, and that another file can replace."""

    ended = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = cast(BinaryIO, path.open("rb", buffering=0))
        self._replaced: BinaryIO | None = None

    def read(self) -> bytes:
        """Return what can be read now; nothing if there is nothing new."""
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
            return b""  # renamed, and the new one is not there yet
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
        """Close the file, and the one that it has replaced."""
        for file in (self._file, self._replaced):
            if file is not None:
                file.close()
