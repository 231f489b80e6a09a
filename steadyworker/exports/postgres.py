"""
The snapshots of PostgreSQL that one export reads, each held by one connection of psycopg.

::

    the holder, by psycopg       BEGIN REPEATABLE READ, READ ONLY ─ checks, copies of DuckDB, pg_export_snapshot() ─ ROLLBACK at `close`
    Spark's readers, by JDBC          BEGIN REPEATABLE READ, SET TRANSACTION SNAPSHOT: each range sees what the holder sees

All connections of an export have its name as `application_name`, and a cancel finds them by that name.
Neither Spark nor DuckDB can interrupt a thread that waits for the database, so the cancel goes to the database.
When the process dies, the server closes the idle connections, because their sockets are closed.
The server also ends a busy query, because the server checks the query's socket each second.

A password is read only when the export connects.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from steadyworker.errors import ExportError, ExportRejected
from steadyworker.exports.jdbc import Jdbc
from steadyworker.system.authorities import trusted_authorities
from steadyworker.text.redaction import REDACTED

READ_ONLY = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""The first statement of each connection."""

CHECK_CLIENT = "SET LOCAL client_connection_check_interval = 1000"
"""Lets a busy server end a query whose client is gone (since PostgreSQL 14, and not on each system)."""

PASSING = frozenset({"42K03", "42501"})
"""SQLSTATEs that a retry can mend: a path that does not exist yet (Spark), and a permission that can still be granted."""

# Not supported, too many rows of a subquery, wrong data (division by zero, overflow, a bad cast), wrong names or syntax, `raise_error`.
_FINAL = frozenset({"0A", "21", "22", "42", "P0"})
_NAME = 63  # the longest application_name of PostgreSQL, in bytes
# The first three would end an idle holder, and its snapshot; the others are the texts of values that the readers expect.
_SETTINGS = {
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "bytea_output": "hex",
    "extra_float_digits": "3",
}
_SET = """SELECT set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) AS given (name, value)
          WHERE lower(name) IN (SELECT lower(name) FROM pg_settings)"""
_STATE = """SELECT current_setting('server_version'), format('at %s, LSN %s, transactions %s',
    to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, pg_current_snapshot())"""
_CANCEL = """SELECT pg_cancel_backend(pid) FROM pg_stat_activity
             WHERE application_name = current_setting('application_name') AND usename = current_user AND pid <> pg_backend_pid()"""


@dataclass(frozen=True, slots=True)
class PostgresColumn:
    """
    A column of a table.

    Attributes:
        name: The column's name.
        kind: The name of its type in PostgreSQL; for an array, an underscore and the type of the elements.
        digits: The most digits of a `numeric`, or of the elements of an array; 0 without a limit.
        after: The digits after the point.
    """

    name: str
    kind: str
    digits: int
    after: int


class Databases:
    """
    The databases of one export; each has one snapshot, from the read of its first table to `close`.

    Args:
        name: The name of one submission of the export, so that a cancel does not reach another one.
        environ: The environment variables with passwords; None for those of this process.
    """

    def __init__(self, name: str, environ: Mapping[str, str] | None = None) -> None:
        self._application = application_name(name)
        self._environ = os.environ if environ is None else environ
        self._opened: dict[tuple[object, ...], HeldSnapshot] = {}
        self._secrets: set[str] = set()
        self._cancelling: threading.Thread | None = None
        self._closed = False

    @property
    def snapshot(self) -> str | None:
        """A description of the snapshots, or None if the export reads no database."""
        return "; ".join(held.description for held in self._opened.values()) or None

    @property
    def versions(self) -> dict[str, str]:
        """The version of the last server, or nothing if the export reads no database."""
        found = [held.version for held in self._opened.values()]
        return {"postgres": found[-1]} if found else {}

    @contextmanager
    def reading(self, name: str, source: Jdbc) -> Iterator[HeldSnapshot]:
        """
        Yield the snapshot for this table, with the table's time limit; translate the errors of PostgreSQL.

        Raises:
            ExportRejected: PostgreSQL refused a query, and would refuse it again.
            ExportError: psycopg or the password is missing, or PostgreSQL did not respond, or refuses the login.
        """
        try:
            held = self._open(source)
            held.connection.execute(f"SET LOCAL statement_timeout = {math.ceil(source.statement_timeout * 1000)}")
            yield held
        except _psycopg().Error as error:
            text = self.redact(str(error).strip().partition("\n")[0])
            raise (ExportRejected if is_final(error.sqlstate or "") else ExportError)(
                f"Expected to read table {name!r} at {source.place}, got: {text}: correct the table, or see the database's log."
            ) from None  # the cause can have the connection's parameters

    def password(self, source: Jdbc) -> str | None:
        """
        Return the password for a table's database, or None if the user named none; `redact` knows it from now on.

        Raises:
            ExportError: The environment variable or the file is missing.
        """
        password = _read_password(source, self._environ)
        if password:
            self._secrets.add(password)
        return password

    def redact(self, text: str) -> str:
        """Return the text without the passwords that this export has read."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text

    def cancel(self) -> None:
        """Cancel the export's queries in its databases, and return at once; it can be called any number of times."""
        if self._opened and not self._closed and (self._cancelling is None or not self._cancelling.is_alive()):
            self._cancelling = threading.Thread(target=self._cancel, name="cancel-in-database", daemon=True)
            self._cancelling.start()

    def close(self, *, failed: bool = False) -> None:
        """End the snapshots; if the export failed, first cancel the queries of its other readers."""
        if failed:
            self._cancel()
        self._closed = True
        for held in self._opened.values():
            held.connection.close()

    def _cancel(self) -> None:
        for held in [*self._opened.values()]:
            with suppress(Exception):  # no response: the process is killed if its job does not end
                held.cancel()

    def _open(self, source: Jdbc) -> HeldSnapshot:
        key = (source.place, source.user, source.password_env, source.password_file)
        if key not in self._opened:
            self._opened[key] = HeldSnapshot(source, self.password(source), self._application)
        return self._opened[key]


