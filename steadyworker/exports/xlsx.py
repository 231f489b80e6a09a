r"""
XLSX, the format of Excel and LibreOffice: typed cells in sheets with a frozen header.

Arrow's kernels make the cells, as they make the lines of CSV, and Python's zipfile compresses them at once.
So a file of any size needs no temporary file, and no more memory than a batch.
XlsxWriter, which writes cell by cell, needs nine times the processor time (`tests/benchmarks/bench_formats.py`).

| values | cell |
|---|---|
| text | text, never a formula; zeros at its beginning stay |
| booleans | boolean |
| integers | a number of at most 15 digits, otherwise text |
| decimals | a number with all digits of its scale, otherwise text; zeros at the end of a fraction do not count as digits |
| floats | a number; NaN, the infinities and sizes that Excel does not have are text |
| dates, moments | Excel's date from 1900-03-01 on, otherwise text |
| times | Excel's time |
| NULL | no cell |

A binary float holds each number of 15 digits, so no number is rounded.
Excel's date holds a microsecond up to the year 2079; a later moment with a fraction of a second is text.
A cell shows a moment to the second.
Text that stands for a value has the form that `render.py` gives it.

A moment with a zone is converted to the format's zone, because Excel's dates have no zone.
Control characters are escaped as the format demands, a vertical tab as `_x000B_`.
If a text begins like a formula, its cell is marked as quoted, so that it stays text when a person edits it.
A sheet has at most 1,048,576 rows, and each sheet begins with the header.

Equal rows give equal bytes: a file has no time of creation, and all its parts have the time 1980-01-01.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any, ClassVar, cast

from steadyworker.errors import ExportRejected
from steadyworker.exports.format import Format
from steadyworker.exports.patterns import UTC, check_zone
from steadyworker.exports.render import (
    BadValue,
    Notation,
    Out,
    TextKind,
    after,
    before,
    by_type,
    cells,
    has_any,
    offsets,
    text_bytes,
    texts,
)
from steadyworker.exports.sources import arrow, loose, renamed

SHEET_ROWS = 1_048_576
"""The most rows of a sheet, with its header (Excel's specifications and limits)."""

_COLUMNS = 16_384  # Excel's limit, too
_CHARACTERS = 32_767  # of a cell, in UTF-16: Excel's limit
_DIGITS = 15  # that a double holds, whatever they are
_BYTES = (
    (1 << 31) - 1
)  # of a sheet before compression, and of the file: zipfile's limit without ZIP64, which Excel does not read in a stream
_LEVEL = 4  # of deflate: twice as fast as level 6, and 8 % larger
_DAY = 86_400_000_000  # microseconds
_FIRST = 61  # the number of 1900-03-01; Excel counts a day 1900-02-29, which did not exist
_PRECISE = 65_536  # days; below, a double holds a microsecond of a day: 2079-06-06
_LAST = 2_958_465  # the number of 9999-12-31
_UNIX = 25_569  # the number of 1970-01-01
_SMALLEST, _LARGEST = 2.2251e-308, 9.99e307  # Excel's limits of floats
_SCALES = 30  # the most digits after the point in Excel's formats of numbers
_WIDTH = 20, 60  # the least and most characters of a column's width; a moment has 19
_FORMULA = "=+-@"
_NO_CONTROLS = bytes({*range(256)} - ({*range(32)} - {9, 10}))

# Cell formats, by their place in styles.xml.
_PLAIN, _HEADER, _QUOTED, _DATE, _MOMENT, _TIME, _NUMBER = range(7)

_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_SHEET_END = b"</sheetData></worksheet>"
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_RELS = (
    f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>'
)


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
        """
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
        return SheetWriter(out, columns, renamed(columns, self.header), self._notation())

    def _notation(self) -> Notation:
        return Notation(moments="%Y-%m-%dT%H:%M:%S.%f", zone=self.zone)


class SheetWriter:
    """A writer of rows into sheets (`formats.Writer`)."""

    def __init__(self, out: Out, columns: Sequence[str], header: Sequence[str], notation: Notation) -> None:
        self._columns, self._notation = columns, notation
        self._starts = [f'<c r="{_letters(place)}' for place in range(len(columns))]
        self._head = self._sheet_head(header)
        self._zip = zipfile.ZipFile(
            cast("IO[bytes]", out), "w", zipfile.ZIP_DEFLATED, allowZip64=False, compresslevel=_LEVEL
        )
        self._sheets = 0
        self._row = self._size = 0  # of the open sheet
        self._sheet: Any = None
        self._put("_rels/.rels", _RELS)  # programs detect XLSX by the first names in the archive
        self._put("xl/styles.xml", _styles())

    def batch(self, chunk: Sequence[Any], first: int) -> Any:
        """Return the chunk as one batch."""
        return loose(chunk, self._columns, first)

    def write(self, batch: Any, first: int) -> None:
        """Write the rows of this batch; `first` is the number of its first row."""
        made = []
        for name, column in zip(self._columns, batch.columns, strict=True):
            try:
                made.append(by_type(column, self._cells))
            except BadValue as error:
                raise ExportRejected(f"Row {first + error.index}, column {name!r}: {error}") from error
        at = 0
        while at < batch.num_rows:
            if self._sheet is None or self._row == SHEET_ROWS:
                self._open_sheet()
            count = min(batch.num_rows - at, SHEET_ROWS - self._row)
            self._write(self._rows([each.slice(at, count) for each in made], count))
            at += count

    def finish(self) -> None:
        """Write the end of the last sheet and the index, even for a file without rows."""
        if self._sheet is None:
            self._open_sheet()
        self._close_sheet()
        sheets = range(1, self._sheets + 1)
        self._put("xl/workbook.xml", _workbook(sheets))
        self._put("xl/_rels/workbook.xml.rels", _workbook_rels(sheets))
        self._put("[Content_Types].xml", _content_types(sheets))
        with _too_large():
            self._zip.close()

    def close(self) -> None:
        """Close the archive now, because its finalizer would otherwise write to the file later."""
        errors = (OSError, RuntimeError, ValueError, zipfile.LargeZipFile)  # the file is incomplete anyway
        if self._sheet is not None:
            with suppress(*errors):
                self._sheet.close()
        with suppress(*errors):
            self._zip.close()

    def _rows(self, columns: Sequence[Any], count: int) -> Any:
        """Return the rows' texts; a cell has its reference, because not each reader counts cells itself."""
        pa = arrow()
        numbers = pa.array(range(self._row + 1, self._row + 1 + count), pa.int32()).cast(pa.string())
        pieces: list[Any] = ['<row r="', numbers, '">']
        for start, column in zip(self._starts, columns, strict=True):
            if column.null_count:
                pieces.append(pa.compute.binary_join_element_wise(start, numbers, column, "").fill_null(""))
            else:
                pieces += [start, numbers, column]
        self._row += count
        return pa.compute.binary_join_element_wise(*pieces, "</row>", "")

    def _write(self, rows: Any) -> None:
        data = text_bytes(rows)
        self._size += len(data)
        if self._size > _BYTES - len(_SHEET_END):
            raise ExportRejected(
                f"Expected at most {_BYTES:,} bytes of cells in a sheet of XLSX, got more at row {self._row:,}: "
                "select fewer columns or rows, or export to CSV."
            )
        self._sheet.write(data)

    def _open_sheet(self) -> None:
        self._close_sheet()
        self._sheets += 1
        self._row, self._size = 1, len(self._head)
        with _too_large():
            self._sheet = self._zip.open(f"xl/worksheets/sheet{self._sheets}.xml", "w")
        self._sheet.write(self._head)

    def _close_sheet(self) -> None:
        if self._sheet is not None:
            self._sheet.write(_SHEET_END)
            self._sheet.close()
            self._sheet = None

    def _put(self, name: str, text: str) -> None:
        with _too_large(), self._zip.open(name, "w") as part:
            part.write((_XML + text).encode())

    def _sheet_head(self, header: Sequence[str]) -> bytes:
        """Return the beginning of a sheet: the frozen pane, the widths and the header."""
        widths = "".join(
            f'<col min="{place}" max="{place}" width="{min(_WIDTH[1], max(_WIDTH[0], len(name) + 2))}" customWidth="1"/>'
            for place, name in enumerate(header, 1)
        )
        names = _escaped(arrow().array(header, arrow().string())).to_pylist()
        row = "".join(
            f'{start}1" s="{_HEADER}" t="inlineStr"><is><t xml:space="preserve">{name}</t></is></c>'
            for start, name in zip(self._starts, names, strict=True)
        )
        return (
            f'{_XML}<worksheet xmlns="{_MAIN}"><sheetViews><sheetView workbookViewId="0">'
            '<pane ySplit="1" topLeftCell="A2" activePane="bottomLeft" state="frozen"/></sheetView></sheetViews>'
            f'<cols>{widths}</cols><sheetData><row r="1">{row}</row>'
        ).encode()

    def _cells(self, column: Any, digits: TextKind | None) -> Any:
        """Return each cell's text behind its row number; NULL stays NULL."""
        pa = arrow()
        kind, types = column.type, pa.types
        if digits is not None or types.is_integer(kind) or types.is_decimal(kind):
            shown = column if digits is not None else texts(column, self._notation)[0]
            return _chosen(_exact(shown), lambda: _scaled(shown), lambda: _strings(shown))
        if types.is_string(kind):
            return _strings(column)
        if types.is_boolean(kind) or types.is_null(kind):
            return pa.compute.if_else(column.cast(pa.bool_()), '" t="b"><v>1</v></c>', '" t="b"><v>0</v></c>')
        if types.is_floating(kind):
            return self._floats(column)
        if types.is_time(kind):
            return _numbers(pa.compute.divide(column.cast(pa.int64()).cast(pa.float64()), float(_DAY)), _TIME)
        return self._dates(column) if types.is_date(kind) else self._moments(column)

    def _floats(self, column: Any) -> Any:
        kernels = arrow().compute
        size = kernels.abs(column.cast(arrow().float64()))
        fits = kernels.or_(
            kernels.equal(size, 0.0),
            kernels.and_(kernels.greater_equal(size, _SMALLEST), kernels.less_equal(size, _LARGEST)),
        )
        shown = texts(column, self._notation)[0]
        return _chosen(fits, lambda: _numbers(shown, _PLAIN), lambda: _strings(shown))

    def _dates(self, column: Any) -> Any:
        pa = arrow()
        days = pa.compute.add(column.cast(pa.int32()).cast(pa.int64()), _UNIX)
        fits = pa.compute.and_(pa.compute.greater_equal(days, _FIRST), pa.compute.less_equal(days, _LAST))
        return _chosen(fits, lambda: _numbers(days, _DATE), lambda: _strings(texts(column, self._notation)[0]))

    def _moments(self, column: Any) -> Any:
        pa = arrow()
        kernels = pa.compute
        micros = column.cast(pa.int64())
        if column.type.tz is not None and self._notation.zone != UTC:
            micros = kernels.add(micros, kernels.multiply(offsets(micros, self._notation.zone), 1_000_000))
        since = kernels.add(micros, _UNIX * _DAY)
        days = kernels.divide(since, _DAY)
        rest = kernels.subtract(since, kernels.multiply(days, _DAY))
        whole = kernels.equal(kernels.multiply(kernels.divide(rest, 1_000_000), 1_000_000), rest)
        fits = kernels.and_(
            kernels.and_(kernels.greater_equal(days, _FIRST), kernels.less_equal(days, _LAST)),
            kernels.or_(kernels.less(days, _PRECISE), whole),
        )
        return _chosen(
            fits,
            lambda: _numbers(
                kernels.add(days.cast(pa.float64()), kernels.divide(rest.cast(pa.float64()), float(_DAY))), _MOMENT
            ),
            lambda: _strings(texts(column, self._notation)[0]),
        )


@contextmanager
def _too_large() -> Iterator[None]:
    """Raise ExportRejected if the archive would need ZIP64."""
    try:
        yield
    except zipfile.LargeZipFile as error:
        raise ExportRejected(
            f"Expected at most {_BYTES:,} bytes in an XLSX file, got more: export fewer rows, or to CSV."
        ) from error


def _letters(place: int) -> str:
    """Return the name of a column, counted from 0: A to Z, then AA."""
    name = ""
    place += 1
    while place:
        place, letter = divmod(place - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


def _chosen(fits: Any, typed: Callable[[], Any], shown: Callable[[], Any]) -> Any:
    """Return the typed cells where the values fit, and text where they do not."""
    kernels = arrow().compute
    if kernels.all(fits).as_py() is not False:
        return typed()
    return kernels.if_else(fits, typed(), shown()) if kernels.any(fits).as_py() else shown()


def _numbers(values: Any, style: int) -> Any:
    """Return numbers of one style as cells."""
    set_style = f' s="{style}"' if style else ""
    return before(f'"{set_style}><v>', after(values.cast(arrow().string()), "</v></c>"))


def _scaled(shown: Any) -> Any:
    """Return the texts of numbers as cells that show all their digits after the point."""
    pa = arrow()
    kernels = pa.compute
    point = kernels.find_substring(shown, ".")
    digits = kernels.if_else(
        kernels.less(point, 0), 0, kernels.subtract(kernels.subtract(kernels.binary_length(shown), point), 1)
    )
    digits = kernels.min_element_wise(digits, _SCALES, skip_nulls=False)
    found = kernels.min_max(digits).as_py()
    if found["min"] == found["max"]:
        return _numbers(shown, _NUMBER + (found["min"] or 0))
    starts = pa.array([f'" s="{_NUMBER + scale}"><v>' for scale in range(_SCALES + 1)])
    return kernels.binary_join_element_wise(starts.take(digits), shown, "</v></c>", "")


def _exact(shown: Any) -> Any:
    """Return for each text of a number whether it is finite and has at most 15 digits; NULL stays NULL."""
    kernels = arrow().compute
    length = kernels.binary_length(shown)
    if (kernels.max(length).as_py() or 0) <= _DIGITS and not has_any(shown, b"Nn"):
        return length.is_valid()
    digits = kernels.utf8_ltrim(kernels.replace_substring_regex(shown, r"(\.\d*?)0+$", r"\1"), "-0.")
    few = kernels.less_equal(kernels.binary_length(kernels.replace_substring(digits, ".", "")), _DIGITS)
    return kernels.and_(few, kernels.match_substring_regex(shown, "^-?[0-9]"))


def _strings(shown: Any) -> Any:
    """Return texts as cells of text."""
    kernels = arrow().compute
    _check_length(shown)
    made = before('" t="inlineStr"><is><t xml:space="preserve">', after(_escaped(shown), "</t></is></c>"))
    if not has_any(shown, _FORMULA.encode()):
        return made
    quoted = kernels.is_in(kernels.utf8_slice_codeunits(shown, 0, 1), arrow().array(list(_FORMULA)))
    return kernels.if_else(quoted, before(f'" s="{_QUOTED}', made), made)


def _check_length(shown: Any) -> None:
    """Raise BadValue for the first text that is longer than a cell can be."""
    kernels = arrow().compute
    if (kernels.max(kernels.binary_length(shown)).as_py() or 0) <= _CHARACTERS:
        return
    units = kernels.add(kernels.utf8_length(shown), kernels.count_substring_regex(shown, "[\U00010000-\U0010ffff]"))
    if (most := kernels.max(units).as_py()) > _CHARACTERS:
        raise BadValue(
            kernels.index(kernels.greater(units, _CHARACTERS), True).as_py(),
            f"Expected at most {_CHARACTERS:,} characters in a cell of XLSX, got up to {most:,}: "
            "shorten the text in the query, or export to CSV.",
        )


def _escaped(shown: Any) -> Any:
    """Return texts as XML; characters that XML does not have become `_x000B_`, and such a text itself is escaped, too."""
    kernels = arrow().compute
    data = bytes(text_bytes(shown))
    if b"_x" in data:
        doubtful = kernels.match_substring_regex(shown, "_x[0-9A-Fa-f]{4}_")
        shown = kernels.if_else(doubtful, kernels.replace_substring(shown, "_x", "_x005F_x"), shown)
    for character, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        if character.encode() in data:
            shown = kernels.replace_substring(shown, character, name)
    controls = {chr(code) for code in data.translate(None, _NO_CONTROLS)}
    for character in sorted(controls | {odd for odd in "\ufffe\uffff" if odd.encode() in data}):
        shown = kernels.replace_substring(shown, character, f"_x{ord(character):04X}_")
    return shown


def _styles() -> str:
    """Return the cell formats; each file has all of them, so that they can be written before the first row."""
    formats = ["yyyy\\-mm\\-dd", "yyyy\\-mm\\-dd\\ hh:mm:ss", "hh:mm:ss", "0"]
    formats += ["0." + "0" * scale for scale in range(1, _SCALES + 1)]
    first = 164  # smaller numbers are Excel's own
    numbers = "".join(f'<numFmt numFmtId="{at}" formatCode="{code}"/>' for at, code in enumerate(formats, first))
    fixed = '<xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>'
    fixed += '<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/>'
    fixed += '<xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0" quotePrefix="1"/>'
    shown = "".join(
        f'<xf numFmtId="{at}" fontId="0" fillId="0" borderId="0" xfId="0" applyNumberFormat="1"/>'
        for at in range(first, first + len(formats))
    )
    font = '<sz val="11"/><name val="Calibri"/><family val="2"/>'
    return (
        f'<styleSheet xmlns="{_MAIN}"><numFmts count="{len(formats)}">{numbers}</numFmts>'
        f'<fonts count="2"><font>{font}</font><font><b/>{font}</font></fonts>'
        '<fills count="2"><fill><patternFill patternType="none"/></fill><fill><patternFill patternType="gray125"/></fill></fills>'
        '<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>'
        '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>'
        f'<cellXfs count="{_DATE + len(formats)}">{fixed}{shown}</cellXfs>'
        '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>'
    )


def _workbook(sheets: range) -> str:
    listed = "".join(f'<sheet name="Sheet{sheet}" sheetId="{sheet}" r:id="rId{sheet}"/>' for sheet in sheets)
    return f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{listed}</sheets></workbook>'


def _workbook_rels(sheets: range) -> str:
    listed = "".join(
        f'<Relationship Id="rId{sheet}" Type="{_OFFICE}/worksheet" Target="worksheets/sheet{sheet}.xml"/>'
        for sheet in sheets
    )
    styles = f'<Relationship Id="rId{len(sheets) + 1}" Type="{_OFFICE}/styles" Target="styles.xml"/>'
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{listed}{styles}</Relationships>'


def _content_types(sheets: range) -> str:
    listed = "".join(
        f'<Override PartName="/xl/worksheets/sheet{sheet}.xml" ContentType="{_TYPE}.worksheet+xml"/>'
        for sheet in sheets
    )
    return (
        f'<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
        f'<Override PartName="/xl/styles.xml" ContentType="{_TYPE}.styles+xml"/>{listed}</Types>'
    )
