"""The same rows by the light path and by Spark give the same bytes, in every format and with every option."""

from __future__ import annotations

import json
import math
import shutil
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from operator import eq
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.formats import Csv, Format, JsonLines, Parquet
from steadyworker.exports.rows import RowExport
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.tables import Files
from steadyworker.exports.verifying import verify
from steadyworker.exports.xlsx import Xlsx
from tests.exports.kit import FakeServices
from tests.exports.spark.sparkkit import COLUMNS, ORDER, QUERY, LiveServices, light

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

TEXTS = [
    None, "", " ", "  blanks  ", 'say "hi"', '"', '""', "a,b", "a;b", "line\nend", "line\r\nend", "cr\r", "A", "Zebra",
    "=cmd|' /C calc'!A0", "+49 30 1", "-1", "@SUM(A1)", "\ttab", "\rcr", "\0nul", "#comment", "\\back\\slash\\",
    'back\\"slash', "ümläut", "ümläut, too", "😀 emoji", "NULL", "1E-8", "007", "\x1f", "\x0b\\u000b", "\x7f", "\x80",
    "\u2028", "\ufeffbom", "</script>", "é\x01", "{}", "z\b\f",
]  # fmt: skip
NUMBERS = [Decimal("1E-8"), Decimal(0), None, Decimal("-0.00000001"), Decimal("9" * 28 + ".99999999"), Decimal("1.5")]
FLOATS = [0.0, -0.0, 1.5, 1e-8, 1e7, 9999999.0, 9.5e-4, float("nan"), float("inf"), float("-inf"), None, 1e22]
MOMENTS = [
    datetime(1, 1, 1),  # noqa: DTZ001 - the column has no zone
    datetime(2024, 3, 31, 2, 30, 0, 123456),  # noqa: DTZ001
    None,
    datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
]
SPRING, AUTUMN = datetime(2024, 3, 31, 0, 59, 59, 999999, UTC), datetime(2024, 10, 27, 0, 30, tzinfo=UTC)
INSTANTS = [
    SPRING, SPRING + timedelta(microseconds=1), AUTUMN, AUTUMN + timedelta(hours=1), AUTUMN + timedelta(hours=2), None,
    datetime(1, 1, 2, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), datetime(1890, 5, 1, 12, tzinfo=UTC),
]  # fmt: skip
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ('text, "quoted"', pa.string()),
        ("number", pa.decimal128(38, 8)),
        ("float.ing", pa.float64()),
        ("moment", pa.timestamp("us")),
        ("instant", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("flag", pa.bool_()),
        ("big", pa.int64()),
        ("more", pa.string()),
    ]
)
GERMAN = Csv(
    delimiter=";",
    decimal_comma=True,
    bom=True,
    header={"number": "Betrag", "day": "Tag; 'genau'"},
    dates="%d.%m.%Y",
    moments="%d.%m.%Y um %H:%M:%S,%f 100%% %z",
    zone="Europe/Berlin",
    guard_formulas=False,
)
FORMS: dict[str, Format] = {
    "plain.csv": Csv(),
    "null.csv": Csv(delimiter="|", null="Zebra", zone="America/New_York"),
    "german.csv": GERMAN,
    "packed.csv.gz": Csv(delimiter="\t", header=False, moments="%Y%m%d%H%M%S"),
    "lines.jsonl": JsonLines(),
    "packed.jsonl.gz": JsonLines(),
    "packed.csv.zst": Csv(),
    "columns.parquet": Parquet(),
    "book.xlsx": Xlsx(zone="Europe/Berlin"),
}


