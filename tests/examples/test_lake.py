"""The page examples/lake: a cluster of Spark 4.1 without a shared folder, an Iceberg table in a bucket, and one object."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from tests.brokers.install import MissingError
from tests.brokers.maven import java_program
from tests.brokers.s3proxy import REGION
from tests.examples.conftest import Terminal
from tests.examples.pages import Page, difference
from tests.exports.s3.store import Store
from tests.exports.spark.clusters import Standalone, cluster_apart
from tests.exports.spark.older import lake_jars, missing, older_spark

PAGE = Page("examples/lake/README.md")
HADOOP, SDK = "3.4.2", "2.29.52"
S3A = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}:",
    f"software.amazon.awssdk:s3-transfer-manager:{SDK}",
    f"software.amazon.awssdk:sts:{SDK}",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.2.1:",
)
"""What `spark.jars.packages` of the page would bring, without the SDK's bundle of 600 MB."""

TABLE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sql("CREATE TABLE lake.shop.payments (id BIGINT, merchant STRING, amount DECIMAL(12,2), month STRING) USING iceberg")
spark.sql(
    "INSERT INTO lake.shop.payments SELECT id, concat('m-', pmod(id * 7, 3)), CAST((id % 1000 + 1) / 100 AS DECIMAL(12,2)), "
    "if(id % 2 = 0, '2026-03', '2026-04') FROM range(40000)"
)
print(spark.sql("SELECT snapshot_id FROM lake.shop.payments.snapshots").first()[0])
"""


def jars() -> str:
    try:
        found = java_program("s3a-4.1", S3A).glob("lib/*.jar")
    except MissingError as error:
        missing(str(error))
    return ",".join([lake_jars(), *sorted(str(jar) for jar in found if "slf4j" not in jar.name)])


@pytest.fixture
def cluster(store: Store, tmp_path: Path) -> Iterator[Standalone]:
    """A worker that has no folder in common with the others, and no key of the store."""
    with cluster_apart(tmp_path / "cluster", older_spark("4.1") / "pyspark") as made:
        yield made


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_page_leads_to_one_exact_object(
    store: Store, cluster: Standalone, desk: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one bucket for all, and the addresses of this test for those of the page."""
    ours = {"s3a://shop-lake": f"s3a://{store.bucket}", "s3://shop-reports": f"s3://{store.bucket}"}
    ours |= {"spark://cluster:7077": cluster.url}

    def own(text: str) -> str:
        for theirs, mine in ours.items():
            text = text.replace(theirs, mine)
        return text

    files = {name: own(text) for name, text in PAGE.files().items()}
    packages = re.search(r"^spark\.jars\.packages.*$", files["spark-defaults.conf"], re.MULTILINE)
    assert packages is not None
    assert f"org.apache.hadoop:hadoop-aws:{HADOOP}" in packages[0]
    settings = {
        "spark.jars": jars(),
        "spark.hadoop.fs.s3a.endpoint": store.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
    }
    lines = "\n".join(f"{key} {value}" for key, value in settings.items())
    files["spark-defaults.conf"] = files["spark-defaults.conf"].replace(packages[0], lines)
    for name, text in files.items():
        (desk / name).write_text(text)
    spark = older_spark("4.1")
    for name, text in {"PYTHONPATH": str(spark), "SPARK_HOME": str(spark / "pyspark")}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("TMPDIR", str(cluster.elsewhere))
    made = subprocess.run(
        [sys.executable, "-c", TABLE],
        env=os.environ | {"SPARK_CONF_DIR": str(desk)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-3000:]

    commands = PAGE.commands()
    printed = terminal([own(command.text) for command in commands], within=600)
    for command, output in zip(commands, printed, strict=True):
        assert not (found := difference(own(command.shown), output)), found

    rows = [(id, f"m-{id * 7 % 3}", Decimal(id % 1000 + 1) / 100) for id in range(0, 40_000, 2)]
    read = [*csv.reader(io.StringIO(store.read("2026-03.csv").decode()))]
    assert read[0] == ["id", "merchant", "amount"]
    assert [(int(id), merchant, Decimal(amount)) for id, merchant, amount in read[1:]] == sorted(
        rows, key=lambda row: (row[1], row[0])
    )
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for _, merchant, amount in rows:
        sums[merchant] += amount
    manifest = json.loads(store.read("2026-03.csv.manifest.json"))
    assert {each["by"]["merchant"]: Decimal(each["sums"]["amount"]) for each in manifest["totals"]} == sums
    assert manifest["rows"] == len(rows)
    assert made.stdout.split()[-1] in manifest["snapshot"]
    left = [name for name in store.names() if not name.startswith("warehouse/")]
    assert (left, store.uploads()) == (["2026-03.csv", "2026-03.csv.manifest.json"], [])
