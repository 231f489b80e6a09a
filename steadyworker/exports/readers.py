"""
Readers of exported files, which share no code with the writers but CSV's header; `verifying.py` lists the reader of each format.

Each reader yields one sequence of cells per row, in the order of the requested columns.
A cell is text, or has the format's own type.
"""

from __future__ import annotations

import csv
import glob
import gzip
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from io import TextIOWrapper
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, cast
from xml.etree import ElementTree as ET

from steadyworker.errors import ExportError
from steadyworker.exports.formats import Csv
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.sources import arrow

Cells = Sequence[Any]
Reader = Callable[[Path, Manifest, Sequence[str]], Iterator[Cells]]

_SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_ESCAPE = re.compile("_x([0-9A-Fa-f]{4})_")
_COARSE = 65_536  # days since 1899-12-30; from there on, a double is too coarse for a microsecond
_LONGEST = 16 << 20  # characters; a longer cell cannot be read
_BATCH = 10_000


def read_csv(file: Path, manifest: Manifest, columns: Sequence[str]) -> Iterator[Cells]:
    """Read every column as text with Python's csv; NULL and empty text both become ""."""
    options = Csv(**{name: value for name, value in manifest.format.items() if name != "name"})
    head = options.head(manifest.columns)
    csv.field_size_limit(_LONGEST)
    places = [manifest.columns.index(column) for column in columns]
    with _opened(file, options.compression) as source:
        first = source.read(len(head))
        if first != head:
            raise ExportError(
                f"Expected {file} to begin with {head!r:.200}, as in its manifest, got {first!r:.200}: export it again."
            )
        rows = csv.reader(TextIOWrapper(source, "utf-8", newline=""), delimiter=options.delimiter, strict=True)
        for row in rows:
            if len(row) != len(manifest.columns):
                line = head.count(b"\n") + rows.line_num
                raise ExportError(f"Expected {len(manifest.columns)} values in line {line} of {file}, got {len(row)}.")
            yield [row[place] for place in places]


