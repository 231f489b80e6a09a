r"""
XLSX, the format of Excel and LibreOffice: typed cells in sheets with a frozen header, written by XlsxWriter.

| values | cell |
|---|---|
| text | text, never a formula; zeros at its beginning stay |
| booleans | boolean |
| integers | a number of at most 15 digits, otherwise text |
| decimals | a number with all digits of its scale, otherwise text; zeros at the end of a fraction do not count as digits |
| floats | a number; NaN, the infinities and sizes that Excel does not have are text |
| dates, moments | Excel's date from 1900-03-01 on, otherwise text |
| times | Excel's time |
| NULL | no cell; a row that has only NULLs gets one blank cell |

A binary float holds each number of 15 digits, so no number is rounded.
Excel's date holds a microsecond up to the year 2079; a later moment with a fraction of a second is text.
A cell shows a moment to the second.
Text that stands for a value has the form that `render.py` gives it.

A moment with a zone is converted to the format's zone, because Excel's dates have no zone.
Control characters are escaped as the format demands, a vertical tab as `_x000B_`.
If a text begins like a formula, its cell is marked as quoted, so that it stays text when a person edits it.
A sheet has at most 1,048,576 rows, and each sheet begins with the header.

XlsxWriter writes cell by cell into temporary files in the stage's folder, and makes the XLSX file after the last row.
So memory has one batch of rows, and the disk needs room for the sheets' XML twice: 800 bytes for a row of nine columns, whose file has 60.
A file in XLSX needs 10 to 13 times the processor time that Arrow's kernels needed for it (`tests/benchmarks/README.md`).
Equal rows give equal bytes: a file was created on 1980-01-01, and all its parts have one fixed time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, ClassVar, cast

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.format import Format
from steadyworker.exports.hashed import HashedFile
from steadyworker.exports.patterns import UTC, check_zone
from steadyworker.exports.render import BadValue, Notation, Out, before, cells
from steadyworker.exports.sources import loose, renamed

SHEET_ROWS = 1_048_576
"""The most rows of a sheet, with its header (Excel's specifications and limits)."""

_COLUMNS = 16_384  # Excel's limit, too
_CHARACTERS = 32_767  # of a cell, in UTF-16: Excel's limit
_DIGITS = 15  # that a double holds, whatever they are
_SCALES = 30  # the most digits after the point in Excel's formats of numbers
_SMALLEST, _LARGEST = 2.2251e-308, 9.99e307  # Excel's limits of floats
_WIDTH = 20, 60  # the least and most characters of a column's width; a moment has 19
_DAY_ZERO = datetime(1899, 12, 30)  # noqa: DTZ001 - Excel has no zones
_DAY = timedelta(days=1)
_FIRST = 61  # the number of 1900-03-01; Excel counts a day 1900-02-29, which did not exist
_PRECISE = 65_536  # days; below, a double holds a microsecond of a day: 2079-06-06

_FORMULA = {"=", "+", "-", "@"}

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]")
# XlsxWriter writes a text of the first form as XML, and of two escapes that overlap, it escapes only the first one.
_RAW = re.compile(rf"^<r>.*</r>\Z|_x[0-9A-Fa-f]{{4}}(?=_x[0-9A-Fa-f]{{4}}_|{_CONTROL.pattern})", re.DOTALL)
_ESCAPE_END = re.compile("(?<=_x[0-9A-Fa-f]{4})(?=_)")


