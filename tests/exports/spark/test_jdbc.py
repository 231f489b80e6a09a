"""`Jdbc` tables over real Spark, a real PostgreSQL and , ranges, passwords, what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from steadyworker.errors import ExportError
from steadyworker.exports.jdbc import Jdbc
from steadyworker.exports.manifest import Manifest
from steadyworker.exports.rows import RowExport
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from tests.exports.kit import FakeServices
from tests.exports.spark.jdbckit import connections, fill, table, without_password
from tests.exports.spark.sparkkit import COLUMNS, ORDER, QUERY, LiveServices, java_of, payment
from tests.exports.test_postgres import NASTY

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

TEXTS = [
    None,
    "",
    " ",
    "  blanks  ",
    'say "hi"',
    "a,b",
    "line\nend",
    "cr\r\n",
    "=cmd",
    "-1",
    "\\x",
    "ümläut",
    "😀",
    "NULL",
]
NUMBERS = [Decimal("1E-8"), Decimal(0), None, Decimal("-0.00000001"), Decimal("9" * 28 + ".99999999")]
FLOATS = [0.0, 1.5, 1e-8, 12345678.9, float("nan"), float("inf"), None]
MOMENTS = [
    datetime(1, 1, 1),  # noqa: DTZ001 - the column has no zone
    datetime(2024, 3, 31, 2, 30, 0, 123456),  # noqa: DTZ001
    None,
    datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
]
ZONE = timezone(timedelta(hours=5, minutes=30))


def ask(
    service: SparkService, query: str, to: Path, order: tuple[str, ...] = ("id",), params: Any = None, **tables: Jdbc
) -> tuple[Manifest, list[str]]:
    """Export a query; the manifest and the file's lines."""
    made = SparkExport(query, tables=tables, order_by=order, params=params).write(LiveServices(service), to)
    return made, to.read_text(encoding="utf-8").splitlines()


def test_a_table_read_in_ranges_gives_the_bytes_of_the_light_path_and_nothing_stays_behind(
    sources: SparkService, database: str, tmp_path: Path
) -> None:
    fill(database, 20_000)
    export = SparkExport(
        QUERY, tables={"payments": table(database, partition_by="id", partitions=4, fetch_rows=1000)}, order_by=ORDER
    )
    made = export.write(
        LiveServices(sources), tmp_path / "out.csv", totals={"amount": "sum"}, by=("currency", "status")
    )
    rows = sorted(map(payment, range(20_000)), key=lambda row: (row[2], row[0]))
    light = RowExport(rows, columns=COLUMNS).write(
        FakeServices(tmp_path / "ledger"), tmp_path / "light.csv", totals={"amount": "sum"}, by=("currency", "status")
    )
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "light.csv").read_bytes()
    assert (made.rows, made.sha256, made.totals) == (light.rows, light.sha256, light.totals)
    assert connections(database) == []
    assert made.snapshot is not None
    assert made.snapshot.startswith(f"postgresql://{without_password(database).rpartition('@')[2]} at 20")
    assert made.versions["postgres"][:2].isdecimal()


def test_values_of_postgresql_survive(sources: SparkService, database: str, tmp_path: Path) -> None:
    """Dates of year 1 and 9999 too; both clock changes are in the zone's own time."""
    rows = [
        (
            number,
            text,
            NUMBERS[number % len(NUMBERS)],
            FLOATS[number % len(FLOATS)],
            MOMENTS[number % len(MOMENTS)],
            [datetime(2024, 10, 27, 0, 30, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC), None][number % 3],
            [date(1, 1, 1), date(2024, 2, 29), None][number % 3],
            [True, False, None][number % 3],
            [2**63 - 1, -(2**63), None][number % 3],
            [0.1, 12345678.9, float("nan"), None, 1e-8][number % 5],
        )
        for number, text in enumerate(TEXTS)
    ]
    with psycopg.connect(database) as connection:
        connection.execute(
            """CREATE TABLE nasty (id int, "te""xt, é" text, number numeric(38,8), "float.ing" float8,
               moment timestamp, instant timestamptz, day date, flag boolean, big bigint, "sho""rt" real)"""
        )
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO nasty VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", rows)
            cursor.execute("SELECT * FROM nasty ORDER BY id")
            names = [column.name for column in cursor.description or ()]
            found = cursor.fetchall()
    ask(sources, "SELECT * FROM nasty", tmp_path / "out.csv", nasty=table(database, "nasty"))
    utc = [tuple(v.astimezone(UTC) if isinstance(v, datetime) and v.tzinfo else v for v in row) for row in found]
    RowExport(utc, columns=names).write(FakeServices(tmp_path / "l"), tmp_path / "light.csv")
    assert (tmp_path / "out.csv").read_text() == (tmp_path / "light.csv").read_text()


