"""Spark's parts in a bucket (`spark_stage = "s3a://…"`): what reads and removes them, and a cluster whose machines share no folder."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.rows import RowExport
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.parts import ALL, InBucket, opened, rows_of
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from tests.brokers.install import MissingError
from tests.brokers.maven import java_program
from tests.brokers.s3proxy import REGION
from tests.exports.kit import FakeServices
from tests.exports.s3.store import Store
from tests.exports.spark.archives import archive
from tests.exports.spark.clusters import Standalone, cluster_apart
from tests.exports.spark.older import missing
from tests.exports.spark.sparkkit import COLUMNS, ORDER, QUERY, SMALL_TASKS, LiveServices, payment, payments_folder

__all__ = ["archive"]

HADOOP, SDK = "3.5.0", "2.35.4"
S3A = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}:",
    f"software.amazon.awssdk:s3-transfer-manager:{SDK}",
    f"software.amazon.awssdk:sts:{SDK}",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1:",
)
"""Hadoop's file system for buckets, for the Hadoop of pyspark 4.3, with the modules of the SDK that it calls: 18 MB, where the SDK's bundle is 600 MB."""

ROWS = 60_000
FIRST = "part-00000-x-c000.snappy.parquet"


def parquet(rows: int) -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.table({"c0": range(rows)}), made)
    return made.getvalue()


def test_a_part_in_a_bucket_is_read_in_ranges_and_not_mixed_with_one_that_replaces_it(store: Store) -> None:
    store.put(f"tmp/{FIRST}", parquet(100_000))
    store.put("tmp/part-00010-x-c000.snappy.parquet", b"")
    store.put("tmp/_temporary/0/part-00001-x-c000.snappy.parquet", b"")
    folder = InBucket(f"s3a://{store.bucket}/tmp")
    first, last = folder.parts()
    assert first == f"s3a://{store.bucket}/tmp/{FIRST}"
    assert last.endswith("/tmp/part-00010-x-c000.snappy.parquet")
    assert rows_of(folder, first) == 100_000
    with opened(folder, first) as source:
        assert source.read()["c0"].to_pylist() == list(range(100_000))
    with opened(folder, first) as source:
        store.put(f"tmp/{FIRST}", parquet(99_999))
        with pytest.raises(OSError, match="another object, or none"):
            source.read()
    store.client.delete_object(Bucket=store.bucket, Key=f"tmp/{FIRST}")
    with pytest.raises(ExportError, match="got no such object: see what changes files there"):
        rows_of(folder, first)


def test_a_run_and_a_worker_process_remove_only_what_is_theirs(store: Store, tmp_path: Path) -> None:
    base = "tmp/.sw-stage/a/parts/a-"
    for name in ("1-1-1", "3-1-1", "3-2-1", "3-2-2", "3-2-2-probe", "4-1-1"):
        store.put(f"{base}{name}/{FIRST}", b"x")
    store.put(f"tmp/.sw-stage/b/parts/b-1-1-1/{FIRST}", b"x")
    store.put("tmp/.sw-stage-of-another/x", b"x")
    folder = InBucket(f"s3a://{store.bucket}/tmp/.sw-stage/a/parts")
    folder.drop("a-3-2", 2)
    assert [name.removeprefix(base).partition("/")[0] for name in store.names()][1:-1] == [
        *("3-1-1", "3-2-2-probe", "3-2-2", "4-1-1")
    ]
    folder.drop("a-9-1", ALL)
    assert store.names() == ["tmp/.sw-stage-of-another/x", f"tmp/.sw-stage/b/parts/b-1-1-1/{FIRST}"]
    SparkService(SparkSettings(folder=tmp_path, stage=f"s3a://{store.bucket}/tmp")).purge(frozenset({"b"}).intersection)
    assert store.names() == ["tmp/.sw-stage-of-another/x"]


def s3a_jars() -> str:
    """Return the jars, which Maven brings once, as a value of `spark.jars`."""
    try:
        found = java_program("s3a", S3A).glob("lib/*.jar")
    except MissingError as error:
        missing(str(error))
    return ",".join(sorted(str(jar) for jar in found if "slf4j" not in jar.name))


def s3a_settings(store: Store) -> dict[str, str]:
    """Return Hadoop's settings for this store; Spark itself passes on the keys of the driver's environment."""
    return {
        "spark.hadoop.fs.s3a.endpoint": store.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.attempts.maximum": "2",
    }


@pytest.fixture
def spark(store: Store, archive: Path) -> Iterator[Callable[..., SparkService]]:
    """Make services whose stage is in the store; stopped at the end."""
    made: list[SparkService] = []

    def make(environ: Mapping[str, str] | None = None, **settings: Any) -> SparkService:
        given: dict[str, Any] = {"folder": archive, "stage": f"s3a://{store.bucket}/tmp"} | settings
        made.append(SparkService(SparkSettings(**given), environ=environ))
        return made[-1]

    yield make
    for service in made:
        service.stop(20)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_spark_lacks_for_a_bucket_is_named_before_the_query(
    spark: Callable[..., SparkService], store: Store, tmp_path: Path
) -> None:
    one = SparkExport("SELECT 1 AS id", tables={}, order_by=("id",))
    services = LiveServices(spark())
    with pytest.raises(ExportRejected, match=r"S3AFileSystem not found: name hadoop-aws of Spark's Hadoop version"):
        one.write(services, tmp_path / "out.csv")
    assert "started" not in services.kinds()

    wrong = s3a_settings(store) | {"spark.jars": s3a_jars(), "spark.hadoop.fs.s3a.access.key": "unknown"}
    services = LiveServices(spark(conf=wrong, folder=tmp_path))
    with pytest.raises(ExportRejected, match=r"Expected Spark to write to s3a://.*: give Spark's executors the right"):
        one.write(services, tmp_path / "out.csv")
    assert "started" not in services.kinds()
    assert store.names() == []


@pytest.fixture
def cluster(store: Store, tmp_path: Path) -> Iterator[Standalone]:
    """Two workers without the store's keys, each in a mount namespace of its own."""
    with cluster_apart(tmp_path / "cluster", workers=2) as made:
        yield made


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_cluster_that_shares_no_folder_exports_the_bytes_of_one_machine(
    spark: Callable[..., SparkService], store: Store, cluster: Standalone, tmp_path: Path
) -> None:
    """The settings of S3A are in the cluster's own `spark-defaults.conf`; with one worker killed in the middle, the bytes are the same."""
    apart = cluster.elsewhere
    assert apart is not None
    payments = payments_folder(tmp_path / "payments", ROWS)
    rows = sorted(map(payment, range(ROWS)), key=lambda row: (row[2], row[0]))
    expected = RowExport(rows, columns=COLUMNS).write(FakeServices(tmp_path / "ledger"), tmp_path / "light.csv").sha256

    (apart / "conf").mkdir()
    lines = {**s3a_settings(store), "spark.driver.host": "127.0.0.1", "spark.executor.cores": "1"}
    (apart / "conf" / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
    conf = {**SMALL_TASKS, "spark.jars": s3a_jars(), "spark.cores.max": "2", "spark.executor.memory": "512m"}
    environ = {**os.environ, "SPARK_CONF_DIR": str(apart / "conf")}
    service = spark(environ, folder=apart / "spark", master=cluster.url, conf=conf)
    export = SparkExport(QUERY, tables={"payments": payments}, order_by=ORDER)

    done: list[str] = []

    def keep(event: Mapping[str, Any]) -> None:
        if event["type"] == "done":
            done.extend(event["parts"])

    made = export.write(LiveServices(service, on_event=keep), apart / "out" / "a.csv")
    assert (made.rows, made.sha256) == (ROWS, expected)
    assert hashlib.sha256((apart / "out" / "a.csv").read_bytes()).hexdigest() == expected
    assert len(done) > 1
    assert all(part.startswith(f"s3a://{store.bucket}/tmp/.sw-stage/uid-1/parts/uid-1-1-1-1/part-") for part in done)
    assert store.names() == []

    executors = cluster.executors()
    assert len(executors) == 2
    killed: list[int] = []

    def kill(event: Mapping[str, Any]) -> None:
        if event["type"] == "progress" and "started" in services.kinds() and event["done"] and not killed:
            killed.append(cluster.workers[0].pid)
            cluster.workers[0].kill()

    services = LiveServices(service, uid="uid-2", on_event=kill)
    made = export.write(services, store.at("out/b.csv"))
    assert killed
    assert (made.rows, made.sha256) == (ROWS, expected)
    assert hashlib.sha256(store.read("out/b.csv")).hexdigest() == expected
    assert (store.names(), store.uploads()) == (["out/b.csv", "out/b.csv.manifest.json"], [])
