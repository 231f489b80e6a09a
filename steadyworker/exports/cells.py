"""Rows as lines of text: what CSV and JSON Lines have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from steadyworker.errors import ExportError
from steadyworker.exports.parquet import Out
from steadyworker.exports.sources import Row
from steadyworker.exports.values import text


class LineWriter:
    """
    Writes each row as one line (`formats.Writer`).

    Args:
        out: Where to.
        columns: The columns' names, for errors.
        line: The line of a row, without its end.
        shown: The text of a value that is not None; finds the one that a line could not be made of.
    """

    def __init__(
        self, out: Out, columns: Sequence[str], line: Callable[[Row], str], shown: Callable[[object], str] = text
    ) -> None:
        self._out, self._columns, self._line, self._shown = out, columns, line, shown

    def write(self, rows: Sequence[Row], first: int) -> None:
        """Write these rows."""
        try:
            data = "".join([self._line(row) + "\n" for row in rows]).encode()
        except (ExportError, UnicodeEncodeError, ValueError):
            self._explain(rows, first)
            raise
        self._out.write(data)

    def finish(self) -> None:
        """Lines need no end."""

    def close(self) -> None:
        """They hold nothing."""

    def _explain(self, rows: Iterable[Row], first: int) -> None:
        """Find the value that could not be written, and say where it is."""
        for number, row in enumerate(rows, first):
            for column, value in zip(self._columns, row, strict=True):
                try:
                    if value is not None:
                        self._shown(value).encode()
                except (ExportError, ValueError) as error:
                    raise ExportError(f"Row {number}, column {column!r}: {error}") from error


class Cells(dict[type, Callable[[Any], str]]):
    """Type to converter; a type that is not there has the one of the nearest class that it derives from."""

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        found = next((self[base] for base in kind.__mro__ if base in self), text)
        self[kind] = found
        return found
