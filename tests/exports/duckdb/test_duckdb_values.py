"""DuckDBExport: the bytes of RowExport for the same values, the order of Spark, and the types that no file holds."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime, time
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steadyworker.errors import ExportRejected
from steadyworker.exports import Csv, DuckDBExport, JsonLines, Manifest, Parquet, RowExport, verify
from steadyworker.exports.formats import Format
from tests.exports.kit import FakeServices
from tests.exports.test_values import NASTY

FORMS: dict[str, Format] = {
    "plain.csv": Csv(),
    "german.csv": Csv(delimiter=";", decimal_comma=True, bom=True, zone="Europe/Berlin", guard_formulas=False),
    "packed.csv.gz": Csv(delimiter="\t", header=False, null="NULL"),
    "lines.jsonl": JsonLines(),
    "columns.parquet": Parquet(),
}
FLOATS = [0.0, -0.0, 1.5, 1e-8, 1e7, 9999999.0, 9.5e-4, float("nan"), float("inf"), float("-inf"), None, 1e22]
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ('text, "quoted"', pa.string()),
        ("number", pa.decimal128(38, 8)),
        ("float.ing", pa.float64()),
        ("short", pa.float32()),
        ("moment", pa.timestamp("us")),
        ("instant", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("flag", pa.bool_()),
        ("big", pa.int64()),
        ("large", pa.uint64()),
        ("clock", pa.time64("us")),
    ]
)


def nasty() -> list[pa.RecordBatch]:
    """Rows with all that some writer gets wrong."""
    numbers = [Decimal("1E-8"), Decimal(0), None, Decimal("9" * 28 + ".99999999"), Decimal("-1.5")]
    moments = [datetime(1, 1, 1), datetime(2024, 3, 31, 2, 30, 0, 123456), None, datetime(9999, 12, 31, 23, 59)]  # noqa: DTZ001
    rows = [
        (
            number,
            text,
            numbers[number % 5],
            FLOATS[number % 12],
            FLOATS[number % 11],
            moments[number % 4],
            [datetime(2024, 3, 31, 0, 59, 59, 999999, UTC), None, datetime(1, 1, 2, tzinfo=UTC)][number % 3],
            [date(1, 1, 1), date(2024, 2, 29), None][number % 3],
            [True, False, None][number % 3],
            [2**63 - 1, -(2**63), None][number % 3],
            [2**64 - 1, 0, None][number % 3],
            [time(2, 30), time(23, 59, 59, 999999), None][number % 3],
        )
        for number, text in enumerate([None, *NASTY])
    ]
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), SCHEMA.types, strict=True)]
    found: list[pa.RecordBatch] = pa.table(columns, schema=SCHEMA).to_batches()
    return found


def export(tmp_path: Path, query: str, name: str = "out.csv", **options: Any) -> Manifest:
    """Export a query of DuckDB's."""
    given: dict[str, Any] = {"tables": {}, "order_by": ("id",), **options}
    return DuckDBExport(query, **given).write(FakeServices(tmp_path / "ledger"), tmp_path / name)


def lines(tmp_path: Path, query: str, **options: Any) -> list[str]:
    """Return the lines of a query's export, without the header."""
    export(tmp_path, query, **options)
    text = (tmp_path / "out.csv").read_text(encoding="utf-8")
    return text.splitlines()[1:]


