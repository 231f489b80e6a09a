"""
The interface of a file format, and of its writer.

A new format needs these things; `jsonl.py` is the shortest example.

- a file with a subclass of `Format`: its name, its endings, and a writer.
  A format of lines uses `render.TextWriter`, and has only a function that makes a cell of a text.
- the class in `FORMATS` of `formats.py`, in the three lists of `exports/__init__.py`, and in the docstring of `Job.export`
- a reader in `READERS` of `readers.py`, and its row in the docstring of `verifying.py`
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

from steadyworker.exports.packed import Compression, Packer
from steadyworker.exports.render import Out, plain_texts


class Writer(Protocol):
    """A writer of one file's bytes."""

    def batch(self, chunk: Sequence[Any], first: int) -> Any:
        """
        Return a chunk of `sources.Source` as one Arrow batch with this file's columns.

        Raises:
            ExportRejected: The format cannot represent a value; the message names its row and column.
        """
        ...

    def write(self, batch: Any, first: int) -> None:
        """
        Write the rows of this batch; `first` is the number of the first row, counted from 0.

        Raises:
            ExportRejected: The format cannot represent a value; the message names its row and column.
        """
        ...

    def finish(self) -> None:
        """Write the bytes after the last row."""
        ...

    def close(self) -> None:
        """Release all resources; call this while `out` is still open, even if `finish` was not called."""
        ...


class Format(ABC):
    """
    A file format.

    Attributes:
        name: The format's name in the manifest.
        endings: The ends of a file's name that choose this format.
        lines: True if each row is one line, so that a file can be compressed, and an incomplete file can be continued.
        compression: The compression of the whole file, applied by `packed`; None for no compression.
    """

    __slots__ = ()

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    lines: ClassVar[bool] = False
    compression: Compression | None = None

    @property
    def resumable(self) -> bool:
        """True if an export can continue an incomplete file after any of its rows."""
        return self.lines and self.compression is None

    def options(self) -> dict[str, Any]:
        """Return the format's name and options, for the manifest."""
        return {"name": self.name} | ({"compression": self.compression} if self.compression else {})

    def head(self, columns: Sequence[str]) -> bytes:  # noqa: ARG002 - most formats have no header
        """Return the bytes before the first row; raise ExportRejected if the options do not fit the columns."""
        return b""

    def texts(self, column: Any) -> Any:
        """Return the texts of an Arrow column in the file, without quotes; NULL stays NULL."""
        return plain_texts(column)

    @abstractmethod
    def writer(self, out: Out, columns: Sequence[str]) -> Writer:
        """Return a writer of rows, which does not write the bytes of `head`."""


def packed(out: Out, form: Format) -> AbstractContextManager[Out]:
    """Return an output for this format's bytes; the output writes them to `out`, compressed if the format has a compression."""
    return Packer(out, form.compression) if form.compression else nullcontext(out)
