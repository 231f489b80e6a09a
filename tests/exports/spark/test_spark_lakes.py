"""Tables by their names in a catalog: of Iceberg and Delta in one snapshot, although a writer commits, and a host or a run dies."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from steadyworker.errors import ExportError, ExportRejected, Interrupt
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.spark.build import Build
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.tables import Table
from tests.conftest import Eventually
from tests.exports.spark.sparkkit import LiveServices, at, java_of
from tests.exports.spark.test_spark_older import OLDER, OLDEST, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

older_only = pytest.mark.xdist_group("spark older")
LANES = [pytest.param("warm", marks=pytest.mark.xdist_group("spark warm")), OLDER, OLDEST]
WITHIN = 120.0
TWICE = "SELECT id, amount FROM moves UNION ALL SELECT -id, amount FROM same"
"""Reads the table under two names, so that two snapshots would show."""

FRAMES = """
def while_written(spark, tables, params):
    spark.sql(f"INSERT INTO {params['name']} SELECT id + 1000000 FROM range(7)")
    return tables["t"]
"""


@pytest.fixture(scope="module")
def writers(frames: Path) -> None:
    """A function of users' that commits to the table that it reads."""
    (frames / "lake_writers.py").write_text(FRAMES)


def read(services: LiveServices, table: str | Table, to: Path, query: str | Build = "SELECT id FROM t") -> Manifest:
    """Export the table `t`."""
    tables = {"t": Table(table) if isinstance(table, str) else table}
    params = {"name": str(table)} if isinstance(query, Build) else {}
    return SparkExport(query, tables=tables, order_by=("id",), params=params).write(services, to)


def next_run(services: LiveServices) -> LiveServices:
    """What the ledger offers the next run of the same job."""
    return LiveServices(services.service, fence=services.fence + 1, stored=services.stored)


def killed_run(services: LiveServices, export: SparkExport, to: Path) -> None:
    """A run that ends when Spark has all rows, and no file is there."""

    def end() -> None:
        raise Interrupt("shutdown")

    services.on_event = at("done", end)
    with pytest.raises(Interrupt):
        export.write(services, to)
    assert not to.exists()


def iceberg_book(service: SparkService, table: str) -> list[tuple[str, int]]:
    """The snapshots that Iceberg's own files list, and the rows of each, oldest first."""
    folder = service._settings.folder / "ice" / table.replace(".", "/") / "metadata"
    newest = max(folder.glob("v*.metadata.json"), key=lambda path: int(path.name.split(".")[0][1:]))
    return [
        (str(each["snapshot-id"]), int(each["summary"]["total-records"]))
        for each in json.loads(newest.read_text())["snapshots"]
    ]