def nasty() -> list[tuple[Any, ...]]:
    """Rows with all that some writer gets wrong; decimals as the column has them."""
    numbers = pa.array(NUMBERS, SCHEMA.field("number").type).to_pylist()
    return [
        (
            number,
            text,
            numbers[number % len(numbers)],
            FLOATS[number % len(FLOATS)],
            MOMENTS[number % len(MOMENTS)],
            INSTANTS[number % len(INSTANTS)],
            [date(1, 1, 1), date(2024, 2, 29), None][number % 3],
            [True, False, None][number % 3],
            [2**63 - 1, -(2**63), None][number % 3],
            [None, "plain", "-"][number % 3],
        )
        for number, text in enumerate(TEXTS)
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The nasty rows in Parquet."""
    folder = tmp_path_factory.mktemp("nasty")
    columns = zip(*nasty(), strict=True)
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    pq.write_table(table, folder / "nasty.parquet")
    return folder


@pytest.mark.parametrize("name", FORMS)
def test_nasty_values_become_the_same_bytes(warm: SparkService, source: Path, tmp_path: Path, name: str) -> None:
    totals, by = {"number": "sum", "big": "sum"}, ("flag", "more", "day")
    made = SparkExport("SELECT * FROM nasty", tables={"nasty": source}, order_by=("id",)).write(
        LiveServices(warm), tmp_path / name, format=FORMS[name], totals=totals, by=by
    )
    rows = pq.read_table(source).to_batches(7) if name.endswith("parquet") else nasty()  # only Arrow knows the types
    by_rows = light(tmp_path / name, rows, SCHEMA.names, format=FORMS[name], totals=totals, by=by)
    assert (made.rows, made.sha256, made.totals, made.format) == (
        by_rows.rows,
        by_rows.sha256,
        by_rows.totals,
        by_rows.format,
    )
    assert verify(tmp_path / name) == made


@pytest.mark.parametrize("name", ["short.csv", "short.jsonl"])
def test_floats_of_32_bits_have_their_own_shortest_digits(warm: SparkService, tmp_path: Path, name: str) -> None:
    source = pa.table(
        {"id": range(8), "f": pa.array([0.1, -0.0, 1e-8, 16_777_216, 9.5e-4, math.nan, -math.inf, None], pa.float32())}
    )
    pq.write_table(source, tmp_path / "short.parquet")
    SparkExport("SELECT * FROM short", tables={"short": tmp_path / "short.parquet"}, order_by=("id",)).write(
        LiveServices(warm), tmp_path / name
    )
    light(tmp_path / name, source.to_batches(), ("id", "f"))
    assert b"0.1" in (tmp_path / name).read_bytes()
    assert b"0.1000000" not in (tmp_path / name).read_bytes()


@pytest.mark.parametrize("name", ["out.csv.gz", "out.jsonl", "out.parquet"])
def test_many_parts_become_the_same_bytes(warm: SparkService, payments: Path, tmp_path: Path, name: str) -> None:
    services = LiveServices(warm)
    made = SparkExport(QUERY, tables={"payments": payments}, order_by=ORDER).write(
        services, tmp_path / name, totals={"amount": "sum"}, by=("currency", "status")
    )
    rows = pq.read_table(payments).sort_by([(column, "ascending") for column in ORDER]).to_batches(1_000)
    by_rows = light(tmp_path / name, rows, COLUMNS, totals={"amount": "sum"}, by=("currency", "status"))
    kinds, beats = services.kinds(), services.beats
    assert (kinds.count("started"), kinds.count("done"), kinds[-1]) == (1, 1, "done")
    assert len(services.events[-1]["parts"]) > 1
    assert len(beats) == len(set(beats)) + sum(map(eq, beats, beats[1:])), "only real progress is reported"
    assert made.rows == 60_000
    assert made.ties == 0
    assert (made.sha256, made.bytes, made.totals) == (by_rows.sha256, by_rows.bytes, by_rows.totals)
    assert verify(tmp_path / name) == made
    assert not list(tmp_path.glob(".sw-stage/**/part-*")), "the parts are gone"


def test_several_files_are_those_of_a_row_export(warm: SparkService, payments: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"format": Csv(), "totals": {"amount": "sum"}, "by": ("status",)}
    options |= {"partition_by": ("currency",), "split_rows": 1_000}
    made = SparkExport(QUERY, tables={"payments": payments}, order_by=ORDER).write(
        LiveServices(warm), tmp_path / "spark", **options
    )
    rows = pq.read_table(payments).sort_by([(column, "ascending") for column in ORDER]).to_batches(700)
    by_rows = RowExport(rows, columns=COLUMNS).write(FakeServices(tmp_path / "ledger"), tmp_path / "light", **options)
    assert made.files is not None
    assert len(made.files) > 3
    assert (made.files, made.sha256, made.totals, made.ties) == (by_rows.files, by_rows.sha256, by_rows.totals, 0)
    assert verify(tmp_path / "spark") == made


def test_an_empty_parquet_file_has_its_types(warm: SparkService, source: Path, tmp_path: Path) -> None:
    made = SparkExport("SELECT *, NULL AS none FROM nasty WHERE id < 0", tables={"nasty": source}, order_by=("id",))
    assert made.write(LiveServices(warm), tmp_path / "none.parquet").rows == 0
    assert pq.read_schema(tmp_path / "none.parquet") == SCHEMA.append(pa.field("none", pa.string()))
    assert verify(tmp_path / "none.parquet").rows == 0


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_bytes_that_are_no_text_end_the_export(warm: SparkService, tmp_path: Path, name: str) -> None:
    export = SparkExport(
        "SELECT id, decode(unhex('41'), 'UTF-8') AS fine, CAST(unhex(if(id = 7, '41FF', '41')) AS STRING) AS t "
        "FROM range(10)",
        tables={},
        order_by=("id",),
    )
    with pytest.raises(ExportError, match="Column 't': expected text in UTF-8"):
        export.write(LiveServices(warm), tmp_path / name)
    assert not (tmp_path / name).exists()


NAMES = [
    "${spark.app.name}", "it's \\' OR 1 = 1 --", "`tick`", "back\\slash", "\\u0041", "{${env:PATH}}",
    'quoted "name"', "two, of them",
]  # fmt: skip


@pytest.mark.parametrize("form", [JsonLines(), Csv(null=NAMES[0], delimiter="|")])
def test_nothing_of_a_users_is_read_as_sql(warm: SparkService, tmp_path: Path, form: Format) -> None:
    """Where a variable, an escape or a quote would be more."""
    rows = [{"id": number, **{name: [name, None, "x"][number] for name in NAMES}} for number in range(3)]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "words.jsonl").write_text("\n".join(map(json.dumps, rows)))
    name = "out.jsonl" if isinstance(form, JsonLines) else "out.csv"
    SparkExport("SELECT * FROM words", tables={"words": tmp_path / "source"}, order_by=("id",)).write(
        LiveServices(warm), tmp_path / name, format=form
    )
    ordered = sorted(rows[0])  # as Spark has them, of JSON Lines
    light(tmp_path / name, [[row[name] for name in ordered] for row in rows], ordered, format=form)


def test_a_name_that_spark_would_lose_is_refused_and_kept_where_spark_does_not_see_it(
    warm: SparkService, tmp_path: Path
) -> None:
    """Of such a column in Parquet, Spark itself reads NULL, and writes the name as `root`, or whoever it runs as."""
    (tmp_path / "source").mkdir()
    pq.write_table(pa.table({"id": [1], "${user.name}": ["kept"]}), tmp_path / "source" / "one.parquet")
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "one.jsonl").write_text('{"id": 1, "${user.name}": "kept"}')
    export = SparkExport("SELECT * FROM one", tables={"one": tmp_path / "source"}, order_by=("id",))
    with pytest.raises(ExportRejected, match=r"\$\{.*another name"):
        export.write(LiveServices(warm), tmp_path / "no.csv")
    export = SparkExport("SELECT * FROM one", tables={"one": tmp_path / "lines"}, order_by=("id",))
    export.write(LiveServices(warm), tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [{"${user.name}": "kept", "id": 1}]


def test_a_lake_s_folder_is_refused_by_its_url_too(warm: SparkService, tmp_path: Path) -> None:
    """Only Spark can look at an object store; `file://` stands for one here."""
    table = tmp_path / "payments"
    (table / "data").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), table / "data" / "part-0.parquet")

    def export(name: str) -> None:
        tables = {"payments": Files(f"file://{table}/data", format="parquet")}
        SparkExport("SELECT id FROM payments", tables=tables, order_by=("id",)).write(
            LiveServices(warm, uid=name), tmp_path / f"{name}.csv"
        )

    for path in ("_delta_log/0.json", "metadata/00001-a.metadata.json", ".hoodie/hoodie.properties"):
        sign = table / path
        sign.parent.mkdir()
        sign.touch()
        with pytest.raises(ExportRejected, match=rf'\(rejected\): .*\.load\("(file://)?{table}"\)'):
            export("refused")
        shutil.rmtree(sign.parent)
    export("plain")
    assert (tmp_path / "plain.csv").read_text() == "id\n1\n2\n"
