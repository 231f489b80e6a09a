"""The tables of DuckDBExport: files are read exactly, or refused by name; and the query reads nothing else."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports import DuckDBExport
from steadyworker.exports.tables import CommonTable, Files
from tests.exports.kit import FakeServices


def lines(tmp_path: Path, table: CommonTable, query: str = "SELECT * FROM t", order: str = "id") -> list[str]:
    """Return the lines of an export of this table, each time to another file."""
    out = tmp_path / f"out-{len([*tmp_path.glob('out-*')])}.csv"
    DuckDBExport(query, tables={"t": table}, order_by=(order,)).write(FakeServices(tmp_path / "ledger"), out)
    return out.read_text(encoding="utf-8").splitlines()


def test_csv_without_a_schema_is_text_and_null_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('id,zip,text\n1,007,"a\nb"\n2,,""\n3,+49 30,"say ""hi"""\n')
    query = "SELECT id, zip, text, zip IS NULL AS no_zip, text = '' AS empty FROM t"
    assert lines(tmp_path, tmp_path / "t.csv", query) == [
        "id,zip,text,no_zip,empty",
        '1,007,"a',
        'b",false,false',
        '2,,"",true,true',
        '3,\'+49 30,"say ""hi""",false,false',
    ]


SCHEMA = "id BIGINT, amount DECIMAL(12,2), `paid on` DATE, at TIMESTAMP, local TIMESTAMP_NTZ, ok BOOLEAN, ratio DOUBLE, s STRING"


