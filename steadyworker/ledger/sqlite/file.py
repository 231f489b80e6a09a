"""
The file of a SQLite ledger: opening, the check that it is still the same file, and the translation of SQLite's errors.

The file has one connection, and one thread at a time uses this connection.
One connection is enough, because a claim takes some tens of microseconds, and SQLite permits only one writer.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any
from urllib.parse import quote

from typing_extensions import override

from steadyworker.clock import Clock
from steadyworker.errors import ConfigError, LedgerUnavailable, NoLedger, OlderLedger
from steadyworker.ledger.sqlite import schema as sql
from steadyworker.system.private import make_private_file, make_private_folder
from steadyworker.text.versions import version

_OLDEST_SQLITE = (3, 37, 0)  # the first version with STRICT tables
_PAUSE = 0.01
_FREE_PAGES = 1_000
"""
The number of free pages (4 MB) that the file may keep.

One step of the vacuum returns at most this number to the file system.
"""
_TOGETHER = 32
"""The number of deferred writes that a claim carries out; fewer wait for another transaction, which comes within a second."""
_WAL_LIMIT = 64 << 20
_WAL_PAGES = 8_000  # 32 MB: a WAL checkpoint waits for the disk, and makes a commit at that moment wait, too
_FINAL = {
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
}
_BROKEN = {
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
}
_OUR_BUGS = (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.DataError, sqlite3.NotSupportedError)
_REMEDIES = {
    sqlite3.SQLITE_BUSY: "another process holds its lock for too long; find that process with `fuser` and end its transaction.",
    sqlite3.SQLITE_FULL: "its file system is full; free some space.",
    sqlite3.SQLITE_IOERR: "its disk failed, or a size limit was reached; see the kernel's log and `ulimit -f`.",
    sqlite3.SQLITE_READONLY: "it is read-only; make the file and its directory writable for this user.",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; its directory must exist and be writable for this user.",
    sqlite3.SQLITE_CORRUPT: "it is damaged; move it away, or restore a copy.",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database; move it away, or name another file.",
}

_Values = Mapping[str, Any] | tuple[Any, ...]
"""The parameters of a statement, by name or by position."""

_IDS = {sqlite3.SQLITE_BUSY: "ledger.locked", sqlite3.SQLITE_FULL: "ledger.disk-full"}
"""The entry of the catalogue for each result that has one cause."""


class LedgerFile:
    """
    A SQLite database that is a ledger, opened at its first use.

    Args:
        path: The file; only the first call creates a file. If the file disappears later, an operator must put it back.
        synchronous: `normal` or `full`, SQLite's levels for the durability of a commit.
        call: The longest time, in seconds, that a call waits for another process or thread.
        clock: Measures the waits.
        marker: A folder that is created right after the file; a folder without its file shows that the file was removed.
        create: True if the first call creates a missing ledger, and migrates a ledger of an earlier version.

    Raises:
        ConfigError: At the first call: a fault that no retry can mend (not a ledger, another schema, not writable).
        NoLedger: `create` is False, and there is no ledger, or a ledger of an earlier version (OlderLedger).
        LedgerUnavailable: Every other fault, and every fault after the first success.
    """

    def __init__(
        self, path: Path, synchronous: str, call: float, clock: Clock, marker: Path, *, create: bool = True
    ) -> None:
        self.path = path.absolute()
        self._name = str(self.path)
        self._synchronous = synchronous
        self._call = call
        self._clock = clock
        self._marker = marker
        self._create = create
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._level = ""
        self._later: deque[tuple[str, str, _Values]] = deque()
        self._ordered = 0
        self._inode: tuple[int, int] | None = None
        self._was_open = False
        self._closed = False

    @property
    def inode(self) -> int:
        """The inode of the open file; a copy that an operator puts in the file's place has another inode."""
        assert self._inode is not None, "the file is open"
        return self._inode[1]

    def connection(self, synchronous: str | None = None) -> AbstractContextManager[sqlite3.Connection]:
        """
        Return a context in which only this thread uses the connection; each statement is one transaction.

        `synchronous` replaces the ledger's own level in this context.
        """
        return _Borrowed(self, synchronous or self._synchronous)

    def borrow(self, level: str) -> sqlite3.Connection:
        """Lock the connection for this thread, set this level, and return the connection; the caller must call `give_back`."""
        if not (self._lock.acquire(blocking=False) or self._lock.acquire(timeout=self._call)):
            raise LedgerUnavailable(
                f"Expected the ledger {self.path} to be free within {self._call:g} s, but another call still uses it: "
                "see that its disk responds."
            )
        try:
            connection = self._open()
            if level != self._level:
                connection.execute(f"PRAGMA synchronous = {level}")
                self._level = level
        except BaseException as error:
            self.give_back(error)
            raise
        return connection

    def give_back(self, error: BaseException | None) -> None:
        """Unlock the connection; after an error, roll back, and raise an error of SQLite as an error of SteadyWorker."""
        try:
            if error is None:
                return
            self._roll_back()
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, _OUR_BUGS):
                raise self._translated(error) from error
        finally:
            self._lock.release()

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Run the block as one write transaction; commit at the block's end, or roll back if the block raises."""
        return self._transaction(1)

    def claim(self) -> AbstractContextManager[sqlite3.Connection]:
        """Run the block as a write transaction that carries out the deferred writes only if there are many."""
        return self._transaction(_TOGETHER)

    @contextmanager
    def _transaction(self, together: int) -> Iterator[sqlite3.Connection]:
        with self.connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            if len(self._later) >= together:
                while self._later:
                    connection.execute(*self._later.popleft()[1:])
            yield connection
            connection.execute("COMMIT")

    def orders_changed(self) -> None:
        """Note that this process has written an order of a person, such as a cancel mark."""
        self._ordered += 1

    def orders_version(self, connection: sqlite3.Connection) -> object:
        """Return a value that stays equal until any process writes an order; it can also change without an order."""
        # The pragma counts the commits of other connections only.
        return connection, connection.execute("PRAGMA data_version").fetchone()[0], self._ordered

    def later(self, key: str, statement: str, values: _Values) -> None:
        """
        Defer a write to the row of a job with this key to one of the next transactions.

        The write is lost if that transaction fails, or if this process ends earlier.
        """
        self._later.append((key, statement, values))

    def owes(self, key: str) -> bool:
        """Return whether a deferred write changes the row of a job with this key."""
        return any(key == owed for owed, _, _ in tuple(self._later))

    def catch_up(self) -> None:
        """Write the deferred writes now."""
        if self._later:
            with self.transaction():
                pass

    def size(self) -> int:
        """Return the number of bytes of the file and of its write-ahead log."""
        size = 0
        for path in (self.path, Path(f"{self.path}-wal")):
            with suppress(OSError):
                size += path.stat().st_size
        return size

    def pages_size(self) -> int:
        """Return the number of bytes of all pages of the file, without its write-ahead log."""
        with self.connection() as connection:
            return _pragma(connection, "page_count") * _pragma(connection, "page_size")

    def excess(self, limit: int) -> int:
        """Return the number of bytes by which the pages in use exceed this limit; 0 or less if they do not."""
        with self.connection() as connection:
            return (_pragma(connection, "page_count") - _pragma(connection, "freelist_count")) * _pragma(
                connection, "page_size"
            ) - limit

    def shrink(self, limit: int | None = None) -> None:
        """
        Give free pages back to the file system until at most half of the file is free, in small steps.

        While the file is larger than `limit`, give all free pages back.
        """
        while True:
            with self.connection() as connection:
                free, pages = _pragma(connection, "freelist_count"), _pragma(connection, "page_count")
                above = limit is not None and pages * _pragma(connection, "page_size") > limit
                if not free or (not above and (free <= _FREE_PAGES or 2 * free <= pages)):
                    return
                connection.executescript(
                    f"PRAGMA incremental_vacuum({_FREE_PAGES})"
                )  # `execute` would run only the first step
                if _pragma(connection, "freelist_count") >= free:
                    return  # a file of an older version cannot shrink

    def close(self) -> None:
        """Write the deferred writes, and close permanently; a second call does nothing."""
        with suppress(ConfigError, LedgerUnavailable):
            self.catch_up()
        with self._lock:
            self._closed = True
            self._drop()

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise LedgerUnavailable(f"Expected the ledger {self.path} to be open, but it was closed: open it again.")
        if self._connection is not None:
            if self._inode == self._inode_now():
                return self._connection
            self._drop()
            raise LedgerUnavailable(
                f"Expected the ledger {self.path} to stay where it was, but it was removed, replaced or emptied: put it back."
            )
        # This is read before the file's state, because a process creates the file before the marker.
        earlier = self._was_open or self._marker.exists()
        seen = self._seen_now()
        before = None if seen is None else (seen.st_dev, seen.st_ino)
        if earlier and (seen is None or not seen.st_size):
            # An empty file can be a copy that has just begun; SQLite would open this file, and delete the log beside the file.
            got = "it was removed" if seen is None else "the file is empty"
            raise self._unfit(
                f"Expected the ledger {self.path}, but {got}: put it back; or, to begin with an empty ledger, "
                f"stop every process that uses it, and remove {self._marker.name} beside it."
            )
        if not self._create and (seen is None or not seen.st_size):
            raise NoLedger(f"sqlite:{self.path}", "no such file" if seen is None else "an empty file")
        connection = self._connect()
        try:
            self._prepare(connection)
            with suppress(OSError):  # the folder is not writable
                make_private_folder(self._marker)
            self._inode = self._inode_now()
        except BaseException:
            connection.close()
            raise
        if self._inode is None or before not in {None, self._inode}:
            connection.close()
            raise LedgerUnavailable(
                f"Expected the ledger {self.path} to stay in place, but another file replaced it while it was opened: stop the program that does this."
            )
        self._connection = connection
        self._level = ""
        self._was_open = True
        return connection

    def _inode_now(self) -> tuple[int, int] | None:
        """
        Return the device and inode of the file at the path; None if the file is missing or empty.

        A program that replaces the content of the file, such as `cp`, first makes the file empty.
        """
        seen = self._seen_now()
        return (seen.st_dev, seen.st_ino) if seen is not None and seen.st_size else None

    def _seen_now(self) -> os.stat_result | None:
        """Return the state of the file at the path; None if there is no file."""
        try:
            return os.stat(self._name)  # noqa: PTH116 - runs before every statement, and Path.stat takes twice as long
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._unfit(
                f"Expected to find the ledger {self.path}, got {error.strerror}: make its directory readable."
            ) from error

    def _connect(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise ConfigError(
                f"Expected SQLite 3.37 or newer, got {sqlite3.sqlite_version}: use a Python that has a newer SQLite.",
                id="ledger.unusable",
            )
        may_create = self._create and not self._was_open
        if may_create:
            try:
                make_private_folder(self.path.parent)
            except OSError as error:
                raise ConfigError(
                    f"Expected to create the directory of the ledger {self.path}, got {error.strerror}: "
                    "make its parent writable for this user, or name another file.",
                    id="ledger.unusable",
                ) from error
            with suppress(OSError):  # SQLite then reports the cause
                make_private_file(self.path)
        return sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={'rwc' if may_create else 'rw'}",
            uri=True,
            timeout=self._call,
            isolation_level=None,  # transactions begin and end only by statements of this file
            check_same_thread=False,  # guarded by the lock
        )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create or migrate the tables; raise for a file that is no ledger, or that this process cannot write."""
        if connection.execute("PRAGMA application_id").fetchone()[0] != sql.APPLICATION_ID:
            self._fill(connection)
        if connection.execute(sql.SCHEMA).fetchone()[0] != sql.SCHEMA_VERSION:
            self._migrate(connection)
        connection.execute("BEGIN IMMEDIATE")  # fails if the file cannot be written
        connection.execute("COMMIT")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")

    def _fill(self, connection: sqlite3.Connection) -> None:
        if not self._create and not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            raise NoLedger(f"sqlite:{self.path}", "a database without tables")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect only in an empty file
        self._into_wal(connection)
        connection.execute("BEGIN IMMEDIATE")
        # If the file has this id already, another process was first.
        if connection.execute("PRAGMA application_id").fetchone()[0] != sql.APPLICATION_ID:
            if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                raise self._unfit(
                    f"Expected a ledger at {self.path}, got another program's SQLite database: name another file."
                )
            for statement in sql.CREATE:
                connection.execute(statement)
            values = {"schema": sql.SCHEMA_VERSION, "made_by": version()}
            connection.execute(sql.FILL, values | {"ledger_id": secrets.token_hex(16)})
            connection.execute(f"PRAGMA application_id = {sql.APPLICATION_ID}")
        connection.execute("COMMIT")

    def _migrate(self, connection: sqlite3.Connection) -> None:
        """Migrate the tables to this version, in one transaction; raise for a ledger that this process cannot migrate."""
        if self._create:
            connection.execute("BEGIN IMMEDIATE")  # waits for a migration by another process
        ours, (found,) = version(), connection.execute(sql.SCHEMA).fetchone()
        if found > sql.SCHEMA_VERSION:
            (made_by,) = connection.execute(sql.MADE_BY).fetchone()
            raise self._unfit(
                f"Expected a ledger of schema {sql.SCHEMA_VERSION} at {self.path}, got {found}, of SteadyWorker {made_by}: "
                f"install SteadyWorker {made_by} or newer here; this is {ours}."
            )
        steps = range(found, sql.SCHEMA_VERSION)
        if not sql.MIGRATIONS.keys() >= set(steps):
            raise self._unfit(
                f"Expected a ledger of schema {min(sql.MIGRATIONS)} to {sql.SCHEMA_VERSION} at {self.path}, got {found}: "
                "finish its jobs with the version of SteadyWorker that made it, or name another file."
            )
        if not self._create:
            raise OlderLedger(f"sqlite:{self.path}", sql.SCHEMA_VERSION, found, ours)
        for step in steps:  # no step is left if another process was first
            for statement in sql.MIGRATIONS[step]:
                connection.execute(statement)
            connection.execute(sql.MADE, {"schema": step + 1, "made_by": ours})
        connection.execute("COMMIT")

    def _into_wal(self, connection: sqlite3.Connection) -> None:
        """Switch to a write-ahead log; wait while other processes switch, because SQLite itself does not wait for them."""
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            return  # a ledger already, or another program's database: leave it as it is
        deadline = self._clock.monotonic() + self._call
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or self._clock.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)
            else:
                return

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                self._drop()  # closing the connection rolls back, too

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _unfit(self, message: str) -> ConfigError | LedgerUnavailable:
        return LedgerUnavailable(message) if self._was_open else ConfigError(message, id="ledger.unusable")

    def _translated(self, error: sqlite3.DatabaseError) -> ConfigError | LedgerUnavailable:
        # An error of Python itself has no code, for example for text that is not UTF-8.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _BROKEN:
            self._drop()
        remedy = _REMEDIES.get(code, "see SQLite's result codes.")
        message = f"Expected a reply from the ledger {self.path}, got {str(error)!r}: {remedy}"
        return self._unfit(message) if code in _FINAL else LedgerUnavailable(message, id=_IDS.get(code, ""))


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


class _Borrowed(AbstractContextManager[sqlite3.Connection]):
    """The context in which one thread has the connection: a class, because a generator would be slower."""

    __slots__ = ("_file", "_level")

    def __init__(self, file: LedgerFile, level: str) -> None:
        self._file = file
        self._level = level

    @override
    def __enter__(self) -> sqlite3.Connection:
        return self._file.borrow(self._level)

    @override
    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self._file.give_back(error)
