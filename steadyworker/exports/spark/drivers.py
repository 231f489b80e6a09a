"""
JDBC drivers: which class, where its jar is, and what to install when it is nowhere.

They reach Spark by `spark.jars`, which adds them to a class loader of Spark's: the JVM's own class path, which the
class-data archive is bound to, stays as it was.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

JARS = "spark.jars"
"""Spark's setting with what it adds to its class path, by commas."""


@dataclass(frozen=True, slots=True)
class Driver:
    """
    A database's driver.

    Attributes:
        name: The database, as people call it.
        class_name: The driver's class.
        jars: Where systems put it, the best first.
        package: Debian's package.
    """

    name: str
    class_name: str
    jars: tuple[str, ...]
    package: str

    @property
    def remedy(self) -> str:
        """What to do when Spark has it not."""
        return f"apt-get install {self.package}, or set spark.jars in spark_conf to the path of its jar; then restart the worker"


DRIVERS: Mapping[str, Driver] = MappingProxyType(
    {
        "postgresql": Driver(
            "PostgreSQL",
            "org.postgresql.Driver",
            ("/usr/share/java/postgresql.jar", "/usr/share/pgsql/postgresql.jar"),
            "libpostgresql-jdbc-java",
        ),
        "sqlite": Driver(
            "SQLite",
            "org.sqlite.JDBC",
            ("/usr/share/java/sqlite-jdbc.jar", "/usr/share/java/xerial-sqlite-jdbc.jar"),
            "libxerial-sqlite-jdbc-java",
        ),
    }
)


def with_drivers(jars: str, root: Path = Path("/")) -> str:
    """The jars of a user's setting, and the system's driver for each database that none of these is for."""
    given = [jar.strip() for jar in jars.split(",") if jar.strip()]
    classes = {name for jar in given for name in _classes(jar)}
    names = {Path(urlsplit(jar).path).name for jar in given}
    for driver in DRIVERS.values():
        found = next((path for jar in driver.jars if (path := root / jar.lstrip("/")).is_file()), None)
        # Spark takes no two jars of one name.
        if found and driver.class_name not in classes and found.name not in names:
            given.append(str(found))
    return ",".join(given)


def _classes(jar: str) -> Iterator[str]:
    """Which drivers are in a jar on this machine; one that is elsewhere, Spark will fetch."""
    url = urlsplit(jar)
    if url.scheme not in {"", "file", "local"}:
        return
    try:
        with zipfile.ZipFile(unquote(url.path) if url.scheme else jar) as archive:
            held = set(archive.namelist())
    except (OSError, zipfile.BadZipFile):  # Spark says what is wrong with it
        return
    yield from (name for driver in DRIVERS.values() if (name := driver.class_name).replace(".", "/") + ".class" in held)