def test_parameters_of_every_type_find_their_row(sources: SparkService, database: str, tmp_path: Path) -> None:
    params = {
        "text": "o'b\"x\\n:text %_;--",
        "number": Decimal("1E-8"),
        "moment": datetime(1, 1, 1, 12, 0, 0, 1),  # noqa: DTZ001 - the column has no zone
        "instant": datetime(2024, 3, 31, 2, 30, tzinfo=ZONE),
        "day": date(1, 1, 1),
        "flag": False,
        "big": -(2**63),
        "huge": 2**63,
        "ratio": 0.1,
        "nothing": None,
    }
    with psycopg.connect(database) as connection:
        connection.execute(
            """CREATE TABLE typed (id int, text text, number numeric(20,8), moment timestamp, instant timestamptz,
               day date, flag boolean, big bigint, huge numeric(20,0), ratio float8)"""
        )
        values = [
            params[name] for name in ("text", "number", "moment", "instant", "day", "flag", "big", "huge", "ratio")
        ]
        connection.execute("INSERT INTO typed VALUES (1, %s, %s, %s, %s, %s, %s, %s, %s, %s)", values)
        connection.execute("INSERT INTO typed VALUES (2, 'x', 1, now(), now(), now(), true, 1, 1, 1)")
    where = " AND ".join(f"{name} = :{name}" for name in params if name != "nothing")
    query = f"SELECT id FROM typed WHERE {where} AND :nothing IS NULL"
    _, lines = ask(sources, query, tmp_path / "out.csv", typed=table(database, "typed"), params=params)
    assert lines == ["id", "1"]


def test_a_password_is_nowhere_but_in_the_readers(sources: SparkService, database: str, tmp_path: Path) -> None:
    """test_postgres.py has the passwords that are wrong or not there."""
    role = f"reader_{database.rpartition('_')[2]}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(NASTY)))
        connection.execute("CREATE TABLE t AS SELECT 1 AS id")
        connection.execute(sql.SQL("GRANT SELECT ON t TO {}").format(sql.Identifier(role)))
    try:
        secret = tmp_path / "secret"
        secret.write_text(NASTY + "\n")
        url = without_password(database, role)
        services = LiveServices(sources)
        export = SparkExport("SELECT id FROM t", tables={"t": Jdbc(url, "t", password_file=secret)}, order_by=("id",))
        made = export.write(services, tmp_path / "out.csv")
        broken = Jdbc(url, "SELECT 1 / (id - 1) AS id FROM t", password_file=secret)
        with pytest.raises(ExportError, match="division by zero") as raised:
            ask(sources, "SELECT * FROM t", tmp_path / "no.csv", t=broken)
        said = [repr(export), str(services.events), made.dump().decode(), str(raised.value)]
        folder = sources._hosts[0].process.folder
        said += [(folder / name).read_text(errors="replace") for name in ("log", "spark.properties")]
        java = java_of(sources._hosts[0].process.pid)
        said += [Path(f"/proc/{java}/{name}").read_text(errors="replace") for name in ("cmdline", "environ")]
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))
    assert not any(NASTY in text for text in said)