class HeldSnapshot:
    """
    One database in one transaction.

    Args:
        source: A table of the database.
        password: The password for the login, or None.
        application: The `application_name` of all connections.

    Attributes:
        connection: The connection of psycopg.
        login: User, password and `application_name`, by libpq's names, for readers with another client.
        version: The server's version.
        description: The place, and the moment of the snapshot.
        checks_client: Whether a busy server can check that its client is connected.

    Raises:
        psycopg.Error: The server does not respond, or refuses the login.
    """

    def __init__(self, source: Jdbc, password: str | None, application: str) -> None:
        self._parameters = _parameters(source, password, application)
        self.connection = _connect(self._parameters)
        try:
            self.connection.execute(READ_ONLY)
            path = source.options.get("currentSchema")
            settings = _SETTINGS | ({"search_path": path} if path else {})
            self.rows(_SET, [*settings], [*settings.values()])
            ((self.version, state),) = self.rows(_STATE)
            self.checks_client = self._check_client()
        except BaseException:
            self.connection.close()
            raise
        self.description = f"postgresql://{source.place} {state}"
        self.login = {"user": self.connection.info.user, "password": password, "application_name": application}

    def rows(self, query: str, *values: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return all rows of a small result."""
        found: list[tuple[Any, ...]] = self.connection.execute(query, values or None).fetchall()
        return found

    def columns(self, relation: str) -> list[PostgresColumn]:
        """Return the columns of a table or query, as the text after FROM names it."""
        found = self.connection.execute(f"SELECT * FROM {relation} LIMIT 0").description  # noqa: S608 - the user's own SQL
        types = self.connection.execute(
            "SELECT oid, typname FROM pg_type WHERE oid = ANY(%s)", ([each.type_code for each in found],)
        )
        kinds: dict[int, str] = dict(types)
        return [
            PostgresColumn(each.name, kinds[each.type_code], each.precision or 0, each.scale or 0) for each in found
        ]

    def export(self) -> str:
        """Return the name by which other connections join the snapshot, until `close`."""
        ((found,),) = self.rows("SELECT pg_export_snapshot()")
        return str(found)

    def cancel(self) -> None:
        """Cancel the queries of all connections with this `application_name`, over a new connection, because the holder can be busy."""
        with _connect(self._parameters) as connection:
            connection.execute(_CANCEL)

    def _check_client(self) -> bool:
        """Let the server check its client, and return whether it can."""
        try:
            with self.connection.transaction():  # a savepoint
                self.connection.execute(CHECK_CLIENT)
        except _psycopg().Error:
            return False
        return True


def is_final(state: str) -> bool:
    """Return whether each retry would meet an error with this SQLSTATE again; the first two characters are its class."""
    return state[:2] in _FINAL and state not in PASSING


def application_name(name: str) -> str:
    """Return the `application_name` of an export's connections: `steadyworker` and the export's name, or its hash."""
    text = f"steadyworker {name}"
    if len(text.encode()) > _NAME or not text.isascii():
        text = f"steadyworker {hashlib.sha256(name.encode()).hexdigest()[:32]}"
    return text


def unreadable(reader: str, table: str, column: PostgresColumn, why: str, remedy: str) -> ExportRejected:
    """Return the error for a column that a reader would change; `remedy` is the type to declare."""
    return ExportRejected(
        f"Expected columns that {reader} reads as they are in table {table!r}, got {column.name!r}, {column.kind}: {why}. "
        f'Declare the type, Jdbc(schema="{column.name} {remedy}"), or cast it in a query, Jdbc(url, "SELECT …").'
    )


def _parameters(source: Jdbc, password: str | None, application: str) -> dict[str, str | None]:
    """Return the parameters for libpq."""
    place, _, database = source.place.partition("/")
    host, _, port = place.rpartition(":")
    given = {name: value for name, value in source.options.items() if name != "currentSchema"}
    if given.get("sslrootcert") == "system":
        given["sslrootcert"] = trusted_authorities()
    return {
        "host": host.strip("[]"),
        "port": port,
        "dbname": unquote(database),
        "user": source.user,
        "password": password or "",  # so that libpq does not send PGPASSWORD, which can be for another server
        "application_name": application,
        "client_encoding": "UTF8",
        "connect_timeout": "10",
        **given,
    }


def _connect(parameters: Mapping[str, str | None]) -> Any:
    return _psycopg().connect(**parameters, prepare_threshold=None)  # a pooler has no prepared statements


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise ExportError(
            "Expected psycopg for a table of PostgreSQL, got none: pip install 'steadyworker[postgres]'."
        ) from error
    return psycopg


def _read_password(source: Jdbc, environ: Mapping[str, str]) -> str | None:
    """Return the password for a database, or None if the user named none."""
    if source.password_env is not None:
        if (found := environ.get(source.password_env)) is None:
            raise ExportError(
                f"Expected the password for {source.place} in the environment variable {source.password_env}, got none there: "
                "set it where the worker is started."
            )
        return found
    if source.password_file is None:
        return None
    try:
        return Path(source.password_file).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeError) as error:
        raise ExportError(
            f"Expected the password for {source.place} in {source.password_file}, got {type(error).__name__}: "
            "correct password_file, or who may read it."
        ) from error
