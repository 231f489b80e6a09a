"""
PostgreSQL ledgers for tests: in a schema of its own each, and, where time must pass, on a clock that the test moves.

A schema may have a `clock_timestamp()` of its own; on a search path that names it before `pg_catalog`, the ledger's
statements find that one, as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import quote

import psycopg
from psycopg import sql

from steadyworker.clock import Clock, SystemClock, Times
from steadyworker.ledger.base import Claimed, JobId, Row
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.outcome import Counters
from steadyworker.testing.clock import FakeClock

OWN_CLOCK = """
CREATE TABLE {schema}.server_clock (now timestamptz NOT NULL);
INSERT INTO {schema}.server_clock VALUES ('2023-11-14');
CREATE FUNCTION {schema}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
AS 'SELECT now FROM {schema}.server_clock'
"""
JOB = JobId("shop", "exports", "m-17")
QUICK = Times(call_timeout=2.0)
Open = Callable[..., PostgresLedger]
Admin = psycopg.Connection[tuple[Any, ...]]

TABLES = [
    f"steadyworker_{name}"
    for name in (
        "meta",
        "jobs",
        "messages",
        "attempts",
        "results",
        "owed_calls",
        "progress",
        "owners",
        "attended",
        "bindings",
    )
]
TABLES += [
    f"steadyworker_{name}" for name in ("link_events", "minutes", "pauses", "commands", "actions", "depths", "orders")
]
"""The ledger's tables; those that others refer to come first."""

FIRST_BOOT = 1_700_000_000.0 - 1_000.0
"""What a FakeClock's wall clock was, when its boot clock was at 0."""


class Schemas:
    """The schemas of one database: a ledger each, which commits as `commit` says."""

    def __init__(self, url: str, *, commit: str = "on") -> None:
        self.url = url
        self._commit = commit
        self.admin = psycopg.connect(url, autocommit=True)
        self.admin.execute("SET synchronous_commit = off")

    def close(self) -> None:
        self.admin.close()

    def url_of(self, schema: str) -> str:
        """The URL of the ledger in this schema, which is made when it is missing."""
        self.admin.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        options = f"-csearch_path={schema},pg_catalog -csynchronous_commit={self._commit}"
        return f"{self.url}?options={quote(options, safe='')}"

    def ledger(
        self,
        place: Path,
        *,
        clock: Clock | None = None,
        times: Times | None = None,
        is_dead: Callable[[str], bool] | None = None,
    ) -> PostgresLedger:
        """The ledger of this place; with a FakeClock the server's clock follows it."""
        schema = _schema(place)
        url = self.url_of(schema)
        if isinstance(clock, FakeClock):
            self._follow(clock, schema)
        return PostgresLedger(
            lambda: url,
            owners_dir=place / "owners",
            clock=clock or SystemClock(),
            times=times or Times(),
            is_dead=is_dead,
        )

    def empty(self, place: Path) -> None:
        """Forget every job of the ledger of this place."""
        with suppress(psycopg.errors.UndefinedTable):  # it was never used
            self.admin.execute(sql.SQL("DELETE FROM {}.steadyworker_jobs").format(sql.Identifier(_schema(place))))

    def saved(self, place: Path) -> Callable[[], object]:
        """Copy all tables of the ledger of this place; return a function that sets the same tables back to the copy."""
        schema = _schema(place)
        tables = [(sql.Identifier(schema, table), sql.Identifier(schema, f"copy_of_{table}")) for table in TABLES]
        for table, copy in tables:
            self.admin.execute(sql.SQL("CREATE TABLE {} AS TABLE {}").format(copy, table))

        def restore() -> None:
            with self.admin.transaction():
                all_of_them = sql.SQL(", ").join(table for table, _ in tables)
                self.admin.execute(sql.SQL("TRUNCATE {}").format(all_of_them))
                for table, copy in tables:
                    insert = sql.SQL("INSERT INTO {} OVERRIDING SYSTEM VALUE TABLE {}")
                    self.admin.execute(insert.format(table, copy))

        return restore

    def _follow(self, clock: FakeClock, schema: str) -> None:
        """Let the server's clock be this one's boot clock, from now on."""
        name = sql.Identifier(schema)
        if not self.admin.execute("SELECT to_regclass(%s)", [f"{schema}.server_clock"]).fetchall()[0][0]:
            self.admin.execute(sql.SQL(OWN_CLOCK).format(schema=name))
        tell = sql.SQL("UPDATE {}.server_clock SET now = to_timestamp(%s)").format(name)
        sleep = clock.sleep

        def told(seconds: float) -> None:
            sleep(seconds)
            self.admin.execute(tell, [FIRST_BOOT + clock.boottime()])

        clock.sleep = told  # type: ignore[method-assign]
        told(0.0)


def prefer(admin: Admin, setting: LiteralString, value: str) -> None:
    """What connections to this database have from now on, unless they say otherwise."""
    statement = sql.SQL("ALTER DATABASE {} SET {} = {}")
    admin.execute(statement.format(sql.Identifier(admin.info.dbname), sql.SQL(setting), sql.Literal(value)))


def claim(ledger: PostgresLedger, job: JobId = JOB) -> Row:
    row = ledger.claim(Claimed(job, None, "me", 0, b"", Counters()))
    assert row is not None
    return row


def seen(ledger: PostgresLedger, job: JobId = JOB) -> Row:
    row = ledger.read(job)
    assert row is not None
    return row


def _schema(place: Path) -> str:
    return "at_" + hashlib.sha256(str(place).encode()).hexdigest()[:16]
