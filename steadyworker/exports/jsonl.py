r"""
JSON Lines: one object a line, keys in the columns' order, no blanks.

Decimals are strings, because most readers make binary floats of JSON's numbers.
NaN and the infinities are strings, because JSON has no such number.
Text is escaped only where JSON asks for it, as Jackson does, by which Spark writes: `\n`, `\u001F`, and `é` as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, ClassVar, Literal

from steadyworker.errors import ExportError
from steadyworker.exports.cells import Cells, LineWriter
from steadyworker.exports.parquet import Out
from steadyworker.exports.sources import Row
from steadyworker.exports.values import TEXTS, text

_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f]")


@dataclass(frozen=True, slots=True)
class JsonLines:
    """
    One JSON object a line (`.jsonl`), in UTF-8; the module's docstring has the exact rules.

    Args:
        compression: "gzip", which a name that ends in `.gz` asks for, too.

    Raises:
        ExportError: Another compression.
    """

    name: ClassVar[str] = "jsonl"

    compression: Literal["gzip"] | None = None

    def __post_init__(self) -> None:
        check_compression(self.compression)

    @property
    def resumable(self) -> bool:
        """Whether a file can be cut after any row and written on."""
        return self.compression is None

    def options(self) -> dict[str, Any]:
        """Name and compression, for the manifest."""
        return {"name": self.name} | ({"compression": self.compression} if self.compression else {})

    def head(self, columns: Sequence[str]) -> bytes:  # noqa: ARG002 - each line has the names
        """Nothing."""
        return b""

    def text(self, value: object) -> str:
        """The text of a value."""
        return text(value)

    def writer(self, out: Out, columns: Sequence[str], schema: Callable[[], Any]) -> LineWriter:  # noqa: ARG002 - for Parquet
        """A writer of rows."""
        names = [name + ":" for name in map(escaped, columns)]
        cells = Cells(
            {
                **{kind: _string(convert) for kind, convert in TEXTS.items()},
                bool: TEXTS[bool],
                int: TEXTS[int],
                float: _number,
                type(None): lambda _: "null",
            }
        )

        def line(row: Row) -> str:
            return (
                "{" + ",".join([name + cells[type(value)](value) for name, value in zip(names, row, strict=True)]) + "}"
            )

        return LineWriter(out, columns, line)


def check_compression(compression: object) -> None:
    """
    Whether it is one that there is.

    Raises:
        ExportError: It is not.
    """
    if compression not in (None, "gzip"):
        raise ExportError(f'Expected "gzip" or None as compression, got {compression!r}.')


def escaped(value: str) -> str:
    """A JSON string, with its quotes."""
    if _CONTROL.search(value) is None:
        return encode_basestring(value)
    # Each piece between two control characters by itself: afterwards `\\u001f` could be what the text itself says.
    pieces = [encode_basestring(piece)[1:-1] for piece in _CONTROL.split(value)]
    found = [f"\\u{ord(character):04X}" for character in _CONTROL.findall(value)]
    return '"' + "".join(map("".join, zip(pieces, [*found, ""], strict=True))) + '"'


def _string(convert: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: escaped(convert(value))


def _number(value: float) -> str:
    shown = TEXTS[float](value)
    return shown if shown[-1].isdigit() else f'"{shown}"'
