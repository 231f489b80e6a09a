"""Which driver Spark is given, and what a host can import: without Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from steadyworker.errors import ExportError
from steadyworker.exports.spark.build import Build
from steadyworker.exports.spark.databases import load as load_table
from steadyworker.exports.spark.java import DRIVER, REMEDY, Java, with_driver
from steadyworker.exports.spark.settings import SparkSettings


def test_spark_is_given_the_systems_driver_unless_the_user_names_one(tmp_path: Path) -> None:
    assert with_driver("", tmp_path) == ""
    folder = tmp_path / "usr/share/java"
    folder.mkdir(parents=True)
    system = folder / "postgresql.jar"
    system.touch()
    assert with_driver("", tmp_path) == str(system)
    for own in ("/opt/postgresql-42.7.4.jar", "https://example.com/postgresql.jar"):
        assert with_driver(f" {own},hdfs:///x.jar ", tmp_path) == f"{own},hdfs:///x.jar"
    assert with_driver("https://example.com/other.jar", tmp_path).split(",")[1:] == [str(system)]


def test_the_error_without_the_driver_names_its_package() -> None:
    """As py4j shows the error of Java."""
    session = MagicMock()
    load = session.read.format.return_value.options.return_value.load
    load.side_effect = Exception(
        "calling o37.load.\n: java.lang.ClassNotFoundException: org.postgresql.Driver\n\tat java."
    )
    with pytest.raises(ExportError, match="got no such class in Spark: apt-get install libpostgresql-jdbc-java"):
        load_table(session, DRIVER, REMEDY, {})
    load.side_effect = OSError("full")
    with pytest.raises(OSError, match="full"):
        load_table(session, DRIVER, REMEDY, {})


def test_a_host_can_import_what_the_worker_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    settings = SparkSettings(folder=tmp_path, conf={"spark.jars": "/own.jar"})
    environment = settings.environment({}, tmp_path, Java(tmp_path, "17.0.1"), sys.executable)
    entries = environment["PYTHONPATH"].split(os.pathsep)
    assert entries[:2] == [str(Path.cwd()), str(tmp_path)]
    assert not any("site-packages" in entry for entry in entries)
    assert "spark.jars=/own.jar" in settings.properties(tmp_path, {})


@pytest.mark.parametrize(
    "name", ["", "payments", "reports/frames:payments", "reports.frames:", ":payments", "a:b c", "a:b()"]
)
def test_a_function_is_named_by_its_module(name: str) -> None:
    assert Build("reports.frames:Monthly.payments").name == "reports.frames:Monthly.payments"
    with pytest.raises(ExportError, match="module:function"):
        Build(name)
