"""The class-data archive of the tests' Spark hosts: made once on a machine, and kept for the next runs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pyspark
import pytest

from steadyworker.exports.spark.archive import build_archive
from steadyworker.exports.spark.java import find_java
from steadyworker.exports.spark.settings import SparkSettings
from tests.brokers.install import cache, lock

_JARS = Path(pyspark.__path__[0], "jars")
START_WITHIN = 300.0  # seconds: 180 were not enough on two cores that ten others wanted


def kept_archive() -> Path:
    """
    Return the archive for this Java, this pyspark and the options that all Java of this run is given; make it when it is missing.

    Java takes an archive only beside the very jars that it was made of: their paths, lengths and times are in its name.
    """
    java = find_java(os.environ)
    jars = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted(_JARS.glob("*.jar"))]
    bound = (str(java.home), java.version, os.environ.get("JAVA_TOOL_OPTIONS", ""), jars)
    name = f"spark-{hashlib.sha256(repr(bound).encode()).hexdigest()[:16]}"
    folder = cache() / name
    with lock(name):  # of two processes that start together one makes it
        return build_archive(SparkSettings(folder=folder, start_within=START_WITHIN))


def share_archive(folder: Path) -> None:
    """Give a folder for Spark (`SparkSettings.folder`) the archive; the folder is made when it is missing."""
    archive = kept_archive()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / archive.name).symlink_to(archive)


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run with the class-data archive that all hosts share."""
    folder = tmp_path_factory.mktemp("spark")
    share_archive(folder)
    return folder
