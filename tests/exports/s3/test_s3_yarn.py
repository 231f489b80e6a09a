"""
Exports on YARN: a real ResourceManager and a real NodeManager, out of the jar of Hadoop's own tests.

The node does not see the folder of the exported file.
It sees Spark's jars, and the folder by which Spark passes its settings to YARN, which is in HDFS elsewhere.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest

from steadyworker.errors import ExportError, Interrupt
from steadyworker.exports.rows import RowExport
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.process import KEPT_LOG
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.verifying import verify
from steadyworker.ledger.base import State
from tests.brokers.install import MissingError
from tests.brokers.maven import java, java_program
from tests.conftest import Eventually
from tests.exports.kit import FakeServices
from tests.exports.s3.store import Store
from tests.exports.s3.test_s3_stage import HADOOP, s3a_jars, s3a_settings, spark
from tests.exports.spark.archives import archive
from tests.exports.spark.clusters import Daemon, apart, free_port
from tests.exports.spark.older import missing
from tests.exports.spark.sparkkit import (
    BIG,
    COLUMNS,
    ORDER,
    QUERY,
    SMALL_TASKS,
    LiveServices,
    at,
    payment,
    payments_folder,
)
from tests.support.stage import Stage

__all__ = ["archive", "spark"]

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

JARS = Path(pyspark.__path__[0]) / "jars"
CLUSTER = (f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP}:", "org.bouncycastle:bcpkix-jdk18on:1.82")
"""YARN's servers in one jar (56 MB), for Hadoop's client in pyspark, and what they lack there."""

ROWS = 60_000
ONE = SparkExport("SELECT 1 AS id", tables={}, order_by=("id",))


class Yarn:
    """A ResourceManager and one NodeManager, whose memory is enough for one application with one executor."""

    def __init__(self, folder: Path) -> None:
        try:
            jars = java_program("yarn", CLUSTER) / "lib"
        except MissingError as error:
            missing(str(error))
        self.conf, self.elsewhere, self.staging = folder / "conf", folder / "elsewhere", folder / "staging"
        for each in (self.conf, self.elsewhere, self.staging):
            each.mkdir(parents=True)
        ports: set[int] = set()
        while len(ports) < 7:  # the system can give the same one twice
            ports.add(free_port())
        self._rpc, self._web, node, localizer, tracker, scheduler, admin = ports
        site = {
            "resourcemanager.resource-tracker.address": f"127.0.0.1:{tracker}",
            "resourcemanager.scheduler.address": f"127.0.0.1:{scheduler}",
            "resourcemanager.admin.address": f"127.0.0.1:{admin}",
            "resourcemanager.address": f"127.0.0.1:{self._rpc}",
            "resourcemanager.webapp.address": f"127.0.0.1:{self._web}",
            "nodemanager.address": "127.0.0.1:0",
            "nodemanager.localizer.address": f"127.0.0.1:{localizer}",
            "nodemanager.webapp.address": f"127.0.0.1:{node}",
            "nodemanager.local-dirs": str(folder / "local"),
            "nodemanager.log-dirs": str(folder / "logs"),
            "nodemanager.resource.memory-mb": "1600",
            "nodemanager.vmem-check-enabled": "false",
            "nodemanager.disk-health-checker.enable": "false",
            "scheduler.minimum-allocation-mb": "128",
            "scheduler.capacity.root.queues": "default",
            "scheduler.capacity.root.default.capacity": "100",
            "scheduler.capacity.maximum-am-resource-percent": "1",
        }
        for name in ("yarn-site", "capacity-scheduler"):
            text = "".join(f"<property><name>yarn.{k}</name><value>{v}</value></property>" for k, v in site.items())
            (self.conf / f"{name}.xml").write_text(f"<configuration>{text}</configuration>")
        core = f"<property><name>hadoop.tmp.dir</name><value>{folder}</value></property>"
        (self.conf / "core-site.xml").write_text(f"<configuration>{core}</configuration>")
        run = [str(java()), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        run += [f"-Dhadoop.log.dir={folder}", "-cp", f"{self.conf}:{jars}/*:{JARS}/*"]
        alone = apart(self.elsewhere)
        if not alone:
            pytest.skip("needs the right to mount")
        server = "org.apache.hadoop.yarn.server"
        self.manager = Daemon(folder / "manager", [*run, f"{server}.resourcemanager.ResourceManager"], self._web)
        self.node = Daemon(folder / "node", [*alone, *run, f"{server}.nodemanager.NodeManager"], node)

    def asked(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/{path}", timeout=30) as answer:
            return json.load(answer)

    def applications(self, state: str) -> list[str]:
        """The applications in this state, by their names in YARN."""
        found = self.asked(f"ws/v1/cluster/apps?states={state}")["apps"] or {}
        return [app["id"] for app in found.get("app", ())]

    def reports(self) -> int:
        """How many times drivers have asked for the state of their applications; each does so once a second."""
        name = f"Hadoop:service=ResourceManager,name=RpcDetailedActivityForPort{self._rpc}"
        (bean,) = self.asked(f"jmx?qry={name}")["beans"]
        return int(bean.get("GetApplicationReportNumOps", 0))

    def containers(self, program: str = "") -> list[int]:
        """The JVMs that the node runs for applications, of all programs or of one."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                first, *rest = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                line = " ".join(rest)
                if first.endswith("java") and f"{self.conf.parent}/local" in line and program in line:
                    found.append(int(entry.name))
        return found

    def executors(self) -> list[int]:
        """The processes that run tasks for applications."""
        return self.containers("CoarseGrainedExecutorBackend")


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    made = Yarn(tmp_path_factory.mktemp("yarn"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(made.conf))
        made.manager.start()
        made.node.start()
        yield made
    made.node.kill()
    made.manager.kill()
    for pid in made.containers():  # of a test that failed
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def settings(yarn: Yarn, **more: str) -> dict[str, str]:
    """The settings of a service at this cluster."""
    return {
        **SMALL_TASKS,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.yarn.am.memory": "256m",
        "spark.yarn.jars": f"local:{JARS}/*",  # otherwise each application uploads them all
        "spark.yarn.stagingDir": yarn.staging.as_uri(),
        **more,
    }


def test_an_export_by_yarn_has_the_bytes_of_one_machine_and_costs_no_more_than_time_if_a_container_dies(
    spark: Callable[..., SparkService], store: Store, yarn: Yarn, tmp_path: Path, eventually: Eventually
) -> None:
    """The parts go by a bucket; one application makes both exports."""
    payments = payments_folder(tmp_path / "payments", ROWS)
    rows = sorted(map(payment, range(ROWS)), key=lambda row: (row[2], row[0]))
    expected = RowExport(rows, columns=COLUMNS).write(FakeServices(tmp_path / "ledger"), tmp_path / "light.csv").sha256
    conf = settings(yarn, **s3a_settings(store), **{"spark.jars": s3a_jars()})
    service = spark(folder=tmp_path / "spark", master="yarn", conf=conf)
    export = SparkExport(QUERY, tables={"payments": payments}, order_by=ORDER)

    to = yarn.elsewhere / "out" / "a.csv"
    made = export.write(LiveServices(service), to)
    assert (verify(to).rows, made.sha256) == (ROWS, expected)
    with to.open(newline="", encoding="utf-8") as file:
        assert [int(row["id"]) for row in csv.DictReader(file)] == [row[0] for row in rows]
    (application,) = yarn.applications("RUNNING")
    killed: list[int] = []

    def kill(event: Mapping[str, Any]) -> None:
        if event["type"] == "progress" and "started" in services.kinds() and event["done"] and not killed:
            killed.extend(yarn.executors())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    services = LiveServices(service, uid="uid-2", on_event=kill)
    made = export.write(services, store.at("out/b.csv"))
    assert len(killed) == 1
    assert services.events[-1]["submissions"] == 1
    assert (made.rows, hashlib.sha256(store.read("out/b.csv")).hexdigest()) == (ROWS, expected)
    assert (store.names(), store.uploads()) == (["out/b.csv", "out/b.csv.manifest.json"], [])
    assert verify(store.at("out/b.csv")).uid == "uid-2"
    assert yarn.applications("RUNNING") == [application]
    service.stop(20)
    eventually(lambda: application in yarn.applications("FINISHED") and not yarn.containers(), within=60)
    assert list(yarn.staging.rglob("*.zip")) == []


def test_a_full_queue_costs_no_application_its_place(
    spark: Callable[..., SparkService], yarn: Yarn, tmp_path: Path, eventually: Eventually
) -> None:
    """One service holds the memory of the cluster, also after a cancel; the driver of another waits for four times the limit of a start."""
    holder, other = (
        spark(folder=tmp_path / name, master="yarn", conf=settings(yarn), stage="", hung_after=5.0) for name in "ab"
    )

    def interrupt(event: Mapping[str, Any]) -> None:
        if event["type"] == "progress":
            raise Interrupt("cancelled")

    with pytest.raises(Interrupt):
        SparkExport(BIG, tables={}, order_by=("id",)).write(
            LiveServices(holder, on_event=interrupt), tmp_path / "a.csv"
        )
    eventually(lambda: not holder._hosts[0].calls, within=60)
    assert ONE.write(LiveServices(holder, uid="uid-2"), tmp_path / "b.csv").rows == 1, "the cores are free again"
    (first,) = yarn.applications("RUNNING")

    services, before = LiveServices(other, uid="uid-3"), yarn.reports()
    waits = threading.Thread(target=ONE.write, args=(services, tmp_path / "c.csv"), daemon=True)
    waits.start()
    (second,) = eventually(lambda: yarn.applications("ACCEPTED"), within=60)
    eventually(lambda: yarn.reports() >= before + 40, within=120)  # of two drivers, each second
    assert yarn.applications("ACCEPTED") == [second]

    def stop() -> None:
        threading.Thread(target=holder.stop, args=(20,)).start()

    with pytest.raises(ExportError, match="stopped"):
        SparkExport(BIG, tables={}, order_by=("id",)).write(
            LiveServices(holder, uid="uid-4", on_event=at("progress", stop)), tmp_path / "d.csv"
        )
    waits.join()
    assert verify(tmp_path / "c.csv").rows == 1
    assert services.events[-1]["submissions"] == 1
    assert {first} <= {*yarn.applications("FINISHED")}
    assert not (tmp_path / "a" / KEPT_LOG).exists(), "a job that runs at the stop is no death of the host"
    other.stop(20)
    eventually(lambda: second in yarn.applications("FINISHED") and not yarn.containers(), within=60)


def test_a_worker_process_killed_in_an_export_by_yarn_leaves_one_file_and_no_application(
    archive: Path, yarn: Yarn, tmp_path: Path, eventually: Eventually
) -> None:
    payments_folder(tmp_path / "payments", ROWS)
    conf = ",".join(f"{key}={value}" for key, value in settings(yarn).items())
    stage = Stage(tmp_path)
    try:
        stage.send("spark-payments", {})
        target = "tests.exports.spark.jobs:Payments"
        stage.worker(target, env={"KILL_AT": "Spark has begun"}, spark_master="yarn", spark_conf=conf).ended(
            -signal.SIGKILL, within=300
        )
        died = time.monotonic()
        eventually(lambda: not yarn.applications("ACCEPTED,RUNNING") and not yarn.containers(), within=60)
        print(f"the application ended {time.monotonic() - died:.1f} s after its worker process")
        second = stage.worker(target, spark_master="yarn", spark_conf=conf)
        row = stage.reaches("spark-payments", State.DONE, within=300)
        stage.empties("spark-payments")
        second.terminate()
        second.ended(0)
    finally:
        stage.close()
    assert stage.lines("starts") == ["job 1"] * 2, stage.logs()
    manifest = verify(tmp_path / "out" / "job.csv")
    assert (manifest.uid, manifest.rows) == (row.uid, ROWS)
    assert (tmp_path / "out" / "job.csv").read_bytes().count(b"\n") == ROWS + 1
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_file())
    assert names == ["job.csv", "job.csv.manifest.json"]
    eventually(lambda: not yarn.applications("ACCEPTED,RUNNING") and not yarn.containers(), within=60)
    assert list(yarn.staging.rglob("*.zip")) == []
