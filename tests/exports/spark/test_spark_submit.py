"""A worker that `spark-submit` runs: its exports use the master and the settings that `spark-submit` was given."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pyspark
import pytest

from steadyworker.errors import ConfigError
from steadyworker.exports.spark.settings import SparkSettings
from steadyworker.exports.spark.submitted import with_submitted
from steadyworker.exports.verifying import verify
from steadyworker.ledger.base import State
from tests.conftest import Eventually
from tests.exports.spark.clusters import Standalone, free_port
from tests.exports.spark.sparkkit import CLUSTER
from tests.support.stage import Stage, WorkerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400), pytest.mark.xdist_group("spark servers")]

HOME = Path(pyspark.__path__[0])
RUN = "from steadyworker.cli import main\n\nmain()\n"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def test_an_export_runs_at_the_master_of_spark_submit(
    stage: Stage, standalone: Standalone, eventually: Eventually
) -> None:
    """The master has one application with the name of the program, and only while the worker runs."""
    (stage.folder / "run_worker.py").write_text(RUN)
    conf = [part for key, value in CLUSTER.items() for part in ("--conf", f"{key}={value}")]
    command = [str(HOME / "bin" / "spark-submit"), "--master", standalone.url, *conf, "run_worker.py"]
    environment = stage.environment() | {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable}
    worker = stage._started([*command, "run", "tests.exports.spark.jobs:Rows"], environment)
    stage.send("spark-rows", {"rows": 20_000})
    stage.reaches("spark-rows", State.DONE, within=280)
    assert verify(stage.folder / "out" / "job.csv").rows == 20_000
    (application,) = standalone.books()["activeapps"]
    assert (application["name"], application["cores"]) == ("run_worker.py", 1), "as spark.cores.max says"
    program(worker).terminate()
    worker.ended(0, within=100)
    eventually(lambda: not standalone.applications())


def program(submit: WorkerProcess) -> psutil.Process:
    """The Python process of `spark-submit`; it would survive a SIGTERM to `spark-submit`."""
    children = psutil.Process(submit.pid).children()
    (found,) = (
        child for child in children if child.status() != "zombie" and "run_worker.py" in " ".join(child.cmdline())
    )
    return found


def test_a_spark_submit_that_does_not_reply_is_named(tmp_path: Path) -> None:
    environ = {**os.environ, "PYSPARK_GATEWAY_PORT": str(free_port()), "PYSPARK_GATEWAY_SECRET": "hunter2"}
    with pytest.raises(ConfigError, match=r"settings from the JVM of spark-submit, got .*set spark_master") as caught:
        with_submitted(SparkSettings(folder=tmp_path), environ)
    assert "hunter2" not in str(caught.value)
