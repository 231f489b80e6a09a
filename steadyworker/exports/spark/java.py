"""What Spark needs of this machine: a suitable Java, and the JDBC driver of PostgreSQL."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from steadyworker.errors import ConfigError

JARS = "spark.jars"
"""Spark's setting with a comma-separated list of jars to load."""

DRIVER = "org.postgresql.Driver"
"""The class of PostgreSQL's JDBC driver."""

REMEDY = (
    "apt-get install libpostgresql-jdbc-java, or set spark.jars in spark_conf to the path of the driver's jar; "
    "then restart the worker"
)
"""The remedy if Spark does not have the driver."""

OLDEST = 17
_DRIVERS = ("usr/share/java/postgresql.jar", "usr/share/pgsql/postgresql.jar")
_DRIVER_JAR = re.compile(r"postgresql(-\d[\w.-]*)?\.jar")
_VERSION = re.compile(r'version "(?:1\.)?((\d+)[^"]*)"')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation; `version` is the version that Java reports, like `17.0.15`."""

    home: Path
    version: str

    @property
    def major(self) -> int:
        """The major version: 17 for `17.0.15`."""
        return int(re.split(r"\D", self.version, maxsplit=1)[0])


def find_java(environ: Mapping[str, str]) -> Java:
    """
    Return the first Java of version 17 or newer, from JAVA_HOME or from PATH.

    Raises:
        ConfigError: There is no such Java; the message lists the versions found, and how to install Java.
    """
    seen = [java for home in _homes(environ) if (java := _java_at(home))]
    if fitting := [java for java in seen if java.major >= OLDEST]:
        return fitting[0]
    found = ", ".join(f"{java.version} at {java.home}" for java in seen) or "none"
    raise ConfigError(
        f"Expected Java {OLDEST} or newer for Spark in JAVA_HOME or on PATH, got {found}: "
        "install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless; "
        "macOS: brew install openjdk@17), or set JAVA_HOME.",
        id="spark.no-java",
    )


def with_driver(jars: str, root: Path = Path("/")) -> str:
    """Return the jars of the user's setting, and the system's jar of the driver, unless the user names that driver, like `postgresql-42.7.4.jar`."""
    given = [jar.strip() for jar in jars.split(",") if jar.strip()]
    found = next((str(path) for jar in _DRIVERS if (path := root / jar).is_file()), None)
    own = any(_DRIVER_JAR.fullmatch(jar.rpartition("/")[2]) for jar in given)
    return ",".join([*given, found] if found and not own else given)


def _homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path).resolve().parent.parent


def _java_at(home: Path) -> Java | None:
    """Return the installation, with the version that Java itself reports; None without such a program."""
    text = ""
    with suppress(OSError, subprocess.TimeoutExpired):
        command = [str(home / "bin/java"), "-version"]
        text = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stderr
    match = _VERSION.search(text)
    return Java(home, match[1]) if match else None
