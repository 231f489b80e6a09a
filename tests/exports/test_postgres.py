"""The snapshots of PostgreSQL that Spark and DuckDB share: over a real server, and without either."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psycopg
import pytest
from psycopg import sql

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports import postgres
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.postgres import Databases, PostgresColumn, application_name
from steadyworker.exports.tables import source
from tests.brokers.postgres import Cluster
from tests.conftest import Eventually
from tests.exports.spark.jdbckit import PASSWORD, connections, password, sleeping, table, without_password

URL = "postgresql://reader@db.example:5433/shop"
NASTY = "p'w\"d \\ %41 &sslmode=off?@:/#ü$ {x} ***"
WITHIN = 60.0


@pytest.fixture
def databases(database: str) -> Iterator[Databases]:
    made = Databases("uid-1-1", {PASSWORD: password(database)})
    yield made
    made.close()


def run(url: str, *statements: str) -> list[Any]:
    """Return what the last statement finds, over a connection of its own."""
    found: list[Any] = []
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
            found = cursor.fetchall() if cursor.description else []
    return found


def test_a_url_becomes_a_place_a_user_and_options() -> None:
    made = Jdbc(URL + "?sslmode=verify-full&connect_timeout=3", "billing.payments", password_file="secret")
    assert (made.place, made.user) == ("db.example:5433/shop", "reader")
    assert made.options == {"sslmode": "verify-full", "connect_timeout": "3"}
    assert (made.relation, made.password_file) == ("billing.payments", str(Path.cwd() / "secret"))
    made = Jdbc("postgres://us%40er@[::1]/shop", " SELECT 1 -- one; \n ; ")
    assert (made.place, made.user) == ("[::1]:5432/shop", "us@er")
    assert made.relation == "(SELECT 1 -- one;\n) source"
    assert source("t", made) == made == msgspec.json.decode(msgspec.json.encode(made), type=Jdbc)
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


@pytest.mark.parametrize(
    ("url", "tls"),
    [
        ("postgresql://shop@localhost/shop", {}),
        ("postgresql://shop@[::1]:5433/shop", {}),
        ("postgresql://shop@db.example/shop", {"sslmode": "verify-full", "sslrootcert": "system"}),
        ("postgresql://shop@db.example/shop?sslrootcert=/ca", {"sslmode": "verify-full", "sslrootcert": "/ca"}),
        ("postgresql://shop@db.example/shop?sslmode=disable", {"sslmode": "disable"}),
    ],
)
def test_a_server_elsewhere_has_to_show_its_certificate_unless_the_url_allows_less(
    url: str, tls: dict[str, str]
) -> None:
    assert Jdbc(url, "payments").options == tls


def test_a_certificate_is_checked_against_the_authorities_of_the_system(
    postgres_cluster: Cluster, databases: Databases, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, roots = urlsplit(without_password(database)), tmp_path / "roots.pem"
    far = parts._replace(netloc=f"{parts.username}@db.example:{parts.port}").geturl()
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
    source = Jdbc(far, "t", password_env=PASSWORD)
    with postgres_cluster.tls("db.example", roots):
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
        with pytest.raises(ExportError, match="certificate"), databases.reading("t", source):
            pass
        monkeypatch.setenv("SSL_CERT_FILE", str(roots))
        with databases.reading("t", source) as held:
            assert held.rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == [(True,)]
        databases.close()


def test_an_export_is_known_in_the_database_by_its_name_or_by_its_hash() -> None:
    assert application_name(f"{'0' * 32}-17-3") == f"steadyworker {'0' * 32}-17-3"
    for name in ("ü-1-1", "x" * 60):
        assert len(application_name(name)) == len("steadyworker ") + 32
    assert application_name("x" * 60) != application_name("x" * 61)


def test_all_tables_of_one_database_share_one_snapshot_and_other_connections_can_join_it(
    database: str, databases: Databases
) -> None:
    ((now, server),) = run(
        database,
        "CREATE TABLE one (id int)",
        "CREATE TABLE two (id int)",
        "SELECT pg_current_xact_id()::text, current_setting('server_version')",
    )
    assert databases.snapshot is None
    with databases.reading("one", table(database, "one")) as held:
        run(database, "INSERT INTO one VALUES (1)", "INSERT INTO two VALUES (1)")
        with databases.reading("two", table(database, "two")) as same:
            assert same is held
        query = "SELECT (SELECT count(*) FROM one), (SELECT count(*) FROM two)"
        assert held.rows(query) == [(0, 0)]
        with psycopg.connect(database) as reader:
            reader.execute(postgres.READ_ONLY.encode())
            reader.execute(f"SET TRANSACTION SNAPSHOT '{held.export()}'".encode())
            assert reader.execute(query).fetchall() == [(0, 0)]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            held.rows("DELETE FROM one RETURNING 1")
    assert run(database, query) == [(1, 1)]
    place = re.escape(without_password(database).rpartition("@")[2])
    described = rf"postgresql://{place} at 20\S+Z, LSN \w+/\w+, transactions (\d+):(\d+):([\d,]*)"
    found = re.fullmatch(described, databases.snapshot or "")
    assert found
    running = [*filter(None, found[3].split(","))]  # of other tests on this server
    assert int(found[1]) <= int(found[2])
    assert int(now) < int(found[2])
    assert now not in running
    assert databases.versions == {"postgres": server}
    databases.close()
    assert connections(database) == []


def test_settings_of_the_database_neither_end_the_snapshot_nor_change_its_texts(
    database: str, databases: Databases
) -> None:
    name = urlsplit(database).path.removeprefix("/")
    given = {"idle_in_transaction_session_timeout": "1s", "timezone": "Asia/Kolkata", "datestyle": "German"}
    run(database, *(f"ALTER DATABASE {name} SET {setting} = '{value}'" for setting, value in given.items()))
    run(database, "CREATE SCHEMA shop", "CREATE TABLE shop.t AS SELECT timestamptz '2024-03-31 00:30:00+00' AS moment")
    source = Jdbc(without_password(database) + "?currentSchema=shop", "t", password_env=PASSWORD, statement_timeout=1.5)
    with databases.reading("t", source) as held:
        assert held.rows("SELECT moment::text FROM t") == [("2024-03-31 00:30:00+00",)]
        names = ("idle_in_transaction_session_timeout", "statement_timeout", "client_connection_check_interval")
        assert [held.rows(f"SHOW {name}") for name in names] == [[("0",)], [("1500ms",)], [("1s",)]]
        assert held.checks_client


def test_a_server_that_cannot_check_its_client_is_read_all_the_same(
    database: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one before version 14, which has no such setting."""
    monkeypatch.setattr(postgres, "CHECK_CLIENT", "SET LOCAL no_such_setting = 1000")
    with databases.reading("t", table(database, "SELECT 1 AS id")) as held:
        assert not held.checks_client
        assert held.rows("SELECT 1") == [(1,)]