@pytest.mark.parametrize("name", FORMS)
def test_nasty_values_have_the_bytes_of_row_export(tmp_path: Path, name: str) -> None:
    totals, by = {"number": "sum", "big": "sum"}, ("flag", "day")
    table = pa.Table.from_batches(nasty())
    order = list(range(len(table)))
    random.Random(1).shuffle(order)  # so that only a sort gives the order
    pq.write_table(table.take(order), tmp_path / "nasty.parquet", row_group_size=7)
    made = DuckDBExport(
        "SELECT * FROM nasty", tables={"nasty": tmp_path / "nasty.parquet"}, order_by=("id",), params={"unused": 1}
    ).write(FakeServices(tmp_path / "ledger"), tmp_path / name, format=FORMS[name], totals=totals, by=by)
    light = RowExport(nasty(), columns=SCHEMA.names).write(
        FakeServices(tmp_path / "other ledger"), tmp_path / f"light-{name}", format=FORMS[name], totals=totals, by=by
    )
    assert (made.sha256, made.bytes, made.totals) == (light.sha256, light.bytes, light.totals)
    assert (made.rows, made.query, made.parameters) == (len(NASTY) + 1, "SELECT * FROM nasty", {"unused": 1})
    assert verify(tmp_path / name) == made
    assert sorted(path.name for path in tmp_path.iterdir() if "stage" in path.name) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("170141183460469231731687303715884105727::HUGEINT", "170141183460469231731687303715884105727"),
        ("18446744073709551615::UBIGINT", "18446744073709551615"),
        ("0.00000001::DECIMAL(38,8)", "0.00000001"),
        ("'2024-03-31 02:30:00.5+02'::TIMESTAMPTZ", "2024-03-31T00:30:00.500000Z"),
        ("'2024-03-31 02:30:00.5+02'::TIMESTAMPTZ::DATE", "2024-03-31"),
        ("'2024-03-31 00:30:00+02'::TIMESTAMPTZ::DATE", "2024-03-30"),
        ("TIMESTAMP_S '2024-03-31 02:30:00'", "2024-03-31T02:30:00.000000"),
        ("TIME '02:30:00'", "02:30:00.000000"),
        ("'00000000-0000-0000-0000-000000000001'::UUID", "00000000-0000-0000-0000-000000000001"),
        ("'b'::ENUM('b', 'a')", "b"),
        ("'{\"a\": 1.10}'::JSON", '"{""a"": 1.10}"'),
        ("0.1::FLOAT", "0.1"),
        ("sum(1.5::DECIMAL(4,1))", "1.5"),
        ("1::TINYINT", "1"),
        ("NULL", ""),
    ],
)
def test_each_type_of_duckdb_has_the_text_of_its_value(tmp_path: Path, value: str, expected: str) -> None:
    assert lines(tmp_path, f"SELECT 1 AS id, {value} AS value") == [f"1,{expected}"]


def test_a_moment_has_no_zone_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    found = lines(tmp_path, "SELECT 1 AS id, strftime(TIMESTAMPTZ '2024-01-01 00:00:00+00', '%H:%M') AS at")
    assert found == ["1,00:00"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("'02:30:00+02'::TIMETZ", "TIME WITH TIME ZONE"),
        ("INTERVAL 3 DAY", "INTERVAL"),
        ("'101'::BIT", "BIT"),
        ("[INTERVAL 3 DAY]", "INTERVAL"),
        ("{'a': {'b': '1'::BIT}}", "BIT"),
        ("1::UHUGEINT", "UHUGEINT"),  # Arrow would make a negative number of its largest values
        ("[1::UHUGEINT]", "UHUGEINT"),
        ("union_value(a := 1)", "UNION"),
    ],
)
def test_types_that_no_file_holds_are_refused_by_name(tmp_path: Path, value: str, name: str, kind: str) -> None:
    with pytest.raises(ExportRejected, match=rf"got 'value' with the type {name}.*CAST\(value AS VARCHAR\)"):
        export(tmp_path, f"SELECT 1 AS id, {value} AS value", f"out.{kind}")
    assert not (tmp_path / ".sw-stage").exists()


@pytest.mark.parametrize(("value", "got"), [("'x'::BLOB", "bytes"), ("[1, 2]", "list"), ("{'a': 1}", "dict")])
def test_csv_refuses_what_only_parquet_holds(tmp_path: Path, value: str, got: str) -> None:
    with pytest.raises(ExportRejected, match=rf"Column 'value': Expected text.*got {got}"):
        export(tmp_path, f"SELECT 1 AS id, {value} AS value")
    assert not list(tmp_path.glob(".sw-stage/*/*/*/spill"))


