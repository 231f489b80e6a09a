"""What a result of Spark's can be: nested values, times and nanoseconds in Parquet, unsigned integers, many columns, and ties."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steadyworker.errors import ExportRejected
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.verifying import verify
from tests.exports.spark.sparkkit import LiveServices, light

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

NESTED = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "raw": pa.array([b"\xff\x00", None, b""], pa.binary()),
        "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
        "of": pa.array([{"a": "x", "n": [Decimal("1.50")]}, None, {"a": None, "n": None}], pa.struct([("a", pa.string()), ("n", pa.list_(pa.decimal128(9, 2)))])),
        "map": pa.array([[("k", 1.5)], None, []], pa.map_(pa.string(), pa.float64())),
        "at": pa.array([time(2, 30, 0, 123456), None, time(0)], pa.time64("us")),
    }
)  # fmt: skip

Ask = Callable[..., Manifest]


@pytest.fixture
def ask(warm: SparkService, tmp_path: Path) -> Ask:
    """Export a query over a table `t`."""

    def export(table: pa.Table, name: str, query: str = "SELECT * FROM t", order: Any = ("id",), **write: Any) -> Any:
        source = tmp_path / f"{name}.source.parquet"
        pq.write_table(table, source, **write)
        export = SparkExport(query, tables={"t": source}, order_by=order)
        return export.write(LiveServices(warm, uid=name), tmp_path / name)

    return export


def test_nested_values_binary_and_times_pass_to_parquet(ask: Ask, tmp_path: Path) -> None:
    made = ask(NESTED, "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == NESTED.to_pylist()
    light(tmp_path / "out.parquet", NESTED.to_reader())
    assert verify(tmp_path / "out.parquet") == made


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
def test_what_a_text_cannot_hold_is_refused_by_its_name(ask: Ask, tmp_path: Path, name: str) -> None:
    for column, says in {
        "raw": "binary: base64 or hex",
        "list": "array<int>.*to_json",
        "of": "struct<",
        "map": "map<",
    }.items():
        with pytest.raises(ExportRejected, match=f"column '{column}', got .*{says}"):
            ask(NESTED, name, f"SELECT id, {column} FROM t")
    ask(NESTED.select(["id", "at"]), name)
    light(tmp_path / name, NESTED.select(["id", "at"]).to_reader())


def test_what_no_file_can_hold_is_refused(ask: Ask) -> None:
    for value in ("INTERVAL '1' DAY", "array(INTERVAL '1' DAY)", "parse_json('{}')"):
        with pytest.raises(ExportRejected, match=r"\(rejected\): Expected text, numbers, .* in column 'x', got "):
            ask(NESTED, "out.parquet", f"SELECT id, {value} AS x FROM t")
    with pytest.raises(ExportRejected, match=r"Expected no \$\{ in the names inside of column 'x'"):
        ask(NESTED, "out.parquet", "SELECT id, named_struct(concat('$', '{user.name}'), 1) AS x FROM t")


SPARKS = (
    '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},'
    '{"name":"at","type":"timestamp","nullable":true,"metadata":{}}]}'
)
MOMENTS = [0, 1_711_852_200_123_456_000, -62_135_596_800_000_000, None]


@pytest.mark.parametrize("name", ["out.parquet", "out.csv"])
def test_nanoseconds_are_read_in_microseconds_or_not_at_all(ask: Ask, tmp_path: Path, name: str) -> None:
    """The default of pandas before 3; Spark itself has no such type."""
    table = pa.table(
        {
            "id": range(4),
            "a`b": pa.array(MOMENTS, pa.timestamp("ns")),
            "z": pa.array(MOMENTS, pa.timestamp("ns", "UTC")),
        }
    )
    ask(table, name)
    light(tmp_path / name, table.to_reader())
    finer = pa.table({"id": [1], "at": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(ExportRejected, match="microseconds in column at, got 1 nanoseconds since 1970: round them"):
        ask(finer, f"finer.{name}")
    rewritten = finer.replace_schema_metadata({"org.apache.spark.sql.parquet.row.metadata": SPARKS})
    with pytest.raises(ExportRejected, match=r"Spark's schema of the file, got nanoseconds in at: write"):
        ask(rewritten, f"rewritten.{name}")
    inside = pa.table({"id": [1], "at": pa.array([[1]], pa.list_(pa.timestamp("ns")))})
    with pytest.raises(ExportRejected, match="nanoseconds only outside of lists and structs"):
        ask(inside, f"inside.{name}")


def test_the_older_nanoseconds_of_96_bits_are_spark_s_own(ask: Ask, tmp_path: Path) -> None:
    table = pa.table({"id": [1], "at": pa.array([datetime(2024, 3, 31, 2, 30, 0, 1, UTC)], pa.timestamp("us", "UTC"))})
    ask(table, "out.csv", use_deprecated_int96_timestamps=True)
    assert (tmp_path / "out.csv").read_text() == "id,at\n1,2024-03-31T02:30:00.000001Z\n"


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.parquet"])
def test_unsigned_integers_are_alike_on_both_ways(ask: Ask, tmp_path: Path, name: str) -> None:
    kinds = {"u8": pa.uint8(), "u16": pa.uint16(), "u32": pa.uint32(), "u64": pa.uint64()}
    table = pa.table(
        {"id": [1, 2], **{each: pa.array([2**kind.bit_width - 1, None], kind) for each, kind in kinds.items()}}
    )
    ask(table, name)
    light(tmp_path / name, table.to_reader())


def test_columns_that_differ_in_case_only_are_two(ask: Ask, tmp_path: Path) -> None:
    ask(NESTED, "out.parquet", 'SELECT id, "x" AS name, "y" AS Name FROM t')
    assert pq.read_table(tmp_path / "out.parquet").to_pylist()[0] == {"id": 1, "name": "x", "Name": "y"}


def test_ties_are_rows_that_nothing_tells_apart(ask: Ask, tmp_path: Path) -> None:
    table = pa.table(
        {"id": [2, 1, 2, 2, None, None], "x": ["b", "a", "a", "b", "c", "d"], "list": [[n] for n in range(6)]}
    )
    made = ask(table, "out.csv", "SELECT id, x FROM t")
    assert (tmp_path / "out.csv").read_text() == "id,x\n,c\n,d\n1,a\n2,a\n2,b\n2,b\n"
    assert made.ties == 1, "what is not in order_by decides where that is equal"
    assert ask(table, "unique.csv", "SELECT DISTINCT id, x FROM t").ties == 0
    wide = ", ".join(f"0 AS x{number}" for number in range(16))
    assert ask(table, "wide.parquet", f"SELECT id, {wide}, x, list FROM t").ties == 3, "sixteen more columns at most"
    assert ask(table, "no.csv", "SELECT id, x FROM t WHERE id = 7").ties == 0


def test_the_last_column_of_a_sort_may_be_descending_and_text_is_sorted_by_its_bytes(ask: Ask, tmp_path: Path) -> None:
    words = ["b", "B", "é", "", None, "😀", "\uffff", "a"]
    table = pa.table({"g": [1] * 8, "w": words})
    ask(table, "out.csv", "SELECT g, w COLLATE UTF8_LCASE AS w FROM t", order=("g", "w DESC"))
    found = [line.partition(",")[2] for line in (tmp_path / "out.csv").read_text().split("\n")[1:-1]]
    assert found == ["😀", "\uffff", "é", "b", "a", "B", '""', ""]