def test_csv_with_a_schema_has_its_types_and_every_digit(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(
        gzip.compress(
            b"id,amount,paid on,at,local,ok,ratio,s\n"
            b'2,"1234567890.12",2024-02-29,2024-03-31 02:30:00,2024-03-31T02:30:00.5,true,1e-8,x\n'
            b'1,0.1,0001-01-01,2024-03-31T02:30:00+02:00,2024-03-31 02:30:00,false,NaN,""\n'
        )
    )
    assert lines(tmp_path, Files(tmp_path / "t.csv.gz", schema=SCHEMA))[1:] == [
        "1,0.10,0001-01-01,2024-03-31T00:30:00.000000Z,2024-03-31T02:30:00.000000,false,NaN,",
        "2,1234567890.12,2024-02-29,2024-03-31T02:30:00.000000Z,2024-03-31T02:30:00.500000,true,1.0E-8,x",
    ]


def test_json_lines_have_every_digit(tmp_path: Path) -> None:
    """DuckDB's own reader makes 1.10000000000000016384 of the first."""
    number = "12345678901234567.12345678901234567890"
    (tmp_path / "t.jsonl").write_text(
        f'{{"id":1,"amount":1.10,"day":"2024-02-29","at":"2024-03-31T02:30:00+02:00","extra":[1]}}\n{{"id":2,"amount":{number}}}\n'
    )
    table = Files(tmp_path / "t.jsonl", schema="id BIGINT, amount DECIMAL(38,20), day DATE, at TIMESTAMP")
    assert lines(tmp_path, table) == [
        "id,amount,day,at",
        "1,1.10000000000000000000,2024-02-29,2024-03-31T00:30:00.000000Z",
        f"2,{number},,",
    ]


@pytest.mark.parametrize(
    ("name", "schema", "text", "got"),
    [
        ("t.csv", "id BIGINT, amount DECIMAL(4,2)", "id,amount\n1,1.239\n", "t.csv .*data loss"),
        ("t.csv", "id BIGINT, amount DECIMAL(4,2)", 'id,amount\n1,"12,50"\n', "t.csv .*'12,50'"),
        ("t.csv", "id BIGINT", "id\n1.5\n", "t.csv .*'1.5'"),
        ("t.csv", "id BIGINT, day DATE", "id,day\n1,2024-01-01 10:00:00\n", "2024-01-01 10:00:00"),
        ("t.csv", "id BIGINT, b STRING", "id,b\n1\n", "t.csv .*Expected 2 columns, got 1"),
        ("t.csv", "id BIGINT, b STRING", "id,c\n1,x\n", "columns id, b in .*t.csv of table 't', got id, c"),
        ("t.csv", None, "id,id\n1,x\n", "different names"),
        ("t.jsonl", "id BIGINT, amount DECIMAL(4,2)", '{"id":1,"amount":1.239}\n', "t.jsonl .*requires scale 3"),
        ("t.jsonl", "id BIGINT", '{"id":1.5}\n', "t.jsonl .*couldn't parse:1.5"),
        ("t.jsonl", None, '{"id":1}\n', "Expected a schema for the JSON Lines of table 't'"),
        ("t.csv", "id BIGINT, x ARRAY<INT>", "id,x\n1,2\n", "from 'x ARRAY<INT>' on"),
        ("t.csv", "id DECIMAL(39,2)", "id\n1\n", "Expected a schema like"),
    ],
)
def test_values_that_do_not_fit_are_refused_and_the_file_is_named(
    tmp_path: Path, name: str, schema: str | None, text: str, got: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ExportRejected, match=got):
        lines(tmp_path, Files(tmp_path / name, schema=schema))


def test_options_of_csv(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("1;'Müller; \\'x\\'';-\n2;'-';'b'\n".encode("windows-1252"))
    options = {
        "sep": ";",
        "quote": "'",
        "escape": "\\",
        "header": "false",
        "nullValue": "-",
        "encoding": "windows-1252",
    }
    assert lines(tmp_path, Files(tmp_path / "t.csv", options=options), order="_c0") == [
        "_c0,_c1,_c2",
        "1,Müller; 'x',",
        "2,'-,b",
    ]
    with pytest.raises(ExportRejected, match="invalid UTF8"):
        lines(tmp_path, Files(tmp_path / "t.csv", options={**options, "encoding": "utf-8"}), order="_c0")
    with pytest.raises(ExportRejected, match=r"Expected only the options sep, .*got locale"):
        lines(tmp_path, Files(tmp_path / "t.csv", options={"locale": "de-DE"}))


def test_each_file_of_a_folder_has_the_same_columns_and_folders_have_values(tmp_path: Path) -> None:
    for month, number in (("2024-03", 1), ("2024-04", 2)):
        (folder := tmp_path / "region=eu" / "t" / f"month={month}" / "day=07").mkdir(parents=True)
        (folder / "a.csv").write_text(f"id,x\n{number},y\n")
        (folder / "_SUCCESS").write_text("")
        (folder / ".crc").write_text("x")
    root = tmp_path / "region=eu" / "t"
    expected = ["id,x,month,day", "1,y,2024-03,7", "2,y,2024-04,7"]
    assert lines(tmp_path, root) == expected
    (root / "month=2024-04" / "day=07" / "b.csv").write_text("x,id\ny,3\n")
    with pytest.raises(ExportRejected, match=r"columns id, x in .*b\.csv .*got x, id"):
        lines(tmp_path / "again", root)
    for file in root.rglob("*.csv"):
        file.unlink()
    for month, number in (("2024-03", 1), ("2024-04", 2)):
        pq.write_table(pa.table({"id": [number], "x": ["y"]}), root / f"month={month}" / "day=07" / "a.parquet")
    assert lines(tmp_path / "parquet", root) == expected


def test_spark_s_older_moments_have_their_zone(tmp_path: Path) -> None:
    moments = [datetime(2024, 3, 31, 2, 30, tzinfo=UTC)]
    table = pa.table({"id": [1], "at": pa.array(moments, pa.timestamp("us", "UTC")), "nested": [[1]]})
    pq.write_table(table.select(["id", "at"]), tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    assert lines(tmp_path, tmp_path / "t.parquet") == ["id,at", "1,2024-03-31T02:30:00.000000Z"]
    nested = pa.table({"id": [1], "at": pa.array([moments], pa.list_(pa.timestamp("ns")))})
    pq.write_table(nested, tmp_path / "n.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(ExportRejected, match=r"INT96.*got 'at\.list\.element'"):
        lines(tmp_path, tmp_path / "n.parquet")


def test_parquet_files_that_duckdb_would_change_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    for scale in (2, 4):
        amounts = pa.array([Decimal(f"1.{scale:0{scale}}")], pa.decimal128(12, scale))
        pq.write_table(pa.table({"id": [scale], "amount": amounts}), folder / f"{scale}.parquet")
    with pytest.raises(
        ExportRejected, match=r"others in .*2\.parquet than in .*4\.parquet|others in .*4\.parquet than in"
    ):
        lines(tmp_path, folder)
    wide = pa.table({"id": [1], "amount": pa.array([Decimal("1.5")], pa.decimal256(60, 2))})
    pq.write_table(wide, tmp_path / "wide.parquet")
    with pytest.raises(ExportRejected, match="at most 38 digits in table 't', got more in 'amount'"):
        lines(tmp_path, tmp_path / "wide.parquet")
    with pytest.raises(ExportRejected, match="no schema and no options for the Parquet files"):
        lines(tmp_path, Files(tmp_path / "wide.parquet", schema="id BIGINT"))


def test_a_path_with_signs_of_a_pattern_is_that_path(tmp_path: Path) -> None:
    (folder := tmp_path / "a[1]*'?").mkdir()
    pq.write_table(pa.table({"id": [1]}), folder / "f[2].parquet")
    pq.write_table(pa.table({"id": [2]}), folder / "f2.parquet")
    assert lines(tmp_path, folder / "f[2].parquet") == ["id", "1"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_can_be_read_twice_in_one_query(tmp_path: Path, kind: str) -> None:
    table = pa.table({"id": ["1", "2", "3"]})
    if kind == "csv":
        (tmp_path / "t.csv").write_text("id\n1\n2\n3\n")
    else:
        pq.write_table(table, tmp_path / "t.parquet")
    query = "SELECT a.id, (SELECT count(*) FROM t) AS n FROM t AS a JOIN t AS b ON a.id = b.id"
    assert lines(tmp_path, tmp_path / f"t.{kind}", query) == ["id,n", "1,3", "2,3", "3,3"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM '{other}'",
        "SELECT * FROM read_csv('{other}')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT 1 AS id FROM glob('/etc/*')",
        "SELECT * FROM parquet_scan('{lake}/*.parquet')",
    ],
)
def test_the_query_reads_only_its_tables(tmp_path: Path, query: str) -> None:
    """So no query can read the files of a lake's table, which have deleted rows too."""
    (tmp_path / "t.csv").write_text("id\n1\n")
    (tmp_path / "other.csv").write_text("id\n2\n")
    (tmp_path / "lake" / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "lake" / "a.parquet")
    with pytest.raises(ExportRejected, match=r"reads only its tables, got: .*name the file in tables="):
        lines(tmp_path, tmp_path / "t.csv", query.format(other=tmp_path / "other.csv", lake=tmp_path / "lake"))


def test_a_variable_of_the_caller_is_no_table(tmp_path: Path) -> None:
    secret = pa.table({"id": [1]})
    with pytest.raises(ExportRejected, match="secret does not exist"):
        DuckDBExport("SELECT * FROM secret", tables={}, order_by=("id",)).write(
            FakeServices(tmp_path / "ledger"), tmp_path / "out.csv"
        )
    assert secret.num_rows == 1


@pytest.mark.parametrize(
    ("table", "error", "expected"),
    [
        ("nowhere.csv", ExportError, r"got .*nowhere\.csv, which does not exist"),
        (Files("nowhere", format="csv"), ExportError, "got .*nowhere: correct the path"),
        (
            Files("s3://bucket/t.parquet"),
            ExportRejected,
            "Expected local files for table 't', got s3://bucket/t.parquet",
        ),
    ],
)
def test_tables_that_are_not_there(tmp_path: Path, table: Any, error: type[ExportError], expected: str) -> None:
    with pytest.raises(error, match=expected):
        lines(tmp_path, table)
