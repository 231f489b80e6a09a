"""Reads logs in blocks: files, also those that logrotate compressed, and pipes that can stay open, such as that of `tail -F`."""

from __future__ import annotations

import gzip
import os
import select
import zlib
from collections.abc import Iterator
from pathlib import Path

BLOCK = 256 << 10

_GZIP = b"\x1f\x8b"
_COMPRESSED = {_GZIP: "zcat", b"BZh": "bzcat", b"\xfd7zXZ": "xzcat", b"\x28\xb5\x2f\xfd": "zstdcat", b"PK\x03\x04": "unzip -p"}  # fmt: skip


class UnreadableSource(Exception):
    """The error for a source that cannot be read, or not to its end."""


def blocks(path: Path) -> Iterator[bytes]:
    """
    Yield the content of a file; the content of a file that gzip compressed is decompressed.

    Raises:
        UnreadableSource: The file cannot be read further; all that can be read was yielded before.
    """
    try:
        with path.open("rb") as file:
            beginning = file.peek(len(_GZIP))
            packed = beginning.startswith(_GZIP)
            if not packed:
                _refuse_compressed(beginning)
            source = gzip.GzipFile(fileobj=file) if packed else file
            while block := source.read1(BLOCK):
                yield block
    except EOFError as error:
        raise UnreadableSource("compressed data without its end") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableSource(f"damaged compressed data ({error})") from error
    except OSError as error:
        raise UnreadableSource(error.strerror) from error


class Pipe:
    """A pipe, or another stream that cannot be read again; `ended` is true when it will never have more bytes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._begun = False
        self.ended = False

    def wait(self, seconds: float | None) -> None:
        """Wait until bytes can be read, but at most for this number of seconds."""
        select.select([self._descriptor], [], [], seconds)

    def read(self) -> bytes:
        """
        Return the bytes that can be read without waiting, or no bytes.

        Raises:
            UnreadableSource: The pipe has compressed data.
        """
        if self.ended or not select.select([self._descriptor], [], [], 0)[0]:
            return b""
        block = os.read(self._descriptor, BLOCK)
        if not self._begun:
            _refuse_compressed(block)
        self._begun, self.ended = True, not block
        return block


def _refuse_compressed(block: bytes) -> None:
    for magic, command in _COMPRESSED.items():
        if block.startswith(magic):
            raise UnreadableSource(f"compressed data: `{command} FILE | steadyworker explain` explains it")
