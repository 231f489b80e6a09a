"""
One connection to a PostgreSQL ledger, which checks that the server has the same ledger as before, and limits every wait.

A pooler in transaction mode lends a session of the server for only one transaction.
So this code prepares no statement and sets nothing in a session.
Instead, each message to the server has one statement and the statement's limits.
The server begins when it has the whole message, and runs the message as one transaction.
So a network failure in the middle leaves no transaction open, and no row locked.
The statement's text contains the values, so a server that logs failed statements also logs checkpoints and messages.

::

            ┌── connect, find the ledger ──→ open ──→ a call fails, or takes too long ──┐
    closed ─┤                                                                           ↓
            └── wait: back-off, 0.3 s to 5 s ←────────────────────────────────────── away

No statement waits longer than `call` seconds for its result.
Without this limit, a call could wait without end, because the kernel cannot distinguish a frozen server from a busy server.
If the connection breaks during a statement, the call raises LedgerUnavailable; it is unknown whether the server did the write.
"""

from __future__ import annotations

import re
import secrets
import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, LiteralString, TypeVar, cast

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait
from tenacity import wait_random_exponential
from typing_extensions import override

from steadyworker.clock import Clock
from steadyworker.errors import ConfigError, LedgerUnavailable, NoLedger, OlderLedger
from steadyworker.ledger.postgres import schema as sql
from steadyworker.ledger.postgres.url import ServerAddress
from steadyworker.retry import draw
from steadyworker.text.redaction import REDACTED, redact
from steadyworker.text.versions import version

Result = TypeVar("Result")

_LONGEST_BACK_OFF = 0.5
"""
The longest back-off, as a share of the call timeout.

With a timeout of 10 s, the reconnects of a fleet spread over 5 s after a restart of the server.
"""
_MOST_TRIES = 10
_SERVER_SHARE = 0.8
"""The longest time that a statement runs in the server, as a share of the call timeout."""
_MIGRATION = 600.0
"""The longest time that a statement of a migration runs, in seconds: it can change every row of a large ledger."""
_MIGRATION_LOCK = 0.1
"""
How long a migration waits for a locked table, as a share of the call timeout.

This wait is short, because the calls of all other processes wait for the migration.
After a wait without success, the process tries the migration again.
"""
# Only the text of libpq's error shows why a connect failed. These texts mean faults that only a person can mend.
_REFUSED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|does not exist|not permitted|permission denied|"
    r"certificate|does not support SSL|SSL error(?!: unexpected eof)|sslmode|invalid connection option|"
    r"unsupported startup parameter"
)
_TOO_MANY = re.compile(r"too many (clients|connections)|connection slots|no more connections allowed")
_NO_OPTIONS = (
    "take `options` out of the URL in --ledger, because a pooler does not pass it on; "
    "give the ledger's user the same settings with ALTER ROLE … SET, and let the pooler reconnect to the server."
)
_READ_ONLY = "the server is read-only; point --ledger at the primary, or list every host in its URL."
_REMEDIES: dict[type[psycopg.Error], str] = {
    errors.LockNotAvailable: "find the session that holds a lock on the ledger's tables too long, in pg_stat_activity.",
    errors.QueryCanceled: "the server is too slow, or the call was cancelled; check the server's load and disk.",
    errors.InsufficientPrivilege: "GRANT this user USAGE and CREATE on the schema, and let it own the ledger's tables.",
    errors.InvalidSchemaName: "CREATE the schema that the URL's search_path names.",
    errors.UndefinedTable: "restore the ledger's tables, which are gone.",
    errors.FeatureNotSupported: "correct --ledger, if this is not PostgreSQL.",
    errors.ReadOnlySqlTransaction: _READ_ONLY,
    errors.DiskFull: "free space on the server's disk, which is full.",
}
_FINAL = (errors.InsufficientPrivilege, errors.InvalidSchemaName)
# These errors leave the connection usable.
_HARMLESS = (errors.LockNotAvailable, errors.QueryCanceled)
_OUR_BUGS = (psycopg.ProgrammingError, psycopg.IntegrityError, psycopg.DataError, psycopg.NotSupportedError)


