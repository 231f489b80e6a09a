"""
Joins parts to one file, in the order of the sort, while Spark still writes later parts.

A part is joined when Spark reports the part's task as complete, and all earlier parts are joined.
After the last part, the join checks all sizes again, because the joined parts must be the final parts.
Rows are counted in the file's bytes, so that the manifest describes the file itself, not Spark's report.
Bytes that are not UTF-8 end the join, because Spark passes such bytes on from Parquet and from casts.
`reading.py` searches CSV files for such bytes earlier.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.formats import Csv, Format
from steadyworker.exports.hashed import HashedFile
from steadyworker.exports.packed import Packer
from steadyworker.exports.render import Out

_PIECE = 1 << 20


class PartReplaced(ExportError):
    """A part has changed since its task ended, because Spark lost the task's executor and ran the task again."""


class Body(Protocol):
    """A converter from parts to the bytes of the file."""

    @property
    def rows(self) -> int:
        """The number of rows in the parts that were read so far."""
        ...

    def add(self, part: Path) -> int:
        """Add a part, and return its size in bytes."""
        ...

    def finish(self) -> None:
        """Write the end of the file, after the last part."""
        ...

    def close(self) -> None:
        """Release all resources, even if `finish` was not called."""
        ...


class Join:
    """
    One file that is made from parts.

    Args:
        path: The file, which must not exist.
        head: The bytes before the first row.
        moved: A function that is called after each MiB; its exception ends the join.
        joined: A function that is called with each part after its bytes are in the file.
        form: The format of the parts, and the compression of the file.
        body: A function that makes the `Body` of a format whose parts cannot be joined byte by byte.
    """

    def __init__(
        self,
        path: Path,
        head: bytes,
        moved: Callable[[], None],
        joined: Callable[[Path], None],
        *,
        form: Format | None = None,
        body: Callable[[Out, Callable[[], None]], Body] | None = None,
    ) -> None:
        self._out = HashedFile(path)
        self._body: Body = body(self._out, moved) if body else TextBody(self._out, head, moved, form or Csv())
        self._joined = joined
        self._waiting: dict[int, tuple[Path | None, int]] = {}
        self._sizes: dict[int, int] = {}
        self._next = 0

    @property
    def rows(self) -> int:
        """The number of rows in the file so far."""
        return self._body.rows

    @property
    def bytes(self) -> int:
        """The size of the file so far, in bytes."""
        return self._out.bytes

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file so far, in hex digits."""
        return self._out.sha256

    def offer(self, index: int, path: str | None, size: int) -> None:
        """
        Join the part of a complete task, after all parts before it; a task without rows has no part.

        Raises:
            PartReplaced: A part has another size than reported, so the file is invalid.
            ExportRejected: The text of a part is not UTF-8.
        """
        self._waiting[index] = (Path(path) if path else None, size)
        while self._next in self._waiting:
            part, size = self._waiting.pop(self._next)
            if part is not None:
                self._append(self._next, part, size)
            self._next += 1

    def finish(self, parts: Iterable[tuple[int, str, int]]) -> None:
        """
        Join the remaining parts of all tasks, and return when the file is durable.

        Raises:
            PartReplaced: The size of a part has changed since the part was joined, or a reported part is missing.
        """
        there = {index: (Path(path), size) for index, path, size in parts}
        for index, size in self._sizes.items():
            _expect(index, size, there.get(index, (None, 0))[1])
        for index, (part, size) in self._waiting.items():
            if part is not None and index not in there:
                _expect(index, size, 0)
        for index, (path, size) in sorted(there.items()):
            if index >= self._next:
                self._append(index, path, size)
            elif index not in self._sizes:
                _expect(index, 0, size)
        self._body.finish()
        self._out.sync()

    def _append(self, index: int, part: Path, size: int) -> None:
        try:
            got = self._body.add(part)
        except FileNotFoundError:
            got = 0
        except UnicodeDecodeError as error:
            raise ExportRejected(
                f"Expected text in UTF-8 from Spark, got {error.object[error.start : error.end]!r} "
                f"after {self.rows} rows: convert it in the query, with make_valid_utf8 or base64."
            ) from error
        _expect(index, size, got)
        self._sizes[index] = size
        self._joined(part)

    def close(self) -> None:
        """Release all resources, even if `finish` was not called; this can be called twice."""
        self._body.close()
        self._out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TextBody:
    """Parts that are joined byte by byte."""

    def __init__(self, out: Out, head: bytes, moved: Callable[[], None], form: Format) -> None:
        self._packer = Packer(out, form.compression) if form.compression else None
        self._out = self._packer or out
        self._out.write(head)
        self._moved = moved
        self._lines = LineCount(quoted=form.name == "csv")

    @property
    def rows(self) -> int:
        """The number of rows so far."""
        return self._lines.count

    def add(self, part: Path) -> int:
        """Add a part, and return its size in bytes; raise UnicodeDecodeError if the part is not UTF-8."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        got = 0
        with part.open("rb") as source:
            while piece := source.read(_PIECE):
                if decoder.getstate()[0] or not piece.isascii():
                    decoder.decode(piece)
                self._out.write(piece)
                self._lines.add(piece)
                got += len(piece)
                self._moved()
        decoder.decode(b"", final=True)
        return got

    def finish(self) -> None:
        """Write the rest of the compressed bytes."""
        if self._packer:
            self._packer.finish()

    def close(self) -> None:
        """Release the compressor."""
        if self._packer:
            self._packer.close()


class LineCount:
    """
    A counter of line ends; in CSV, a line end inside quotes does not count.

    A byte is inside quotes if an odd number of quotes precedes the byte; this is also right for doubled quotes.
    """

    def __init__(self, *, quoted: bool = True) -> None:
        self.count = 0
        self._quoted, self._inside = quoted, False

    def add(self, data: bytes) -> None:
        """Count the line ends in the next bytes of the file."""
        if not self._quoted or (not self._inside and b'"' not in data):
            self.count += data.count(b"\n")
            return
        first, *rest = data.split(b'"')
        self._plain(first)
        for piece in rest:
            self._inside = not self._inside
            self._plain(piece)

    def _plain(self, piece: bytes) -> None:
        if not self._inside:
            self.count += piece.count(b"\n")


def _expect(index: int, size: int, got: int) -> None:
    if got != size:
        raise PartReplaced(
            f"Expected part {index} to have {size} bytes, as when its task ended, got {got}: it was changed meanwhile."
        )
