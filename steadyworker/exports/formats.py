r"""
The file formats, and CSV; `jsonl.py`, `parquet.py` and `xlsx.py` define the others, and `format.py` their interface.

**CSV** is RFC 4180 in UTF-8 with "\n" as line end, also after the last line.
Only text is quoted, and only if it is empty, is the null text, or contains the delimiter, a quote, CR or LF.
A quote inside a quoted text is doubled.
NULL is written as the null text without quotes.
With the default `null=""`, NULL is an empty field, and empty text is `""`.
Readers that respect quotes (PostgreSQL's COPY, DuckDB, pyarrow, Spark) distinguish NULL from empty text.
Other readers read "" for both.
If the null text is empty, NULL is `""` in a file of one column, because most readers skip a blank line.

A file with a name that ends in `.gz` or `.zst` has the same bytes, compressed by `packed.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from steadyworker.errors import ExportRejected
from steadyworker.exports.format import Format
from steadyworker.exports.jsonl import JsonLines
from steadyworker.exports.packed import SUFFIXES, Compression, check_compression
from steadyworker.exports.parquet import Parquet
from steadyworker.exports.patterns import DATE, MOMENT, UTC, check_pattern, check_zone
from steadyworker.exports.render import Notation, Out, TextKind, TextWriter, after, before, cells, has_any
from steadyworker.exports.sources import arrow, renamed
from steadyworker.exports.stage import ExportTarget
from steadyworker.exports.xlsx import Xlsx

__all__ = ["Csv", "Format", "JsonLines", "Parquet", "Xlsx"]

_DELIMITERS = ",;|\t~^"
_FORMULA = "=+-@\t\r\0"


@dataclass(frozen=True, slots=True)
class Csv(Format):
    """
    The CSV format (RFC 4180); the module's docstring has the exact rules.

    Args:
        delimiter: One of `, ; | TAB ~ ^`; no number or date contains these characters.
        header: True for a first line with the columns' names, or a mapping from columns to the names for that line.
        null: The text for NULL; no number or date in the data may have this text, because numbers and dates are never quoted.
        bom: Start the file with a byte order mark, which Excel needs to detect UTF-8.
        guard_formulas: Put `'` before text that starts with one of `= + - @ TAB CR NUL`; never before a number.
            With this option, no spreadsheet runs the text as a formula (CWE-1236).
        decimal_comma: Write `1,5` for `1.5`; this needs a delimiter other than the comma.
        dates: The pattern of a date, in the notation of `patterns.py`.
        moments: The pattern of a date with a time.
        zone: The time zone to which moments with a zone are converted, like "Europe/Berlin".
        compression: "gzip", "zstd" or None; a file name that ends in `.gz` or `.zst` also sets it.

    Raises:
        ExportRejected: An option is invalid, or contains text that would need quotes in a cell.
    """

    name: ClassVar[str] = "csv"
    endings: ClassVar[tuple[str, ...]] = (".csv",)
    lines: ClassVar[bool] = True

    delimiter: str = ","
    header: bool | Mapping[str, str] = True
    null: str = ""
    bom: bool = False
    guard_formulas: bool = True
    decimal_comma: bool = False
    dates: str = DATE
    moments: str = MOMENT
    zone: str = UTC
    compression: Compression | None = None

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter not in _DELIMITERS:
            raise ExportRejected(
                f"Expected a delimiter out of {', '.join(map(repr, _DELIMITERS))}, got {self.delimiter!r}: choose one of them."
            )
        if re.search(f'[{re.escape(self.delimiter)}"\r\n]', self.null):
            raise ExportRejected(
                f"Expected a null text without delimiter, quote and line end, got {self.null!r}: choose another."
            )
        if self.decimal_comma and self.delimiter == ",":
            raise ExportRejected("Expected a delimiter other than ',' with decimal_comma, got ',': add delimiter=';'.")
        forbidden = self.delimiter + "\"'\r\n"
        check_pattern("dates", self.dates, forbidden, of_dates=True)
        check_pattern("moments", self.moments, forbidden, of_dates=False)
        check_zone(self.zone)
        check_compression(self.compression)

    def options(self) -> dict[str, Any]:
        """Return the format's name and options, for the manifest."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            "name": self.name,
            **options,
            "header": self.header if isinstance(self.header, bool) else {**self.header},
        }

    def head(self, columns: Sequence[str]) -> bytes:
        """
        Return the byte order mark and the header line, each only if its option is on.

        Raises:
            ExportRejected: `header` names a column that does not exist, or gives two columns the same name.
        """
        names = renamed(columns, {} if isinstance(self.header, bool) else self.header)
        line = self.delimiter.join(map(self._name, names)) + "\n" if self.header is not False else ""
        return (("\ufeff" if self.bom else "") + line).encode()

    def _name(self, name: str) -> str:
        """Return a column's name as a cell; this needs no pyarrow, because `verify` needs none."""
        shown = "'" + name if self.guard_formulas and name and name[0] in _FORMULA else name
        odd = not name or name == self.null or any(character in name for character in (self.delimiter, *'"\r\n'))
        return '"' + shown.replace('"', '""') + '"' if odd else shown

    def texts(self, column: Any) -> Any:
        """Return the texts of a column; `guard_formulas` is applied to text."""
        return cells(
            column, self._notation(), lambda texts, kind: self._guarded(texts) if kind is TextKind.TEXT else texts
        )

    def writer(self, out: Out, columns: Sequence[str]) -> TextWriter:
        """Return a writer of rows, which does not write the header line."""
        null = '""' if len(columns) == 1 and not self.null else self.null

        def cell(texts: Any, kind: TextKind) -> Any:
            made = self._cell(texts, kind)
            return made.fill_null(null) if made.null_count else made

        starts = [""] * len(columns)
        return TextWriter(out, columns, self._notation(), cell, starts=starts, between=self.delimiter, end="\n")

    def _notation(self) -> Notation:
        return Notation(self.decimal_comma, self.dates, self.moments, self.zone)

    def _cell(self, texts: Any, kind: TextKind) -> Any:
        """Return texts as cells; numbers and dates never need quotes."""
        if kind is not TextKind.TEXT:
            return texts
        kernels = arrow().compute
        odd = kernels.equal(texts, "")
        if self.null:
            odd = kernels.or_(odd, kernels.equal(texts, self.null))
        special = '"\r\n' + self.delimiter
        if has_any(texts, special.encode()):
            odd = kernels.or_(odd, kernels.match_substring_regex(texts, f"[{special}]"))
        made = self._guarded(texts)
        odd = odd.fill_null(False)  # noqa: FBT003 - Arrow's signature
        if not kernels.any(odd).as_py():
            return made
        few = not kernels.all(odd).as_py()
        quoted = before('"', after(kernels.replace_substring(made.filter(odd) if few else made, '"', '""'), '"'))
        return kernels.replace_with_mask(made, odd, quoted) if few else quoted

    def _guarded(self, texts: Any) -> Any:
        """Return texts with the guard of `guard_formulas`."""
        if not self.guard_formulas or not has_any(texts, _FORMULA.encode()):
            return texts
        pa = arrow()
        formula = pa.compute.is_in(pa.compute.utf8_slice_codeunits(texts, 0, 1), pa.array(list(_FORMULA)))
        return pa.compute.if_else(formula, before("'", texts), texts) if pa.compute.any(formula).as_py() else texts


