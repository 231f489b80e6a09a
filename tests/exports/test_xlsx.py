"""XLSX: each cell as openpyxl and LibreOffice read it, which share nothing with the writer."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import openpyxl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports import xlsx
from steadyworker.exports.hashed import HashedFile
from steadyworker.exports.readers import read_xlsx
from steadyworker.exports.rows import RowExport
from steadyworker.exports.verifying import verify
from steadyworker.exports.xlsx import SHEET_ROWS, Xlsx
from tests.exports.kit import FakeServices


def written(folder: Path, rows: Any, columns: tuple[str, ...], name: str = "out.xlsx", **options: Any) -> Path:
    RowExport(rows, columns=columns).write(FakeServices(folder / "ledger"), folder / name, **options)
    return folder / name


def cells(file: Path) -> list[list[tuple[Any, str, str]]]:
    """The value, type and number format of each cell below the header, as openpyxl reads them."""
    sheet = openpyxl.load_workbook(file).active
    assert sheet is not None
    return [[(cell.value, cell.data_type, cell.number_format) for cell in row] for row in sheet.iter_rows(min_row=2)]


def cell(folder: Path, value: object, **options: Any) -> tuple[Any, str, str]:
    return cells(written(folder, [(value,)], ("a",), **options))[0][0]


def test_a_sheet_has_typed_cells_below_a_frozen_header(tmp_path: Path) -> None:
    row = (7, "x", Decimal("1234.50"), date(2024, 2, 29), datetime(2024, 2, 29, 13, 30), True, 1.5, time(6), None)  # noqa: DTZ001
    columns = ("id", "text", "amount", "day", "at", "yes", "float", "time", "none")
    file = written(tmp_path, [row], columns, format=Xlsx(header={"amount": "Betrag <€>"}))
    sheet = openpyxl.load_workbook(file).active
    assert sheet is not None
    assert (sheet.title, sheet.freeze_panes, sheet.max_row) == ("Sheet1", "A2", 2)
    assert [each.value for each in sheet[1]] == ["id", "text", "Betrag <€>", *columns[3:]]
    assert [each.font.b for each in sheet[1]] == [True] * len(columns)
    assert cells(file) == [
        [
            (7, "n", "0"),
            ("x", "s", "General"),
            (1234.5, "n", "0.00"),
            (datetime(2024, 2, 29), "d", r"yyyy\-mm\-dd"),  # noqa: DTZ001
            (datetime(2024, 2, 29, 13, 30), "d", r"yyyy\-mm\-dd\ hh:mm:ss"),  # noqa: DTZ001
            (True, "b", "General"),
            (1.5, "n", "General"),
            (time(6), "d", "hh:mm:ss"),
            (None, "n", "General"),
        ]
    ]
    assert verify(file).format == {"name": "xlsx", "header": {"amount": "Betrag <€>"}, "zone": "UTC"}


@pytest.mark.parametrize(
    "text", ["=1+1", "+49 30", "-5", "@SUM(A1)", "007", "1E5", "2024-01-01", " ", "a\nb\tc", "<&>\"'", "😀"]
)
def test_text_stays_text(tmp_path: Path, text: str) -> None:
    file = written(tmp_path, [(text,)], ("a",))
    sheet = openpyxl.load_workbook(file).active
    assert sheet is not None
    assert (sheet["A2"].value, sheet["A2"].data_type) == (text, "s")
    assert bool(sheet["A2"].quotePrefix) == (text[0] in "=+-@")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (999_999_999_999_999, (999_999_999_999_999, "n", "0")),
        (-999_999_999_999_999, (-999_999_999_999_999, "n", "0")),
        (1_000_000_000_000_000, ("1000000000000000", "s", "General")),
        (10**30, (str(10**30), "s", "General")),
        (Decimal("9999999999999.99"), (9999999999999.99, "n", "0.00")),
        (Decimal("-99999999999999.99"), ("-99999999999999.99", "s", "General")),
        (Decimal("1.500000000000000000"), (1.5, "n", "0." + "0" * 18)),
        (Decimal("0.00000001"), (1e-8, "n", "0.00000000")),
        (Decimal("1E+3"), (1000, "n", "0")),
        (Decimal("1E-35"), (1e-35, "n", "0." + "0" * 30)),
        (Decimal("NaN"), ("NaN", "s", "General")),
        (Decimal("-Infinity"), ("-Infinity", "s", "General")),
        (0.1 + 0.2, (0.1 + 0.2, "n", "General")),
        (float("nan"), ("NaN", "s", "General")),
        (float("-inf"), ("-Infinity", "s", "General")),
        (1e-320, ("1.0E-320", "s", "General")),
        (1.7e308, ("1.7E308", "s", "General")),
    ],
    ids=str,
)
def test_a_number_that_a_double_cannot_hold_is_text(tmp_path: Path, value: object, found: tuple[Any, str, str]) -> None:
    assert cell(tmp_path, value) == found
    beside = written(tmp_path, [(value,), (7,), (None,), (Decimal("2.5"),), ("x",)], ("a",), name="beside.xlsx")
    assert [row[0][0] for row in cells(beside)] == [found[0], 7, None, 2.5, "x"]


DAY, MOMENT = r"yyyy\-mm\-dd", r"yyyy\-mm\-dd\ hh:mm:ss"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (date(1900, 2, 28), ("1900-02-28", "s", "General")),
        (date(1900, 3, 1), (datetime(1900, 3, 1), "d", DAY)),  # noqa: DTZ001
        (date(9999, 12, 31), (datetime(9999, 12, 31), "d", DAY)),  # noqa: DTZ001
        (datetime(1, 1, 1), ("0001-01-01T00:00:00.000000", "s", "General")),  # noqa: DTZ001
        (datetime(1900, 3, 1), (datetime(1900, 3, 1), "d", MOMENT)),  # noqa: DTZ001
        (datetime(2079, 6, 6, 1, 0, 0, 1), ("2079-06-06T01:00:00.000001", "s", "General")),  # noqa: DTZ001
        (datetime(9999, 12, 31, 23, 59, 59), (datetime(9999, 12, 31, 23, 59, 59), "d", MOMENT)),  # noqa: DTZ001
        (datetime(2024, 3, 31, 1, tzinfo=UTC), (datetime(2024, 3, 31, 3), "d", MOMENT)),  # noqa: DTZ001
        (datetime(1850, 1, 1, tzinfo=UTC), ("1850-01-01T00:53:28.000000", "s", "General")),
    ],
    ids=str,
)
def test_a_date_that_excel_does_not_have_is_text(tmp_path: Path, value: object, found: tuple[Any, str, str]) -> None:
    assert cell(tmp_path, value, format=Xlsx(zone="Europe/Berlin")) == found


def test_each_microsecond_until_2079_is_read_back(tmp_path: Path) -> None:
    first = datetime(1900, 3, 1)  # noqa: DTZ001
    moments = [first + timedelta(days=at * 65.47, microseconds=at * 7919) for at in range(1_000)]
    file = written(tmp_path, [(moment,) for moment in moments], ("at",))
    assert moments[-1].year == 2079
    manifest = verify(file)
    assert [row[0] for row in read_xlsx(file, manifest, ["at"])] == moments


def test_a_whole_batch_of_moments_in_a_zone_is_converted(tmp_path: Path) -> None:
    at = [datetime(2024, 10, 27, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    batch = pa.record_batch({"at": pa.array([None, *at], pa.timestamp("us", "UTC"))})
    file = written(tmp_path, [batch], ("at",), format=Xlsx(zone="Europe/Berlin"))
    twice = datetime(2024, 10, 27, 2, 30)  # noqa: DTZ001 - the clock shows this hour twice
    assert [row[0] for row in cells(file)] == [(None, "n", "General"), (twice, "d", MOMENT), (twice, "d", MOMENT)]


def test_control_characters_are_escaped_as_the_format_demands(tmp_path: Path) -> None:
    rows = [("a\x0bb",), ("\r\n\t",), ("_x000B_",), ("\0\x1f\ufffe\uffff",), ("_x00_",)]
    file = written(tmp_path, rows, ("a",), totals={}, by=("a",))
    with zipfile.ZipFile(file) as archive:
        sheet = ET.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    assert [each.text for each in sheet.iter("{http://schemas.openxmlformats.org/spreadsheetml/2006/main}t")][1:] == [
        "a_x000B_b",
        "_x000D_\n\t",
        "_x005F_x000B_",
        "_x0000__x001F__xFFFE__xFFFF_",
        "_x00_",
    ]
    assert [*read_xlsx(file, verify(file), ["a"])] == [[text] for (text,) in rows]


ESCAPES = ["_x0041_x0042_", "=_x0041_x005F_x0042_x0043_ ", "<r>a</r>", "<r></r>", "<r> _x0041_ \n</r>"]


def test_a_text_that_xlsxwriter_would_change_has_runs(tmp_path: Path) -> None:
    """A reader resolves the escapes of each run by itself, because they are those of the element `t`."""
    file = written(tmp_path, [(text,) for text in ESCAPES], ("a",), totals={}, by=("a",))
    assert [*read_xlsx(file, verify(file), ["a"])] == [[text] for text in ESCAPES]
    assert [row[0] for row in cells(file)] == [(text, "s", "General") for text in ESCAPES]
    sheet = openpyxl.load_workbook(file).active
    assert sheet is not None
    assert [bool(row[0].quotePrefix) for row in sheet.iter_rows(min_row=2)] == [False, True, False, False, False]


@pytest.mark.parametrize("text", ["<r>\x0b</r>", "_x0041\x0b", "_x0041_x0042\0", "_x0041\ufffe"])
def test_a_text_that_runs_do_not_help_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ExportRejected, match="Row 1, column 'a': Expected a text without control characters"):
        written(tmp_path, [("x",), (text,)], ("a",))


REFUSED = re.compile(
    r"\A<r>.*[\x00-\x08\x0b-\x1f\ufffe\uffff].*</r>\Z"
    r"|_x[0-9A-Fa-f]{4}[\x00-\x08\x0b-\x1f\ufffe\uffff]"
    r"|[\x00-\x08\x0b-\x1f\ufffe\uffff].*_x[0-9A-Fa-f]{4}_x[0-9A-Fa-f]{4}_"
    r"|_x[0-9A-Fa-f]{4}_x[0-9A-Fa-f]{4}_.*[\x00-\x08\x0b-\x1f\ufffe\uffff]",
    re.DOTALL,
)


@given(
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]))
        | st.from_regex("_x00[0-7][0-9]_(x00[0-7][0-9]_)?")
        | st.from_regex(r"\A(<r>)?(_x00[4-7][0-9A-F]|_|x|<|\n| )*(</r>)?\Z")
    ).filter(lambda texts: not any(REFUSED.search(text) for text in texts))
)
def test_any_text_is_read_back(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("any")
    file = written(folder, [(text,) for text in texts], ("a",))
    assert [*read_xlsx(file, verify(file), ["a"])] == [[text] for text in texts]


@pytest.mark.parametrize("letter", ["x", "😀"])
def test_a_text_that_is_too_long_is_refused_with_its_place(tmp_path: Path, letter: str) -> None:
    longest = letter * (32_767 // len(letter.encode("utf-16-le")) * 2)
    assert cell(tmp_path, longest)[0] == longest
    with pytest.raises(
        ExportRejected, match=r"Row 1, column 'a': Expected at most 32,767 characters .* got 32,76[89]:"
    ):
        written(tmp_path, [("x",), (longest + letter * 2,)], ("a",), name="longer.xlsx")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_full_sheet_is_followed_by_one_with_the_same_header(tmp_path: Path) -> None:
    count = SHEET_ROWS + 1  # the first sheet has a header, so the second one has two rows
    batches = pa.table({"id": pa.array(range(count), pa.int64())}).to_batches(100_000)
    file = written(tmp_path, batches, ("id",))
    with zipfile.ZipFile(file) as archive:
        rows = [re.findall(rb'<row r="(\d+)">', archive.read(f"xl/worksheets/sheet{at}.xml")) for at in (1, 2)]
        second = archive.read("xl/worksheets/sheet2.xml")
    assert [len(each) for each in rows] == [SHEET_ROWS, 3]
    assert [each[-1] for each in rows] == [b"1048576", b"3"]
    assert re.findall(rb">([^<>]+)</[tv]>", second) == [b"id", b"1048575", b"1048576"]
    assert b'state="frozen"' in second


def test_all_sheets_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlsx, "SHEET_ROWS", 100)
    file = written(tmp_path, [(at,) for at in range(250)], ("id",), totals={"id": "sum"})
    assert [sheet.max_row for sheet in openpyxl.load_workbook(file).worksheets] == [100, 100, 53]
    assert verify(file).rows == 250


def test_equal_rows_give_equal_bytes_whatever_the_batches(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": pa.array(range(10_000), pa.int64()),
            "t": pa.array([None if at % 5 == 0 else f"text {at % 99}" for at in range(10_000)], pa.string()),
        }
    )
    whole = written(tmp_path, table.to_batches(), ("n", "t")).read_bytes()
    for at, size in enumerate((1, 999, 4_000)):
        few = table.slice(0, 2_500) if size == 1 else table
        expected = (
            whole if few is table else written(tmp_path, few.to_batches(), ("n", "t"), name="few.xlsx").read_bytes()
        )
        assert written(tmp_path, few.to_batches(size), ("n", "t"), name=f"{at}.xlsx").read_bytes() == expected
    with zipfile.ZipFile(tmp_path / "out.xlsx") as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 31, 0, 0, 0)}


@pytest.mark.filterwarnings("ignore:Exception ignored in. <function ZipFile.__del__")  # of a file that is too large
def test_what_excel_could_not_open_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportRejected, match="at most 16,384 columns in XLSX, got 16,385"):
        written(tmp_path, [], tuple(map(str, range(16_385))))
    with pytest.raises(ExportRejected, match="to rename only columns"):
        written(tmp_path, [], ("a",), format=Xlsx(header={"b": "c"}))
    with pytest.raises(ExportRejected, match=r"no \.gz at the end of the name of a xlsx file"):
        written(tmp_path, [], ("a",), name="out.xlsx.gz")
    with pytest.raises(ExportRejected, match=r"no split_bytes for XLSX, .* got 5,000: use split_rows"):
        written(tmp_path, [], ("a",), format=Xlsx(), split_bytes=5_000)
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 20_000)
    with pytest.raises(ExportRejected, match="bytes in an XLSX file and in each of its sheets, got more"):
        written(tmp_path, [("x" * 999,)] * 20, ("a",))
    monkeypatch.setattr(xlsx, "SHEET_ROWS", 3)
    with pytest.raises(ExportRejected, match="bytes in an XLSX file and in each of its sheets, got more"):
        written(tmp_path, [(os.urandom(999).hex(),) for _ in range(60)], ("a",))


def test_a_row_that_has_only_nulls_stays_a_row(tmp_path: Path) -> None:
    rows = [(None, None), (1, None), (None, None), (None, None)]
    file = written(tmp_path, rows, ("a", "b"), totals={"a": "sum"})
    assert [[value for value, _, _ in row] for row in cells(file)] == [list(row) for row in rows]
    assert verify(file).rows == 4
    assert [*read_xlsx(file, verify(file), ["a", "b"])] == [list(row) for row in rows]


def test_numbers_are_summed_and_grouped_as_they_were_written(tmp_path: Path) -> None:
    """The double of 9.00000000000001 is 9.000000000000011 with XlsxWriter's own 16 digits."""
    rows = [(number, Decimal("9.00000000000001")) for number in range(3)]
    file = written(tmp_path, rows, ("n", "d"), totals={"d": "sum"}, by=("n",))
    assert [total.by["n"] for total in verify(file).totals] == ["0", "1", "2"]