def test_parquet_holds_lists_structs_and_bytes(tmp_path: Path) -> None:
    export(tmp_path, "SELECT 1 AS id, [1, NULL] AS l, {'a': [1.5]} AS s, '\\xFF'::BLOB AS b", "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [
        {"id": 1, "l": [1, None], "s": {"a": [Decimal("1.5")]}, "b": b"\xff"}
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("value", ["'infinity'::DATE", "'-infinity'::TIMESTAMP", "'infinity'::TIMESTAMPTZ"])
def test_infinite_dates_are_refused(tmp_path: Path, value: str, kind: str) -> None:
    with pytest.raises(ExportRejected, match="Expected finite dates in 'value', got infinity"):
        export(tmp_path, f"SELECT 1 AS id, {value} AS value", f"out.{kind}")


@pytest.mark.parametrize(
    "inside", ["[DATE '2024-01-31', {}]", "{{'a': 1, 'b': [{}]}}", "MAP {{'a': {}}}", "[{}]::DATE[1]"]
)
def test_infinite_dates_inside_of_values_are_refused(tmp_path: Path, inside: str) -> None:
    infinite, finite = inside.format("'infinity'::DATE"), inside.format("DATE '2024-02-29'")
    with pytest.raises(ExportRejected, match="Expected finite dates in 'value', got infinity"):
        export(tmp_path, f"SELECT 1 AS id, {infinite} AS value", "out.parquet")
    assert export(tmp_path, f"SELECT 1 AS id, {finite} AS value", "fine.parquet").rows == 1


def test_an_integer_that_has_no_room_in_parquet_is_refused_as_a_number(tmp_path: Path) -> None:
    with pytest.raises(ExportRejected, match=r"decimals that fit their type, got another value .*105727 does not fit"):
        export(tmp_path, "SELECT 1 AS id, 170141183460469231731687303715884105727::HUGEINT AS value", "out.parquet")


KEYS: list[tuple[str, str, list[str]]] = [
    ("k ASC", "('b'), ('B'), (NULL), ('é'), ('\U0001f600'), ('\uffff'), ('a'), ('')", [*["", '""', "B", "a", "b", "é", "\uffff", "😀"]]),
    ("k DESC", "('b'), (NULL), ('a')", ["b", "a", ""]),
    ("k", "('NaN'::DOUBLE), ('inf'), (NULL), (-1), ('-inf')", ["", "-Infinity", "-1.0", "Infinity", "NaN"]),
    ("k desc", "('NaN'::DOUBLE), ('inf'), (NULL)", ["NaN", "Infinity", ""]),
    ("k", "('z'::ENUM('z', 'b', 'a')), ('a'::ENUM('z', 'b', 'a')), ('b'::ENUM('z', 'b', 'a'))", ["a", "b", "z"]),
]  # fmt: skip


@pytest.mark.parametrize(("order", "values", "expected"), KEYS)
def test_the_order_is_that_of_spark(tmp_path: Path, order: str, values: str, expected: list[str]) -> None:
    """NULL is the smallest, NaN the largest, and texts are compared by their bytes."""
    found = lines(tmp_path, f"SELECT k, 1 AS one FROM (VALUES {values}) AS t(k)", order_by=(order,))
    assert [line.removesuffix(",1") for line in found] == expected


def test_other_columns_decide_between_equal_keys(tmp_path: Path) -> None:
    """Sixteen of them, in the order of the columns, each ascending."""
    names = [f"c{number}" for number in range(18)]
    chosen = ", ".join(f"(i // {2**number}) % 2 AS {name}" for number, name in enumerate(names[:4]))
    query = f"SELECT {chosen}, {', '.join(f'0 AS {name}' for name in names[4:])}, 1 AS k FROM range(16) AS t(i)"
    found = lines(tmp_path, query, order_by=("k DESC", "c3 DESC"))
    keys = [tuple(map(int, line.split(",")[:4])) for line in found]
    assert keys == sorted(keys, key=lambda key: (-key[3], key[:3]))
    assert len(set(keys)) == 16


@pytest.mark.parametrize(
    ("query", "ties"),
    [
        ("SELECT i // 3 AS id FROM range(9) AS t(i)", 6),
        ("SELECT i AS id FROM range(50000) AS t(i)", 0),  # several batches
        ("SELECT NULL AS id, 'nan'::DOUBLE AS x, ['b'] AS l FROM range(20000)", 19_999),
        ("SELECT 1 AS id, (['b', 'a'])[i + 1]::ENUM('b', 'a') AS kind FROM range(2) AS t(i)", 0),
        ("SELECT 1 AS id, '\\x0' || i AS rest, i::VARCHAR::BLOB AS b FROM range(3) AS t(i)", 0),
        ("SELECT 1 AS id, i::VARCHAR::BLOB AS b FROM range(3) AS t(i)", 2),
        ("SELECT 1 AS id WHERE false", 0),
    ],
)
def test_rows_without_an_order_of_their_own_are_counted(tmp_path: Path, query: str, ties: int) -> None:
    assert export(tmp_path, query, "out.parquet").ties == ties


def test_a_file_without_rows_has_the_types_of_the_query(tmp_path: Path) -> None:
    made = export(tmp_path, "SELECT 1::BIGINT AS id, 'x' AS text WHERE false", "out.parquet")
    assert pq.read_schema(tmp_path / "out.parquet").types == [pa.int64(), pa.string()]
    assert (made.rows, made.columns) == (0, ("id", "text"))


def test_several_files_have_the_bytes_of_row_export(tmp_path: Path) -> None:
    rows = [(number, ("eu", "us", None)[number % 3]) for number in range(9_000)]
    options: dict[str, Any] = {
        "format": Csv(), "split_rows": 2_000, "partition_by": ("region",), "totals": {"id": "sum"}, "by": ("region",)
    }  # fmt: skip
    query = "SELECT i AS id, (['eu', 'us', NULL])[i % 3 + 1] AS region FROM range(9000) AS t(i)"
    made = DuckDBExport(query, tables={}, order_by=("id",)).write(
        FakeServices(tmp_path / "ledger"), tmp_path / "out", **options
    )
    light = RowExport(rows, columns=("id", "region")).write(
        FakeServices(tmp_path / "other ledger"), tmp_path / "light", **options
    )
    assert len(made.files or ()) == 6
    assert (made.files, made.totals, made.sha256) == (light.files, light.totals, light.sha256)
    assert verify(tmp_path / "out") == made


def test_the_manifest_has_the_version_of_duckdb(tmp_path: Path) -> None:
    made = export(tmp_path, "SELECT 1 AS id")
    assert made.versions["duckdb"] == version("duckdb")
    assert made.snapshot is None


def test_a_column_whose_name_ends_in_desc_is_that_column(tmp_path: Path) -> None:
    assert lines(tmp_path, 'SELECT i AS "up desc" FROM range(3) AS t(i)', order_by=("up desc",)) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("query", "options", "expected"),
    [
        ("SELECT 1 AS id; SELECT 2 AS id", {}, "Expected one query"),
        ("COPY (SELECT 1) TO 'x.csv'", {}, "Expected one query"),
        ("SELECT 1 AS id, 2 AS id", {}, "got id twice"),
        ("SELECT 1 AS id WHERE :least > 0", {}, "got none for :least"),
        ("SELECT 1 AS id FROM nowhere", {}, "nowhere does not exist"),
        ("SELECT 1 AS id FRO", {}, "syntax error"),
        ("SELECT 1 AS id) UNION ALL (SELECT 2", {}, "syntax error"),
        ("SELECT 'x'::INTEGER AS id", {}, "Could not convert string 'x'"),
        ("SELECT 1 AS id", {"order_by": ("ID",)}, "got 'ID'"),
        ("SELECT map {'a': 1} AS id", {}, "got 'id', a map"),
        ("SELECT 1 AS id", {"params": {"x": b"raw"}}, "parameter 'x', got bytes"),
        ("SELECT 1 AS id", {"tables": {"a b": "x.csv"}}, "got 'a b'"),
    ],
)
def test_queries_that_no_retry_helps_are_rejected(
    tmp_path: Path, query: str, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ExportRejected, match=expected):
        export(tmp_path, query, **options)
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"query": " "}, "empty"),
        ({"order_by": ()}, "Expected columns to sort by"),
        ({"order_by": "id"}, "Expected columns to sort by"),
        ({"memory_limit": "much"}, "got 'much'"),
        ({"memory_limit": "10MB"}, "at least 64 MB"),
        ({"threads": 0}, "threads=0"),
    ],
)
def test_an_invalid_export_is_rejected_at_once(options: dict[str, Any], expected: str) -> None:
    given: dict[str, Any] = {"query": "SELECT 1 AS id", "tables": {}, "order_by": ("id",), **options}
    with pytest.raises(ExportRejected, match=expected):
        DuckDBExport(given.pop("query"), **given)


