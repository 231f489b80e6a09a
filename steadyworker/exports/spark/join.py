"""
Parts to one file, in the sort's order, while later parts are still being written.

A part is taken when Spark calls its task complete, and not before all parts in front of it were taken.
Its size is looked at again when all is done: what was joined has to be what is there.
Rows are counted in the bytes themselves, so that the file, not Spark's word for it, is what the manifest tells of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from steadyworker.errors import ExportError
from steadyworker.exports.hashed import HashedFile

_PIECE = 1 << 20


class Join:
    """
    One file in the making.

    Args:
        path: The file; must not be there.
        head: What stands before the first row.
        check: Called after each MiB; raises what shall end the join.
        joined: Called with each part whose bytes are in the file.
    """

    def __init__(self, path: Path, head: bytes, check: Callable[[], None], joined: Callable[[Path], None]) -> None:
        self._out = HashedFile(path)
        self._out.write(head)
        self._check, self._joined = check, joined
        self._waiting: dict[int, tuple[Path | None, int]] = {}
        self._sizes: dict[int, int] = {}
        self._next = 0
        self._lines = LineCount()

    @property
    def rows(self) -> int:
        """Rows in the file so far."""
        return self._lines.count

    @property
    def bytes(self) -> int:
        """Size of the file so far."""
        return self._out.bytes

    @property
    def sha256(self) -> str:
        """Of the file so far, in hex digits."""
        return self._out.sha256

    def offer(self, index: int, path: str | None, size: int) -> None:
        """The task of this index is complete; a task without rows has no part."""
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
            ExportError: A part is not what it was when it was joined.
        """
        there = {index: (Path(path), size) for index, path, size in parts}
        for index, size in self._sizes.items():
            _expect(index, size, there.get(index, (None, 0))[1])
        for index, (path, size) in sorted(there.items()):
            if index >= self._next:
                self._append(index, path, size)
            elif index not in self._sizes:
                _expect(index, 0, size)
        self._out.sync()

    def _append(self, index: int, part: Path, size: int) -> None:
        with part.open("rb") as source:
            got = 0
            while piece := source.read(_PIECE):
                self._out.write(piece)
                self._lines.add(piece)
                got += len(piece)
                self._check()
        _expect(index, size, got)
        self._sizes[index] = size
        self._joined(part)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._out.close()


class LineCount:
    """
    Counts the line ends of CSV that are not inside quotes.

    A doubled quote ends and begins again, so that whether a byte is inside is the parity of the quotes before it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._inside = False

    def add(self, data: bytes) -> None:
        """The next bytes of the file."""
        if not self._inside and b'"' not in data:
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
        raise ExportError(
            f"Expected part {index} to have {size} bytes, as when its task ended, got {got}: it was changed meanwhile."
        )