@contextmanager
def writer(service: SparkService, name: str, to: Path) -> Iterator[list[int]]:
    """Commit each second two rows whose sum is 0; yield what counts the commits."""
    stop, commits = threading.Event(), [0]

    def write() -> None:
        while not stop.wait(1.0):
            number = commits[0]
            run(service, f"INSERT INTO {name} VALUES ({number}, 5.25), ({number}, -5.25)", to)
            commits[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield commits
    finally:
        stop.set()
        thread.join(WITHIN)
        assert not thread.is_alive()


@pytest.mark.slow
@older_only
def test_each_run_reads_the_first_run_s_snapshot_of_iceberg_beside_a_writer_that_commits_each_second(
    older: SparkService, tmp_path: Path, eventually: Eventually
) -> None:
    """A run is killed before its file is there, and the next one's JVM: the file is that of the first moment, read twice."""
    name, out = "ice.bank.moves", tmp_path / "out.csv"
    run(older, f"CREATE TABLE {name} (id BIGINT, amount DECIMAL(12,2)) USING iceberg", tmp_path)
    export = SparkExport(TWICE, tables={"moves": Table(name), "same": Table("ice.`bank`.moves")}, order_by=("id",))
    with writer(older, name, tmp_path) as commits:
        eventually(lambda: commits[0] >= 2, within=WITHIN)
        first = LiveServices(older)
        killed_run(first, export, out)
        seen = commits[0]
        eventually(lambda: commits[0] > seen, within=WITHIN)
        second = next_run(first)
        second.on_event = at("started", lambda: os.kill(java_of(older._hosts[0].process.pid), signal.SIGKILL))
        made = export.write(second, out, totals={"amount": "sum"})
        seen = commits[0]
        eventually(lambda: commits[0] > seen, within=WITHIN)
    assert second.events[-1]["submissions"] == 2
    book = dict(iceberg_book(older, "bank.moves"))
    _, _, snapshot = str(made.snapshot).rpartition(" ")
    assert made.snapshot == f"iceberg {name} {snapshot}; iceberg ice.`bank`.moves {snapshot}"
    assert list(book).index(snapshot) < len(book) - 2, "the writer went on after it"
    assert (made.rows, made.totals[0].sums["amount"]) == (2 * book[snapshot], "0.00")
    at_once = f"{name} VERSION AS OF {snapshot}"
    plain = TWICE.replace("moves", at_once).replace("same", at_once)
    undisturbed = SparkExport(plain, tables={}, order_by=("id",)).write(LiveServices(older), tmp_path / "plain.csv")
    assert made.sha256 == undisturbed.sha256


@pytest.mark.slow
@older_only
@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_a_host_that_takes_a_dead_one_s_job_reads_the_same_snapshot(
    older: SparkService, writers: None, tmp_path: Path, form: str
) -> None:
    """A commit comes between the two readings: the function of each reading makes one."""
    name = {"iceberg": "ice.taken.over", "delta": f"delta.`{tmp_path}/over`"}[form]
    run(older, f"CREATE TABLE {name} USING {form} AS SELECT id FROM range(10)", tmp_path)
    services = LiveServices(older)
    services.on_event = at("started", lambda: os.kill(java_of(older._hosts[0].process.pid), signal.SIGKILL))
    made = read(services, name, tmp_path / "out.csv", Build("lake_writers:while_written"))
    assert (services.events[-1]["submissions"], made.rows) == (2, 10)
    assert read(LiveServices(older), name, tmp_path / "now.csv").rows == 10 + 7 * 2


@older_only
def test_a_version_of_delta_is_kept_from_run_to_run(older: SparkService, tmp_path: Path) -> None:
    """By a name of the catalog, and by the path of the folder."""
    run(older, f"CREATE TABLE kept USING delta LOCATION '{tmp_path}/kept' AS SELECT id FROM range(10)", tmp_path)
    for name in ("default.kept", f"delta.`{tmp_path}/kept`"):
        export, first = (
            SparkExport("SELECT id FROM t", tables={"t": Table(name)}, order_by=("id",)),
            LiveServices(older),
        )
        before = read(LiveServices(older), name, tmp_path / f"{len(name)}-before.csv")
        killed_run(first, export, tmp_path / f"{len(name)}.csv")
        run(older, "INSERT OVERWRITE kept SELECT id FROM range(10, 15)", tmp_path)
        made = export.write(next_run(first), tmp_path / f"{len(name)}.csv")
        assert (made.sha256, made.snapshot) == (before.sha256, before.snapshot)
        after = read(LiveServices(older), name, tmp_path / f"{len(name)}-after.csv")
        assert (after.rows, int(str(after.snapshot).split()[-1]) - int(str(made.snapshot).split()[-1])) == (5, 1)
        assert str(made.snapshot).rpartition(" ")[0] == f"delta {name}"


@older_only
def test_a_snapshot_that_has_expired_is_rejected_with_the_remedy(older: SparkService, tmp_path: Path) -> None:
    """Iceberg no longer lists it; Delta refuses it when its files may be gone."""
    ice, delta = "ice.old.payments", f"delta.`{tmp_path}/payments`"
    far, at_once = (
        "TIMESTAMP '2999-01-01 00:00:00'",
        "TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 0 hours')",
    )
    gone = f"CALL ice.system.expire_snapshots(table => 'old.payments', older_than => {far}, retain_last => 1)"
    for name, form, end in ((ice, "iceberg", gone), (delta, "delta", f"VACUUM {delta}")):
        options = at_once if form == "delta" else ""
        run(older, f"CREATE TABLE {name} USING {form} {options} AS SELECT id FROM range(10)", tmp_path)
        export, first, out = (
            SparkExport("SELECT id FROM t", tables={"t": Table(name)}, order_by=("id",)),
            LiveServices(older),
            tmp_path / f"{form}.csv",
        )
        killed_run(first, export, out)
        run(older, f"INSERT OVERWRITE {name} SELECT id FROM range(10, 15)", tmp_path)
        run(older, end, tmp_path)
        with pytest.raises(ExportRejected, match=rf"{form} snapshot \d+.* has expired\. Replay the job"):
            export.write(next_run(first), out)
        assert not out.exists()
        assert read(LiveServices(older), name, tmp_path / f"{form}-replayed.csv").rows == 5


@older_only
def test_an_empty_table_of_iceberg_stays_empty_for_its_job(older: SparkService, tmp_path: Path) -> None:
    name, out = "ice.new.payments", tmp_path / "out.csv"
    run(older, f"CREATE TABLE {name} (id BIGINT) USING iceberg", tmp_path)
    export, first = SparkExport("SELECT id FROM t", tables={"t": Table(name)}, order_by=("id",)), LiveServices(older)
    killed_run(first, export, out)
    run(older, f"INSERT INTO {name} SELECT id FROM range(10)", tmp_path)
    made = export.write(next_run(first), out)
    assert (made.rows, made.snapshot, out.read_text()) == (0, f"iceberg {name} without a snapshot", "id\n")


@older_only
def test_a_branch_in_the_name_is_refused(older: SparkService, tmp_path: Path) -> None:
    """Its rows are others than those of the snapshot that Iceberg calls current."""
    run(older, "CREATE TABLE ice.branched.t USING iceberg AS SELECT id FROM range(10)", tmp_path)
    with pytest.raises(ExportError, match=r"TABLE_OR_VIEW_NOT_FOUND|time-travel"):
        read(LiveServices(older), "ice.branched.t.branch_main", tmp_path / "out.csv")


@pytest.mark.parametrize("lane", LANES)
def test_tables_without_snapshots_are_read_and_the_manifest_says_so(
    lane: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A table with columns that are named like the details of DESCRIBE, and a view."""
    service: SparkService = request.getfixturevalue(lane)
    folder, columns = tmp_path / "t", "id BIGINT, Provider STRING, Type STRING"
    run(service, "CREATE DATABASE IF NOT EXISTS `old_shop`", tmp_path)
    run(service, f"CREATE TABLE `old_shop`.rates ({columns}) USING parquet LOCATION '{folder}'", tmp_path)
    run(service, "INSERT INTO `old_shop`.rates VALUES (1, 'delta', 'iceberg')", tmp_path)
    run(service, "CREATE VIEW `old_shop`.all_rates AS SELECT * FROM `old_shop`.rates", tmp_path)
    services = LiveServices(service)
    try:
        made = read(services, "`old_shop`.rates", tmp_path / "out.csv", "SELECT * FROM t")
        assert (made.rows, made.snapshot) == (1, "parquet `old_shop`.rates none")
        made = read(services, "spark_catalog.`old_shop`.all_rates", tmp_path / "view.csv")
        assert (made.rows, made.snapshot) == (1, "view spark_catalog.`old_shop`.all_rates none")
        with pytest.raises(ExportRejected, match="TABLE_OR_VIEW_NOT_FOUND"):
            read(services, "`old_shop`.`rates ``x`", tmp_path / "none.csv")
    finally:
        run(service, "DROP DATABASE `old_shop` CASCADE", tmp_path)
