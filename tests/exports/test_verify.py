"""`verify` re-reads a file with another reader than wrote it, and says what differs."""

from __future__ import annotations

import hashlib
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steadyworker.errors import ExportError
from steadyworker.exports.formats import Csv, Format, JsonLines
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.parquet import Parquet
from steadyworker.exports.rows import RowExport
from steadyworker.exports.stage import manifest_path
from steadyworker.exports.verifying import verify
from tests.exports.kit import BY, TOTALS, FakeServices, Payments

FORMATS: list[Format] = [
    Csv(),
    Csv(delimiter=";", bom=True, null="NULL"),
    Csv(header=False, delimiter="\t"),
    JsonLines(),
    Parquet(),
]
ODD: list[tuple[Any, ...]] = [
    ("=a", None, Decimal("1E-8"), 1),
    ("=a", None, Decimal("2E-8"), 2),
    ("l1\r\nl2", "", None, 3),
    ("x", "", Decimal("123456789012345678901234567890.12345678"), None),
]


@pytest.mark.parametrize(
    ("form", "without"),
    [(form, ()) for form in FORMATS] + [(form, ("pyarrow",)) for form in FORMATS[:3]] + [(Parquet(), ("duckdb",))],
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


def test_a_file_that_was_cut_is_found(tmp_path: Path) -> None:
    out = made(tmp_path)
    out.write_bytes(out.read_bytes()[:-1])
    with pytest.raises(ExportError, match=r"payments\.csv is not what its manifest says: expected \d+ bytes, got \d+"):
        verify(out)


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    out = made(tmp_path)
    out.write_bytes(out.read_bytes().replace(b"paid", b"paiD", 1))
    with pytest.raises(ExportError, match=r"expected SHA-256 [0-9a-f]{64}, got [0-9a-f]{64}"):
        verify(out)


@pytest.mark.parametrize("form", [Csv(), JsonLines()], ids=str)
def test_a_lost_row_is_found_in_count_and_totals(tmp_path: Path, form: Format) -> None:
    out = made(tmp_path, form)
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:-1]))
    rewritten(out)
    with pytest.raises(ExportError, match=r"expected 100 rows, got 99; expected rows of group .* expected amount of"):
        verify(out)


def test_a_changed_amount_is_found_in_the_totals(tmp_path: Path) -> None:
    out = made(tmp_path)
    first = out.read_bytes().splitlines()[2].rsplit(b",", 1)[1]
    out.write_bytes(out.read_bytes().replace(first, first[:-1] + b"1", 1))
    rewritten(out)
    with pytest.raises(ExportError, match="says: expected amount of group"):
        verify(out)


def test_a_file_with_another_header_is_found(tmp_path: Path) -> None:
    out = made(tmp_path)
    out.write_bytes(out.read_bytes().replace(b"merchant", b"Merchant", 1))
    rewritten(out)
    with pytest.raises(ExportError, match="to begin with"):
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
        (b"", "is none"),
        (b"{}", "is none"),
        (b"[1]", "is none"),
        (b"\xff", "is none"),
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


def test_a_manifest_survives_its_own_reading(tmp_path: Path) -> None:
    out = made(tmp_path)
    assert Manifest.load(manifest_path(out)).dump() == manifest_path(out).read_bytes()
