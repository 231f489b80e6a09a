"""
The broker file: its tables, and all SQL statements for it.

A message is written once and never changed.
A row of another table (`deliveries`) names the consumer of a message.
So the delivery of a message of 1 MB writes only one small page.
Times in `due` are from CLOCK_BOOTTIME, a clock that no one can set.
Times in `due_wall` are from the wall clock; after a reboot, the first process that opens the file computes `due` from them.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from steadyworker.adapter import Browsed, Clock, Depth, Headers
from steadyworker.system.private import make_private_file, make_private_folder
from steadyworker_sqlite.errors import Evicted, FileReplaced, Unusable, translated

UNREADABLE = "sw-hop"
"""
The header for the reason why the adapter cannot read a message's other headers.

Any program can write to the file, so headers can be unreadable.
The runner expects a number in this header.
If the header is a text, the runner makes the message a dead letter, with the text as the reason.
"""

APPLICATION_ID = 0x53744277
SCHEMA = 2
BUSY_SECONDS = 5.0
_PAUSE = 0.01
"""Seconds between two tries, in the cases in which SQLite does not wait by itself."""

_NO_LIMIT = (1 << 63) - 1
_FREE_PAGES = 1000
"""
The number of free pages (4 MB) that the file may keep.

One step of the vacuum returns at most this number of pages to the file system.
"""

Place = tuple[float, int]
"""A message's place in its queue: its due time, and then its number."""

