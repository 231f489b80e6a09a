"""
What an export promises holds on every back end: on a cluster and on a Connect server.

`test_spark_backends_values.py` has the tests of values.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from steadyworker.errors import ExportRejected, Interrupt
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.process import KEPT_LOG
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from tests.conftest import Eventually
from tests.exports.spark.clusters import ConnectServer, Standalone
from tests.exports.spark.orphan import orphan
from tests.exports.spark.sparkkit import (
    BIG,
    CLUSTER,
    COLUMNS,
    ORDER,
    QUERY,
    SMALL_TASKS,
    LiveServices,
    at,
    light,
    payment,
    session,
)
from tests.exports.spark.test_spark_export import (  # noqa: F401 - collected here a second time, with this file's `warm`
    test_the_file_is_sorted_and_whole_and_equals_what_the_light_path_writes,
)
from tests.exports.spark.test_spark_older import (
    exported,  # noqa: F401 - a fixture
    lake_is_refused,
    never_succeeds,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400), pytest.mark.xdist_group("spark servers")]


@pytest.fixture(scope="module")
def on_cluster(standalone: Standalone, archive: Path) -> Iterator[SparkService]:
    """A service on the cluster; its application ends when the service is stopped, and not only when its host is killed."""
    service = SparkService(SparkSettings(folder=archive, master=standalone.url, conf=CLUSTER))
    yield service
    service.stop(20)
    deadline = time.monotonic() + 60
    while standalone.applications():
        assert time.monotonic() < deadline, "an application outlives its service"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def on_connect(connect_server: ConnectServer, archive: Path) -> Iterator[SparkService]:
    """A service at the Connect server."""
    service = SparkService(SparkSettings(folder=archive, master=connect_server.url, conf=SMALL_TASKS))
    yield service
    service.stop(20)


@pytest.fixture(params=["on_cluster", "on_connect"], ids=["standalone", "connect"])
def warm(request: pytest.FixtureRequest) -> SparkService:
    """A service on a back end that is not the host's own JVM alone."""
    service: SparkService = request.getfixturevalue(request.param)
    return service


def test_a_lake_is_refused_and_so_is_what_can_never_succeed(
    warm: SparkService,
    exported: Callable[..., Manifest],  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    lake_is_refused(warm, exported, tmp_path)
    never_succeeds(warm, exported, tmp_path)


def test_an_executor_that_is_killed_costs_nothing_but_time(
    on_cluster: SparkService, standalone: Standalone, payments: Path, tmp_path: Path
) -> None:
    """Spark runs its tasks again; nobody here begins anything a second time, and no row is there twice."""
    export = SparkExport(QUERY, tables={"payments": payments}, order_by=ORDER)
    undisturbed = export.write(LiveServices(on_cluster), tmp_path / "a.csv", totals={"amount": "sum"})
    killed: list[int] = []

    def kill(event: Mapping[str, Any]) -> None:
        if event["type"] == "progress" and "started" in services.kinds() and event["done"] and not killed:
            killed.extend(standalone.executors())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    services = LiveServices(on_cluster, uid="uid-2", on_event=kill)
    made = export.write(services, tmp_path / "b.csv", totals={"amount": "sum"})
    assert killed
    assert services.kinds().count("started") == 1
    assert services.events[-1]["submissions"] == 1
    assert (made.sha256, made.totals) == (undisturbed.sha256, undisturbed.totals)
    assert b'"application":"app-' in services.saved[-2], "the ledger knows which application it is"


@pytest.mark.slow
def test_an_application_that_its_cluster_ends_costs_a_resubmission(
    on_cluster: SparkService, standalone: Standalone, payments: Path, tmp_path: Path, eventually: Eventually
) -> None:
    """In the middle of an export, and between two: a new host begins a new application, and the export's own run goes on."""

    def end_all() -> None:
        for application in standalone.applications():
            standalone.end_application(application)
        eventually(lambda: not standalone.applications(), within=60)

    services = LiveServices(on_cluster, uid="uid-1", on_event=at("started", end_all))
    SparkExport(QUERY, tables={"payments": payments}, order_by=ORDER).write(services, tmp_path / "a.csv")
    light(tmp_path / "a.csv", sorted(map(payment, range(60_000)), key=lambda row: (row[2], row[0])), COLUMNS)
    assert services.kinds().count("started") == 2
    assert services.events[-1]["submissions"] == 2

    end_all()
    services = LiveServices(on_cluster, uid="uid-2")
    assert SparkExport("SELECT 1 AS id", tables={}, order_by=("id",)).write(services, tmp_path / "b.csv").rows == 1
    assert services.events[-1]["submissions"] == 2
    log = (on_cluster._settings.folder / KEPT_LOG).read_text(errors="replace")
    assert "StandaloneSchedulerBackend: Application has been killed" in log, "the operator finds the reason there"


def test_a_folder_that_the_executors_do_not_share_is_rejected_before_the_query_begins(
    on_cluster: SparkService, standalone: Standalone, tmp_path: Path
) -> None:
    """A dead letter at once: what the executors write is not here, and would not be by any retry."""
    if standalone.elsewhere is None:
        pytest.skip("needs the right to mount")
    services = LiveServices(on_cluster)
    refused = rf"share with the worker process, got {standalone.elsewhere}/out/.* set spark_stage to a folder that both"
    with pytest.raises(ExportRejected, match=refused):
        SparkExport(BIG, tables={}, order_by=("id",)).write(services, standalone.elsewhere / "out" / "out.csv")
    assert "started" not in services.kinds(), "the query has not begun"
    assert not list((standalone.elsewhere / "out").rglob("*")), "nothing is left"
    SparkExport("SELECT 1 AS id", tables={}, order_by=("id",)).write(services, tmp_path / "shared.csv")


def test_a_cancelled_export_gives_the_clusters_cores_back(
    on_cluster: SparkService, standalone: Standalone, tmp_path: Path, eventually: Eventually
) -> None:
    def interrupt(event: Mapping[str, Any]) -> None:
        if event["type"] == "progress":
            raise Interrupt("cancelled")

    with pytest.raises(Interrupt):
        SparkExport(BIG, tables={}, order_by=("id",)).write(
            LiveServices(on_cluster, on_event=interrupt), tmp_path / "out.csv"
        )
    eventually(lambda: not on_cluster._hosts[0].calls, within=60)
    assert (
        SparkExport("SELECT 1 AS id", tables={}, order_by=("id",))
        .write(LiveServices(on_cluster, uid="next"), tmp_path / "next.csv")
        .rows
        == 1
    )


def test_an_application_ends_at_the_master_when_its_worker_process_dies(
    standalone: Standalone, archive: Path, tmp_path: Path, eventually: Eventually
) -> None:
    """So the next run of the job meets nothing of it; what an executor still wrote is in a folder that nobody reads."""
    others = set(standalone.applications())
    settings: dict[str, Any] = {"folder": tmp_path, "master": standalone.url, "conf": CLUSTER}
    with orphan(tmp_path, **settings) as (parent, host):
        (application,) = set(standalone.applications()) - others
        assert standalone.executors(application)
        parent.kill()
        eventually(lambda: not session(host), within=15)
        eventually(lambda: application not in standalone.applications(), within=60)
        eventually(lambda: not standalone.executors(application), within=60)
