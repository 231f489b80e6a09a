"""What a format can be asked for: each option's bytes, read back by readers that share nothing with the writer."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import zstandard

from steadyworker.errors import ExportError
from steadyworker.exports.formats import Csv, JsonLines
from steadyworker.exports.packed import MEMBER, Compression, Packer
from steadyworker.exports.parquet import ROW_GROUP
from steadyworker.exports.rows import RowExport
from steadyworker.exports.verifying import verify
from tests.exports.kit import FakeServices

AUTUMN = datetime(2024, 10, 27, 0, 30, tzinfo=UTC)
ROWS = [
    (1, Decimal("-1234.50"), date(2024, 2, 29), AUTUMN, "ä;b"),
    (2, None, None, AUTUMN + timedelta(hours=1), ""),
    (3, Decimal("0.00000001"), date(1, 1, 1), datetime(2024, 3, 31, 1, tzinfo=UTC), None),
]
COLUMNS = ("id", "amount", "day", "at", "note")
GERMAN = Csv(
    delimiter=";",
    decimal_comma=True,
    bom=True,
    header={"amount": "Betrag", "day": "Tag"},
    dates="%d.%m.%Y",
    moments="%d.%m.%Y %H:%M%z",
    zone="Europe/Berlin",
)


def made(folder: Path, name: str, **options: Any) -> Path:
    """The rows, exported."""
    RowExport(ROWS, columns=COLUMNS).write(FakeServices(folder / "ledger"), folder / name, **options)
    return folder / name


def test_a_spreadsheets_file_has_its_words_its_commas_and_its_clock(tmp_path: Path) -> None:
    file = made(tmp_path, "out.csv", format=GERMAN, totals={"amount": "sum"}, by=("day",))
    assert file.read_bytes().decode() == (
        "\ufeffid;Betrag;Tag;at;note\n"
        '1;-1234,50;29.02.2024;27.10.2024 02:30+02:00;"ä;b"\n'
        '2;;;27.10.2024 02:30+01:00;""\n'
        "3;0,00000001;01.01.0001;31.03.2024 03:00+02:00;\n"
    )
    manifest = verify(file)
    assert [(total.by, total.sums) for total in manifest.totals] == [
        ({"day": None}, {"amount": "0"}),
        ({"day": "01.01.0001"}, {"amount": "0.00000001"}),
        ({"day": "29.02.2024"}, {"amount": "-1234.50"}),
    ]
    with file.open(encoding="utf-8-sig", newline="") as lines:
        assert [row[1] for row in csv.reader(lines, delimiter=";")] == ["Betrag", "-1234,50", "", "0,00000001"]
    arrow = pa_csv.read_csv(
        file,
        parse_options=pa_csv.ParseOptions(delimiter=";"),
        convert_options=pa_csv.ConvertOptions(
            column_types={"Betrag": pa.decimal128(38, 8)}, decimal_point=",", timestamp_parsers=["%d.%m.%Y %H:%M%z"]
        ),
    )
    assert arrow["Betrag"].to_pylist() == [Decimal("-1234.5"), None, Decimal("1E-8")]
    found = duckdb.read_csv(
        str(file), sep=";", decimal=",", date_format="%d.%m.%Y", dtype={"Betrag": "DECIMAL(38,8)", "Tag": "DATE"}
    ).fetchall()
    assert [row[1] for row in found] == [Decimal("-1234.5"), None, Decimal("1E-8")]
    assert [row[2] for row in found] == [date(2024, 2, 29), None, date(1, 1, 1)]


def unzstd(data: bytes) -> bytes:
    """Return the bytes of all frames, by another library than the writer's."""
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as frames:
        return frames.read()


PACKED = [("gz", "gzip", gzip.decompress), ("zst", "zstd", unzstd)]


@pytest.mark.parametrize(("ending", "compression", "unpacked"), PACKED)
@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
def test_a_names_ending_packs_the_same_bytes(
    tmp_path: Path, name: str, ending: str, compression: str, unpacked: Callable[[bytes], bytes]
) -> None:
    plain, zipped = made(tmp_path, name), made(tmp_path, f"{name}.{ending}", totals={"amount": "sum"})
    assert unpacked(zipped.read_bytes()) == plain.read_bytes()
    assert verify(zipped).format["compression"] == compression
    asked = made(tmp_path, "other.txt", format={"c": Csv, "j": JsonLines}[name[4]](compression=compression))
    assert asked.read_bytes() == zipped.read_bytes()
    with zipped.open("r+b") as file:
        file.truncate(zipped.stat().st_size - 1)
    with pytest.raises(ExportError, match="bytes"):
        verify(zipped)