class LedgerConnection(psycopg.Connection[tuple[Any, ...]]):
    """
    A connection whose calls never wait past `deadline`, a time of `clock.monotonic`.

    `incarnation` is this server's expression of the incarnation, which `steadyworker.ledger.postgres.trust` explains.
    """

    clock: Clock
    deadline: float
    call: float
    incarnation: LiteralString | None = None

    def run(
        self,
        statement: LiteralString,
        values: Mapping[str, Any] | None = None,
        *,
        then: LiteralString = "",
        lock_wait: float | None = None,
        longest: float | None = None,
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        """
        Run one statement as one transaction, and return the cursor with its result.

        `then` is the rest of the transaction, from the semicolon after the statement; it has no result.

        The server's limits are shorter than this process's limit, so that no statement takes effect long after its call.
        The server waits for a lock for at most `lock_wait` seconds, by default half of the limit for a call.
        The statement runs for at most `longest` seconds, by default 80 % of the limit for a call.
        """
        limits = {
            "lock_timeout": max(1, round(1000 * (self.call / 2 if lock_wait is None else lock_wait))),  # 0 is no limit
            "statement_timeout": round(1000 * (longest or self.call * _SERVER_SHARE)),
        }
        cursor = self.execute(sql.LIMITED + statement + then, {**(values or {}), **limits})
        if then:
            for _ in range(sql.LIMITED.count(";")):
                cursor.nextset()
        else:
            while cursor.nextset():
                pass
        return cursor

    @override
    def wait(self, gen: PQGen[Result], *_limits: object, **_more: object) -> Result:
        """Let libpq read and write until the call is complete."""
        poll = select.poll()
        try:
            wanted = next(gen)
            while True:
                reading, writing = wanted & Wait.R, wanted & Wait.W
                poll.register(self.fileno(), (select.POLLIN if reading else 0) | (select.POLLOUT if writing else 0))
                left = max(0.0, self.deadline - self.clock.monotonic())
                found = poll.poll(left * 1000)
                if not found:
                    self.close()  # otherwise every later call on this connection would wait for the same reply
                    raise errors.ConnectionTimeout("no answer in time")
                wanted = gen.send(_ready(found[0][1]))
        except StopIteration as end:
            return cast(Result, end.value)


def _ready(events: int) -> Ready:
    """Return the result of a poll in libpq's form; an error counts as readable, because libpq's read finds the cause."""
    ready = int(Ready.W if events & select.POLLOUT else Ready.NONE)
    return Ready(ready | Ready.R if events & ~select.POLLOUT else ready)


@dataclass(slots=True)
class Identity:
    """The id of the ledger, or None until a session has read the id; the sessions of one ledger share this object."""

    ledger_id: str | None = None


class PostgresSession:
    """
    One connection, which opens at the first use, and again after a failure; one thread at a time uses the connection.

    Args:
        address: A function that returns the ledger's address; each connect calls this function, and so uses a changed password.
        identity: The id that the ledger must have; the session that opens first sets this id.
        call: The limit in seconds for one call, for connecting, and for the wait for another thread's call.
        clock: Measures the waits.
        create: True if a session creates the ledger in a database that has no ledger.

    Raises:
        NoLedger: Before the first success: `create` is False, and the database has no ledger, or an older ledger (OlderLedger).
        ConfigError: Before the first success: another fault that no retry can mend (a refused login, another schema, no rights).
        LedgerUnavailable: Every other fault, and every fault after the first success.
    """

    def __init__(
        self,
        address: Callable[[], ServerAddress],
        identity: Identity,
        call: float,
        clock: Clock,
        *,
        create: bool = True,
    ) -> None:
        self._address = address
        self._at = address()
        self._identity = identity
        self._call = call
        self._clock = clock
        self._create = create
        self._lock = Lock()
        self._connection: LedgerConnection | None = None
        self._back_off = wait_random_exponential(multiplier=call / 32, max=call * _LONGEST_BACK_OFF)
        self._failures = 0
        self._again_at = clock.monotonic()
        self._why = ""
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[LedgerConnection]:
        """Lock the connection for this thread and yield it; run statements with its method `run`."""
        if not self._lock.acquire(timeout=self._call):
            raise LedgerUnavailable(
                f"Expected the ledger {self._at.shown} to be free within {self._call:g} s, "
                "but another thread's call still waits: check that the server responds."
            )
        try:
            connection = self._open()
            connection.deadline = self._clock.monotonic() + self._call
            yield connection
        except psycopg.Error as error:
            if not isinstance(error, _HARMLESS):
                self._drop()
            raise self._translated(error) from error
        finally:
            if self._connection is not None and self._connection.info.transaction_status != TransactionStatus.IDLE:
                self._drop()  # the connection is broken, or is in the middle of a reply
            self._lock.release()

    def close(self) -> None:
        """Close permanently; a second call does nothing."""
        with self._lock:
            self._closed = True
            self._drop()

    def _open(self) -> LedgerConnection:
        if self._closed:
            raise LedgerUnavailable(
                f"Expected the ledger {self._at.shown} to be open, but it was closed: open it again."
            )
        if self._connection is not None:
            return self._connection
        if self._clock.monotonic() < self._again_at:
            raise LedgerUnavailable(self._why)
        try:
            self._connection = self._connect()
        except NoLedger:
            raise
        except (psycopg.Error, ConfigError, LedgerUnavailable) as error:
            cause = self._translated(error) if isinstance(error, psycopg.Error) else self._unfit(str(error))
            self._why = str(cause)
            self._failures = min(self._failures + 1, _MOST_TRIES)
            self._again_at = self._clock.monotonic() + draw(self._back_off, self._failures)
            raise cause from error
        self._failures = 0
        return self._connection

    def _connect(self) -> LedgerConnection:
        self._at = self._address()
        connection = LedgerConnection.connect(
            self._at.conninfo, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.ClientCursor
        )
        try:
            connection.clock, connection.call = self._clock, self._call
            connection.deadline = self._clock.monotonic() + self._call / 2  # connecting used the other half
            self._find(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _find(self, connection: LedgerConnection) -> None:
        """Find or create the ledger; raise for another ledger, another schema, or a database that cannot hold a ledger."""
        place = connection.run(sql.PLACE).fetchone()
        assert place is not None, "a SELECT without FROM has one row"
        encoding, schema, chosen, is_there = place
        if encoding != "UTF8":
            raise self._unfit(
                f"Expected the ledger {self._at.shown} in a database of encoding UTF8, got {encoding}: "
                "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and name this database in --ledger."
            )
        if self._at.chooses_schema and not chosen:
            raise self._unfit(
                f"Expected the ledger {self._at.shown} in the schema of the URL's search_path, "
                f"got the server's own search_path: {_NO_OPTIONS}"
            )
        if not is_there:
            if self._identity.ledger_id is not None:
                raise self._unfit(self._another("a database without a ledger"))
            if not self._create:
                raise NoLedger(self._at.shown, "a database without a ledger")
            if schema is None:
                raise errors.InvalidSchemaName("no schema of the search_path exists")
            with suppress(errors.DuplicateTable):  # another process has created them
                made = {"ledger_id": secrets.token_hex(16), "schema": sql.SCHEMA_VERSION, "made_by": version()}
                connection.run(sql.CREATE, made)
        ledger_id, schema, made_by = self._meta(connection)
        if schema < sql.SCHEMA_VERSION:
            self._migrate(connection, schema)
            ledger_id, schema, made_by = self._meta(connection)
        if schema > sql.SCHEMA_VERSION:
            raise self._unfit(
                f"Expected a ledger of schema {sql.SCHEMA_VERSION} at {self._at.shown}, got {schema}, "
                f"of SteadyWorker {made_by}: install SteadyWorker {made_by} or newer here; this is {version()}."
            )
        if self._identity.ledger_id not in {None, ledger_id}:
            raise self._unfit(self._another(f"the ledger {ledger_id}"))
        self._identity.ledger_id = ledger_id

    def _meta(self, connection: LedgerConnection) -> tuple[str, int, str]:
        """Return the ledger's id, the version of its tables, and the version of SteadyWorker that made them."""
        ledger_id, schema, made_by = connection.run(sql.META).fetchone() or ("", 0, "")
        return ledger_id, schema, made_by

    def _migrate(self, connection: LedgerConnection, found: int) -> None:
        """Migrate the tables to this version; raise ConfigError if no process can migrate them, or if this process must not."""
        statements = sql.migration(found)
        if statements is None:
            raise self._unfit(
                f"Expected a ledger of schema {sql.OLDEST} to {sql.SCHEMA_VERSION} at {self._at.shown}, got {found}: "
                "finish its jobs with the version of SteadyWorker that made it, or name another database in --ledger."
            )
        expected = f"Expected a ledger of schema {sql.SCHEMA_VERSION} at {self._at.shown}, got {found}"
        ours = version()
        if not self._create:
            raise OlderLedger(self._at.shown, sql.SCHEMA_VERSION, found, ours)
        connection.deadline = self._clock.monotonic() + _MIGRATION
        values = {"found": found, "schema": sql.SCHEMA_VERSION, "made_by": ours}
        try:
            connection.run(statements, values, lock_wait=self._call * _MIGRATION_LOCK, longest=_MIGRATION)
        except errors.NotNullViolation:
            return  # another process has migrated it
        except errors.InsufficientPrivilege as error:
            raise self._unfit(
                f"{expected}, and {' '.join(str(error).split())!r}: let this user own the ledger's tables (ALTER TABLE … OWNER TO …) "
                "and GRANT it CREATE on their schema, or start a worker once as the user that owns them."
            ) from error
        finally:
            connection.deadline = self._clock.monotonic() + self._call / 2

    def _another(self, got: str) -> str:
        return (
            f"Expected the ledger {self._identity.ledger_id} at {self._at.shown}, got {got}: "
            "restore the old server, or restart every worker process to use this ledger."
        )

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _unfit(self, message: str) -> ConfigError | LedgerUnavailable:
        if self._identity.ledger_id is not None:
            return LedgerUnavailable(message)
        return ConfigError(message, id="ledger.unusable")

    def _translated(self, error: psycopg.Error) -> Exception:
        """Return the error to raise for an error of psycopg; return an error in our own statement unchanged."""
        remedy = next((remedy for kind, remedy in _REMEDIES.items() if isinstance(error, kind)), None)
        if remedy is None and isinstance(error, _OUR_BUGS):
            return error
        text = " ".join(str(error).split())
        if self._at.password:
            text = text.replace(self._at.password, REDACTED)
        refused = error.sqlstate is None and _REFUSED.search(text) is not None
        if remedy is None:
            remedy = _remedy(text, refused=refused)
        message = f"Expected a reply from the ledger {self._at.shown}, got {redact(text)!r}: {remedy}"
        return self._unfit(message) if refused or isinstance(error, _FINAL) else LedgerUnavailable(message)


def _remedy(text: str, *, refused: bool) -> str:
    """Return the remedy for a failed connect."""
    if "startup parameter" in text:
        return _NO_OPTIONS
    if refused:
        return "correct the URL in --ledger, or the server's settings."
    if _TOO_MANY.search(text):
        return "raise max_connections, because each worker process takes two connections."
    return _READ_ONLY if "read-only" in text else "check that the server runs and can be reached."
