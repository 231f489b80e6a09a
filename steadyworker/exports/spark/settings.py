"""
How Spark is set: what we ship, what a user sets on top, and the little that is not to be set.

| setting | why |
|---|---|
| `-XX:+ExitOnOutOfMemoryError` | an out-of-memory error in the wrong thread otherwise hangs the job for ever, while pings pass |
| `local[*,4]` | plain `local[*]` fails a job at the first error of a task |
| small tasks (5 MB of input, about 8 MB of a sort) | something moves every few seconds, and a small export beside a big one starts at once |
| FAIR | the same |
| no UI, loopback only | no port scan at the start, nothing that listens outside |
| short retention, small results | the driver's memory stays flat over thousands of jobs |

Sorts are cut by Spark's own measure of the shuffle (adaptive coalescing to 8 MB), not by a guess before the query ran:
an export of ten rows out of 20 million then has one task, and one of 20 million has a hundred.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from steadyworker.errors import ConfigError
from steadyworker.exports.spark.java import Java, find_java

_DEFAULTS = {
    "spark.app.name": "steadyworker",
    "spark.driver.memory": "1g",
    "spark.driver.maxResultSize": "64m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.liveUpdate.period": "0",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.scheduler.mode": "FAIR",
    "spark.speculation": "false",
    "spark.executor.heartbeatInterval": "2s",
    "spark.sql.files.maxPartitionBytes": "5m",
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8m",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.shuffle.sort.bypassMergeThreshold": "20",
    "spark.log.level": "WARN",
}
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
PROPERTIES = "spark.properties"
"""The file of a host's folder that `SparkSettings.properties` goes into."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_OURS = {
    "spark.master": "set `master` instead",
    "spark.local.dir": "set `scratch` instead, so that what a killed host leaves is removed",
    "spark.submit.deployMode": "the driver runs in the Spark host",
}
_HIDDEN = (
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_CONF_DIR",  # it would be on the class path, which the class-data archive is bound to
    "SPARK_LOCAL_DIRS",
    "SPARK_MASTER",
    "SPARK_REMOTE",
    "SPARK_TESTING",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """
    How a worker process keeps its Spark host.

    Args:
        folder: Where hosts have their folders and the class-data archive is kept; a disk with room for what is sorted.
        master: Spark's master.  With another than `local[…]` the folder of each export must be on a file system that the
            executors share with the worker.
        conf: Spark's own settings, on top of ours; Java options are added to ours.
        scratch: Where hosts have their folders instead (sorting needs room for the data once or twice).
        idle_stop: Seconds without a job after which the host ends.
        jobs_per_host: After so many jobs a host is replaced by a fresh one.
        max_rss: Resident bytes of host and JVM after which it is replaced; no limit without.
        max_hosts: Hosts at once: a second one while the first is being replaced, or when a job has to run alone.
        resubmissions: How often one run's job is begun again after its host died under it alone.
        start_within: Seconds for a start; a host that is not ready then is killed.
        ping_every: Seconds between two looks at a JVM that has jobs,
        hung_after: and how long it may leave one unanswered before it is killed.
        cancel_within: Seconds for a cancelled job to end; then its host is killed.

    Raises:
        ConfigError: A Spark setting that is not to be set.
    """

    folder: Path
    master: str = "local[*,4]"
    conf: Mapping[str, str] = field(default_factory=dict)
    scratch: Path | None = None
    idle_stop: float = 300.0
    jobs_per_host: int = 1000
    max_rss: int | None = None
    max_hosts: int = 2
    resubmissions: int = 2
    start_within: float = 180.0
    ping_every: float = 10.0
    hung_after: float = 60.0
    cancel_within: float = 10.0

    def __post_init__(self) -> None:
        for key in self.conf:
            if not key.startswith("spark.") or key in _OURS:
                why = _OURS.get(key, "Spark's settings begin with `spark.`")
                raise ConfigError(f"Expected a Spark setting that may be set, got {key!r}: {why}.")
        if self.master.startswith("sc://"):
            raise ConfigError(
                f"Expected a Spark master like local[*,4] or spark://host:7077, got {self.master!r}: it is no master."
            )

    @property
    def hosts(self) -> Path:
        """The folder of the hosts' folders."""
        return (self.scratch or self.folder) / "hosts"

    def java(self, environ: Mapping[str, str]) -> Java:
        """
        The Java that hosts will run on.

        Raises:
            ConfigError: No pyspark, or no Java that fits; says what to install.
        """
        if importlib.util.find_spec("pyspark") is None:
            raise ConfigError(
                "Expected pyspark for SparkExport, got no such module: pip install 'steadyworker[spark]'."
            )
        return find_java(environ)

    def archive(self, java: Java) -> Path:
        """The class-data archive for this Java and this pyspark."""
        return self.folder / f"classes-{java.version}-{importlib.metadata.version('pyspark')}.jsa"

    def properties(self, home: Path, java_options: str) -> str:
        """Spark's properties for a host with this folder: a file, because a command line is there for everyone to read."""
        options = f"-XX:+ExitOnOutOfMemoryError -Djava.io.tmpdir={home / 'tmp'} {java_options} {self.conf.get(_JAVA_OPTIONS, '')}"
        conf = {
            **_DEFAULTS,
            **(_LOCAL if self.master.startswith("local") else {}),
            "spark.sql.warehouse.dir": (home / "warehouse").as_uri(),
            **self.conf,
            "spark.master": self.master,
            "spark.local.dir": str(home / "local"),
            _JAVA_OPTIONS: options.strip(),
        }
        return "".join(f"{key}={_escaped(value)}\n" for key, value in conf.items())

    def environment(self, environ: Mapping[str, str], home: Path, java: Java, python: str) -> dict[str, str]:
        """The environment of a host; whatever would send Spark elsewhere is left out."""
        spec = importlib.util.find_spec("pyspark")
        spark = next(iter(spec.submodule_search_locations or ())) if spec else ""
        return {key: value for key, value in environ.items() if key not in _HIDDEN} | {
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": spark,
            "PYSPARK_SUBMIT_ARGS": f"--properties-file {shlex.quote(str(home / PROPERTIES))} pyspark-shell",
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "TMPDIR": str(home / "tmp"),
        }


def _escaped(value: str) -> str:
    """A value as java.util.Properties reads it back."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return "\\" + text if text.startswith(" ") else text