def test_parameters_keep_their_types_and_are_found_only_where_sql_has_them(tmp_path: Path) -> None:
    params = {
        "id": 7,
        "text": "o'; DROP",
        "amount": Decimal("0.10"),
        "at": datetime(2024, 3, 31, 2, 30, tzinfo=UTC),
        "day": date(2024, 2, 29),
        "none": None,
        "big": 10**30,
    }
    query = """
        SELECT :id AS id, :text AS text, ':id' AS "q:id", :amount AS amount, :at AS at, :day::VARCHAR AS day, /* :lost */
            :none AS nothing, $big AS big, typeof(:amount) AS kind, E'\\':id' AS escaped, $$:id$$ AS dollars, -- :lost
            {'a':1}.a AS struct_of, [1, 2, 3][1:2]::VARCHAR AS part
    """
    export(tmp_path, query, "out.jsonl", params=params)
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {
        "id": 7,
        "text": "o'; DROP",
        "q:id": ":id",
        "amount": "0.10",
        "at": "2024-03-31T02:30:00.000000Z",
        "day": "2024-02-29",
        "nothing": None,
        "big": str(10**30),
        "kind": "DECIMAL(2,2)",
        "escaped": "':id",
        "dollars": ":id",
        "struct_of": 1,
        "part": "[1, 2]",
    }
