"""Tables of PostgreSQL in DuckDBExport: one snapshot, every digit, no password in a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from steadyworker.errors import ExportRejected, Interrupt
from steadyworker.exports import DuckDBExport
from tests.exports.kit import FakeServices
from tests.exports.spark.jdbckit import (
    BLOCKED,
    PASSWORD,
    connections,
    fill,
    password,
    sleeping,
    table,
    without_password,
)

VALUES = """
    CREATE TABLE valued (id int, b bool, small int2, f4 float4, f8 float8, n numeric(38,8), d date, t time, ts timestamp,
        tz timestamptz, raw bytea, u uuid, j jsonb, c char(3), "a,""b" text);
    INSERT INTO valued VALUES
        (2, true, -7, 0.1, 1e-8, 123456789012345678901234567890.12345678, '0001-01-01', '23:59:59.999999',
         '2024-03-31 02:30:00.5', '2024-03-31 02:30:00+02', '\\x00ff', '00000000-0000-0000-0000-000000000001', '{"a": 1.10}', 'x', E'l1\\nl2,"'),
        (1, false, 0, 'NaN', '-Infinity', 0, '9999-12-31', '00:00', '0001-01-01', '9999-12-31 23:59:59+00', '', NULL, '[]', '', ''),
        (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
"""


@pytest.fixture(autouse=True)
def _password(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, password(database))


def lines(tmp_path: Path, query: str, tables: dict[str, Any], services: FakeServices | None = None) -> list[str]:
    """Return the lines of an export of these tables, each time to another file."""
    out = tmp_path / f"out-{len([*tmp_path.glob('out-*')])}.csv"
    DuckDBExport(query, tables=tables, order_by=("id",)).write(services or FakeServices(tmp_path / "ledger"), out)
    return out.read_text(encoding="utf-8").splitlines()


def test_each_type_has_every_digit(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(VALUES)
    query = "SELECT * EXCLUDE (raw), hex(raw) AS raw FROM v"
    assert lines(tmp_path, query, {"v": table(database, "valued")}) == [
        'id,b,small,f4,f8,n,d,t,ts,tz,u,j,c,"a,""b",raw',
        '1,false,0,NaN,-Infinity,0.00000000,9999-12-31,00:00:00.000000,0001-01-01T00:00:00.000000,9999-12-31T23:59:59.000000Z,,[],   ,"",""',
        (
            "2,true,-7,0.1,1.0E-8,123456789012345678901234567890.12345678,0001-01-01,23:59:59.999999,2024-03-31T02:30:00.500000,"
            '2024-03-31T00:30:00.000000Z,00000000-0000-0000-0000-000000000001,"{""a"": 1.10}",x  ,"l1'
        ),
        'l2,""",00FF',
        "3,,,,,,,,,,,,,,",
    ]


def test_tables_of_one_database_are_copied_in_one_transaction(database: str, tmp_path: Path) -> None:
    """test_postgres.py shows that its snapshot is one."""
    transaction = (
        "SELECT 1 AS id, pg_backend_pid() AS pid, now() AS began, current_setting('transaction_isolation') AS level"
    )
    tables = {"a": table(database, transaction), "b": table(database, f"{transaction} FROM pg_sleep(0.01)")}
    query = "SELECT id, level FROM a JOIN b USING (id, pid, began, level)"
    assert lines(tmp_path, query, tables) == ["id,level", "1,repeatable read"]
    assert connections(database) == []


@pytest.mark.parametrize(
    ("column", "got"),
    [
        ("numeric", "numeric"),
        ("money", "money"),
        ("timetz", "timetz"),
        ("interval", "interval"),
        ("int[]", r"int4?\[\]|integer\[\]|_int4"),
    ],
)
def test_columns_that_duckdb_would_change_are_refused(database: str, tmp_path: Path, column: str, got: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(f"CREATE TABLE odd (id int, x {column})".encode())
    with pytest.raises(ExportRejected, match=rf"table 't', got 'x', .*({got}).*Jdbc\(schema="):
        lines(tmp_path, "SELECT * FROM t", {"t": table(database, "odd")})


def test_a_schema_gives_a_numeric_its_places_and_never_rounds(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE sums (id int, amount numeric); INSERT INTO sums VALUES (1, 1.25)")
    given = {"t": table(database, "sums", schema="amount DECIMAL(20,4)")}
    assert lines(tmp_path, "SELECT * FROM t", given) == ["id,amount", "1,1.2500"]
    with pytest.raises(ExportRejected, match=r"table 't' that fit their columns exactly, got: .*data loss"):
        lines(tmp_path, "SELECT * FROM t", {"t": table(database, "sums", schema="amount DECIMAL(20,1)")})


def test_an_empty_table_has_its_columns_and_the_manifest_its_snapshot(database: str, tmp_path: Path) -> None:
    fill(database, 0)
    made = DuckDBExport("SELECT id, amount FROM p", tables={"p": table(database)}, order_by=("id",)).write(
        FakeServices(tmp_path / "ledger"), tmp_path / "out.csv"
    )
    assert (tmp_path / "out.csv").read_text() == "id,amount\n"
    assert (made.snapshot or "").startswith(f"postgresql://{without_password(database).rpartition('@')[2]} at 20")
    assert made.versions["postgres"][:2].isdecimal()


def test_an_interrupt_ends_the_query_in_the_database(database: str, tmp_path: Path) -> None:
    fill(database, 3)

    def stop() -> None:
        if sleeping(database):
            raise Interrupt("shutdown")

    with pytest.raises(Interrupt, match="shutdown"):
        lines(
            tmp_path,
            "SELECT * FROM p",
            {"p": table(database, BLOCKED)},
            FakeServices(tmp_path / "ledger", on_check=stop),
        )
    assert sleeping(database) == []


def test_an_error_in_the_middle_of_a_copy_is_the_databases_own(database: str, tmp_path: Path) -> None:
    """test_postgres.py has the errors before a copy."""
    broken = table(database, "SELECT i AS id, 1 / (i - 90000) AS x FROM generate_series(1, 100000) AS t(i)")
    with pytest.raises(ExportRejected, match=r"^Expected to read table 't' at .*, got: division by zero: ") as raised:
        lines(tmp_path, "SELECT * FROM t", {"t": broken})
    assert password(database) not in f"{raised.value} {raised.value.__cause__} {raised.value.__context__}"
