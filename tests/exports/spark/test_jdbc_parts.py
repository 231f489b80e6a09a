"""What a user says of a database, and which driver Spark is given: without Spark."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from steadyworker.errors import ExportError
from steadyworker.exports.spark.build import Build
from steadyworker.exports.spark.databases import application_name
from steadyworker.exports.spark.drivers import DRIVERS, with_drivers
from steadyworker.exports.spark.java import Java
from steadyworker.exports.spark.jdbc import Jdbc
from steadyworker.exports.spark.postgres import Postgres
from steadyworker.exports.spark.settings import SparkSettings
from steadyworker.exports.spark.tables import source

URL = "postgresql://reader@db.example:5433/shop"


def test_a_url_becomes_a_place_a_user_and_the_drivers_properties(tmp_path: Path) -> None:
    made = Jdbc(URL + "?sslmode=verify-full&connect_timeout=3", "billing.payments", password_file="secret").database()
    assert (made.place, made.user) == ("db.example:5433/shop", "reader")
    assert made.properties == {"sslmode": "verify-full", "connectTimeout": "3"}
    assert (made.relation, made.password_file) == ("billing.payments", str(Path.cwd() / "secret"))
    made = Jdbc("postgres://us%40er@[::1]/shop", " SELECT 1 -- one; \n ; ").database()
    assert (made.place, made.user) == ("[::1]:5432/shop", "us@er")
    assert made.relation == "(SELECT 1 -- one;\n) AS source"
    assert source("t", Jdbc(URL, "t")) == Jdbc(URL, "t").database()
    with pytest.raises(ExportError, match="table name"):
        source("a b", Jdbc(URL, "t"))


@pytest.mark.parametrize(
    ("url", "table", "options", "says"),
    [
        ("postgresql://reader:canary@db/shop", "t", {}, "without a password"),
        ("postgresql://db/shop?user=x&password=canary", "t", {}, "without a password"),
        ("postgresql://db/shop?sslpassword=canary", "t", {}, "without a password"),
        ("postgresql://reader:canary@db:x/shop", "t", {}, "it is not shown"),
        ("postgresql://reader:canary@a,b/shop?socketFactory=x", "t", {}, "without a password"),
        ("mysql://reader:canary@db/shop", "t", {}, "it is not shown"),
        ("postgresql://db", "t", {}, "and one database"),
        (URL + "?socketFactory=evil", "t", {}, "got socketFactory"),
        ("sqlite:", "t", {}, "got a SQLite file: export it with RowExport"),
        (URL, "t; DROP TABLE t", {}, "a table's name"),
        (URL, "my table", {}, "quote a name"),
        (URL, "t", {"partitions": 3}, "Expected partition_by for 3 partitions"),
        (URL, "t", {"partitions": 0}, "at least one"),
        (URL, "t", {"fetch_rows": 0}, "above 0"),
        (URL, "t", {"statement_timeout": 0}, "above 0"),
        (URL, "t", {"password_env": "A", "password_file": "b"}, "got both"),
    ],
)
def test_what_cannot_be_is_refused_and_no_password_is_repeated(
    url: str, table: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ExportError, match=says) as raised:
        Jdbc(url, table, **options)
    assert "canary" not in str(raised.value)


def test_spark_is_given_the_systems_drivers_unless_a_users_jar_has_them(tmp_path: Path) -> None:
    assert with_drivers("", tmp_path) == ""
    folder = tmp_path / "usr/share/java"
    folder.mkdir(parents=True)
    system = folder / "postgresql.jar"
    system.touch()
    assert with_drivers("", tmp_path) == str(system)
    own = tmp_path / "own drivers.jar"
    with zipfile.ZipFile(own, "w") as archive:
        archive.writestr("org/postgresql/Driver.class", b"")
    for jar in (str(own), own.as_uri()):
        assert with_drivers(f" {jar},hdfs:///x.jar,/none.jar ", tmp_path).split(",") == [
            jar,
            "hdfs:///x.jar",
            "/none.jar",
        ]
    assert with_drivers("https://example.com/other.jar", tmp_path).split(",")[1:] == [str(system)]
    assert with_drivers("https://example.com/postgresql.jar", tmp_path) == "https://example.com/postgresql.jar"
    assert "apt-get install libpostgresql-jdbc-java" in DRIVERS["postgresql"].remedy


def test_a_host_can_import_what_the_worker_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    settings = SparkSettings(folder=tmp_path, conf={"spark.jars": "/own.jar"})
    environment = settings.environment({}, tmp_path, Java(tmp_path, "17.0.1"), sys.executable)
    entries = environment["PYTHONPATH"].split(os.pathsep)
    assert entries[:2] == [str(Path.cwd()), str(tmp_path)]
    assert not any("site-packages" in entry for entry in entries)
    assert "spark.jars=/own.jar" in settings.properties(tmp_path)


class Connection:
    """A driver's, of a server that cannot ask for its client, and whose transaction an error ends."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.broken = False
        self.rows: list[tuple[str, ...]] = []

    def __getattr__(self, name: str) -> Any:
        """Whatever else is called: itself."""
        return lambda *_: self

    def execute(self, statement: str) -> None:
        self.said.append(statement)
        if statement.startswith("ROLLBACK TO"):
            self.broken = False
        if "client_connection_check_interval" in statement or self.broken:
            self.broken = True
            raise Py4JError("must be set to 0 on this platform")

    def executeQuery(self, query: str) -> Any:  # noqa: N802 - Java's
        self.execute(query)
        self.rows = [("00-1", "160000", "16.0", "1:1:", "0/0", "now")] if "pg_export_snapshot" in query else []
        return self

    def getColumnCount(self) -> int:  # noqa: N802 - Java's
        return 6

    def next(self) -> bool:
        return bool(self.rows)

    def getString(self, at: int) -> str:  # noqa: N802 - Java's
        value = self.rows[0][at - 1]
        if at == self.getColumnCount():
            del self.rows[0]
        return value