@dataclass(frozen=True, slots=True)
class Xlsx(Format):
    """
    The XLSX format; the module's docstring has the exact rules.

    The index of an XLSX file is at its end, so an interrupted export starts from the first row.

    Args:
        header: A mapping from columns to their names in the header; other columns keep their names.
        zone: The time zone to which moments with a zone are converted, like "Europe/Berlin".

    Raises:
        ExportRejected: The zone does not exist.
    """

    name: ClassVar[str] = "xlsx"
    endings: ClassVar[tuple[str, ...]] = (".xlsx",)

    header: Mapping[str, str] = field(default_factory=dict)
    zone: str = UTC

    def __post_init__(self) -> None:
        check_zone(self.zone)

    def options(self) -> dict[str, Any]:
        """Return the format's name and options, for the manifest."""
        return {"name": self.name, "header": {**self.header}, "zone": self.zone}

    def head(self, columns: Sequence[str]) -> bytes:
        """
        Return no bytes: each sheet begins with the header.

        Raises:
            ExportRejected: `header` names a column that does not exist, or gives two columns the same name.
                There are more than 16,384 columns.
            ExportError: XlsxWriter is not installed.
        """
        _library()
        renamed(columns, self.header)
        if len(columns) > _COLUMNS:
            raise ExportRejected(
                f"Expected at most {_COLUMNS:,} columns in XLSX, got {len(columns):,}: select fewer, or export to CSV."
            )
        return b""

    def texts(self, column: Any) -> Any:
        """Return the texts of a column, for totals by group."""
        return cells(column, self._notation(), lambda texts, _: texts)

    def writer(self, out: Out, columns: Sequence[str]) -> SheetWriter:
        """Return a writer of rows, which writes the header at the beginning of each sheet."""
        return SheetWriter(cast("HashedFile", out), columns, renamed(columns, self.header), self._notation())

    def _notation(self) -> Notation:
        return Notation(moments="%Y-%m-%dT%H:%M:%S.%f", zone=self.zone)


class SheetWriter:
    """A writer of rows into sheets (`format.Writer`)."""

    def __init__(self, out: HashedFile, columns: Sequence[str], header: Sequence[str], notation: Notation) -> None:
        self._out, self._columns, self._header, self._notation = out, columns, header, notation
        self._library, self._body = _library(), _SheetsBody(out)
        self._temporary: TemporaryDirectory[str] | None = None
        self._book: Any = None
        self._sheet: Any = None
        self._row = 0  # the next one of the open sheet; 0 before the first sheet
        self._formats: dict[str, Any] = {}

    def batch(self, chunk: Sequence[Any], first: int) -> Any:
        """Return the chunk as one batch."""
        return loose(chunk, self._columns, first)

    def write(self, batch: Any, first: int) -> None:
        """Write the rows of this batch; `first` is the number of its first row."""
        made = []
        for name, column in zip(self._columns, batch.columns, strict=True):
            try:
                made.append(cells(column, self._notation, lambda shown, kind: before(kind.name[:2], shown)).to_pylist())
            except BadValue as error:
                raise ExportRejected(f"Row {first + error.index}, column {name!r}: {error}") from error
        for number, row in enumerate(zip(*made, strict=True), first):
            if self._row in {0, SHEET_ROWS}:
                self._add_sheet()
            for place, shown in enumerate(row):
                if shown is not None:
                    try:
                        self._put(place, *_CELLS[shown[:2]](shown[2:]))
                    except ExportRejected as error:
                        raise ExportRejected(f"Row {number}, column {self._columns[place]!r}: {error}") from error
            if row.count(None) == len(row):
                self._sheet.write_blank(self._row, 0, None, self._format("General"))
            self._row += 1

    def finish(self) -> None:
        """Make the XLSX file of all sheets, even without rows."""
        if self._sheet is None:
            self._add_sheet()
        try:
            self._book.close()
        except self._library.exceptions.FileCreateError as error:
            raise error.args[0] from error  # an OSError
        except self._library.exceptions.FileSizeError as error:
            raise ExportRejected(
                "Expected at most 2,147,483,647 bytes in an XLSX file and in each of its sheets, got more: "
                "export fewer columns or rows, or to CSV."
            ) from error

    def close(self) -> None:
        """Close and remove the temporary files; XlsxWriter does so only if it has made the file."""
        self._body.out = None
        for sheet in self._book.worksheets() if self._book else ():
            for file in (sheet.fh, sheet.row_data_fh):
                with suppress(OSError):
                    file.close()
        if self._temporary:
            self._temporary.cleanup()

    def _add_sheet(self) -> None:
        if self._book is None:
            self._temporary = TemporaryDirectory(prefix="xlsx-", dir=self._out.path.parent)
            options = {"constant_memory": True, "tmpdir": self._temporary.name}
            self._book = self._library.Workbook(self._body, options)
            self._book.set_properties({"created": datetime(1980, 1, 1)})  # noqa: DTZ001 - XlsxWriter adds the Z
            self._formats["bold"] = self._book.add_format({"bold": True})
            self._formats["quoted"] = self._book.add_format({"quote_prefix": True})
        self._sheet, self._row = self._book.add_worksheet(), 0
        self._sheet.freeze_panes(1, 0)
        for place, name in enumerate(self._header):
            self._sheet.set_column(place, place, min(_WIDTH[1], max(_WIDTH[0], len(name) + 2)))
            self._put(place, name, "bold")
        self._row = 1

    def _put(self, place: int, value: str | float, code: str) -> None:
        """Write a cell; `code` is its format of numbers, "bold", "quoted" or ""."""
        form = self._format(code)
        if isinstance(value, bool):
            self._sheet.write_boolean(self._row, place, value, form)
        elif not isinstance(value, str):
            self._sheet.write_number(self._row, place, value, form)
        elif len(value) > _CHARACTERS // 2 and (units := len(value.encode("utf-16-le")) // 2) > _CHARACTERS:
            raise ExportRejected(
                f"Expected at most {_CHARACTERS:,} characters in a cell of XLSX, got {units:,}: "
                "shorten the text in the query, or export to CSV."
            )
        elif not _RAW.search(value):
            self._sheet.write_string(self._row, place, value, form)
        elif not _CONTROL.search(value):
            runs = [*value[:2], *_ESCAPE_END.split(value[2:])]
            self._sheet.write_rich_string(self._row, place, *runs, *filter(None, [form]))
        else:
            raise ExportRejected(
                "Expected a text without control characters if it has the form <r>…</r>, or one escape like _x0041_ "
                "that ends where another one begins, got one with them: remove them in the query, or export to CSV."
            )

    def _format(self, code: str) -> Any:
        if code and code not in self._formats:
            self._formats[code] = self._book.add_format({"num_format": code})
        return self._formats.get(code)


