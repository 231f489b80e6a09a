"""The JDBC driver of PostgreSQL: its class, the usual places of its jar, and the package to install."""

from __future__ import annotations

import zipfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

JARS = "spark.jars"
"""Spark's setting with a comma-separated list of jars to load."""

DRIVER = "org.postgresql.Driver"
"""The driver's class."""

REMEDY = (
    "apt-get install libpostgresql-jdbc-java, or set spark.jars in spark_conf to the path of the driver's jar; "
    "then restart the worker"
)
"""The remedy if Spark does not have the driver."""

_PLACES = ("/usr/share/java/postgresql.jar", "/usr/share/pgsql/postgresql.jar")


def with_driver(jars: str, root: Path = Path("/")) -> str:
    """Return the jars of the user's setting, plus the system's jar of the driver if the user's jars lack the driver."""
    given = [jar.strip() for jar in jars.split(",") if jar.strip()]
    names = {Path(urlsplit(jar).path).name for jar in given}
    found = next((path for jar in _PLACES if (path := root / jar.lstrip("/")).is_file()), None)
    # Spark refuses two jars with the same name.
    if found and found.name not in names and not any(map(_has_driver, given)):
        given.append(str(found))
    return ",".join(given)


def _has_driver(jar: str) -> bool:
    """Return whether a jar on this machine has the driver; Spark itself fetches a jar from another place."""
    url = urlsplit(jar)
    if url.scheme not in {"", "file", "local"}:
        return False
    try:
        with zipfile.ZipFile(unquote(url.path) if url.scheme else jar) as archive:
            return DRIVER.replace(".", "/") + ".class" in archive.namelist()
    except (OSError, zipfile.BadZipFile):  # Spark reports the error
        return False
