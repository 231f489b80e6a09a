"""A folder of Delta, Iceberg or Hudi is no folder of Parquet files: some of its files hold rows that were deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports import check_files
from steadyworker.exports.spark.catalogs import PinnedTables
from steadyworker.exports.spark.handle import SessionNames
from steadyworker.exports.spark.inputs import of_plan, of_text
from steadyworker.exports.tables import Files, Table, source, source_of
from tests.exports.kit import FakeServices

LAKES = {"delta": "_delta_log/00000000000000000000.json", "hudi": ".hoodie/hoodie.properties"}
LAKES |= {"iceberg": "metadata/00001-6e3c.metadata.json"}
READ = ["", "data", "data/month=2024-03", "data/month=2024-03/part-0.parquet"]


def lake(folder: Path, sign: str) -> Path:
    """A table: two data files, one of them with rows that were deleted, and the file that says so."""
    for path in ("data/month=2024-03/part-0.parquet", "data/month=2024-03/part-1.parquet", sign):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


@pytest.mark.parametrize("form", ["delta", "hudi", "iceberg"])
@pytest.mark.parametrize("read", READ, ids=["table", "data", "partition", "file"])
def test_a_lake_s_folder_is_refused_with_the_line_that_reads_it(tmp_path: Path, form: str, read: str) -> None:
    table = lake(tmp_path / "payments", LAKES[form])
    name = {"delta": f"delta.`{table}`"}.get(form, "catalog.database.table")
    line = rf'Table\("{name}"\).* spark\.read\.format\("{form}"\)\.load\("{table}"\)'
    with pytest.raises(ExportRejected, match=rf"(?i)got .*the {form} table {table} .*{line}"):
        source_of("payments", table / read)
    with pytest.raises(ExportRejected, match=line):
        source_of("payments", Files(table / read, format="parquet"))
    with pytest.raises(ExportRejected, match=line):
        check_files(table / read)


@pytest.mark.parametrize("form", ["delta", "hudi", "iceberg"])
@pytest.mark.parametrize("above", ["region=eu", "sales/region=eu"])
def test_a_folder_that_holds_a_lake_s_folder_is_refused_too(tmp_path: Path, form: str, above: str) -> None:
    signs = {**LAKES, "iceberg": "metadata/v1.metadata.json"}  # as a Hadoop catalog numbers them
    lake(tmp_path / "lake" / above, signs[form])
    stars = "/".join(r"\*" for _ in above.split("/"))
    with pytest.raises(
        ExportRejected, match=rf"(?i)got {tmp_path}/lake, in which {tmp_path}/lake/{stars} is a {form} table"
    ):
        check_files(tmp_path / "lake")
    (tmp_path / "lake" / "plain").mkdir()
    check_files(tmp_path / "lake" / "plain")


@pytest.mark.parametrize("name", ["hf.metadata.json", "version.metadata.json", "2024-06.metadata.json"])
def test_a_file_of_another_program_s_metadata_is_no_table(tmp_path: Path, name: str) -> None:
    check_files(lake(tmp_path / "app", f"metadata/{name}") / "data")


def test_a_folder_of_files_is_none_of_them(tmp_path: Path) -> None:
    """A partitioned folder, beside a folder named metadata that has other things in it."""
    folder = lake(tmp_path / "payments", "metadata/notes.json")
    (folder / "part-0.parquet").touch()
    assert source_of("payments", folder / "data").path == str(folder / "data")
    check_files(folder)
    check_files(folder / "none.parquet")


NAMES = {
    "lake.shop.payments": "`lake`.`shop`.`payments`",
    "shop.payments_2024": "`shop`.`payments_2024`",
    "my-lake.`my shop`.`a.b``c`": "`my-lake`.`my shop`.`a.b``c`",
    "delta.`/lake/zahlungen/ä`": "`delta`.`/lake/zahlungen/ä`",
    "`lake`.shop.`payments`": "`lake`.`shop`.`payments`",
}


@pytest.mark.parametrize("name", NAMES)
def test_each_part_of_a_table_s_name_is_quoted_once(name: str) -> None:
    assert Table(name).sql == NAMES[name]


@pytest.mark.parametrize(
    "name",
    [
        "payments",
        "",
        "a..b",
        "a.b.",
        "a.b c",
        "a.b; DROP TABLE c",
        "a.`b",
        "a.``",
        "a.b`c`",
        "a.`b` x",
        "a.`${spark.x}`",
    ],
)
def test_a_name_that_spark_could_read_as_something_else_is_refused(name: str) -> None:
    with pytest.raises(ExportRejected, match=r"Expected a name such as lake\.shop\.payments"):
        Table(name)


def test_a_table_of_a_catalog_is_no_table_of_duckdb_s() -> None:
    table: Any = Table("shop.payments")
    with pytest.raises(
        ExportRejected, match=r"table 't', got Table\(name='shop.payments'\): export it with SparkExport"
    ):
        source("t", table)


def test_a_later_run_gets_the_snapshots_of_the_first_from_the_ledger(tmp_path: Path) -> None:
    """Beside the names of sessions, which change with each run."""
    read = {"`lake`.`shop`.`payments`": "iceberg 17"}
    first = SessionNames(one := FakeServices(tmp_path))
    assert first.snapshots == {}
    first.began({}, read)
    second = SessionNames(two := FakeServices(tmp_path, fence=2))
    assert second.snapshots == read
    second.began({"server": "sc://host:1"}, {"`shop`.`rates`": "delta 3"})
    assert SessionNames(FakeServices(tmp_path, fence=3)).snapshots == {**read, "`shop`.`rates`": "delta 3"}
    assert (len(one.saved), len(two.saved)) == (2, 2)


class CatalogOfStraw:
    """A session whose catalog has one table; it notes each query that reads rows."""

    def __init__(self, kind: str, current: int | None, listed: tuple[int, ...] = (), refuses: str = "") -> None:
        self.kind, self.current, self.listed, self.refuses = kind, current, listed, refuses
        self.reads: list[str] = []

    def sql(self, text: str) -> Any:
        row = None if self.current is None else (self.current,)
        if text.startswith("DESCRIBE TABLE EXTENDED"):
            rows = [("Provider", "string"), ("# Detailed Table Information", ""), ("Provider", self.kind)]
            return SimpleNamespace(collect=lambda: rows)
        if text.startswith("DESCRIBE HISTORY"):
            return SimpleNamespace(select=lambda _: SimpleNamespace(first=lambda: row))
        if ".refs WHERE" in text:
            return SimpleNamespace(first=lambda: row)
        self.reads.append(text)
        if self.refuses:
            raise PySparkException(message=f"[{self.refuses}] refused")
        return SimpleNamespace(schema=())

    def table(self, name: str) -> Any:
        self.reads.append(name)
        found = self.listed if name == "`lake`.`t`.snapshots" else ()
        return SimpleNamespace(
            schema=(),
            where=lambda asked: SimpleNamespace(take=lambda _: [n for n in found if asked == f"snapshot_id = {n}"]),
        )

    def createDataFrame(self, rows: list[Any], schema: Any) -> Any:  # noqa: N802 - Spark's name
        return rows, schema


LAKE = Table("lake.t")
VERSION = "SELECT * FROM `lake`.`t` VERSION AS OF 17"
BEYOND = "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION"


def pinned(session: Any, known: str = "") -> PinnedTables:
    return PinnedTables(session, {"`lake`.`t`": known} if known else {})


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_first_run_pins_the_current_snapshot_and_a_later_one_reads_that(kind: str) -> None:
    first = pinned(session := CatalogOfStraw(kind, 17))
    first.read(LAKE)
    first.read(Table("`lake`.t"))
    assert (first.snapshots, session.reads) == ({"`lake`.`t`": f"{kind} 17"}, [VERSION, VERSION])
    assert first.descriptions == [f"{kind} lake.t 17", f"{kind} `lake`.t 17"]
    later = pinned(session := CatalogOfStraw(kind, 18, listed=(17, 18)), known=f"{kind} 17")
    later.read(LAKE)
    assert (later.snapshots, session.reads[-1]) == (first.snapshots, VERSION)


def test_an_expired_snapshot_is_rejected_and_a_moved_version_is_tried_again() -> None:
    with pytest.raises(
        ExportRejected, match=r"iceberg snapshot 17 of the table lake\.t.* has expired\. Replay the job"
    ):
        pinned(CatalogOfStraw("iceberg", 18, listed=(18,)), known="iceberg 17").read(LAKE)
    with pytest.raises(ExportRejected, match=r"delta snapshot 17 of the table lake\.t.* has expired\. Replay the job"):
        pinned(CatalogOfStraw("delta", 18, refuses=BEYOND), known="delta 17").read(LAKE)
    with pytest.raises(ExportError, match="the next run reads that") as moved:
        pinned(CatalogOfStraw("delta", 17, refuses=BEYOND)).read(LAKE)
    assert not isinstance(moved.value, ExportRejected)
    with pytest.raises(PySparkException, match="OTHER"):
        pinned(CatalogOfStraw("delta", 17, refuses="OTHER"), known="delta 17").read(LAKE)


def test_a_table_without_a_snapshot_has_no_rows_and_one_of_another_kind_is_read_as_it_is() -> None:
    empty = pinned(CatalogOfStraw("iceberg", None))
    rows: Any = empty.read(LAKE)
    assert rows == ([], ())
    assert (empty.snapshots, empty.descriptions) == (
        {"`lake`.`t`": "iceberg without a snapshot"},
        ["iceberg lake.t without a snapshot"],
    )
    rows = pinned(CatalogOfStraw("iceberg", 18), known=empty.snapshots["`lake`.`t`"]).read(LAKE)
    assert rows == ([], ())
    plain = pinned(session := CatalogOfStraw("PARQUET", 18))
    plain.read(LAKE)
    assert (plain.snapshots, plain.descriptions, session.reads) == ({}, ["parquet lake.t none"], ["`lake`.`t`"])


def remote_frame(explained: Callable[[], str], conf: SimpleNamespace, views: set[str]) -> Any:
    """Return a DataFrame of a Spark Connect session, as far as EXPLAIN needs it; `views` has the session's views."""

    def sql(text: str) -> SimpleNamespace:
        assert text in {f"EXPLAIN SELECT * FROM {view}" for view in views}
        return SimpleNamespace(first=lambda: (explained(),))

    session = SimpleNamespace(conf=conf, sql=sql, catalog=SimpleNamespace(dropTempView=views.remove))
    return SimpleNamespace(sparkSession=session, createOrReplaceTempView=views.add)


