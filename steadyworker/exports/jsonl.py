r"""
JSON Lines: one JSON object per line, with keys in the order of the columns, and without spaces between tokens.

Decimals are strings, because most readers convert JSON's numbers to binary floats.
NaN and the infinities are strings, because JSON has no such numbers.
Characters are escaped only if JSON requires this, for example as `\n` and `\u001F`; `é` stays as it is.
Spark's JSON writer, Jackson, escapes text in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, ClassVar, Literal

from steadyworker.errors import ExportRejected
from steadyworker.exports.cells import Cells, RowLineWriter
from steadyworker.exports.parquet import Out
from steadyworker.exports.sources import Row
from steadyworker.exports.values import TEXTS, text

_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f]")


@dataclass(frozen=True, slots=True)
class JsonLines:
    """
    The JSON Lines format (`.jsonl`): one JSON object per line, in UTF-8; the module's docstring has the exact rules.

    Args:
        compression: "gzip" or None; a file name that ends in `.gz` also sets "gzip".

    Raises:
        ExportRejected: The compression is neither "gzip" nor None.
    """

    name: ClassVar[str] = "jsonl"

    compression: Literal["gzip"] | None = None

    def __post_init__(self) -> None:
        check_compression(self.compression)

    @property
    def resumable(self) -> bool:
        """True if an export can continue an incomplete file after any of its rows."""
        return self.compression is None

    def options(self) -> dict[str, Any]:
        """Return name and compression, for the manifest."""
        return {"name": self.name} | ({"compression": self.compression} if self.compression else {})

    def head(self, columns: Sequence[str]) -> bytes:  # noqa: ARG002 - each line has the names
        """Return no bytes: JSON Lines has no header."""
        return b""

    def text(self, value: object) -> str:
        """Return the text of a value."""
        return text(value)

    def writer(self, out: Out, columns: Sequence[str], schema: Callable[[], Any]) -> RowLineWriter:  # noqa: ARG002 - for Parquet
        """Return a writer of rows."""
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

        return RowLineWriter(out, columns, line)


def check_compression(compression: object) -> None:
    """
    Check that this compression is supported.

    Raises:
        ExportRejected: The compression is neither "gzip" nor None.
    """
    if compression not in (None, "gzip"):
        raise ExportRejected(f'Expected "gzip" or None as compression, got {compression!r}.')


def escaped(value: str) -> str:
    """Return the text as a JSON string, with its quotes."""
    if _CONTROL.search(value) is None:
        return encode_basestring(value)
    # Each piece between two control characters is encoded separately, because the text may contain a literal `\\u001f`.
    pieces = [encode_basestring(piece)[1:-1] for piece in _CONTROL.split(value)]
    found = [f"\\u{ord(character):04X}" for character in _CONTROL.findall(value)]
    return '"' + "".join(map("".join, zip(pieces, [*found, ""], strict=True))) + '"'


def _string(convert: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: escaped(convert(value))


def _number(value: float) -> str:
    shown = TEXTS[float](value)
    return shown if shown[-1].isdigit() else f'"{shown}"'
