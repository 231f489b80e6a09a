"""One warm service for all tests that do not break it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from tests.brokers.postgres import Postgres
from tests.exports.spark.archives import archive
from tests.exports.spark.clusters import ConnectServer, Standalone
from tests.exports.spark.jdbckit import PASSWORD, password
from tests.exports.spark.older import lake_jars, older_settings
from tests.exports.spark.sparkkit import SMALL_TASKS, Made, payments_folder

__all__ = ["archive"]

SHARED = ("legacy", "older", "oldest", "shaky", "sources", "warm")
"""Fixtures with a Spark host; the tests that ask for the same one run in one process, so that it is started once."""


@pytest.hookimpl(tryfirst=True)  # before anybody asks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        host = next((name for name in SHARED if name in getattr(item, "fixturenames", ())), None)
        if host and item.get_closest_marker("spark") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(f"spark {host}"))


@pytest.fixture(scope="session")
def warm(archive: Path) -> Iterator[SparkService]:
    """
    A service that stays warm; its tasks are small, so that small data makes many parts.

    Its machine has no locale, as under systemd, and a zone of its own: nothing of either may reach a file.
    """
    environ = {**os.environ, "LC_ALL": "C", "TZ": "Asia/Kolkata"}
    settings = SparkSettings(folder=archive, conf=SMALL_TASKS)
    service = SparkService(settings, environ=environ)
    yield service
    service.stop(10)


@pytest.fixture
def made(archive: Path, tmp_path: Path) -> Iterator[Made]:
    """Make services whose hosts have their folders under the test's own path; stopped at the end."""
    services: list[SparkService] = []

    def make(**settings: Any) -> SparkService:
        given: dict[str, Any] = {"folder": tmp_path / "scratch"} | settings
        services.append(SparkService(SparkSettings(**given)))
        return services[-1]

    yield make
    for service in services:
        service.stop(10)


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory, frames: Path) -> Iterator[SparkService]:
    """A warm service with Spark 4.1, with the jars of Delta and Iceberg, and an Iceberg catalog `ice`."""
    folder = tmp_path_factory.mktemp("older")
    conf = {
        "spark.jars": lake_jars(),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(folder / "ice"),
        # By default, Delta reads a log of a few lines in 50 tasks, each of which compiles its code, and lists a folder in 10,000.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
        "spark.sql.shuffle.partitions": "4",
    }
    service = SparkService(older_settings("4.1")(folder=folder, conf=conf | SMALL_TASKS))
    yield service
    service.stop(10)


@pytest.fixture(scope="session")
def oldest(tmp_path_factory: pytest.TempPathFactory, frames: Path) -> Iterator[SparkService]:
    """A warm service with Spark 4.0."""
    service = SparkService(older_settings("4.0")(folder=tmp_path_factory.mktemp("oldest"), conf=SMALL_TASKS))
    yield service
    service.stop(10)


@pytest.fixture(scope="session")
def legacy(tmp_path_factory: pytest.TempPathFactory, frames: Path) -> Iterator[SparkService]:
    """A warm service with Spark 3.5."""
    service = SparkService(older_settings("3.5")(folder=tmp_path_factory.mktemp("legacy"), conf=SMALL_TASKS))
    yield service
    service.stop(10)


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """One for all tests; who breaks it starts it again."""
    server = ConnectServer(tmp_path_factory.mktemp("connect"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def connected(connect_server: ConnectServer, made: Made, tmp_path: Path) -> Made:
    """Make services on the shared server."""
    return partial(made, folder=tmp_path / "spark", master=connect_server.url, conf=SMALL_TASKS)


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and a worker for all tests."""
    cluster = Standalone(tmp_path_factory.mktemp("standalone"))
    cluster.start()
    yield cluster
    cluster.kill()


@pytest.fixture(scope="session")
def payments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60,000 payments in Parquet."""
    return payments_folder(tmp_path_factory.mktemp("lake") / "payments", 60_000)


@pytest.fixture(scope="session")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on the worker's `sys.path`, for modules of users'."""
    folder = tmp_path_factory.mktemp("code")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def sources(archive: Path, drivers: None, postgres: Postgres, frames: Path) -> Iterator[SparkService]:
    """A warm service whose environment has the database's password, and whose `sys.path` has the users' modules."""
    environ = {**os.environ, PASSWORD: password(postgres.url)}
    derby = {"spark.driver.extraJavaOptions": f"-Dderby.system.home={archive}"}  # where it writes its log
    # Two cores wherever it runs.
    settings = SparkSettings(folder=archive, conf=SMALL_TASKS | derby, master="local[2,4]")
    service = SparkService(settings, environ=environ)
    yield service
    service.stop(10)
