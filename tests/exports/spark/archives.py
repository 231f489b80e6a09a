"""The class-data archive of the tests' Spark hosts: made once on a machine, and kept for the next runs."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from steadyworker.exports.spark.archive import build_archive
from steadyworker.exports.spark.java import find_java
from steadyworker.exports.spark.settings import SparkSettings
from tests.brokers.install import cache, lock

START_WITHIN = 300.0  # seconds: 180 were not enough on two cores that ten others wanted


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run with the class-data archive that all hosts share."""
    folder = tmp_path_factory.mktemp("spark")
    (folder / (classes := kept()).name).symlink_to(classes)
    return folder


def share(archive: Path, folder: Path) -> None:
    """Give another folder of Spark's (`SparkSettings.folder`) the archive; the folder is made when it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for classes in archive.glob("*.jsa"):
        (folder / classes.name).symlink_to(classes)


def kept(settings: type[SparkSettings] = SparkSettings, spark: Path | None = None) -> Path:
    """
    Return the archive for this Java, its options and a pyspark (the folder `spark`); make it when it is missing.

    Java takes an archive only beside the very jars that it was made of: their paths, lengths and times are in its name.
    """
    java, found_spec = find_java(os.environ), find_spec("pyspark")
    assert found_spec is not None
    assert found_spec.origin is not None
    found = sorted((spark or Path(found_spec.origin).parent).glob("jars/*.jar"))
    jars = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in found]
    bound = (str(java.home), java.version, os.environ.get("JAVA_TOOL_OPTIONS", ""), jars)
    name = f"spark-{hashlib.sha256(repr(bound).encode()).hexdigest()[:16]}"
    with lock(name):  # of two processes that start together one makes it
        return build_archive(settings(folder=cache() / name, start_within=START_WITHIN))
