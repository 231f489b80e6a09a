"""
The settings of Spark: SteadyWorker's defaults, the user's settings, and the few settings that a user must not change.

| setting | why |
|---|---|
| `-XX:+ExitOnOutOfMemoryError` | otherwise an out-of-memory error in the wrong thread hangs the job, while the JVM still replies to pings |
| `local[*,4]` | plain `local[*]` fails a job at the first error of a task |
| small tasks (5 MB of input, about 8 MB of a sort) | progress every few seconds; a small export need not wait for a big export |
| FAIR | a small export beside a big export starts at once |
| no UI, loopback only | no port scan at the start, and no open port to other hosts |
| short retention, small results | the driver's memory stays constant over thousands of jobs |

Spark divides a sort by the measured size of the shuffle (adaptive coalescing to 8 MB), not by an estimate before the query.
So an export of ten rows out of 20 million has one sort task, and an export of 20 million rows has a hundred.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from steadyworker.errors import ConfigError, Finding
from steadyworker.exports.spark.address import SCHEME, ConnectAddress
from steadyworker.exports.spark.java import JARS, Java, find_java, with_driver
from steadyworker.exports.spark.parts import checked_stage
from steadyworker.exports.spark.protocol import Connect
from steadyworker.findings import FindingTexts

_finding = FindingTexts("steadyworker.exports.spark")

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
    "spark.sql.files.maxPartitionBytes": "5m",
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8m",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",  # as Spark 4.0; Spark 3.5 refuses days before 1582
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.shuffle.sort.bypassMergeThreshold": "20",
    "spark.log.level": "WARN",
}
_LISTENS_WITHIN = 3.0
_LONGEST = 366 * 86400.0  # a year, because Python's timers do not accept infinity
_PER_SESSION = ("spark.sql.files.", "spark.sql.adaptive.")
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
PROPERTIES = "spark.properties"
"""The file in a host's folder for `SparkSettings.properties`."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
OURS = {
    "spark.master": "set `master` instead",
    "spark.local.dir": "put the state directory on another disk instead, because the files of a killed host must be removed",
    "spark.submit.deployMode": "the driver runs in the Spark host",
}
"""The settings that a user must not set, and why."""

LOCAL = "local[*,4]"
"""The default of `SparkSettings.master`."""

