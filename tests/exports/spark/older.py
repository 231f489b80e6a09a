"""
Spark 3.5, 4.0 and 4.1 beside the newest one: environments of their own, and services whose hosts run in them.

One version alone hides what only another one does: a sum of too many digits once raised an error in 4.3, and hung in 4.1.
The lane also has Delta's and Iceberg's jars for Spark 4.1, so that their tables are real.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from steadyworker.exports.spark.java import Java
from steadyworker.exports.spark.settings import SparkSettings
from tests.brokers.install import MissingError, by_pip
from tests.brokers.maven import java_program
from tests.exports.spark.archives import OPTIONS

PYSPARK = {"3.5": "pyspark==3.5.9", "4.0": "pyspark==4.0.2", "4.1": "pyspark==4.1.4"}
LAKES = ("io.delta:delta-spark_4.1_2.13:4.4.0", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0")


def older_spark(version: str) -> Path:
    """Return the folder with this pyspark (480 MB), which pip makes once on a machine; fail or skip the test without it."""
    try:
        return by_pip(PYSPARK[version])
    except MissingError as error:
        missing(str(error))


def lake_jars() -> str:
    """Return Delta's and Iceberg's jars for Spark 4.1, which Maven brings once, as a value of `spark.jars`."""
    try:
        found = java_program("lakes", LAKES).glob("lib/*.jar")
    except MissingError as error:
        missing(str(error))
    wanted = ("delta-", "iceberg-", "antlr4-")
    return ",".join(sorted(str(jar) for jar in found if jar.name.startswith(wanted)))


def missing(why: str) -> NoReturn:
    """Fail the test in CI, and skip it elsewhere."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(why)


def older_settings(version: str) -> type[SparkSettings]:
    """Return the class of settings whose hosts run this older Spark."""
    spark = older_spark(version)

    class OlderSettings(SparkSettings):
        __slots__ = ()

        def environment(self, environ: Mapping[str, str], home: Path, java: Java | None, python: str) -> dict[str, str]:
            found = super().environment(environ, home, java, python)
            found.pop(OPTIONS, None)  # the archive is of the newest Spark's classes
            path = os.pathsep.join(filter(None, (str(spark), found["PYTHONPATH"])))
            return found | {"SPARK_HOME": str(spark / "pyspark"), "PYTHONPATH": path}

    return OlderSettings
