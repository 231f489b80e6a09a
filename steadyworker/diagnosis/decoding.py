"""
Turns the blocks of a source into the bytes of text: it decompresses gzip, which logrotate writes, and removes NULs.

A program that still writes to a truncated file leaves NULs before its next line; in UTF-16, every second byte is a NUL.
Other compressed sources are refused; the error has the command that decompresses the source for a pipe.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator

_PIECE = 1 << 18
"""The largest number of bytes that are decompressed at once, so that a few bytes cannot become gigabytes of memory."""

_HOLE = re.compile(rb"\0{8,}")
_GZIP, _GZIP_HEADER = b"\x1f\x8b", 31  # the first bytes, and zlib's number for them
_REFUSED = {b"BZh": "bzcat", b"\xfd7zXZ": "xzcat", b"\x28\xb5\x2f\xfd": "zstdcat", b"PK\x03\x04": "unzip -p"}


class UndecodableSource(Exception):
    """The error for a source with content that cannot be decompressed."""


class Decoding:
    """The text of one source, made from blocks of bytes as they come; the first block shows the kind of the source."""

    def __init__(self) -> None:
        self._begun = False
        self._unpacker = zlib.decompressobj(_GZIP_HEADER)
        self._inside = False
        self._packed = False

    def feed(self, block: bytes) -> Iterator[bytes]:
        """
        Yield the text in this block.

        Raises:
            UndecodableSource: The compressed content is damaged, or this program cannot decompress its format.
        """
        if not self._begun and block:
            self._begun, self._packed = True, block.startswith(_GZIP)
            for magic, command in _REFUSED.items():
                if block.startswith(magic):
                    raise UndecodableSource(f"compressed data: `{command} FILE | steadyworker explain` explains it")
            block = block.removeprefix(codecs.BOM_UTF8)
        for text in self._unpacked(block) if self._packed else (block,):
            yield _without_nuls(text) if b"\0" in text else text

    def end(self) -> Iterator[bytes]:
        """
        Yield nothing, because no text is held back.

        Raises:
            UndecodableSource: The compressed content ended too early.
        """
        if self._inside:
            raise UndecodableSource("compressed data without its end")
        yield from ()

    def _unpacked(self, data: bytes) -> Iterator[bytes]:
        try:
            while data := data if self._inside else data.lstrip(b"\0"):  # tapes and some tools add NULs at the end
                yield self._unpacker.decompress(data, _PIECE)
                data, self._inside = self._unpacker.unconsumed_tail, not self._unpacker.eof
                if self._unpacker.eof:  # another compressed part can follow
                    data, self._unpacker = self._unpacker.unused_data, zlib.decompressobj(_GZIP_HEADER)
        except zlib.error as error:
            self._inside = False
            raise UndecodableSource(f"damaged compressed data ({error})") from error


def _without_nuls(text: bytes) -> bytes:
    """Return a text without its NULs, but with a single one, which can be part of a log's text."""
    return text.replace(b"\0", b"") if text.count(b"\0") * 4 > len(text) else _HOLE.sub(b"", text)
