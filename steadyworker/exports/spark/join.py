"""
Parts to one file, in the sort's order, while later parts are still being written.

A part is taken when Spark calls its task complete, and not before all parts in front of it were taken.
Its size is looked at again when all is done: what was joined has to be what is there.
Rows are counted in the bytes themselves, so that the file, not Spark's word for it, is what the manifest tells of.
Bytes that are no UTF-8 end the join: Spark passes on what Parquet and a cast have; `reading.py` looks for those of CSV itself.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from steadyworker.errors import ExportError
from steadyworker.exports.formats import Csv, Format
from steadyworker.exports.hashed import HashedFile
from steadyworker.exports.packed import Gzip
from steadyworker.exports.parquet import Out

_PIECE = 1 << 20


class Replaced(ExportError):
    """A part is another file than when its task ended: the task was begun again, by a Spark that had lost its executor."""


class Body(Protocol):
    """Makes the file's bytes out of parts."""

    @property
    def rows(self) -> int:
        """Rows so far, counted in what was read."""
        ...

    def add(self, part: Path) -> int:
        """Add a part; answers how many bytes it has."""
        ...

    def finish(self) -> None:
        """Write what follows the last part."""
        ...

    def close(self) -> None:
        """Release what it holds, finished or not."""
        ...


class Join:
    """
    One file in the making.

    Args:
        path: The file; must not be there.
        head: What stands before the first row.
        moved: Called after each MiB; raises what shall end the join.
        joined: Called with each part whose bytes are in the file.
        form: How the parts are written, and whether the file is packed.
        body: Makes the body of a format that is not joined byte by byte.
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
        self._body: Body = body(self._out, moved) if body else Text(self._out, head, moved, form or Csv())
        self._joined = joined
        self._waiting: dict[int, tuple[Path | None, int]] = {}
        self._sizes: dict[int, int] = {}
        self._next = 0

    @property
    def rows(self) -> int:
        """Rows in the file so far."""
        return self._body.rows

    @property
    def bytes(self) -> int:
        """Size of the file so far."""
        return self._out.bytes

    @property
    def sha256(self) -> str:
        """Of the file so far, in hex digits."""
        return self._out.sha256

    def offer(self, index: int, path: str | None, size: int) -> None:
        """
        The task of this index is complete; a task without rows has no part.

        Raises:
            Replaced: A part is not what it was when it was told: the file is worth nothing any longer.
            ExportError: Its text is no UTF-8.
        """
        self._waiting[index] = (Path(path) if path else None, size)
        while self._next in self._waiting:
            part, size = self._waiting.pop(self._next)
            if part is not None:
                self._append(self._next, part, size)
            self._next += 1

    def finish(self, parts: Iterable[tuple[int, str, int]]) -> None:
        """
        All tasks are complete and these are their parts: join the rest, durable.

        Raises:
            Replaced: A part is not what it was when it was joined.
        """
        there = {index: (Path(path), size) for index, path, size in parts}
        for index, size in self._sizes.items():
            _expect(index, size, there.get(index, (None, 0))[1])
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
            raise ExportError(
                f"Expected text in UTF-8 from Spark, got {error.object[error.start : error.end]!r} "
                f"after {self.rows} rows: choose its bytes in the query, with make_valid_utf8 or base64."
            ) from error
        _expect(index, size, got)
        self._sizes[index] = size
        self._joined(part)

    def close(self) -> None:
        """Release what it holds, finished or not; safe twice."""
        self._body.close()
        self._out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Text:
    """Parts that are joined byte by byte."""

    def __init__(self, out: Out, head: bytes, moved: Callable[[], None], form: Format) -> None:
        self._gzip = Gzip(out) if form.compression else None
        self._out = self._gzip or out
        self._out.write(head)
        self._moved = moved
        self._lines = LineCount(quoted=form.name == "csv")

    @property
    def rows(self) -> int:
        """Rows so far."""
        return self._lines.count

    def add(self, part: Path) -> int:
        """Add a part; raises UnicodeDecodeError."""
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
        """Write what is not packed yet."""
        if self._gzip:
            self._gzip.finish()

    def close(self) -> None:
        """Release what packs."""
        if self._gzip:
            self._gzip.close()


class LineCount:
    """
    Counts the line ends of CSV that are not inside quotes; of anything else, all of them.

    A doubled quote ends and begins again, so that whether a byte is inside is the parity of the quotes before it.
    """

    def __init__(self, *, quoted: bool = True) -> None:
        self.count = 0
        self._quoted, self._inside = quoted, False

    def add(self, data: bytes) -> None:
        """The next bytes of the file."""
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
        raise Replaced(
            f"Expected part {index} to have {size} bytes, as when its task ended, got {got}: it was changed meanwhile."
        )
