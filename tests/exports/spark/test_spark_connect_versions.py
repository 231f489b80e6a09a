"""Spark Connect servers of each version, with the client of their own version and with the newest client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from steadyworker.errors import ExportRejected, Interrupt
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from tests.conftest import Eventually
from tests.exports.spark.clusters import ConnectServer
from tests.exports.spark.older import older_settings, older_spark
from tests.exports.spark.sparkkit import BIG, SMALL_TASKS, LiveServices, at, export
from tests.exports.spark.test_spark_connect_cancel import Books, when
from tests.exports.spark.test_spark_export import (
    test_the_file_is_sorted_and_whole_and_equals_what_the_light_path_writes as the_file_is_the_same,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
]

PAIRS = [("4.0", "4.0"), ("4.0", "newest"), ("4.1", "4.1"), ("4.1", "newest"), ("newest", "newest")]
"""The version of the server, and that of the client."""
ENDS_WITHIN = 5.0
"""Seconds from a cancel until the server no longer runs a job of the export, on an idle machine; the test allows five times as long."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(each, id="-".join(each), marks=pytest.mark.xdist_group(f"spark connect {each}")) for each in PAIRS
    ],
)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


@pytest.fixture(scope="module")
def server(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A server of this version."""
    older = () if pair[0] == "newest" else (older_spark(pair[0]) / "pyspark",)
    made = ConnectServer(tmp_path_factory.mktemp("server"), *older)
    made.start()
    yield made
    made.kill()


@pytest.fixture(scope="module")
def client(
    pair: tuple[str, str], server: ConnectServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkService]:
    """A service whose hosts have this client."""
    settings = SparkSettings if pair[1] == "newest" else older_settings(pair[1])
    made = SparkService(settings(folder=tmp_path_factory.mktemp("spark"), master=server.url, conf=SMALL_TASKS))
    yield made
    made.stop(10)


def test_the_file_is_the_same(client: SparkService, payments: Path, tmp_path: Path) -> None:
    the_file_is_the_same(client, payments, tmp_path)


def test_a_setting_that_the_server_refuses_is_named(client: SparkService, tmp_path: Path) -> None:
    service = SparkService(replace(client._settings, folder=tmp_path, conf={"spark.driver.memory": "2g"}))
    try:
        with pytest.raises(
            ExportRejected, match=r"got spark\.driver\.memory, which the Spark Connect server at .* refuses"
        ):
            SparkExport("SELECT 1 AS id", tables={}, order_by=("id",)).write(LiveServices(service), tmp_path / "x.csv")
    finally:
        service.stop(10)


@pytest.mark.parametrize("time_of", range(5))
def test_a_cancel_ends_the_job_at_the_server(
    client: SparkService, server: ConnectServer, tmp_path: Path, eventually: Eventually, time_of: int
) -> None:
    now, books = threading.Event(), Books(server)
    cancelled: list[float] = []

    def check() -> None:
        if now.is_set():
            raise Interrupt("cancelled")

    def cancel() -> None:
        cancelled.append(time.monotonic())
        now.set()
        services.wake()

    services = LiveServices(client, uid=f"uid-{time_of}", on_check=check)
    with when(books.tasks, cancel), pytest.raises(Interrupt):
        SparkExport(BIG, tables={}, order_by=("id",)).write(services, tmp_path / "big.csv")
    (host,) = client._hosts
    eventually(lambda: not host.calls and not server.running())
    assert time.monotonic() - cancelled[0] < 5 * ENDS_WITHIN
    assert client._hosts == [host], "it was not killed for it"
    assert set(books.jobs()) == set(books.jobs("FAILED", "SUCCEEDED"))


def test_a_server_that_is_killed_and_started_again_costs_a_resubmission(
    client: SparkService, server: ConnectServer, payments: Path, tmp_path: Path
) -> None:
    undisturbed = export(LiveServices(client), payments, tmp_path / "a.csv")
    starting = threading.Thread(target=server.start)

    def restart() -> None:
        server.kill()
        starting.start()

    services = LiveServices(client, uid="uid-2", on_event=at("started", restart))
    made = export(services, payments, tmp_path / "b.csv")
    starting.join()
    assert services.kinds().count("started") == services.events[-1]["submissions"] == 2
    assert (made.sha256, made.totals, made.rows) == (undisturbed.sha256, undisturbed.totals, 60_000)
    assert sorted(path.name for path in tmp_path.glob("b*")) == ["b.csv", "b.csv.manifest.json"]