FORMATS = (Csv, JsonLines, Parquet, Xlsx)


def format_of(target: ExportTarget, wanted: object | None) -> Format:
    """
    Return the `wanted` format; if `wanted` is None, return the format of the file name's ending.

    `.gz` and `.zst` at the end of the name add compression.

    Raises:
        ExportRejected: `wanted` is an object that is no format.
            `wanted` is None, and the name has no known ending.
            The name adds compression to a format that compresses its own data.
    """
    ending = target.path.suffix.lower()
    compression = SUFFIXES.get(ending)
    if wanted is not None and not isinstance(wanted, FORMATS):
        raise ExportRejected(
            f"Expected {_listed(f'{each.__name__}()' for each in FORMATS)} as format, got {wanted!r}: import one of them."
        )
    chosen = wanted or _by_ending((target.path.with_suffix("") if compression else target.path).suffix.lower())
    if chosen is None:
        raise ExportRejected(
            f"Expected a name that ends in {_listed(each.endings[0] for each in FORMATS)}, got {target.path.name!r}: "
            "rename it, or pass format=Csv()."
        )
    if compression is None:
        return chosen
    if not isinstance(chosen, (Csv, JsonLines)):
        raise ExportRejected(
            f"Expected no {ending} at the end of the name of a {chosen.name} file, got {target.path.name!r}: "
            f"remove it, because {chosen.name} compresses its own data."
        )
    return replace(chosen, compression=compression)


def _by_ending(ending: str) -> Csv | JsonLines | Parquet | Xlsx | None:
    return next((each() for each in FORMATS if ending in each.endings), None)


def _listed(names: Iterable[str]) -> str:
    """Return names as people list them: `a, b or c`."""
    *first, last = names
    return f"{', '.join(first)} or {last}"
