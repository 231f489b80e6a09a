"""`verify` re-reads a file with another reader than wrote it, and says what differs."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import sys
from contextlib import closing
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from steadyworker.errors import ExportError
from steadyworker.exports.formats import Csv, Format, JsonLines
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.parquet import Parquet
from steadyworker.exports.rows import RowExport
from steadyworker.exports.stage import manifest_path
from steadyworker.exports.verifying import verify
from steadyworker.exports.xlsx import Xlsx
from tests.exports.kit import BY, TOTALS, FakeServices, Payments

FORMATS: list[Format] = [
    Csv(),
    Csv(delimiter=";", bom=True, null="NULL"),
    Csv(header=False, delimiter="\t"),
    JsonLines(),
    Csv(compression="zstd"),
    JsonLines(compression="zstd"),
    Parquet(),
    Xlsx(),
]
BERLIN = timezone(timedelta(hours=1))
ODD: list[tuple[Any, ...]] = [
    ("=a", None, Decimal("1E-8"), 1),
    ("=a", None, Decimal("2E-8"), 2),
    ("l1\r\nl2", "", None, 3),
    ("x", "", Decimal("123456789012345678901234567890.12345678"), None),
]


@pytest.mark.parametrize(
    ("form", "without"),
    [(form, ()) for form in FORMATS]
    + [(form, ("pyarrow",)) for form in (*FORMATS[:3], Xlsx())]
    + [(Parquet(), ("duckdb",))],
    ids=str,
)
def test_a_good_file_is_answered_with_its_manifest(
    tmp_path: Path, form: Format, without: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formulas, line ends, NULL beside "", exact sums of small and of 38-digit numbers, by group."""
    out = tmp_path / "odd"
    export = RowExport(ODD, columns=("a", "b", "amount", "n"))
    manifest = export.write(
        FakeServices(tmp_path / "ledger"), out, format=form, totals={"amount": "sum", "n": "sum"}, by=("a", "b")
    )
    for name in without:
        monkeypatch.setitem(sys.modules, name, None)
    assert verify(out) == manifest
    assert manifest.rows == 4


def hide(monkeypatch: pytest.MonkeyPatch, form: Format, library: str) -> None:
    """Make a library impossible to import, but pyarrow only for a format that other libraries read, too."""
    if library == "duckdb" or (form.name != "parquet" and form.compression != "zstd"):
        monkeypatch.setitem(sys.modules, library, None)


NAMES = ("", "a", "A", 'q"', "l\nf", "=x", "a,b", "ü.é", "  ", "\ufeffz", "`t`")