def read_jsonl(file: Path, manifest: Manifest, columns: Sequence[str]) -> Iterator[Cells]:
    """Read with Python's json; a number with a decimal point becomes a Decimal, which is exact."""
    with TextIOWrapper(_opened(file, manifest.format.get("compression")), "utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            row = json.loads(line, parse_float=Decimal)
            if tuple(row) != manifest.columns:
                raise ExportError(
                    f"Expected the columns {manifest.columns} in line {number} of {file}, got {tuple(row)}."
                )
            yield [row[column] for column in columns]


def read_parquet(file: Path, manifest: Manifest, columns: Sequence[str]) -> Iterator[Cells]:
    """Read with DuckDB if it is installed, otherwise with pyarrow, which also wrote the file."""
    pyarrow = arrow()
    places = [manifest.columns.index(name) for name in columns] or [0]
    try:
        import duckdb
    except ImportError:
        import pyarrow.parquet as pq

        with pq.ParquetFile(file) as source:
            for batch in source.iter_batches(_BATCH):
                yield from zip(*(batch.column(place).to_pylist() for place in places), strict=True)
        return
    # Columns are read by position, because DuckDB ignores case in names.
    # Rows are read through Arrow, because DuckDB itself needs pytz for a timestamp.
    wanted = ", ".join(f"c{place} AS w{number}" for number, place in enumerate(places))
    all_of_them = ", ".join(f"c{place}" for place in range(len(manifest.columns)))
    query = f"SELECT {wanted} FROM read_parquet(?) AS file({all_of_them})"  # noqa: S608 - numbers only
    with duckdb.connect() as connection:
        found = connection.sql(query, params=[glob.escape(str(file))])
        for batch in pyarrow.RecordBatchReader.from_stream(found):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def read_xlsx(file: Path, manifest: Manifest, columns: Sequence[str]) -> Iterator[Cells]:
    """Read with Python's zipfile and its XML parser; numbers become Decimals, and dates Python's dates."""
    places = [manifest.columns.index(column) for column in columns]
    header = manifest.format.get("header", {})
    names = [header.get(name, name) for name in manifest.columns]
    with zipfile.ZipFile(file) as archive:
        kinds = _xlsx_kinds(archive)
        targets = {each.get("Id"): each.get("Target") for each in _xml(archive, "xl/_rels/workbook.xml.rels")}
        for sheet in _xml(archive, "xl/workbook.xml").iter(f"{_SHEET}sheet"):
            rows = _xlsx_rows(archive, f"xl/{targets[sheet.get(f'{_RELATION}id')]}")
            head = {letters: _xlsx_value(cell, kinds) for letters, cell in next(rows, {}).items()}
            if [*head.values()] != names:
                raise ExportError(
                    f"Expected the header {names} in sheet {sheet.get('name')} of {file}, got {[*head.values()]}."
                )
            wanted = [[*head][place] for place in places]
            for row in rows:
                yield [_xlsx_value(row.get(letters), kinds) for letters in wanted]


def _xlsx_rows(archive: zipfile.ZipFile, name: str) -> Iterator[dict[str, ET.Element]]:
    """Yield the cells of each row, by the letters of their columns; the cells are dropped when the next row is read."""
    with archive.open(name) as part:
        for _, element in ET.iterparse(part):  # noqa: S314 - the file has the SHA-256 of its manifest
            if element.tag == f"{_SHEET}row":
                yield {cell.get("r", "").rstrip("0123456789"): cell for cell in element}
                element.clear()


def _xlsx_value(cell: ET.Element | None, kinds: Sequence[str]) -> Any:
    if cell is None or not len(cell):
        return None
    kind, shown = cell.get("t", "n"), "".join(cell.itertext())
    if kind == "inlineStr":
        runs = [each.text or "" for each in cell.iter(f"{_SHEET}t")]
        return "".join(_ESCAPE.sub(lambda found: chr(int(found[1], 16)), run) for run in runs)
    if kind == "b":
        return shown == "1"
    style = kinds[int(cell.get("s", "0"))]
    if style == "number":
        return Decimal(shown)
    days, rest = divmod(float(shown), 1)
    micros = round(rest * 86_400e6)
    if days >= _COARSE:
        micros = round(rest * 86_400) * 1_000_000
    moment = datetime(1899, 12, 30) + timedelta(days=days, microseconds=micros)  # noqa: DTZ001 - Excel has no zones
    return {"date": moment.date(), "time": moment.time()}.get(style, moment)


def _xlsx_kinds(archive: zipfile.ZipFile) -> list[str]:
    """Return for each cell format whether it shows a date, a time, a moment or a number."""
    styles = _xml(archive, "xl/styles.xml")
    codes = {each.get("numFmtId"): each.get("formatCode", "") for each in styles.iter(f"{_SHEET}numFmt")}
    shown = [codes.get(each.get("numFmtId"), "") for each in styles.find(f"{_SHEET}cellXfs") or ()]
    kinds = {(False, False): "number", (True, False): "date", (False, True): "time", (True, True): "moment"}
    return [kinds["y" in code, "h" in code] for code in shown]


def _xml(archive: zipfile.ZipFile, name: str) -> ET.Element:
    return ET.fromstring(archive.read(name))  # noqa: S314 - the file has the SHA-256 of its manifest


def _opened(file: Path, compression: str | None) -> BinaryIO:
    """Open the file for reading, and decompress it if necessary; Python before 3.14 reads zstd only with pyarrow."""
    if compression == "gzip":
        return cast("BinaryIO", gzip.open(file))
    if compression:
        return cast("BinaryIO", arrow().CompressedInputStream(arrow().OSFile(os.fsencode(file)), compression))
    return file.open("rb")


READERS: Mapping[str, Reader] = MappingProxyType(
    {"csv": read_csv, "jsonl": read_jsonl, "parquet": read_parquet, "xlsx": read_xlsx}
)
"""The reader of each format, by the format's name."""