FIRST: Place = (float("-inf"), 0)
"""The place before every message."""

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;
CREATE TABLE queues (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TABLE messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice, because it identifies a delivery
    queue TEXT NOT NULL,
    message_id TEXT NOT NULL,
    headers TEXT NOT NULL,
    due REAL NOT NULL,
    due_wall REAL NOT NULL,
    sent_at REAL NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX messages_due ON messages (queue, due, seq);
CREATE TABLE deliveries (
    seq INTEGER PRIMARY KEY,
    consumer INTEGER, -- the consumer that holds the message; NULL after a release
    count INTEGER NOT NULL
) STRICT;
CREATE INDEX deliveries_held ON deliveries (consumer) WHERE consumer IS NOT NULL;
CREATE TABLE consumers (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice: an evicted consumer must find itself missing
    queue TEXT NOT NULL,
    presence TEXT NOT NULL,
    name TEXT NOT NULL,
    reads INTEGER NOT NULL -- 1 for a reader of dead letters, which does not count as a consumer
) STRICT;
"""

_READY = """
FROM messages AS m LEFT JOIN deliveries AS h ON h.seq = m.seq
WHERE m.queue = :queue AND h.consumer IS NULL
"""


_FREE = """
FROM messages AS m LEFT JOIN deliveries AS h ON h.seq = m.seq
WHERE m.queue = :queue AND (h.consumer IS NULL OR h.consumer NOT IN (SELECT value FROM json_each(:alive)))
"""

# The counts read only an index, and the deliveries that consumers hold, and never the messages themselves.
_COUNTS = f"""
WITH held AS (
    SELECT m.due FROM deliveries AS h JOIN messages AS m ON m.seq = h.seq
    WHERE h.consumer IN (SELECT value FROM json_each(:alive)) AND m.queue = :queue
)
SELECT
    (SELECT count(*) FROM messages WHERE queue = :queue AND due <= :now),
    (SELECT count(*) FROM messages WHERE queue = :queue AND due > :now),
    (SELECT count(*) FROM held WHERE due <= :now),
    (SELECT count(*) FROM held WHERE due > :now),
    (SELECT count(*) FROM messages WHERE queue = :dead),
    (SELECT m.due {_FREE} AND m.due <= :now ORDER BY m.due LIMIT 1),
    (SELECT m.due {_FREE} AND m.due > :now ORDER BY m.due LIMIT 1)
"""  # noqa: S608 - the inserted text is a constant


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to put into a queue, due after `delay` seconds."""

    queue: str
    message_id: str
    headers: str
    body: bytes
    delay: float


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A received message. `count` is the number of the message's deliveries, including this delivery."""

    seq: int
    count: int
    queue: str
    message_id: str
    headers: Headers
    body: bytes
    sent_at: float
    certain: bool
    place: Place


@dataclass(frozen=True, slots=True)
class Peer:
    """A consumer or reader that is registered in the file."""

    id: int
    queue: str
    presence: str
    reads: bool


class BrokerFile:
    """
    The broker file of one adapter. Only the first `open` can create the file; each later `open` must find the same broker in the file.

    A new broker has another identity, so no earlier cancel would reach the new broker's jobs, and every key would be new.
    So an adapter must not create a removed file again.
    For this, the process that creates the file also creates the folder beside the file.
    If the folder exists without the file, the file was removed.

    Args:
        path: The broker file.
        clock: The clock for due times.
        create: True if the first `open` may create the file.
    """

    def __init__(self, path: Path, clock: Clock, *, create: bool) -> None:
        self.path = path
        self.folder = path.with_name(path.name + ".consumers")
        self._clock = clock
        self._create = create
        self._identity: str | None = None

    def open(self, *, create: bool = True) -> Store:
        """
        Open a connection; without `create`, the file must exist.

        Raises:
            Unusable: The file was removed or emptied before this adapter opened it.
            FileReplaced: This adapter had opened the file before, and the file is now missing, empty, or another broker's.
        """
        if (loss := self.loss()) is not None:
            kind = Unusable if self._identity is None else FileReplaced
            raise kind(f"Expected the broker file {self.path}, but {loss}: {self.remedy}", id=FileReplaced.id)
        store = Store(self.path, self._clock, create=self._create and create and self._identity is None)
        with ExitStack() as undo:
            undo.callback(store.close)
            identity = store.identity()
            if self._identity not in (None, identity):
                got = f"got the broker {identity}: {self.remedy}"
                raise FileReplaced(f"Expected the broker {self._identity} in {self.path}, {got}")
            undo.pop_all()
        self._identity = identity
        return store

    def loss(self) -> str | None:
        """
        Return what happened to a file that existed before; None if nothing happened to it.

        The file existed before if this adapter has opened it, or if its folder exists.
        """
        # Check the folder before the file, because the process that creates both creates the file first.
        before = self._identity is not None or self.folder.exists()
        with suppress(FileNotFoundError):
            # An empty file can be a copy that has just begun; new tables would damage this copy.
            return "the file is empty" if before and not self.path.stat().st_size else None
        return "it was removed" if before else None

    @property
    def remedy(self) -> str:
        """The remedy for a file that was removed, emptied or replaced."""
        return (
            "restore it; or, to begin with an empty broker, stop every process that uses it, "
            f"and remove {self.folder.name} beside it."
        )


def is_missing(path: Path) -> bool:
    """Return whether there is no broker file, or only an empty one, which no question may fill with tables."""
    return not path.exists() or not path.stat().st_size


class Store:
    """
    One connection to the broker file.

    The connection is not thread-safe: the caller ensures that only one thread at a time uses it.
    A method raises only `BrokerUnavailable` (or a subclass in `errors.py`), and never an error of SQLite.
    """

    def __init__(self, path: Path, clock: Clock, *, create: bool) -> None:
        self.path = path
        self.folder = path.with_name(path.name + ".consumers")
        self._clock = clock
        self._queues: set[str] = set()
        self._durable: bool | None = None
        with translated(path):
            if create:
                make_private_folder(path.parent)
                make_private_file(path)
            elif is_missing(path):
                raise FileNotFoundError(None, "no such file: start a worker, or send a message, to create it")
            where = f"file:{quote(str(path))}?mode=rw"  # never creates a file
            self._db = sqlite3.connect(
                where, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._db.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
        try:
            self._open()
            self._inode = _inode(path)
            if create:
                with translated(path):
                    make_private_folder(self.folder)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        with suppress(sqlite3.Error):  # a failed close does not change committed data
            self._db.close()

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[None]:
        """
        Run the block as one transaction, all or nothing.

        If `durable` is True, the commit is on disk when the block ends.
        Otherwise the commit survives only the death of processes, and not a power cut.

        Raises:
            FileReplaced: The commit succeeded, but the file is no longer at its path.
        """
        with translated(self.path):
            if durable is not self._durable:  # SQLite applies this from the next transaction on
                self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite has rolled back by itself after some errors
                    self._db.execute("ROLLBACK")
                raise
        self.check_place()

    def check_place(self) -> None:
        """Raise FileReplaced if the path has another file, an empty file, or no file."""
        found = _inode(self.path)
        if found is None or found != self._inode:
            raise FileReplaced(
                f"Expected the broker file {self.path} to stay in place, but it was removed, replaced or emptied: restore it."
            )

    def identity(self) -> str:
        """Return the random id of the file; this id was generated when the file was created."""
        with translated(self.path):
            return str(self._meta("id"))

    def has_queue(self, name: str) -> bool:
        """Return whether the queue was declared."""
        if name not in self._queues:
            with translated(self.path):
                self._queues.update(row[0] for row in self._db.execute("SELECT name FROM queues"))
        return name in self._queues

    def declare(self, names: Iterable[str]) -> None:
        """Create missing queues; call it within a transaction."""
        self._db.executemany("INSERT OR IGNORE INTO queues VALUES (?)", ((name,) for name in names))

    def put(self, entries: Iterable[NewMessage]) -> None:
        """Add messages; call it within a transaction."""
        now, wall = self._clock.boottime(), self._clock.wall()
        self._db.executemany(
            "INSERT INTO messages (queue, message_id, headers, due, due_wall, sent_at, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
            ((e.queue, e.message_id, e.headers, now + e.delay, wall + e.delay, wall, e.body) for e in entries),
        )

    def register(self, queue: str, presence: str, name: str, *, reads: bool) -> int:
        """Register a consumer and return its id; call it within a transaction."""
        cursor = self._db.execute(
            "INSERT INTO consumers (queue, presence, name, reads) VALUES (?, ?, ?, ?)", (queue, presence, name, reads)
        )
        assert cursor.lastrowid is not None  # an INSERT has a row id
        return cursor.lastrowid

    def peers(self) -> Sequence[Peer]:
        """Return every registered consumer, including dead consumers that are not yet evicted."""
        with translated(self.path):
            rows = self._db.execute("SELECT id, queue, presence, reads FROM consumers").fetchall()
        return [Peer(id_, queue, presence, bool(reads)) for id_, queue, presence, reads in rows]

    def evict(self, consumers: Iterable[int]) -> None:
        """Remove consumers, and release their messages; call it within a transaction."""
        ids = [(id_,) for id_ in consumers]
        self._db.executemany("UPDATE deliveries SET consumer = NULL WHERE consumer = ?", ids)
        self._db.executemany("DELETE FROM consumers WHERE id = ?", ids)

    def assert_registered(self, consumer: int) -> None:
        """Raise Evicted if another process evicted this consumer."""
        with translated(self.path):
            if self._db.execute("SELECT 1 FROM consumers WHERE id = ?", (consumer,)).fetchone() is None:
                raise Evicted(
                    "Expected this consumer to be registered, but another process evicted it, because it was silent "
                    "too long: find out what froze this process. Its messages come again."
                )

    def due_in(self, queue: str) -> float | None:
        """
        Return the seconds until the first free message is due; None if no message is free.

        The result is 0 or less if a message is due now.
        """
        with translated(self.path):
            row = self._db.execute(f"SELECT m.due {_READY} ORDER BY m.due LIMIT 1", {"queue": queue}).fetchone()
        return None if row is None else float(row[0]) - self._clock.boottime()

    def last(self, queue: str) -> int:
        """Return the number of the newest message in a queue; 0 if the queue is empty."""
        with translated(self.path):
            row = self._db.execute("SELECT coalesce(max(seq), 0) FROM messages WHERE queue = ?", (queue,)).fetchone()
        return int(row[0])

    def receive(
        self, consumer: int, queue: str, limit: int, upto: int = _NO_LIMIT, after: Place = FIRST
    ) -> list[ReceivedMessage]:
        """
        Receive free messages that are due, ordered by due time; call it within a transaction.

        The call receives only messages after the place `after`, and no message with a number above `upto`.
        """
        due, seq = after
        received = [
            ReceivedMessage(
                seq, count + 1, queue, id_, headers_of(headers), body, sent_at, seq > self._uncertain, (due, seq)
            )
            for seq, count, id_, headers, body, sent_at, due in self._db.execute(
                f"SELECT m.seq, coalesce(h.count, 0), m.message_id, m.headers, m.body, m.sent_at, m.due {_READY}"
                " AND (m.due, m.seq) > (:due, :seq) AND m.due <= :now AND m.seq <= :upto"
                " ORDER BY m.due, m.seq LIMIT :limit",
                {"queue": queue, "now": self._clock.boottime(), "upto": upto, "limit": limit, "due": due, "seq": seq},
            )
        ]
        self._db.executemany(
            "INSERT INTO deliveries VALUES (?, ?, ?)"
            " ON CONFLICT (seq) DO UPDATE SET consumer = excluded.consumer, count = excluded.count",
            ((message.seq, consumer, message.count) for message in received),
        )
        return received

    def settle(self, consumer: int, seq: int, count: int, *, remove: bool) -> None:
        """Remove or release the message of this delivery; a second call does nothing; call it within a transaction."""
        held = (seq, consumer, count)
        if not remove:
            self._db.execute("UPDATE deliveries SET consumer = NULL WHERE seq = ? AND consumer = ? AND count = ?", held)
        elif self._db.execute("DELETE FROM deliveries WHERE seq = ? AND consumer = ? AND count = ?", held).rowcount:
            self._db.execute("DELETE FROM messages WHERE seq = ?", (seq,))

    def depth(self, queue: str, dead: str, alive: Iterable[int], consumers: int) -> Depth:
        """Return the numbers of a queue; the consumers and readers in `alive` hold their messages, and `consumers` counts them."""
        now, wall = self._clock.boottime(), self._clock.wall()
        names = {"queue": queue, "dead": dead, "now": now, "alive": json.dumps([*alive])}
        with translated(self.path):
            due, later, held, held_later, letters, oldest, first = self._db.execute(_COUNTS, names).fetchone()
        return Depth(
            ready=due - held,
            delayed=later - held_later,
            next_due=None if first is None else wall + first - now,
            unacked=held + held_later,
            dead=letters,
            consumers=consumers,
            oldest_age=None if oldest is None else now - oldest,
        )

    def browse(self, queue: str, alive: Iterable[int], limit: int) -> list[Browsed]:
        """Return at most `limit` messages that no consumer in `alive` holds, ordered by due time."""
        now, wall = self._clock.boottime(), self._clock.wall()
        with translated(self.path):
            rows = self._db.execute(
                f"SELECT m.headers, m.message_id, m.sent_at, m.due {_FREE} ORDER BY m.due, m.seq LIMIT :limit",
                {"queue": queue, "alive": json.dumps([*alive]), "limit": limit},
            ).fetchall()
        return [
            Browsed(headers_of(headers), id_, sent_at, wall + due - now if due > now else None)
            for headers, id_, sent_at, due in rows
        ]

    def purge(self, queue: str) -> int:
        """Remove the messages of a queue that are due, and that no consumer holds; return their number."""
        with self.transaction(durable=True):
            values = {"queue": queue, "now": self._clock.boottime()}
            due = self._db.execute(f"SELECT m.seq {_READY} AND m.due <= :now", values).fetchall()
            self._db.executemany("DELETE FROM deliveries WHERE seq = ?", due)
            self._db.executemany("DELETE FROM messages WHERE seq = ?", due)
        return len(due)

    def shrink(self) -> None:
        """Return some of the free pages to the file system, if more than half of the file is free."""
        with translated(self.path):
            free, pages = (
                int(self._db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("freelist_count", "page_count")
            )
            if free > _FREE_PAGES and 2 * free > pages:
                self._db.executescript(
                    f"PRAGMA incremental_vacuum({_FREE_PAGES})"
                )  # `execute` makes only the first step of the statement

    def _open(self) -> None:
        with translated(self.path):
            tables, application, version = self._versions()
            if (tables, application, version) == (0, 0, 0):
                self._create()
            elif application != APPLICATION_ID:
                # This check comes before the first write, so that another program's file stays exactly as it is.
                raise Unusable(
                    f"Expected a broker file at {self.path}, got another program's database: name another path."
                )
            elif version != SCHEMA:
                expected = f"Expected a broker file of schema {SCHEMA} at {self.path}"
                raise Unusable(
                    f"{expected}, got {version}: finish its jobs with the version of SteadyWorker that made it, or name another path."
                )
            self._db.execute(f"PRAGMA journal_size_limit = {64 << 20}")
            if self._meta("boot") != boot_id():
                self._translate_times()
            self._uncertain = int(str(self._meta("uncertain")))

    def _versions(self) -> tuple[int, int, int]:
        """Return the number of tables, the application id and the schema version, read consistently in one statement."""
        tables, application, version = self._db.execute(
            "SELECT (SELECT count(*) FROM sqlite_schema), application_id, user_version"
            " FROM pragma_application_id, pragma_user_version"
        ).fetchone()
        return tables, application, version

    def _create(self) -> None:
        self._db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # works only before the first page is written
        if self._into_wal() != "wal":
            raise Unusable(
                f"Expected a file system that supports a shared write-ahead log, got one that does not, at {self.path}: "
                "name a local path."
            )
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("BEGIN IMMEDIATE")
        if self._versions() == (0, 0, 0):  # otherwise another process has created the tables
            for statement in _TABLES.split(";\n"):
                self._db.execute(statement)
            values = (("id", str(uuid.uuid4())), ("boot", boot_id()), ("uncertain", 0))
            self._db.executemany("INSERT INTO meta VALUES (?, ?)", values)
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {SCHEMA}")
        self._db.execute("COMMIT")

    def _into_wal(self) -> str:
        """
        Switch the file to a write-ahead log.

        The call waits for other processes that create the file at this moment, because SQLite does not wait for them.
        """
        deadline = self._clock.monotonic() + BUSY_SECONDS
        while True:
            try:
                return str(self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or self._clock.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)

    def _translate_times(self) -> None:
        """
        Compute new due times, because times by CLOCK_BOOTTIME of an earlier boot are meaningless now.

        The last deliveries of the earlier boot might not be on the disk.
        So the call marks all messages in the file as uncertain: their counts of deliveries can be too low.
        """
        self._db.execute("BEGIN IMMEDIATE")
        if self._meta("boot") != boot_id():
            shift = self._clock.boottime() - self._clock.wall()
            self._db.execute("UPDATE messages SET due = due_wall + ?", (shift,))
            self._db.execute(
                "UPDATE meta SET value = (SELECT coalesce(max(seq), 0) FROM messages) WHERE name = 'uncertain'"
            )
            self._db.execute("UPDATE meta SET value = ? WHERE name = 'boot'", (boot_id(),))
        self._db.execute("COMMIT")

    def _meta(self, name: str) -> object:
        return self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0]


def headers_of(text: str) -> Headers:
    """
    Return a message's headers as text.

    The function raises no error, because the broker would redeliver a message with unreadable headers without end.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return {UNREADABLE: f"unreadable: {error}"}
    if not isinstance(found, dict):
        return {UNREADABLE: f"unreadable: expected a JSON object, got {type(found).__name__}"}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}


def boot_id() -> str:
    """Return the kernel's id of this boot; "unknown" if the kernel has none (macOS, for development)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return "unknown"


def _inode(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if the file is missing or empty. `cp` creates an empty file before it writes."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return (status.st_dev, status.st_ino) if status.st_size else None
    return None
