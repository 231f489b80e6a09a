"""
The settings that `spark-submit` has given to the worker, if the worker is its program.

`spark-submit` runs the program beside a JVM of its own, which keeps these settings as system properties.
The environment has the port and the secret of this JVM.
The Spark host reads the settings there, and starts another JVM with them, because the worker must survive the death of a driver.
A short process reads the settings, because the worker process itself never imports pyspark.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from steadyworker.errors import ConfigError
from steadyworker.exports.spark.settings import LOCAL, OURS, SparkSettings
from steadyworker.system.interpreter import command
from steadyworker.text.redaction import redact

_WITHIN = 60.0


def with_submitted(settings: SparkSettings, environ: Mapping[str, str]) -> SparkSettings:
    """
    Return the settings, plus the settings of `spark-submit`, if it runs this process.

    The worker's `spark_conf` and a `spark_master` of the user come before those of `spark-submit`.

    Raises:
        ConfigError: The JVM of `spark-submit` does not report its settings, or a setting is invalid.
    """
    if "PYSPARK_GATEWAY_PORT" not in environ:
        return settings
    given = _read(environ)
    master = given.pop("spark.master", "local[*]")
    conf = {key: value for key, value in given.items() if key not in OURS} | {**settings.conf}
    inherits = settings.master == LOCAL and master != "local[*]"  # the default of `spark-submit`
    return replace(settings, master=master if inherits else settings.master, conf=conf)


def _read(environ: Mapping[str, str]) -> dict[str, str]:
    asked = command("steadyworker.exports.spark.submitted")
    problem = "no reply"
    try:
        done = subprocess.run(asked, env=environ, capture_output=True, text=True, check=False, timeout=_WITHIN)
        problem = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return msgspec.json.decode(done.stdout, type=dict[str, str])
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError):
        raise ConfigError(
            f"Expected Spark's settings from the JVM of spark-submit, got {redact(problem)}: start the worker without spark-submit, "
            "and set spark_master and spark_conf.",
            id="spark.setting",
        ) from None


def main() -> None:
    """Print the settings of the JVM of `spark-submit` as JSON."""
    from pyspark.java_gateway import launch_gateway  # only this short process has it

    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call] # with a port in the environment, it only connects
    pairs = gateway.jvm.org.apache.spark.SparkConf().getAll()
    sys.stdout.write(msgspec.json.encode({pair._1(): pair._2() for pair in pairs}).decode())  # noqa: SLF001 - Scala's names