@pytest.mark.parametrize("form", [Csv(), Csv(bom=True, delimiter="|"), JsonLines(), Parquet(), Xlsx()], ids=str)
@pytest.mark.parametrize("without", ["pyarrow", "duckdb"])
def test_odd_names_of_columns_are_read_back(
    tmp_path: Path, form: Format, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name at all, names that differ by case only, and names that look like something else."""
    out = tmp_path / "odd"
    rows = [tuple(range(len(NAMES))), tuple(range(100, 100 + len(NAMES)))]
    manifest = RowExport(rows, columns=NAMES).write(
        FakeServices(tmp_path / "ledger"), out, format=form, totals=dict.fromkeys(NAMES, "sum"), by=("", "A")
    )
    hide(monkeypatch, form, without)
    assert verify(out) == manifest


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_groups_by_each_type_are_read_back(tmp_path: Path, form: Format) -> None:
    out = tmp_path / "groups"
    row = (True, date(2024, 1, 1), datetime(2024, 1, 1), datetime(2024, 1, 1, 2, tzinfo=BERLIN), time(1), UUID(int=7))  # noqa: DTZ001
    rows = [(*row, 1), (*[None] * len(row), 2)]
    manifest = RowExport(rows, columns=("f", "d", "n", "z", "t", "u", "sum")).write(
        FakeServices(tmp_path / "ledger"), out, format=form, totals={"sum": "sum"}, by=("f", "d", "n", "z", "t", "u")
    )
    assert verify(out) == manifest
    assert manifest.totals[1].by["z"] == "2024-01-01T01:00:00.000000" + ("" if form.name == "xlsx" else "Z")


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("without", ["pyarrow", "duckdb"])
def test_a_file_without_rows_is_read_back(
    tmp_path: Path, form: Format, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "none"
    manifest = RowExport([], columns=("a", "b")).write(FakeServices(tmp_path / "ledger"), out, format=form, by=("a",))
    hide(monkeypatch, form, without)
    assert verify(out) == manifest


@pytest.mark.parametrize(
    ("form", "data"),
    [
        (Csv(), b"id,merchant,currency,status,amount\n1,2,3\n"),
        (Csv(), b'id,merchant,currency,status,amount\n1,2,3,4,"5\n'),
        (Csv(), b"id,merchant,currency,status,amount\n1,2,3,4,five\n"),
        (Csv(), b"id,merchant,currency,status,amount\n1,2,3,\xff,5\n"),
        (JsonLines(), b'{"id":1,'),
        (JsonLines(), b"[1]\n"),
        (JsonLines(), b"1\n"),
        (JsonLines(), b"\xff\n"),
        (Parquet(), b"PAR1, or not"),
        (Xlsx(), b"PK, or not"),
    ],
    ids=str,
)
@pytest.mark.parametrize("without", ["pyarrow", "duckdb"])
def test_what_is_not_of_its_format_is_reported(
    tmp_path: Path, form: Format, data: bytes, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest that agrees with the bytes of what is no such file."""
    out = made(tmp_path, form)
    out.write_bytes(data)
    rewritten(out)
    hide(monkeypatch, form, without)
    with pytest.raises(ExportError, match=r"payments\.csv"):
        verify(out)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_files_name_is_no_pattern(tmp_path: Path, form: Format) -> None:
    names = ("of[1]*{a,b}?~%20#é's .out", "of1abx.out")
    for number, name in enumerate(names, 1):
        Payments(number).export().write(FakeServices(tmp_path / "ledger"), tmp_path / name, format=form, totals=TOTALS)
    assert [verify(tmp_path / name).rows for name in names] == [1, 2]


def test_a_manifest_of_unknown_options_is_reported(tmp_path: Path) -> None:
    out = made(tmp_path)
    rewritten(out, format={"name": "csv", "quote": "'"})
    with pytest.raises(ExportError, match=r"payments\.csv.*quote"):
        verify(out)


def test_of_many_differences_a_few_are_listed(tmp_path: Path) -> None:
    out = tmp_path / "many.csv"
    rows = [(f"{number}" + "x" * 1_000, 1) for number in range(500)]
    RowExport(rows, columns=("a", "n")).write(FakeServices(tmp_path / "ledger"), out, totals={"n": "sum"}, by=("a",))
    manifest = Manifest.load(manifest_path(out))
    totals = tuple(msgspec.structs.replace(total, rows=2) for total in manifest.totals)
    manifest_path(out).write_bytes(msgspec.structs.replace(manifest, totals=totals).dump())
    with pytest.raises(ExportError, match=r"to be 2, got 1; and 495 more") as caught:
        verify(out)
    assert len(str(caught.value)) < 3_000


def made(tmp_path: Path, form: Format | None = None) -> Path:
    out = tmp_path / "payments.csv"
    Payments(100).export().write(FakeServices(tmp_path / "ledger"), out, format=form, totals=TOTALS, by=BY)
    for path in (out, manifest_path(out)):  # the stage has the same inodes: copies may be changed
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    return out


def rewritten(out: Path, **changes: Any) -> None:
    """A manifest that agrees with the file's bytes and not with its rows."""
    data = out.read_bytes()
    facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}
    manifest = msgspec.structs.replace(Manifest.load(manifest_path(out)), **facts)
    manifest_path(out).write_bytes(manifest.dump())


@pytest.mark.parametrize(
    ("old", "new", "agrees", "says"),
    [
        (b"5\n", b"5", False, r"payments\.csv differs from its manifest: expected \d+ bytes, got \d+"),
        (b"paid", b"paiD", False, r"expected SHA-256 [0-9a-f]{64}, got [0-9a-f]{64}"),
        (b",79.19\n", b",79.11\n", True, "manifest: expected amount of group"),
        (b"merchant", b"Merchant", True, "to begin with"),
    ],
    ids=["cut", "changed", "amount", "header"],
)
def test_a_file_that_was_changed_is_found(tmp_path: Path, old: bytes, new: bytes, agrees: bool, says: str) -> None:
    """Also one whose manifest has the bytes of the changed file."""
    out = made(tmp_path)
    data = out.read_bytes()
    out.write_bytes(data.replace(old, new, 1))
    assert out.read_bytes() != data
    if agrees:
        rewritten(out)
    with pytest.raises(ExportError, match=says):
        verify(out)


