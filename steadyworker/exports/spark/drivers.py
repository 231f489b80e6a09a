"""JDBC drivers: for each driver the class, the usual places of the jar, and the package to install."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

JARS = "spark.jars"
"""Spark's setting with a comma-separated list of jars to load."""


@dataclass(frozen=True, slots=True)
class Driver:
    """
    A database's driver.

    Attributes:
        name: The usual name of the database.
        class_name: The driver's class.
        jars: The usual paths of the driver's jar, the preferred path first.
        package: The Debian package with the driver.
    """

    name: str
    class_name: str
    jars: tuple[str, ...]
    package: str

    @property
    def remedy(self) -> str:
        """The remedy if Spark does not have the driver."""
        return f"apt-get install {self.package}, or set spark.jars in spark_conf to the path of its jar; then restart the worker"


DRIVERS: Mapping[str, Driver] = MappingProxyType(
    {
        "postgresql": Driver(
            "PostgreSQL",
            "org.postgresql.Driver",
            ("/usr/share/java/postgresql.jar", "/usr/share/pgsql/postgresql.jar"),
            "libpostgresql-jdbc-java",
        ),
    }
)


def with_drivers(jars: str, root: Path = Path("/")) -> str:
    """Return the jars of the user's setting, plus the system's jar for each driver that the user's jars lack."""
    given = [jar.strip() for jar in jars.split(",") if jar.strip()]
    classes = {name for jar in given for name in _classes(jar)}
    names = {Path(urlsplit(jar).path).name for jar in given}
    for driver in DRIVERS.values():
        found = next((path for jar in driver.jars if (path := root / jar.lstrip("/")).is_file()), None)
        # Spark refuses two jars with the same name.
        if found and driver.class_name not in classes and found.name not in names:
            given.append(str(found))
    return ",".join(given)


def _classes(jar: str) -> Iterator[str]:
    """Yield the driver classes in a jar on this machine; Spark itself fetches a jar from another place."""
    url = urlsplit(jar)
    if url.scheme not in {"", "file", "local"}:
        return
    try:
        with zipfile.ZipFile(unquote(url.path) if url.scheme else jar) as archive:
            held = set(archive.namelist())
    except (OSError, zipfile.BadZipFile):  # Spark reports the error
        return
    yield from (name for driver in DRIVERS.values() if (name := driver.class_name).replace(".", "/") + ".class" in held)
