"""Payments in a database, and what its own books say of who reads them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import psycopg

from steadyworker.exports.jdbc import Jdbc
from tests.exports.spark.sparkkit import payment

PASSWORD = "SPARK_TEST_PASSWORD"
TABLE = """
    CREATE TABLE payments (
        id bigint PRIMARY KEY, merchant text, paid_at timestamp, amount numeric(12,2), currency text, status text)
"""
SLOWLY = """
    CREATE FUNCTION slowly(bigint) RETURNS text STABLE LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(600); RETURN $1; END'
"""
BLOCKED = "SELECT *, slowly(id) AS x FROM payments"
"""A table that is understood at once, and whose first `x` takes ten minutes."""


def fill(url: str, rows: int) -> None:
    """A table `payments` with so many."""
    with psycopg.connect(url) as connection:
        connection.execute(TABLE)
        connection.execute(SLOWLY)
        with connection.cursor().copy("COPY payments FROM STDIN") as copy:
            for number in range(rows):
                copy.write_row(payment(number))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ANALYZE payments")


def without_password(url: str, user: str | None = None) -> str:
    """The URL as a Jdbc takes it."""
    parts = urlsplit(url)
    return f"postgresql://{user or parts.username}@{parts.hostname}:{parts.port}{parts.path}"


def password(url: str) -> str:
    return urlsplit(url).password or ""


def table(url: str, table: str = "payments", **options: Any) -> Jdbc:
    """A table of the database, with its password in the environment."""
    return Jdbc(without_password(url), table, **{"password_env": PASSWORD, **options})


def connections(url: str) -> list[tuple[Any, ...]]:
    """(application, state, what it waits for, query) of the connections of exports, as the server's books have them."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(
            """SELECT application_name, state, wait_event, query FROM pg_stat_activity
               WHERE application_name LIKE 'steadyworker %' AND datname = current_database()"""
        ).fetchall()


def sleeping(url: str) -> list[str]:
    """The queries that read a blocked table now."""
    return [query for _, state, event, query in connections(url) if (state, event) == ("active", "PgSleep")]