class _SheetsBody:
    """The file as XlsxWriter has it: after a failure, its ZipFile writes an index when it is collected, which is dropped here."""

    def __init__(self, out: HashedFile) -> None:
        self.out: HashedFile | None = out

    def write(self, data: bytes) -> int:
        return self.out.write(data) if self.out else len(data)

    def flush(self) -> None:
        pass


class _Exact(float):
    """A float that XlsxWriter writes with all its digits; of another float, it writes 16 digits of up to 17."""

    def __format__(self, spec: str, /) -> str:
        return repr(self).removesuffix(".0")


def _library() -> Any:
    """Import XlsxWriter and return it; raise ExportError if it is not installed."""
    try:
        import xlsxwriter
    except ImportError as error:
        raise ExportError(
            "Expected XlsxWriter for a file in XLSX, got none: pip install 'steadyworker[xlsx]'."
        ) from error
    return xlsxwriter


def _text(shown: str) -> tuple[str, str]:
    """Return a text; mark it as quoted if it begins like a formula."""
    return shown, "quoted" if shown[:1] in _FORMULA else ""


def _number(digits: str) -> tuple[str | float, str]:
    """Return a number and the format that shows all its digits; text for more than 15 digits, NaN and the infinities."""
    whole, _, fraction = digits.partition(".")
    if not digits.lstrip("-")[:1].isdigit() or len((whole + fraction.rstrip("0")).lstrip("-0")) > _DIGITS:
        return _text(digits)
    return _Exact(digits), "0." + "0" * min(len(fraction), _SCALES) if fraction else "0"


def _float(digits: str) -> tuple[str | float, str]:
    """Return a float; text for one that Excel does not have."""
    number = _Exact(digits)
    return (number, "") if not number or _SMALLEST <= abs(number) <= _LARGEST else _text(digits)


def _moment(iso: str) -> tuple[str | float, str]:
    """Return Excel's number of a date, a time or a moment; text if Excel has none, or none that holds the microsecond."""
    if iso[2] == ":":
        return _Exact((datetime.fromisoformat(f"1899-12-30T{iso}") - _DAY_ZERO) / _DAY), "hh:mm:ss"
    moment = datetime.fromisoformat(iso)
    days = _Exact((moment - _DAY_ZERO) / _DAY)
    if days < _FIRST or (days >= _PRECISE and moment.microsecond):
        return iso, ""
    return days, r"yyyy\-mm\-dd\ hh:mm:ss" if "T" in iso else r"yyyy\-mm\-dd"


# By the first two letters of the kind of the value's text.
_CELLS: Mapping[str, Callable[[str], tuple[str | float, str]]] = MappingProxyType(
    {"TE": _text, "BO": lambda shown: (shown == "true", ""), "IN": _number, "DE": _number, "FL": _float, "TI": _moment}
)
