"""What must hold on every version of Spark: on the newest, and on 4.1, 4.0 and 3.5 in `make test-all`; Delta and Iceberg tables on 4.1 only."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.spark.build import Build
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.tables import Files
from tests.exports.spark.clusters import Standalone
from tests.exports.spark.older import older_settings, older_spark
from tests.exports.spark.sparkkit import CLUSTER, ORDER, QUERY, LiveServices, java_of, lines
from tests.exports.spark.test_spark_export import (
    test_the_file_is_sorted_and_whole_and_equals_what_the_light_path_writes as the_file_is_the_same,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

OLDER = pytest.param("older", marks=[pytest.mark.slow, pytest.mark.xdist_group("spark older")])
OLDEST = pytest.param("oldest", marks=[pytest.mark.slow, pytest.mark.xdist_group("spark oldest")])
LEGACY = pytest.param("legacy", marks=[pytest.mark.slow, pytest.mark.xdist_group("spark legacy")])
LANES = [pytest.param("warm", marks=pytest.mark.xdist_group("spark warm")), OLDER, OLDEST, LEGACY]
BUILDING = [pytest.param("sources", marks=pytest.mark.xdist_group("spark sources")), OLDER, OLDEST, LEGACY]
"""The services whose hosts find the users' modules."""

AMOUNTS = [Decimal(f"{number}9999999999999999999.{'9' * 18}") for number in (9, 9, 9, 9, 9, 9, 9, 8)]


@pytest.fixture
def lane(request: pytest.FixtureRequest) -> SparkService:
    """A warm service of the version that the test names."""
    service: SparkService = request.getfixturevalue(request.param)
    return service


