"""
The databases of one job, in the host.
Each database has one snapshot, from the read of its first table to the end of the job.

The host reads a password only when the host connects, and passes the password to the JDBC driver.
A password leaves this process only in Spark's tasks.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from steadyworker.errors import ExportError
from steadyworker.exports.spark.drivers import DRIVERS
from steadyworker.exports.spark.jdbc import read_password
from steadyworker.exports.spark.postgres import Postgres
from steadyworker.exports.spark.protocol import Database
from steadyworker.text.redaction import REDACTED

_NAME = 63  # the longest application_name of PostgreSQL, in bytes


class Databases:
    """
    The databases that a job reads by JDBC.

    Args:
        session: The job's session.
        jvm: py4j's view of the driver's JVM.
        job: The name of one submission of the job, so that a cancel does not reach the next submission.
        environ: The environment variables with passwords.
    """

    def __init__(
        self,
        session: SparkSession,
        jvm: Any,
        job: str,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._session, self._jvm = session, jvm
        self._environ = os.environ if environ is None else environ
        self._application = application_name(job)
        self._opened: dict[tuple[str, ...], Postgres] = {}
        self._secrets: set[str] = set()
        self._cancelling: threading.Thread | None = None

    @property
    def snapshot(self) -> str | None:
        """A description of the databases' snapshots, or None if the job reads no database."""
        return "; ".join(opened.snapshot for opened in self._opened.values()) or None

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the databases, by name."""
        return {type(opened).__name__.lower(): opened.version for opened in self._opened.values()}

    def read(self, name: str, source: Database) -> DataFrame:
        """
        Return the table, in the snapshot that all tables of its database share.

        Raises:
            ExportError: The driver or the password is missing, or the table cannot be read exactly.
        """
        opened = self._open(source)
        frame = self._session.read.format("jdbc").options(**opened.options(name, source)).load()
        opened.check(name, source, frame.schema)
        return frame

    def redact(self, text: str) -> str:
        """Return the text without the passwords that this job has read."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text

    def cancel(self) -> None:
        """Cancel the job's queries in its databases, and return at once; it can be called any number of times."""
        if self._opened and (self._cancelling is None or not self._cancelling.is_alive()):
            self._cancelling = threading.Thread(target=self._cancel, name="cancel-in-database", daemon=True)
            self._cancelling.start()

    def close(self, *, failed: bool) -> None:
        """Close the snapshots; if the job failed, first cancel the queries of its other tasks."""
        if failed:
            self._cancel()
        for opened in self._opened.values():
            opened.close()

    def _cancel(self) -> None:
        for opened in [*self._opened.values()]:
            with suppress(Py4JError):  # no response: the host is killed if its job does not end
                opened.cancel()

    def _open(self, source: Database) -> Postgres:
        key = (source.place, source.user or "", source.password_env or "", source.password_file or "")
        if key not in self._opened:
            self._check_driver()
            if password := read_password(source, self._environ):
                self._secrets.add(password)
            self._opened[key] = Postgres(self._jvm, source, password, self._application)
        return self._opened[key]

    def _check_driver(self) -> None:
        driver = DRIVERS["postgresql"]
        loader = self._jvm.Thread.currentThread().getContextClassLoader()
        try:
            self._jvm.java.lang.Class.forName(driver.class_name, True, loader)  # noqa: FBT003 - Java's
        except Py4JError as error:
            raise ExportError(
                f"Expected the JDBC driver of {driver.name}, {driver.class_name}, got no such class in Spark: {driver.remedy}."
            ) from error


def application_name(job: str) -> str:
    """Return the `application_name` of a job's connections: `steadyworker` and the submission's name, or its hash."""
    name = f"steadyworker {job}"
    if len(name.encode()) > _NAME or not name.isascii():
        name = f"steadyworker {hashlib.sha256(job.encode()).hexdigest()[:32]}"
    return name
