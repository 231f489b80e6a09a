"""One class-data archive and one warm service for all tests that do not break it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from steadyworker.exports.spark.archive import build_archive
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import SparkSettings
from tests.exports.spark.sparkkit import SMALL_TASKS, payments_folder


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the class-data archive that all hosts share."""
    folder = tmp_path_factory.mktemp("spark")
    build_archive(SparkSettings(folder=folder))
    return folder


@pytest.fixture(scope="session")
def warm(archive: Path) -> Iterator[SparkService]:
    """A service that stays warm; its tasks are small, so that small data makes many parts."""
    service = SparkService(SparkSettings(folder=archive, conf=SMALL_TASKS))
    yield service
    service.stop(10)


@pytest.fixture(scope="session")
def payments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60,000 payments in Parquet."""
    return payments_folder(tmp_path_factory.mktemp("lake") / "payments", 60_000)