@pytest.mark.parametrize("form", [Csv(), JsonLines()], ids=str)
def test_a_lost_row_is_found_in_count_and_totals(tmp_path: Path, form: Format) -> None:
    out = made(tmp_path, form)
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:-1]))
    rewritten(out)
    with pytest.raises(ExportError, match=r"expected 100 rows, got 99; expected rows of group .* expected amount of"):
        verify(out)


def test_a_file_that_is_gone_and_one_without_manifest_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"Expected a manifest at .*none\.csv\.manifest\.json"):
        verify(tmp_path / "none.csv")
    out = made(tmp_path)
    out.unlink()
    with pytest.raises(ExportError, match="got no such file"):
        verify(out)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "another file"),
        (b"{}", "another file"),
        (b"[1]", "another file"),
        (b"\xff", "another file"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "x.manifest.json").write_bytes(data)
    with pytest.raises(ExportError, match=says):
        Manifest.load(tmp_path / "x.manifest.json")


def test_a_manifest_of_a_newer_schema_asks_for_an_upgrade(tmp_path: Path) -> None:
    out = made(tmp_path)
    rewritten(out, schema=2)
    with pytest.raises(ExportError, match=r"schema up to 1 .*, got 2: upgrade"):
        verify(out)


# --- against the source ------------------------------------------------------------------------------------------------


def sold(folder: Path) -> tuple[Path, sqlite3.Connection]:
    """Forty payments in a database, and their export with totals by currency."""
    db = sqlite3.connect(folder / "shop.db")
    db.execute("CREATE TABLE payments (id INTEGER, currency TEXT, cents INTEGER)")
    db.executemany(
        "INSERT INTO payments VALUES (?, ?, ?)", [(n, (None, "EUR", "USD")[n % 3], n * 101) for n in range(40)]
    )
    db.commit()
    rows = db.execute("SELECT id, currency, cents FROM payments ORDER BY id").fetchall()
    out = folder / "sold.csv"
    RowExport(rows, columns=("id", "currency", "cents")).write(
        FakeServices(folder / "ledger"), out, totals={"cents": "sum"}, by=("currency",)
    )
    return out, db


GROUPED = "SELECT currency, count(*), sum(cents) FROM payments GROUP BY currency"


def test_the_source_agrees_with_the_file(tmp_path: Path) -> None:
    out, db = sold(tmp_path)
    with closing(db):
        assert verify(out, source=db.execute(GROUPED)) == verify(out)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE payments SET cents = cents + 1 WHERE id = 1", "group ('EUR',) to be 24948, got 24947"),
        ("DELETE FROM payments WHERE id = 2", "rows of group ('USD',) to be 12, got 13"),
        ("INSERT INTO payments VALUES (99, 'CHF', 5)", "cents of group ('CHF',) to be 5, got 0"),
        ("DELETE FROM payments WHERE currency IS NULL", "rows of group (None,) to be 0, got 14"),
    ],
)
def test_a_source_that_differs_is_reported(tmp_path: Path, change: str, says: str) -> None:
    out, db = sold(tmp_path)
    with closing(db):
        db.execute(change)
        with pytest.raises(ExportError, match=re.escape(says)) as told:
            verify(out, source=db.execute(GROUPED))
    assert str(told.value).startswith(f"{out} differs from its source: ")


def test_without_totals_the_source_has_the_number_of_rows(tmp_path: Path) -> None:
    out = tmp_path / "few.csv"
    RowExport([(1,), (2,)], columns=("id",)).write(FakeServices(tmp_path / "ledger"), out)
    verify(out, source=[(2,)])
    with pytest.raises(ExportError, match="expected rows to be 3, got 2"):
        verify(out, source=[(3,)])
    with pytest.raises(ExportError, match="Expected source rows of rows, got 2 values"):
        verify(out, source=[(2, 1)])