def test_a_column_has_the_name_of_its_type_and_its_digits(database: str, databases: Databases) -> None:
    run(
        database,
        "CREATE DOMAIN price AS numeric(9,3)",
        "CREATE TABLE t (id bigserial, free numeric, sum numeric(12,2), sums numeric(5,2)[], price price, at timestamp(3))",
    )
    with databases.reading("t", table(database, "t")) as held:
        found = held.columns("t")
    assert [(each.name, each.kind) for each in found] == [
        ("id", "int8"),
        ("free", "numeric"),
        ("sum", "numeric"),
        ("sums", "_numeric"),
        ("price", "numeric"),
        ("at", "timestamp"),
    ]
    assert [(each.digits, each.after) for each in found if "numeric" in each.kind] == [(0, 0), (12, 2), (5, 2), (9, 3)]
    assert found[2] == PostgresColumn("sum", "numeric", 12, 2)


def test_a_cancel_reaches_all_connections_of_the_export_and_no_other(
    database: str, databases: Databases, eventually: Eventually
) -> None:
    ended: list[str] = []

    def hold() -> None:
        try:
            with databases.reading("t", table(database, "t")) as held:
                held.rows("SELECT pg_sleep(600)")
        except ExportError as error:
            ended.append(f"{type(error).__name__} {error}")

    def read(name: str) -> None:
        with psycopg.connect(database, application_name=application_name(name)) as reader:
            try:
                reader.execute("SELECT pg_sleep(600)")
            except psycopg.errors.QueryCanceled as error:
                ended.append(str(error))

    threads = [
        threading.Thread(target=hold),
        *(threading.Thread(target=read, args=(name,)) for name in ("uid-1-1", "uid-1-2")),
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(sleeping(database)) == 3, within=WITHIN)
    databases.cancel()
    for thread in threads[:2]:
        thread.join(WITHIN)
    place, why = table(database).place, "canceling statement due to user request"
    says = f"Expected to read table 't' at {place}, got: {why}: correct the table, or see the database's log."
    assert sorted(ended) == [f"ExportError {says}", why]
    assert len(sleeping(database)) == 1
    other = Databases("uid-1-2", {PASSWORD: password(database)})
    with other.reading("t", table(database, "t")):
        other.close(failed=True)
    threads[2].join(WITHIN)
    assert ended[2:] == [why]


def test_a_password_is_read_by_name_and_is_in_no_error(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"reader_{database.rpartition('_')[2]}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(NASTY)))
    monkeypatch.setenv("PGPASSWORD", NASTY)  # for another server, it may be
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    monkeypatch.setenv("WRONG", NASTY + "!")
    (tmp_path / "secret").write_text(NASTY + "\r\n")
    url = without_password(database, role)
    cases: list[tuple[dict[str, Any], str, type[ExportError], str]] = [
        ({}, "SELECT 1", ExportError, "no password supplied"),
        ({"password_env": "WRONG"}, "SELECT 1", ExportError, "password authentication failed"),
        ({"password_env": "MISSING"}, "SELECT 1", ExportError, "environment variable MISSING, got none there"),
        ({"password_file": tmp_path / "none"}, "SELECT 1", ExportError, "FileNotFoundError"),
        ({"password_file": tmp_path / "secret"}, "SELECT * FROM nowhere", ExportRejected, "does not exist"),
        ({"password_file": tmp_path / "secret"}, "SELECT 1/0", ExportRejected, "division by zero"),
        ({"password_file": tmp_path / "secret"}, "SELECT * FROM secret", ExportError, "permission denied"),
        ({"password_file": tmp_path / "secret"}, f"SELECT {sql.quote(NASTY)}::int", ExportRejected, "integer: .*\\*\\*"),
    ]  # fmt: skip
    try:
        run(database, "CREATE TABLE secret (id int)")
        for options, query, kind, says in cases:
            databases = Databases("job")
            with pytest.raises(ExportError, match=says) as raised:  # noqa: SIM117 - the second can raise, too
                with databases.reading("t", Jdbc(url, "t", **options)) as held:
                    held.rows(query)
            databases.close()
            assert type(raised.value) is kind
            assert NASTY not in f"{raised.value} {raised.value.__cause__}"
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_the_error_without_psycopg_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with (
        pytest.raises(ExportError, match=r"pip install 'steadyworker\[postgres\]'"),
        Databases("job").reading("t", Jdbc("postgresql://localhost/shop", "t")),
    ):
        pass