def test_without_xlsxwriter_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def rows(start: int) -> list[tuple[int]]:
        asked.append(start)
        return []

    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    with pytest.raises(ExportError, match=r"pip install 'steadyworker\[xlsx\]'"):
        written(tmp_path, rows, ("a",))
    assert asked == []  # it was raised before the first row


class Full(OSError):
    """What a full disk raises."""

    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, "No space left on device")


def raise_full(*arguments: Any) -> None:
    if arguments[-1]:
        raise Full


def open_below(folder: Path) -> list[str]:
    """The open files of this process in the folder, those that were removed, too."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the handle that lists them
            found.append(str(each.readlink()))
    return [name for name in found if name.startswith(str(folder))]


@pytest.mark.parametrize("ends", ["rows", "temporary file", "copy of it", "file"])
def test_an_export_that_fails_leaves_no_open_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The temporary files are in the stage, not in the system's folder, and their space is free at once."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr("steadyworker.exports.sources._MANY_ROWS", 4_000)
    seen: list[Path] = []

    def rows() -> Iterator[tuple[int, str]]:
        for number in range(5_000):
            yield number, "x" * 20
        seen.extend(tmp_path.rglob("xlsx-*/*"))
        assert open_below(tmp_path) != []
        if ends == "rows":
            raise Full
        if ends == "temporary file":
            resource.setrlimit(resource.RLIMIT_FSIZE, (seen[0].stat().st_size + 20_000, limits[1]))
        for number in range(4_000):
            yield number, "x" * 20

    if ends == "copy of it":  # both files of the sheet are open where XlsxWriter removes the first one
        monkeypatch.setattr("xlsxwriter.worksheet.os", SimpleNamespace(close=os.close, unlink=raise_full))
    elif ends == "file":
        monkeypatch.setattr(HashedFile, "write", raise_full)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises((OSError, ExportError), match=r"No space left on device|File too large"):
            written(tmp_path, rows(), ("n", "t"), name="full.xlsx")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(seen) == 1
    assert [*tmp_path.rglob("xlsx-*")] == []
    assert open_below(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_libreoffice_opens_it(tmp_path: Path) -> None:
    """As flat XML, which shows the type of each cell."""
    office = shutil.which("soffice")
    if office is None:
        missing = "LibreOffice was not found: apt-get install --no-install-recommends libreoffice-calc-nogui"
        if os.environ.get("CI"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    row = (
        "=1+1",
        "007",
        42,
        Decimal("1234.50"),
        10**15,
        date(2024, 2, 29),
        datetime(2024, 2, 29, 13, 30),  # noqa: DTZ001
        True,
        None,
        "a\x0b_x000B_",
    )
    columns = tuple(f"c{at}" for at in range(len(row)))
    file = written(tmp_path, [row] * 3, columns)
    profile = f"-env:UserInstallation=file://{tmp_path}/profile"
    subprocess.run(
        [office, profile, "--headless", "--convert-to", "fods", "--outdir", str(tmp_path), str(file)],
        check=True,
        capture_output=True,
        timeout=280,
    )
    office_ns = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
    table_ns = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
    rows = ET.parse(tmp_path / "out.fods").getroot().findall(f".//{table_ns}table-row")[:4]
    assert ["".join(each.itertext()).strip() for each in rows[0]][: len(columns)] == list(columns)
    found = []
    for each in rows[1]:
        kind = each.get(f"{office_ns}value-type")
        value = next(
            (
                each.get(f"{office_ns}{at}")
                for at in ("value", "date-value", "boolean-value")
                if each.get(f"{office_ns}{at}")
            ),
            None,
        )
        found.append((kind, value or "".join(each.itertext()).strip() or None))
        assert each.get(f"{table_ns}formula") in {None, "of:=TRUE()"}  # LibreOffice's form of a boolean
    assert found[: len(row)] == [
        ("string", "=1+1"),
        ("string", "007"),
        ("float", "42"),
        ("float", "1234.5"),
        ("string", "1000000000000000"),
        ("date", "2024-02-29"),
        ("date", "2024-02-29T13:30:00"),
        ("float", "1"),  # LibreOffice's form of a boolean
        (None, None),
        ("string", "a_x000B_"),  # flat XML cannot have a vertical tab
    ]