@pytest.mark.parametrize("lane", LANES, indirect=True)
@pytest.mark.parametrize(
    "suffix", ["csv", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jsonl", "parquet"))]
)
def test_a_sum_of_more_than_38_digits_is_exact(lane: SparkService, tmp_path: Path, suffix: str) -> None:
    """DECIMAL(38,18): Spark itself can neither hold the sum nor say so on each version."""
    table = pa.table({"id": range(len(AMOUNTS)), "d": pa.array(AMOUNTS, pa.decimal128(38, 18))})
    pq.write_table(table, tmp_path / "t.parquet")
    export = SparkExport("SELECT * FROM t", tables={"t": tmp_path / "t.parquet"}, order_by=("id",))
    made = export.write(LiveServices(lane), tmp_path / f"out.{suffix}", totals={"d": "sum", "id": "sum"})
    total = made.totals[0]
    assert (made.rows, total.rows, total.by) == (8, 8, {})
    assert total.sums == {"d": "789999999999999999999.999999999999999992", "id": "28"}


@pytest.mark.parametrize("lane", LANES, indirect=True)
def test_the_end_of_a_jvm_is_noticed_and_named(
    lane: SparkService, payments: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the process that PySpark started, whose name is private; the file is the same."""
    export = SparkExport(QUERY, tables={"payments": payments}, order_by=ORDER)
    undisturbed = export.write(LiveServices(lane), tmp_path / "a.csv")
    killed: list[int] = []

    def kill(event: Mapping[str, Any]) -> None:
        if event["type"] == "started" and not killed:
            killed.append(java_of(lane._hosts[0].process.pid))
            os.kill(killed[0], signal.SIGKILL)

    services = LiveServices(lane, uid="uid-2", on_event=kill)
    assert export.write(services, tmp_path / "b.csv").sha256 == undisturbed.sha256
    assert services.events[-1]["submissions"] == 2
    shown = caplog.text.replace("\\'", "'")  # a field whose text has both quotes
    assert "Spark's JVM was killed by SIGKILL" in shown


FRAMES = """
def plain(spark, tables, params):
    return spark.read.parquet(params["path"])


def cached(spark, tables, params):
    frame = spark.read.parquet(params["path"]).cache()
    frame.count()
    return frame


def delta(spark, tables, params):
    return spark.read.format("delta").load(params["path"])
"""


@pytest.fixture(scope="module")
def readers(frames: Path) -> None:
    """The user's functions that read a path."""
    (frames / "lake_readers.py").write_text(FRAMES)


Exported = Callable[..., Manifest]


@pytest.fixture
def exported(tmp_path: Path) -> Exported:
    """Export a query, or the result of a function, in the order of `id`."""

    def export(service: SparkService, query: str | Build, **params: Any) -> Manifest:
        asked = SparkExport(query, tables={}, order_by=("id",), params=params)
        to = tmp_path / f"out-{len(list(tmp_path.glob('out-*')))}.csv"
        return asked.write(LiveServices(service), to)

    return export


def run(service: SparkService, command: str, to: Path) -> None:
    """Run a command of SQL in the service's Spark: it runs when it is analysed, and has no rows to export."""
    with pytest.raises(ExportRejected, match="order_by"):
        SparkExport(command, tables={}, order_by=("id",)).write(LiveServices(service), to / "none.csv")


def lake_beside(folder: Path) -> tuple[Path, Path, str]:
    """The folder of a lake, one of plain files, and what is said of the first."""
    lake, beside = folder / "lake", folder / "beside"
    for table in (lake, beside):
        (table / "month=1").mkdir(parents=True)
        pq.write_table(pa.table({"id": range(5)}), table / "month=1" / "part-0.parquet")
    (lake / "_delta_log").mkdir()
    (lake / "_delta_log" / "00000000000000000000.json").touch()
    return lake, beside, rf"\(rejected\): Expected plain files, got \S*{lake}.* of the Delta table \S*{lake} "


def lake_is_refused(service: SparkService, exported: Exported, folder: Path) -> None:
    """By its path, by a pattern, among others, or in a subquery; files beside it are none of it."""
    lake, beside, said = lake_beside(folder)
    for path in (lake, lake / "month=1", lake / "*" / "part-0.parquet", folder / "*" / "month=1"):
        with pytest.raises(ExportRejected, match=said):
            exported(service, f"SELECT id FROM parquet.`{path}`")
    with pytest.raises(ExportRejected, match=said):
        exported(service, f"SELECT id, (SELECT max(id) FROM parquet.`{lake}`) AS most FROM parquet.`{beside}`")
    assert exported(service, f"SELECT id FROM parquet.`{beside}`").snapshot is None


@pytest.mark.parametrize("lane", LANES, indirect=True)
def test_a_lake_that_the_query_itself_names_is_refused(lane: SparkService, exported: Exported, tmp_path: Path) -> None:
    lake_is_refused(lane, exported, tmp_path)


@pytest.mark.parametrize("lane", BUILDING, indirect=True)
def test_a_lake_that_a_function_reads_is_refused(
    lane: SparkService, exported: Exported, readers: None, tmp_path: Path
) -> None:
    """Behind a cache, too."""
    lake, beside, said = lake_beside(tmp_path)
    for name in ("plain", "cached"):
        with pytest.raises(ExportRejected, match=said):
            exported(lane, Build(f"lake_readers:{name}"), path=str(lake))
        assert exported(lane, Build(f"lake_readers:{name}"), path=str(beside)).rows == 5


@pytest.mark.xdist_group("spark older")
def test_a_delta_table_is_read_by_its_log_or_not_at_all(
    older: SparkService, exported: Exported, readers: None, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    run(older, f"CREATE TABLE delta.`{table}` USING delta AS SELECT id FROM range(10)", tmp_path)
    run(older, f"INSERT OVERWRITE delta.`{table}` SELECT id FROM range(10, 15)", tmp_path)
    assert exported(older, f"SELECT id FROM delta.`{table}`").rows == 5
    assert exported(older, Build("lake_readers:delta"), path=str(table)).rows == 5
    with pytest.raises(ExportRejected, match=rf'load\("{table}"\)'):
        exported(older, f"SELECT id FROM parquet.`{table}`")


@pytest.mark.xdist_group("spark older")
def test_an_iceberg_table_is_read_in_a_snapshot_that_the_manifest_names(
    older: SparkService, exported: Exported, tmp_path: Path
) -> None:
    run(older, "CREATE TABLE ice.shop.payments USING iceberg AS SELECT id FROM range(10)", tmp_path)
    first = exported(older, "SELECT id FROM ice.shop.payments")
    run(older, "INSERT OVERWRITE ice.shop.payments SELECT id FROM range(10, 15)", tmp_path)
    made = exported(older, "SELECT id FROM ice.shop.payments")
    table = older._settings.folder / "ice" / "shop" / "payments"
    known = [json.loads(path.read_text())["current-snapshot-id"] for path in sorted(table.glob("metadata/v*.json"))]
    assert (first.rows, first.snapshot) == (10, f"iceberg ice.shop.payments {known[0]}")
    assert (made.rows, made.snapshot) == (5, f"iceberg ice.shop.payments {known[1]}")
    earlier = exported(older, f"SELECT id FROM ice.shop.payments VERSION AS OF {known[0]}")
    assert (earlier.rows, earlier.snapshot) == (10, f"iceberg ice.shop.payments {known[0]}")
    with pytest.raises(ExportRejected, match=rf"the Iceberg table {table} "):
        exported(older, f"SELECT id FROM parquet.`{table}/data`")


FINAL = {
    "SELEC 1": "PARSE_SYNTAX_ERROR",
    "SELECT nothing FROM range(1)": "UNRESOLVED_COLUMN",
    "SELECT 1 AS id FROM nowhere": "TABLE_OR_VIEW_NOT_FOUND",
    "SELECT id, 1 / (id - 3) AS x FROM range(10)": "DIVIDE_BY_ZERO",
    "SELECT id, CAST(concat('x', id) AS INT) AS x FROM range(10)": "CAST_INVALID_INPUT",
    "SELECT id, 9223372036854775807 + id AS x FROM range(10)": "ARITHMETIC_OVERFLOW",
    "SELECT id, X'FF' AS x FROM range(1)": "in column 'x', got binary",
    "SELECT id AS other FROM range(1)": r"order_by.*\(other\), got 'id'",
    "SELECT id, id FROM range(1)": "different names, got id twice",
    "SELECT id, array(1) AS list FROM range(1)": "column 'list', got array<int>",
    "SELECT id FROM range(1) WHERE id = :missing": "missing",
}


@pytest.mark.parametrize("lane", LANES, indirect=True)
def test_a_query_that_can_never_succeed_is_rejected(lane: SparkService, exported: Exported, tmp_path: Path) -> None:
    never_succeeds(lane, exported, tmp_path)


def never_succeeds(lane: SparkService, exported: Exported, tmp_path: Path) -> None:
    """Each of these is rejected, and what can be there a minute later is not."""
    for query, says in FINAL.items():
        with pytest.raises(ExportRejected, match=rf"\(rejected\): .*{says}") as final:
            exported(lane, query)
        assert "\n" not in str(final.value)
    with pytest.raises(ExportError, match=r"\(query\): .*PATH_NOT_FOUND") as passing:
        exported(lane, f"SELECT id FROM parquet.`{tmp_path}/later`")
    assert not isinstance(passing.value, ExportRejected)


@pytest.mark.parametrize("lane", LANES, indirect=True)
@pytest.mark.parametrize("schema", [None, "id BIGINT, amount DECIMAL(12,2), fee DECIMAL(12,2)"])
def test_columns_that_changed_places_are_not_taken_for_each_other(
    lane: SparkService, tmp_path: Path, schema: str | None
) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "a.csv").write_text("id,amount,fee\n1,10.00,0.10\n")
    (folder / "b.csv").write_text("id,fee,amount\n2,0.20,20.00\n")
    with pytest.raises(
        ExportError,
        match=r"CSV header does not conform.*Expected: \w+ but found: \w+ CSV file: .*[ab]\.csv: .*enforceSchema",
    ):
        lines(lane, Files(folder, schema=schema), tmp_path / "out.csv")
    given = Files(folder / "b.csv", schema="id BIGINT, f DOUBLE, a DOUBLE", options={"enforceSchema": "true"})
    assert lines(lane, given, tmp_path / "named.csv") == ["id,f,a", "2,0.2,20.0"]


@pytest.mark.parametrize("lane", ["warm", pytest.param("older", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.xdist_group("spark warm")
def test_a_column_can_be_sorted_in_descending_order(lane: SparkService, tmp_path: Path) -> None:
    """With few rows, and with as many as are shuffled; a column of this very name comes first."""
    query = "SELECT id, id % 3 AS `id DESC`, id % 7 AS rest FROM range({rows})"
    for rows, order in ((20, ("rest desc", "id")), (200_000, ("rest DESC", "id  ASC")), (20, ("id DESC", "id"))):
        to = tmp_path / f"{rows}-{order[0]}.csv"
        export = SparkExport(query.format(rows=rows), tables={}, order_by=order)
        assert export.write(LiveServices(lane), to).rows == rows
        found = [tuple(map(int, line.split(","))) for line in to.read_text().splitlines()[1:]]
        key = (lambda row: (row[1], row[0])) if order[0] == "id DESC" else (lambda row: (-row[2], row[0]))
        assert found == sorted(found, key=key)
    with pytest.raises(ExportRejected, match=r"to name columns .*, got 'nothing': correct"):
        SparkExport("SELECT 1 AS id", tables={}, order_by=("nothing DESC",)).write(
            LiveServices(lane), tmp_path / "no.csv"
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    """A master and a worker of Spark 3.5."""
    made = Standalone(tmp_path / "cluster", older_spark("3.5") / "pyspark")
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.mark.slow
@pytest.mark.xdist_group("spark legacy")
def test_spark_35_makes_the_same_file_here_and_on_a_cluster(
    legacy: SparkService, cluster: Standalone, payments: Path, tmp_path: Path
) -> None:
    service = SparkService(older_settings("3.5")(folder=tmp_path / "spark", master=cluster.url, conf=CLUSTER))
    try:
        for lane in (legacy, service):
            (folder := tmp_path / lane._settings.master[:5]).mkdir()
            the_file_is_the_same(lane, payments, folder)
        assert len(cluster.applications()) == 1
    finally:
        service.stop(20)


@pytest.mark.xdist_group("spark legacy")
@pytest.mark.slow
def test_what_spark_35_would_change_is_refused_or_read_exactly(legacy: SparkService, tmp_path: Path) -> None:
    """JSON Lines with a schema and without, bytes that are no UTF-8, decimals of CSV, and days before 1582."""
    (tmp_path / "t.jsonl").write_text('{"id":1,"amount":12345678901234567.890}\n')
    for schema in (None, "id BIGINT, amount DECIMAL(38,3)"):
        with pytest.raises(ExportRejected, match=r"Expected Spark 4\.0 or newer for the JSON Lines .*, got 3\.5\."):
            lines(legacy, Files(tmp_path / "t.jsonl", schema=schema), tmp_path / "json.csv")
    (tmp_path / "latin.csv").write_bytes("id,name\n1,Müller\n".encode("windows-1252"))
    with pytest.raises(ExportRejected, match=r"Expected CSV in UTF-8"):
        lines(legacy, Files(tmp_path / "latin.csv"), tmp_path / "latin-out.csv")
    (tmp_path / "t.csv").write_text("id,amount,name\n1,12345678901234567.890,Müller\n2,1.5e2,\ufffd\n")
    read = Files(tmp_path / "t.csv", schema="id BIGINT, amount DECIMAL(38,3), name STRING")
    expected = ["id,amount,name", "1,12345678901234567.890,Müller", "2,150.000,\ufffd"]
    assert lines(legacy, read, tmp_path / "out.csv") == expected
    (tmp_path / "t.csv").write_text("id,amount,name\n1,0.0001,x\n")
    with pytest.raises(ExportError, match=r"\(job\): Expected DECIMAL\(38,3\) in column 'amount' of .*, got 0\.0001: "):
        lines(legacy, read, tmp_path / "digits.csv")
    pq.write_table(pa.table({"id": [1], "day": [date(1066, 10, 14)]}), tmp_path / "t.parquet")
    assert lines(legacy, Files(tmp_path / "t.parquet"), tmp_path / "days.csv") == ["id,day", "1,1066-10-14"]
