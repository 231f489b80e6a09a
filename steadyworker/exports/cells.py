"""Rows as lines of text: the common part of CSV and JSON Lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from steadyworker.errors import ExportRejected
from steadyworker.exports.parquet import Out
from steadyworker.exports.sources import Row
from steadyworker.exports.values import text


class RowLineWriter:
    """
    A writer that writes each row as one line (`formats.Writer`).

    Args:
        out: The file to write to.
        columns: The columns' names, for errors.
        line: A function that returns the line of a row, without the line end.
        shown: A function that returns the text of a value that is not None.
            The writer uses this text to find the value for which `line` failed.
    """

    def __init__(
        self, out: Out, columns: Sequence[str], line: Callable[[Row], str], shown: Callable[[object], str] = text
    ) -> None:
        self._out, self._columns, self._line, self._shown = out, columns, line, shown

    def write(self, rows: Sequence[Row], first: int) -> None:
        """Write these rows."""
        try:
            data = "".join([self._line(row) + "\n" for row in rows]).encode()
        except (ExportRejected, UnicodeEncodeError, ValueError):
            self._explain(rows, first)
            raise
        self._out.write(data)

    def finish(self) -> None:
        """Do nothing, because nothing follows the last line."""

    def close(self) -> None:
        """Do nothing: the writer holds no resources."""

    def _explain(self, rows: Iterable[Row], first: int) -> None:
        """Find the value that could not be written, and raise ExportRejected with its row and column."""
        for number, row in enumerate(rows, first):
            for column, value in zip(self._columns, row, strict=True):
                try:
                    if value is not None:
                        self._shown(value).encode()
                except (ExportRejected, ValueError) as error:
                    raise ExportRejected(f"Row {number}, column {column!r}: {error}") from error


class Cells(dict[type, Callable[[Any], str]]):
    """A mapping from type to converter; a type without a converter gets the converter of its nearest base class."""

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        found = next((self[base] for base in kind.__mro__ if base in self), text)
        self[kind] = found
        return found