def _jvm(connection: Connection) -> Any:
    return SimpleNamespace(
        java=SimpleNamespace(util=connection),
        org=SimpleNamespace(postgresql=SimpleNamespace(Driver=lambda: connection)),
    )


def test_a_server_that_cannot_ask_for_its_client_is_read_all_the_same() -> None:
    connection = Connection()
    postgres = Postgres(_jvm(connection), Jdbc(URL, "t").database(), None, "job")
    assert not connection.broken
    assert connection.said[-2:] == ["ROLLBACK TO SAVEPOINT asks", "RELEASE SAVEPOINT asks"]
    assert not postgres._asks


def test_a_job_is_known_in_the_database_by_its_name_or_by_its_hash() -> None:
    assert application_name(f"{'0' * 32}-17-3") == f"steadyworker {'0' * 32}-17-3"
    for job in ("ü-1-1", "x" * 60):
        assert len(application_name(job)) == len("steadyworker ") + 32
    assert application_name("x" * 60) != application_name("x" * 61)


@pytest.mark.parametrize(
    "name", ["", "payments", "reports/frames:payments", "reports.frames:", ":payments", "a:b c", "a:b()"]
)
def test_a_function_is_named_by_its_module(name: str) -> None:
    assert Build("reports.frames:Monthly.payments").name == "reports.frames:Monthly.payments"
    with pytest.raises(ExportError, match="module:function"):
        Build(name)


@pytest.mark.parametrize(
    ("url", "tls"),
    [
        ("postgresql://shop@localhost/shop", {}),
        ("postgresql://shop@[::1]:5433/shop", {}),
        (
            "postgresql://shop@db.example/shop",
            {"sslmode": "verify-full", "sslfactory": "org.postgresql.ssl.DefaultJavaSSLFactory"},
        ),
        ("postgresql://shop@db.example/shop?sslrootcert=/ca", {"sslmode": "verify-full", "sslrootcert": "/ca"}),
        ("postgresql://shop@db.example/shop?sslmode=disable", {"sslmode": "disable"}),
    ],
)
def test_a_server_elsewhere_has_to_show_its_certificate_unless_the_url_allows_less(
    url: str, tls: dict[str, str]
) -> None:
    assert Jdbc(url, "payments").database().properties == tls