_HIDDEN = (
    "GRPC_TRACE",  # this setting would write tokens into the log
    "GRPC_VERBOSITY",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_CONF_DIR",  # its files would add settings to a Spark of this machine alone
    "SPARK_LOCAL_DIRS",
    "SPARK_MASTER",
    "SPARK_REMOTE",
    "SPARK_TESTING",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """
    The settings of a worker process's Spark hosts.

    Args:
        folder: The folder for the hosts' folders and the last host's log; its disk needs room for the data of a sort.
        master: Spark's master, or a Spark Connect server (`sc://host:port/;token=…`).
            Unless it is `local[…]`, executors and worker process must share the file system of each export, or `stage`.
        stage: The folder for the sorted parts, which Spark writes and the child reads: `s3a://bucket/folder`, or a path of a shared file system.
            By default, the parts are beside each export.
        conf: Settings of Spark, which replace SteadyWorker's defaults; SteadyWorker adds its own Java options.
        idle_stop: Seconds without a job after which a host ends.
        resubmissions: How many times a job is begun again after it was stuck, or after its host has died.
        server_within: Seconds to wait for a Spark Connect server that does not respond.
        hung_after: Seconds after which the service kills a host that does not start, reply to a ping, or end.
            The host gets more time while it uses processor time or writes to its log, as on a busy machine.
            For a reply, it gets at most five times as long.
            This is also the time in which a cancelled job must end; then the service kills its host, unless other jobs use it.
            In this case, the host takes no more jobs, and is killed after its last job.
        stuck_after: Seconds without a task or a byte after which a job is stuck, and is begun again.
            The limit is ten times as long in a cluster, and at most ten times as long while the host computes.
            Each time that the job was stuck, the limit becomes four times as long, but at most 16 times.
            Set a larger value for a source that is slow to send its first row.

    Raises:
        ConfigError: `conf` has a setting that users may not set, or a value that is not text.
            `stuck_after` is not above 0, or longer than a year, or an address is invalid.
    """

    folder: Path
    master: str = field(default=LOCAL, repr=False)  # can contain a token
    stage: str = ""
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)  # can contain keys
    idle_stop: float = 300.0
    resubmissions: int = 3
    server_within: float = 120.0
    hung_after: float = 60.0
    stuck_after: float = 60.0

    def __post_init__(self) -> None:
        for key, value in self.conf.items():
            if not isinstance(key, str) or not key.startswith("spark.") or key in OURS:
                why = OURS.get(key, "Spark's settings begin with `spark.`")
                raise ConfigError(f"Expected a Spark setting that may be set, got {key!r}: {why}.", id="spark.setting")
            if not isinstance(value, str):
                raise ConfigError(
                    f"Expected text as the value of {key}, got {type(value).__name__}: write it as Spark's documentation does, "
                    'like "8", "64m" or "true".',
                    id="spark.setting",
                )
        if not 0 < self.stuck_after <= _LONGEST:  # also true for NaN
            raise ConfigError(
                f"Expected spark_stuck_after above 0 and at most a year, got {self.stuck_after:g} s: correct it.",
                id="spark.setting",
            )
        if self.master.startswith(SCHEME):
            ConnectAddress.of(self.master)
        object.__setattr__(self, "stage", checked_stage(self.stage))

    @property
    def server(self) -> ConnectAddress | None:
        """The address of the Spark Connect server, or None if the host has a Spark driver."""
        return ConnectAddress.of(self.master) if self.master.startswith(SCHEME) else None

    @property
    def place(self) -> str:
        """The master or the server's address, without secrets."""
        return str(self.server or self.master)

    @property
    def local(self) -> bool:
        """True if all of Spark runs in the host, so that nothing of Spark outlives it."""
        return self.master.startswith("local")

    @property
    def hosts(self) -> Path:
        """The folder that contains the hosts' folders."""
        return self.folder / "hosts"

    def findings(self) -> Iterator[Finding]:
        """
        Yield problems with a Spark Connect server.

        A master is not checked, because each check would be an application.
        """
        if self.server is None:
            return
        try:
            self.server.check_client()
        except ConfigError as error:
            yield _finding("spark.no-client", error=error)
        if not self.server.answers(_LISTENS_WITHIN):
            yield _finding("spark.server-silent", server=self.server, seconds=self.server_within)

    def java(self, environ: Mapping[str, str]) -> Java | None:
        """
        Return the Java for the hosts, or None with a Spark Connect server, because then hosts need no Java.

        Raises:
            ConfigError: pyspark, a suitable Java, or a package of Spark Connect is missing; the message has the remedy.
        """
        if self.server is not None:
            self.server.check_client()
            return None
        if importlib.util.find_spec("pyspark") is None:
            raise ConfigError(
                "Expected pyspark for SparkExport, got no such module: pip install 'steadyworker[spark]'.",
                id="spark.setting",
            )
        return find_java(environ)

    def properties(self, home: Path, environ: Mapping[str, str]) -> str:
        """
        Return Spark's properties for a host with this folder, as the text of a file.

        The properties are in a file, because other users can read a command line.
        A later line replaces an earlier line with the same name.
        For a cluster, its own `spark-defaults.conf` replaces SteadyWorker's defaults, and the user's settings replace both.

        Raises:
            OSError: The `spark-defaults.conf` cannot be read.
        """
        theirs = "" if self.local else _cluster_defaults(environ)
        # SteadyWorker's options come last, because Java uses the later of two contrary options.
        # Without performance counters, because a JVM keeps them in /tmp, and leaves them there when it is killed.
        ours = f"-XX:+ExitOnOutOfMemoryError -XX:-UsePerfData -Djava.io.tmpdir={home / 'tmp'}"
        options = f"{self.conf.get(_JAVA_OPTIONS, _value(theirs, _JAVA_OPTIONS))} {ours}"
        defaults = {
            **_DEFAULTS,
            **(_LOCAL if self.local else {}),
            "spark.sql.warehouse.dir": (home / "warehouse").as_uri(),
        }
        conf = {
            **self.conf,
            **({JARS: jars} if (jars := with_driver(self.conf.get(JARS, _value(theirs, JARS)))) else {}),
            "spark.master": self.master,
            "spark.submit.deployMode": "client",
            "spark.local.dir": str(home / "local"),
            _JAVA_OPTIONS: options.strip(),
        }
        return f"{_lines(defaults)}{theirs}\n{_lines(conf)}"

    def connect(self) -> Connect | None:
        """Return the first command for a host with a Spark Connect server (address and settings), otherwise None."""
        if self.server is None:
            return None
        ours = {key: value for key, value in _DEFAULTS.items() if key.startswith(_PER_SESSION)}
        return Connect(self.master, {**ours, **self.conf}, self.server_within)

    def environment(self, environ: Mapping[str, str], home: Path, java: Java | None, python: str) -> dict[str, str]:
        """
        Return the environment of a host, without variables that would change Spark's master, folders or settings.

        For a cluster, `SPARK_HOME` and `SPARK_CONF_DIR` stay, because they name the cluster's own Spark and settings.
        """
        spec = importlib.util.find_spec("pyspark")
        spark = next(iter(spec.submodule_search_locations or ())) if spec else ""
        if not Path(spark, "bin").is_dir():  # not pip's pyspark, but that of a Spark installation
            spark = environ.get("SPARK_HOME", spark)
        if java is None:
            engine = {"SPARK_CONNECT_MODE_ENABLED": "1"}
        else:
            engine = {
                "JAVA_HOME": str(java.home),
                "PYSPARK_SUBMIT_ARGS": f"--properties-file {shlex.quote(str(home / PROPERTIES))} pyspark-shell",
            }
        own = () if self.local or java is None else ("SPARK_HOME", "SPARK_CONF_DIR")
        return {key: value for key, value in environ.items() if key not in _HIDDEN} | {
            **engine,
            "SPARK_HOME": spark,
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData",
            "TMPDIR": str(home / "tmp"),
            "PYTHONPATH": os.pathsep.join(_python_path()),  # so that the host finds the modules of `Build`
            "LC_ALL": "C.UTF-8",  # without a locale, as under systemd, Java cannot open a file with a non-ASCII name
            "TZ": "UTC",  # PySpark takes a parameter without a zone as local time
            **{name: environ[name] for name in own if environ.get(name)},
        }


