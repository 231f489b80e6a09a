"""Reads logs in blocks: files, and pipes that can stay open, such as that of `tail -F`."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

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
    """A pipe, or another stream that cannot be read again; `ended` is true when it will never have more bytes."""

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
