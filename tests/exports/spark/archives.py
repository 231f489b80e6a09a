"""Spark's classes, parsed once on a machine: with this archive a host of a test starts in half of the processor time."""

from __future__ import annotations

import hashlib
import os
import queue
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from steadyworker.exports.spark.java import find_java
from steadyworker.exports.spark.process import HostProcess
from steadyworker.exports.spark.settings import SparkSettings
from tests.brokers.install import cache, lock

OPTIONS = "SPARK_SUBMIT_OPTS"
"""The variable with options for the JVM of a driver, and for no other JVM."""


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder for hosts; the JVMs of this process's hosts, and of its workers' hosts, use the archive."""
    before = os.environ.get(OPTIONS)
    os.environ[OPTIONS] = f"-XX:SharedArchiveFile={_kept()} -Xlog:disable"
    yield tmp_path_factory.mktemp("spark")
    os.environ.pop(OPTIONS)
    if before is not None:
        os.environ[OPTIONS] = before


def _kept() -> Path:
    """
    Return the archive for this Java, its options and this pyspark; make it when it is missing.

    Java takes an archive only beside the very jars that it was made of: their paths, lengths and times are in its name.
    """
    java, spark = find_java(os.environ), find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    jars = [
        (str(jar), jar.stat().st_size, jar.stat().st_mtime_ns)
        for jar in sorted(Path(spark.origin).parent.glob("jars/*.jar"))
    ]
    bound = (str(java.home), java.version, os.environ.get("JAVA_TOOL_OPTIONS", ""), jars)
    path = cache() / f"spark-{hashlib.sha256(repr(bound).encode()).hexdigest()[:16]}.jsa"
    with lock(path.stem):  # of two processes that start together one makes it
        if not path.exists():
            heard: queue.SimpleQueue[object] = queue.SimpleQueue()
            environ = {**os.environ, OPTIONS: f"-XX:ArchiveClassesAtExit={path}"}
            host = HostProcess(SparkSettings(folder=cache()), java, environ, lambda _, message: heard.put(message))
            heard.get()
            host.stop()  # the JVM writes the archive at a normal exit
            while heard.get() is not None:
                pass
            assert path.exists(), host.log_tail()
            host.remove()
    return path