def _python_path() -> list[str]:
    """Return `sys.path` without the entries that every Python of this installation has."""
    own = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    zipped = Path(sysconfig.get_path("stdlib")).with_name("python{}{}.zip".format(*sys.version_info))
    entries = [Path(entry).absolute() for entry in sys.path]
    return [str(entry) for entry in entries if entry != zipped and not any(entry.is_relative_to(path) for path in own)]


def _cluster_defaults(environ: Mapping[str, str]) -> str:
    """Return the text of the `spark-defaults.conf` that Spark's own `spark-submit` would read, or an empty text without one."""
    home = environ.get("SPARK_HOME")
    folder = environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    with suppress(FileNotFoundError):
        return Path(folder, "spark-defaults.conf").read_text(encoding="utf-8", errors="replace") if folder else ""
    return ""


def _value(properties: str, key: str) -> str:
    """Return the last value of a key in a file of properties, or an empty text."""
    found = re.findall(rf"^\s*{re.escape(key)}\s*[\s=:]\s*(.*?)\s*$", properties, re.MULTILINE)
    return found[-1] if found else ""


def _lines(conf: Mapping[str, str]) -> str:
    return "".join(f"{key}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(value: str) -> str:
    """Return the value with the escapes of java.util.Properties."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return "\\" + text if text.startswith(" ") else text