@pytest.mark.parametrize("fails", [False, True])
def test_a_setting_of_the_session_is_put_back_although_the_plan_cannot_be_explained(*, fails: bool) -> None:
    """The session of a Spark Connect job, of straw."""
    settings = {"spark.sql.maxMetadataStringLength": "77"}
    seen: list[str] = []

    def explained() -> str:
        seen.append(settings["spark.sql.maxMetadataStringLength"])
        if fails:
            raise ConnectionError
        return "Location: InMemoryFileIndex(1 paths)[file:/lake/t], PartitionFilters: []"

    views: set[str] = set()
    frame = remote_frame(explained, SimpleNamespace(get=settings.get, set=settings.__setitem__), views)
    if fails:
        with pytest.raises(ConnectionError):
            of_text(frame)
    else:
        assert of_text(frame).paths == ["/lake/t"]
    assert seen == [str(1 << 20)]
    assert settings == {"spark.sql.maxMetadataStringLength": "77"}
    assert views == set(), "no view is left in the session"


class Few(list[Any]):
    """A sequence of Scala's."""

    def size(self) -> int:
        return len(self)

    def apply(self, number: int) -> Any:
        return self[number]


def test_a_path_with_other_characters_is_looked_at_as_it_is() -> None:
    """Spark separates paths by a comma and a space, and Hive has URIs; a lake behind a misread path would be exported."""
    conf = SimpleNamespace(get=lambda _: "100", set=lambda *_: None)
    paths = "file:/lake/a, b, s3a://bucket/c, d, file:/e%20f]"
    text = f"Location: InMemoryFileIndex(3 paths)[{paths}], PartitionFilters: [], PushedFilters: []"
    frame = remote_frame(lambda: text, conf, set())
    assert of_text(frame).paths == ["/lake/a, b", "s3a://bucket/c, d", "/e%20f]"]

    location = SimpleNamespace(toString=lambda: "file:/lake/a%20b%25")
    leaf = SimpleNamespace(
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: "HiveTableRelation"),
        tableMeta=lambda: SimpleNamespace(location=lambda: location),
    )
    plan = SimpleNamespace(collectLeaves=lambda: Few([leaf]), subqueriesAll=Few)
    query = SimpleNamespace(queryExecution=lambda: SimpleNamespace(analyzed=lambda: plan))
    result: Any = SimpleNamespace(_jdf=query)
    assert of_plan(result).paths == ["/lake/a b%"]