def test_what_would_not_be_exact_and_what_cannot_be_cut_is_refused(
    sources: SparkService, database: str, tmp_path: Path
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS id, 1.5::numeric AS amount, 'x' AS text, '12:00'::time AS at")
    cases: list[tuple[Jdbc, str]] = [
        (table(database, "t"), "'amount', numeric: without a precision"),
        (table(database, "SELECT id, at FROM t"), "'at', time: Spark reads it as a timestamp in 1970"),
        (table(database, "SELECT id, text FROM t", partition_by="text", partitions=2), "'text', text: choose another"),
        (table(database, "SELECT id FROM t", partition_by="nothing", partitions=2), "'nothing', no column of it"),
        (table(database, "SELECT id FROM missing"), 'relation "missing" does not exist'),
    ]
    for source, says in cases:
        with pytest.raises(ExportError, match=says):
            ask(sources, "SELECT id FROM t", tmp_path / "no.csv", t=source)
    with psycopg.connect(database) as connection:
        connection.execute(
            """CREATE TABLE d AS SELECT 1 AS id, date '9999-12-31' AS far, date 'infinity' AS day,
               timestamp '-infinity' AS moment, timestamptz 'infinity' AS "at x"
               UNION ALL SELECT 2, NULL, NULL, NULL, NULL"""
        )
    with pytest.raises(ExportError, match=r"got infinity in 'day', 'moment', 'at x', .*Jdbc.*nullif"):
        ask(sources, "SELECT id FROM d", tmp_path / "no.csv", d=table(database, "d"))
    finite = table(database, "SELECT id, far, nullif(day, 'infinity') AS day FROM d")
    assert ask(sources, "SELECT * FROM d", tmp_path / "d.csv", d=finite)[1] == ["id,far,day", "1,9999-12-31,", "2,,"]
    text = table(database, "SELECT id, day FROM d", schema="day STRING")
    assert ask(sources, "SELECT * FROM d", tmp_path / "e.csv", d=text)[1] == ["id,day", "1,infinity", "2,"]
    with psycopg.connect(database) as connection:
        connection.execute(
            """CREATE TABLE a AS SELECT 1 AS id, '{1.5}'::numeric[] AS free, '{0.1}'::real[] AS short, '{1.25}'::numeric(5,2)[] AS money,
               '{12:00}'::time[] AS at, '{2024-01-01,infinity}'::date[] AS days, '{}'::date[] AS none"""
        )
    for column, says in [
        ("free", "'free', _numeric: without a precision .*free STRING"),
        ("short", "'short', _float4: Spark reads 0.1 as 0.10000000149011612"),
        ("at", "'at', _time: Spark reads it as a timestamp"),
        ("days", "got infinity in 'days'"),
    ]:
        with pytest.raises(ExportError, match=says):
            ask(sources, "SELECT id FROM a", tmp_path / "no.csv", a=table(database, f"SELECT id, {column} FROM a"))
    arrays = table(database, "SELECT id, free, money, none FROM a", schema="free STRING")
    asked = "SELECT id, free, money[0] AS money, size(none) AS none FROM a"
    assert ask(sources, asked, tmp_path / "a.csv", a=arrays)[1] == ["id,free,money,none", "1,{1.5},1.25,0"]
    told = table(database, "SELECT id, amount FROM t", schema="amount DECIMAL(20,4)")
    _, lines = ask(sources, "SELECT * FROM t", tmp_path / "out.csv", t=told)
    assert lines == ["id,amount", "1,1.5000"]
    assert connections(database) == []


def test_a_database_whose_driver_the_user_names_is_read_without_a_snapshot(
    sources: SparkService, tmp_path: Path
) -> None:
    """Derby, which is in Spark's own jars."""
    rows = "VALUES (1, CAST(1.50 AS DECIMAL(7,2)), 'a,b'), (2, CAST(NULL AS DECIMAL(7,2)), 'xyz')"
    query = f'SELECT * FROM ({rows}) AS t("id", "amount", "text")'
    source = Jdbc("jdbc:derby:memory:shop;create=true", query, driver="org.apache.derby.jdbc.EmbeddedDriver")
    made, lines = ask(sources, "SELECT * FROM t", tmp_path / "out.csv", t=source)
    assert (lines, made.snapshot) == (["id,amount,text", '1,1.50,"a,b"', "2,,xyz"], "jdbc:derby:memory:shop none")
    now = 'SELECT 1 AS "id", CURRENT_TIMESTAMP AS "at" FROM sysibm.sysdummy1'
    moved = Jdbc(source.url, now, driver=source.driver)
    with pytest.raises(ExportError, match=r"'at', timestamp.*zone of Spark's JVM"):
        ask(sources, "SELECT * FROM t", tmp_path / "no.csv", t=moved)


@pytest.mark.parametrize("cut", ["day", "moment", "instant", "small", "counted"])
def test_a_read_is_cut_by_dates_and_moments_too_and_loses_no_null(
    sources: SparkService, database: str, tmp_path: Path, cut: str
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(
            """CREATE TABLE t AS SELECT n AS id, date '2024-01-01' + n AS day, timestamp '2024-03-30 22:00' + n * interval '1 hour' AS moment,
               timestamptz '2024-03-30 22:00+00' + n * interval '1 hour' AS instant, n::smallint AS small
               FROM generate_series(1, 100) n"""
        )
        connection.execute("ALTER TABLE t ADD counted serial")
        connection.execute("INSERT INTO t (id) VALUES (101)")
    source = table(database, f"SELECT id, {cut} FROM t", partition_by=cut, partitions=5)
    made, lines = ask(sources, "SELECT id FROM t", tmp_path / "out.csv", t=source)
    assert lines == ["id", *map(str, range(1, 102))]
    assert made.rows == 101