@pytest.mark.long
@pytest.mark.parametrize(("ending", "compression", "unpacked"), PACKED)
def test_members_are_the_same_however_the_bytes_are_handed_over(
    tmp_path: Path, ending: str, compression: Compression, unpacked: Callable[[bytes], bytes]
) -> None:
    dice = random.Random(1)
    data = dice.randbytes(1 << 16) * (2 * MEMBER // (1 << 16)) + b"rest"

    def packed(step: int) -> bytes:
        file = tmp_path / str(step)
        with file.open("wb") as out, Packer(out, compression) as body:
            for at in range(0, len(data), step):
                body.write(data[at : at + step])
        return file.read_bytes()

    whole = packed(len(data))
    assert whole == packed(99_991) == packed(MEMBER)
    assert unpacked(whole) == data
    if compression == "gzip":
        assert b"".join(gzip.compress(data[at : at + MEMBER], 6, mtime=0) for at in (0, MEMBER, 2 * MEMBER)) == whole
    else:
        assert whole.count(b"\x28\xb5\x2f\xfd") == 3  # each frame begins with zstd's magic number


@pytest.mark.long
def test_row_groups_are_the_same_however_the_rows_come(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": pa.array(range(2 * ROW_GROUP + 7), pa.int64()),
            "t": pa.array([None if n % 5 == 0 else f"text {n % 999}" for n in range(2 * ROW_GROUP + 7)], pa.string()),
        }
    )

    def written(name: str, batches: list[pa.RecordBatch]) -> bytes:
        RowExport(batches, columns=("n", "t")).write(FakeServices(tmp_path / "l"), tmp_path / name)
        return (tmp_path / name).read_bytes()

    whole = written("whole.parquet", table.to_batches())
    assert whole == written("some.parquet", table.to_batches(9_973))
    large = table.cast(pa.schema([("n", pa.int64()), ("t", pa.large_string())]))
    assert whole == written("large.parquet", large.to_batches(50_000))
    groups = pq.ParquetFile(tmp_path / "whole.parquet").metadata
    assert [groups.row_group(n).num_rows for n in range(groups.num_row_groups)] == [ROW_GROUP, ROW_GROUP, 7]


def test_a_packed_file_of_no_rows_can_be_read(tmp_path: Path) -> None:
    for ending, _, unpacked in PACKED:
        for name, held in [(f"none.csv.{ending}", b"id\n"), (f"none.jsonl.{ending}", b"")]:
            RowExport([], columns=("id",)).write(FakeServices(tmp_path / "ledger"), tmp_path / name)
            assert unpacked((tmp_path / name).read_bytes()) == held
            assert verify(tmp_path / name).rows == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decimal_comma": True}, "delimiter=';'"),
        ({"dates": "%d.%b"}, "dates, got '%b'"),
        ({"dates": "%H"}, "dates, got '%H'"),
        ({"dates": "%Y,%m"}, "dates, got ','"),
        ({"dates": ""}, "dates to begin"),
        ({"moments": "%z%Y"}, "moments to begin"),
        ({"moments": "=%Y"}, "moments to begin"),
        ({"moments": "%Y%"}, "moments, got '%'"),
        ({"zone": "Europe/Atlantis"}, "got 'Europe/Atlantis'"),
        ({"compression": "bz2"}, "got 'bz2'"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ExportError, match=says):
        Csv(**options)


def test_names_of_the_header_have_to_be_columns_and_differ(tmp_path: Path) -> None:
    for header in ({"missing": "x"}, {"id": "note"}):
        with pytest.raises(ExportError, match="to rename only columns of this export"):
            made(tmp_path, "out.csv", format=Csv(header=header))
    with pytest.raises(ExportError, match=r"no \.gz at the end of the name of a parquet file"):
        made(tmp_path, "out.parquet.gz")


def test_a_header_of_any_mapping_is_in_the_manifest(tmp_path: Path) -> None:
    file = made(tmp_path, "out.csv", format=Csv(header=MappingProxyType({"id": "Nr"})))
    assert verify(file).format["header"] == {"id": "Nr"}


def test_a_moment_that_the_zone_has_no_year_for_is_named(tmp_path: Path) -> None:
    export = RowExport([(datetime(1, 1, 1, tzinfo=UTC),)], columns=("at",))
    with pytest.raises(ExportError, match=r"Row 0, column .at.: .*between year 1 and 9999 in America/New_York"):
        export.write(FakeServices(tmp_path / "l"), tmp_path / "out.csv", format=Csv(zone="America/New_York"))
