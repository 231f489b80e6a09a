"""Parts in a folder of the user's: which texts name one, what is removed there, and an export by way of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steadyworker.errors import ConfigError, ExportError, Interrupt
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.java import Java
from steadyworker.exports.spark.parts import ALL, OnDisk
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from tests.conftest import Eventually
from tests.exports.spark.sparkkit import BIG, COLUMNS, LiveServices, export, light, payment

RIGHT = {
    "": "",
    "/mnt/shared/tmp/": "/mnt/shared/tmp",
    "file:///mnt/a%20b": "/mnt/a b",
    "s3a://bucket": "s3a://bucket",
    "s3a://bucket/tmp/": "s3a://bucket/tmp",
}


@pytest.mark.parametrize(("text", "stage"), RIGHT.items())
def test_a_stage_is_a_path_or_a_folder_of_a_bucket(text: str, stage: str) -> None:
    assert SparkSettings(folder=Path("/nowhere"), stage=text).stage == stage


@pytest.mark.parametrize(
    "text", ["tmp", "file://host/tmp", "s3://bucket/tmp", "s3a://", "s3a://key:hunter2@bucket/tmp", "hdfs://hunter2/x"]
)
def test_another_stage_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match="Expected spark_stage as s3a://bucket/folder") as caught:
        SparkSettings(folder=Path("/nowhere"), stage=text)
    assert "hunter2" not in str(caught.value)


def test_a_run_removes_its_earlier_submissions_and_earlier_runs(tmp_path: Path) -> None:
    runs = tmp_path / ".sw-stage" / "a-uid" / "parts"
    names = ("1-1-1", "1-7-2", "3-2-1", "3-2-2", "3-2-2-probe", "3-2-3", "3-1-1", "4-1-1", "other")
    for name in names:
        (runs / f"a-uid-{name}").mkdir(parents=True)
    OnDisk(runs).drop("a-uid-3-2", 3)
    assert sorted(path.name.removeprefix("a-uid-") for path in runs.iterdir()) == ["3-1-1", "3-2-3", "4-1-1", "other"]
    OnDisk(runs).drop("a-uid-9-1", ALL)
    (runs / "a-uid-other").rmdir()
    OnDisk(runs).drop("a-uid-9-1", ALL)
    assert list(tmp_path.iterdir()) == [], "the empty folders go, too"


def test_a_cluster_has_its_own_spark_and_its_own_settings(tmp_path: Path) -> None:
    """They stand between SteadyWorker's defaults and the user's settings; a Spark of this machine alone has none of them."""
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "spark-defaults.conf").write_text(
        "spark.driver.memory 3g\nspark.x  theirs\nspark.y=theirs\nspark.master yarn\n"
        "spark.submit.deployMode cluster\nspark.driver.extraJavaOptions -Dtheirs=1"
    )
    java = Java(Path("/java"), "17")
    given = {"SPARK_HOME": str(tmp_path / "home"), "HADOOP_CONF_DIR": "/etc/hadoop", "YARN_CONF_DIR": "/etc/yarn"}
    cluster = SparkSettings(folder=tmp_path, master="spark://host:7077", conf={"spark.y": "mine"})
    assert given.items() <= cluster.environment(given, tmp_path, java, "python").items()
    last: dict[str, str] = {}
    for line in cluster.properties(tmp_path, given).splitlines():
        key, _, value = line.replace("  ", " ").replace("=", " ", 1).partition(" ")
        last[key] = value
    assert (last["spark.driver.memory"], last["spark.x"], last["spark.y"]) == ("3g", "theirs", "mine")
    assert (last["spark.master"], last["spark.submit.deployMode"]) == ("spark://host:7077", "client")
    assert last["spark.driver.extraJavaOptions"].startswith("-Dtheirs=1 -XX:+ExitOnOutOfMemoryError")

    local = SparkSettings(folder=tmp_path)
    assert "theirs" not in local.properties(tmp_path, given)
    given["SPARK_CONF_DIR"] = str(conf)
    assert cluster.environment(given, tmp_path, java, "python")["SPARK_CONF_DIR"] == str(conf)
    alone = local.environment(given, tmp_path, java, "python")
    assert "SPARK_CONF_DIR" not in alone
    assert alone["SPARK_HOME"] != given["SPARK_HOME"]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_parts_lie_in_the_stage_while_the_run_lasts(
    warm: SparkService, payments: Path, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host for all ends of a run: published, failed in the query and in the file, cancelled; what a dead run left is gone before."""
    stage = tmp_path / "shared folder"
    service = warm
    monkeypatch.setattr(service, "_settings", replace(service._settings, stage=stage.as_uri()))
    dead = stage / ".sw-stage" / "uid-1" / "parts" / "uid-1-1-1-1"
    dead.mkdir(parents=True)
    seen: list[str] = []

    def look(event: Mapping[str, Any]) -> None:
        if event["type"] == "done":
            seen.extend(event["parts"])
            assert all(Path(part).stat().st_size for part in seen)
            assert not dead.exists()

    by_stage = export(LiveServices(service, fence=2, on_event=look), payments, tmp_path / "a.csv")
    rows = sorted(map(payment, range(by_stage.rows)), key=lambda row: (row[2], row[0]))
    assert light(tmp_path / "a.csv", rows, COLUMNS).rows == 60_000
    assert len(seen) > 1
    assert {Path(part).parent for part in seen} == {dead.with_name(f"uid-1-2-{service._numbers}-1")}
    assert list(stage.iterdir()) == []

    wrong = SparkExport("SELECT id, 1 / (id - id) AS x FROM range(9)", tables={}, order_by=("id",))
    with pytest.raises(ExportError, match="DIVIDE_BY_ZERO"):
        wrong.write(LiveServices(service, uid="fails"), tmp_path / "b.csv")
    assert list(stage.iterdir()) == []

    def damage(event: Mapping[str, Any]) -> None:
        if event["type"] == "done":
            Path(event["parts"][0]).write_bytes(b"PAR1")

    with pytest.raises(ExportError, match=r"Expected Spark's part .*: see what changes files there"):
        export(LiveServices(service, uid="damaged", on_event=damage), payments, tmp_path / "c.csv")
    assert list(stage.iterdir()) == []

    def interrupt(event: Mapping[str, Any]) -> None:
        if event["type"] == "progress":
            raise Interrupt("cancelled")

    with pytest.raises(Interrupt):
        SparkExport(BIG, tables={}, order_by=("id",)).write(
            LiveServices(service, uid="cancelled", on_event=interrupt), tmp_path / "d.csv"
        )
    eventually(lambda: not service._hosts[0].calls, within=60)
    assert list(stage.iterdir()) == []


@pytest.mark.parametrize("settled", [frozenset({"ended"}), frozenset()])
def test_the_worker_process_removes_the_parts_of_ended_jobs(tmp_path: Path, settled: frozenset[str]) -> None:
    for uid in ("ended", "runs"):
        (tmp_path / "stage" / ".sw-stage" / uid / "parts" / f"{uid}-1-1-1").mkdir(parents=True)
    service = SparkService(SparkSettings(folder=tmp_path / "spark", stage=str(tmp_path / "stage")))
    service.purge(settled.intersection)
    left = {path.name for path in (tmp_path / "stage" / ".sw-stage").iterdir()}
    assert left == {"ended", "runs"} - settled
