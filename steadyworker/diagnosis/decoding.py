"""
Turns the content of a source into the bytes of text: decompresses the content, and converts UTF-16 to UTF-8.

The first bytes show the kind of the source, so a compressed log can also come through a pipe.

| first bytes | what is done |
|---|---|
| gzip, bzip2, xz | decompressed, also if several compressed parts follow each other |
| zstd, zip, lz4 | refused; the error has the command that decompresses the source |
| the byte order mark of UTF-16 | converted; PowerShell writes such files for `>` |
| the byte order mark of UTF-8 | removed, so that the first line begins with its time |
| anything else | unchanged |

A single NUL can be part of a log's text. Many NULs cannot be part of the text, so they are removed.
A program that still writes to a truncated file leaves NULs before its next line.
In UTF-16 without a byte order mark, every second byte is a NUL.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

_PIECE = 1 << 18
"""The largest number of bytes that are decompressed at once, so that a few bytes cannot become gigabytes of memory."""

_HOLE = re.compile(rb"\0{8,}")
_GZIP = 31  # zlib's number for gzip with its header
_REFUSED = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstdcat"),
    b"PK\x03\x04": ("zip", "unzip -p"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -dc"),
}
_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", codecs.BOM_UTF8: ""}
_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)


class UndecodableSource(Exception):
    """The error for a source with content that cannot be decompressed."""


class Decoding:
    """The text of one source, made from blocks of bytes as they come."""

    def __init__(self) -> None:
        self._head = b""
        self._begun = False
        self._new: Callable[[], Any] | None = None
        self._unpacker: Any = None
        self._text = _CleanText()

    def feed(self, block: bytes) -> Iterator[bytes]:
        """
        Yield the text in this block.

        Raises:
            UndecodableSource: The compressed content is damaged, or this program cannot decompress its format.
        """
        if not self._begun:
            self._head += block
            if any(len(self._head) < len(magic) and magic.startswith(self._head) for magic in _ALL):
                return  # too few bytes to decide
            block = self._begin()
        if self._new is None:
            yield self._text.feed(block)
        else:
            yield from map(self._text.feed, self._unpacked(block))

    def end(self) -> Iterator[bytes]:
        """
        Yield the rest of the text.

        Raises:
            UndecodableSource: The compressed content ended too early.
        """
        if not self._begun and self._head:
            yield self._text.feed(self._begin())
        yield self._text.end()
        if self._unpacker is not None:
            raise UndecodableSource("Compressed file ended before the end-of-stream marker was reached")

    def _begin(self) -> bytes:
        head, self._head, self._begun = self._head, b"", True
        for magic, (name, command) in _REFUSED.items():
            if head.startswith(magic):
                raise UndecodableSource(f"data compressed by {name}: decompress it with `{command}`, and pipe it here")
        self._new = next((new for magic, new in _PACKED.items() if head.startswith(magic)), None)
        return head

    def _unpacked(self, data: bytes) -> Iterator[bytes]:
        try:
            while data or (self._unpacker is not None and not self._unpacker.needs_input):
                if self._unpacker is None:
                    data = data.lstrip(b"\0")  # tapes and some tools add NULs at the end
                    if not data:
                        return
                    self._unpacker = self._new and self._new()
                piece = self._unpacker.decompress(data, _PIECE)
                data = b""
                if self._unpacker.eof:
                    data, self._unpacker = self._unpacker.unused_data, None
                if piece:
                    yield piece
        except _ERRORS as error:
            self._unpacker = None
            raise UndecodableSource(f"damaged compressed data ({error})") from error


class _GzipReader:
    """A decompressor of gzip with the same methods as Python's decompressors of bzip2 and xz."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_GZIP)

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, most)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


class _CleanText:
    """A filter that removes the byte order mark and NULs from bytes of text, and converts UTF-16 to UTF-8."""

    def __init__(self) -> None:
        self._head = b""
        self._begun = False
        self._decoder: codecs.IncrementalDecoder | None = None

    def feed(self, block: bytes) -> bytes:
        if not self._begun:
            block = self._head + block
            if any(len(block) < len(mark) and mark.startswith(block) for mark in _MARKS):
                self._head = block
                return b""
            self._head, self._begun = b"", True
            for mark, name in _MARKS.items():
                if block.startswith(mark):
                    block = block[len(mark) :]
                    self._decoder = codecs.getincrementaldecoder(name)("replace") if name else None
                    break
        if self._decoder is not None:
            return self._decoder.decode(block).replace("\ufeff", "").replace("\0", "").encode("utf-8", "replace")
        if b"\0" not in block:
            return block
        if block.count(b"\0") * 4 > len(block):
            return block.replace(b"\0", b"")
        return _HOLE.sub(b"", block)

    def end(self) -> bytes:
        """Return the first bytes if there were too few to decide whether they are a byte order mark."""
        head, self._head = self._head, b""
        return head


_PACKED: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": _GzipReader,
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\0": lzma.LZMADecompressor,
}
_ALL = (*_PACKED, *_REFUSED, *_MARKS)
