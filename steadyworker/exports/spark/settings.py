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
import os
import shlex
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from steadyworker.errors import ConfigError, Finding
from steadyworker.exports.spark.address import SCHEME, ConnectAddress
from steadyworker.exports.spark.drivers import JARS, with_drivers
from steadyworker.exports.spark.java import Java, find_java
from steadyworker.exports.spark.protocol import Connect

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
_LISTENS_WITHIN = 3.0
_SECONDS = (0.001, 366 * 86400.0)  # no timer of Python's takes infinity: a year is as good
# Out of these a job would wait for ever, or a host never be left in peace.
_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "jobs_per_host": (1, 1e9),
        "max_hosts": (1, 1000),
        "resubmissions": (0, 1000),
        "idle_stop": _SECONDS,
        "start_within": _SECONDS,
        "server_within": _SECONDS,
        "ping_every": _SECONDS,
        "hung_after": _SECONDS,
        "stuck_after": _SECONDS,
        "cancel_within": _SECONDS,
    }
)
_PER_SESSION = ("spark.sql.files.", "spark.sql.adaptive.")
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
    "GRPC_TRACE",  # would write tokens into the log
    "GRPC_VERBOSITY",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_CONNECT_MODE_ENABLED",
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
        master: Spark's master, or a Spark Connect server (`sc://host:port/;token=…`).  With another than `local[…]` the
            folder of each export must be on a file system that the executors share with the worker.
        conf: Spark's own settings, on top of ours; to Java options ours are added.
        scratch: Where hosts have their folders instead (sorting needs room for the data once or twice).
        idle_stop: Seconds without a job after which the host ends.
        jobs_per_host: After so many jobs a host is replaced by a fresh one.
        max_rss: Resident bytes of host and JVM after which it is replaced; no limit without.
        max_hosts: Hosts at once: a second one while the first is being replaced, or when a job has to run alone.
        resubmissions: How often one run's job is begun again after its host died under it alone.
        start_within: Seconds for a start; a host that is not ready then is killed.
        server_within: Seconds for a Spark Connect server to come back, or to be there at all; less than `start_within`.
        ping_every: Seconds between two looks at a JVM that has jobs,
        hung_after: and how long it may leave one unanswered before it is killed.
        stuck_after: Seconds without a task, a row or a byte after which a job is begun again (five times its slowest task,
            if that is longer): more for a source that is silent for long before its first row.  Ten times as many at a Spark
            Connect server, which tells nothing from inside a task, and four times more each time that it was too little.
        cancel_within: Seconds for a cancelled job to end; then its host is killed.

    Raises:
        ConfigError: A Spark setting that is not to be set, or is no text; a number that cannot be; a Spark Connect address
            that is none.
    """

    folder: Path
    master: str = field(default="local[*,4]", repr=False)  # may hold a token
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys
    scratch: Path | None = None
    idle_stop: float = 300.0
    jobs_per_host: int = 1000
    max_rss: int | None = None
    max_hosts: int = 2
    resubmissions: int = 2
    start_within: float = 180.0
    server_within: float = 120.0
    ping_every: float = 10.0
    hung_after: float = 60.0
    stuck_after: float = 60.0
    cancel_within: float = 10.0

    def __post_init__(self) -> None:
        for key, value in self.conf.items():
            if not isinstance(key, str) or not key.startswith("spark.") or key in _OURS:
                why = _OURS.get(key, "Spark's settings begin with `spark.`")
                raise ConfigError(f"Expected a Spark setting that may be set, got {key!r}: {why}.")
            if not isinstance(value, str):
                raise ConfigError(
                    f"Expected text as the value of {key}, got {type(value).__name__}: write it as Spark's documentation does, "
                    'like "8", "64m" or "true".'
                )
        for name, (least, most) in _RANGES.items():
            number = getattr(self, name)
            if not isinstance(number, int | float) or not least <= number <= most:  # which NaN is not, either
                raise ConfigError(f"Expected {name} from {least:g} to {most:g}, got {number!r}: correct it.")
        if self.server is not None and self.server_within >= self.start_within:
            raise ConfigError(
                f"Expected server_within below start_within, got {self.server_within:g} and {self.start_within:g} s: "
                "a host that waits for its server has to be left alive until then."
            )

    @property
    def server(self) -> ConnectAddress | None:
        """The Spark Connect server; None when the driver is the host's."""
        return ConnectAddress.of(self.master) if self.master.startswith(SCHEME) else None

    @property
    def place(self) -> str:
        """Where Spark is, as it may be shown."""
        return str(self.server or self.master)

    @property
    def local(self) -> bool:
        """Whether nothing of Spark is left when the host is gone."""
        return self.master.startswith("local")

    @property
    def hosts(self) -> Path:
        """The folder of the hosts' folders."""
        return (self.scratch or self.folder) / "hosts"

    def findings(self) -> Iterator[Finding]:
        """What is wrong before the first export; a master is not asked, for every question to it is an application."""
        if self.server is None:
            return
        try:
            self.server.check_client()
        except ConfigError as error:
            yield Finding("error", str(error), "install it, or set another spark_master.")
        if not self.server.answers(_LISTENS_WITHIN):
            what = f"The Spark Connect server at {self.server} does not answer."
            remedy = (
                f"start it or correct spark_master; an export waits {self.server_within:g} s for it, and fails then."
            )
            yield Finding("warning", what, remedy)

    def java(self, environ: Mapping[str, str]) -> Java | None:
        """
        The Java that hosts will run on; None when they need none, for the server has one.

        Raises:
            ConfigError: No pyspark, or no Java that fits, or a Spark Connect client that lacks something; says what to install.
        """
        if self.server is not None:
            self.server.check_client()
            return None
        if importlib.util.find_spec("pyspark") is None:
            raise ConfigError(
                "Expected pyspark for SparkExport, got no such module: pip install 'steadyworker[spark]'."
            )
        return find_java(environ)

    def archive(self, java: Java | None) -> Path | None:
        """The class-data archive for this Java and this pyspark; none without a Java."""
        if java is None:
            return None
        return self.folder / f"classes-{java.version}-{importlib.metadata.version('pyspark')}.jsa"

    def properties(self, home: Path, java_options: str) -> str:
        """Spark's properties for a host with this folder: a file, because a command line is there for everyone to read."""
        # Ours come last: of two that contradict each other Java takes the later one.
        options = f"{self.conf.get(_JAVA_OPTIONS, '')} -XX:+ExitOnOutOfMemoryError -Djava.io.tmpdir={home / 'tmp'} {java_options}"
        conf = {
            **_DEFAULTS,
            **(_LOCAL if self.local else {}),
            "spark.sql.warehouse.dir": (home / "warehouse").as_uri(),
            **self.conf,
            **({JARS: jars} if (jars := with_drivers(self.conf.get(JARS, ""))) else {}),
            "spark.master": self.master,
            "spark.local.dir": str(home / "local"),
            _JAVA_OPTIONS: options.strip(),
        }
        return "".join(f"{key}={_escaped(value)}\n" for key, value in conf.items())

    def connect(self) -> Connect | None:
        """What a host is told before all else, if there is a server: ours for a session, and all of the user's."""
        if self.server is None:
            return None
        ours = {key: value for key, value in _DEFAULTS.items() if key.startswith(_PER_SESSION)}
        return Connect(self.master, {**ours, **self.conf}, self.server_within)

    def environment(self, environ: Mapping[str, str], home: Path, java: Java | None, python: str) -> dict[str, str]:
        """The environment of a host; whatever would send Spark elsewhere is left out."""
        spec = importlib.util.find_spec("pyspark")
        spark = next(iter(spec.submodule_search_locations or ())) if spec else ""
        if java is None:
            engine = {"SPARK_CONNECT_MODE_ENABLED": "1"}
        else:
            engine = {
                "JAVA_HOME": str(java.home),
                "PYSPARK_SUBMIT_ARGS": f"--properties-file {shlex.quote(str(home / PROPERTIES))} pyspark-shell",
            }
        return {key: value for key, value in environ.items() if key not in _HIDDEN} | {
            **engine,
            "SPARK_HOME": spark,
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "TMPDIR": str(home / "tmp"),
            "PYTHONPATH": os.pathsep.join(_python_path()),  # what the worker can import, `Build` names
            "LC_ALL": "C.UTF-8",  # without a locale, as under systemd, Java cannot name a file that is not ASCII
            "TZ": "UTC",  # PySpark takes a parameter without a zone as local time
        }


def _python_path() -> list[str]:
    """`sys.path` without what every Python of this installation has."""
    own = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    zipped = Path(sysconfig.get_path("stdlib")).with_name("python{}{}.zip".format(*sys.version_info))
    entries = [Path(entry).absolute() for entry in sys.path]
    return [str(entry) for entry in entries if entry != zipped and not any(entry.is_relative_to(path) for path in own)]


def _escaped(value: str) -> str:
    """A value as java.util.Properties reads it back."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return "\\" + text if text.startswith(" ") else text
