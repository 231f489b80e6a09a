r"""
JSON Lines: one JSON object per line, with keys in the order of the columns, and without spaces between tokens.

Decimals are strings, because most readers convert JSON's numbers to binary floats.
NaN and the infinities are strings, because JSON has no such numbers.
Characters are escaped only if JSON requires this, for example as `\n` and `\u001F`; `é` stays as it is.
Spark's JSON writer, Jackson, escapes text in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from steadyworker.exports.format import Format
from steadyworker.exports.packed import Compression, check_compression
from steadyworker.exports.render import PLAIN, Out, TextKind, TextWriter, after, before, has_any, text_bytes
from steadyworker.exports.sources import arrow

_SHORT = {8: r"\b", 9: r"\t", 10: r"\n", 12: r"\f", 13: r"\r"}
_NO_CONTROLS = bytes(range(32, 256))


@dataclass(frozen=True, slots=True)
class JsonLines(Format):
    """
    The JSON Lines format (`.jsonl`): one JSON object per line, in UTF-8; the module's docstring has the exact rules.

    Args:
        compression: "gzip", "zstd" or None; a file name that ends in `.gz` or `.zst` also sets it.

    Raises:
        ExportRejected: The compression is unknown.
    """

    name: ClassVar[str] = "jsonl"
    endings: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")
    lines: ClassVar[bool] = True

    compression: Compression | None = None

    def __post_init__(self) -> None:
        check_compression(self.compression)

    def writer(self, out: Out, columns: Sequence[str]) -> TextWriter:
        """Return a writer of rows."""
        keys = [escaped(name) + ":" for name in columns]
        keys[0] = "{" + keys[0]
        return TextWriter(out, columns, PLAIN, _cell, starts=keys, between=",", end="}\n")


def escaped(value: str) -> str:
    """Return the text as a JSON string, with its quotes."""
    text: str = _cell(arrow().array([value]), TextKind.TEXT)[0].as_py()
    return text


def _cell(texts: Any, kind: TextKind) -> Any:
    """Return texts as JSON values."""
    kernels = arrow().compute
    if kind is TextKind.FLOAT and has_any(texts, b"Ny"):
        texts = kernels.if_else(kernels.match_substring_regex(texts, "[Ny]"), _quoted(texts), texts)  # NaN, Infinity
    elif kind not in {TextKind.INTEGER, TextKind.BOOLEAN, TextKind.FLOAT}:
        texts = _quoted(_escaped(texts) if kind is TextKind.TEXT else texts)
    return texts.fill_null("null") if texts.null_count else texts


def _quoted(texts: Any) -> Any:
    return before('"', after(texts, '"'))


def _escaped(texts: Any) -> Any:
    kernels = arrow().compute
    for character in '\\"':  # the backslash first, because each escape begins with one
        if has_any(texts, character.encode()):
            texts = kernels.replace_substring(texts, character, "\\" + character)
    for code in sorted(set(bytes(text_bytes(texts)).translate(None, _NO_CONTROLS))):
        texts = kernels.replace_substring(texts, chr(code), _SHORT.get(code, f"\\u{code:04X}"))
    return texts
