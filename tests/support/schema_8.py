"""
The SQLite ledger of schema 8, word for word: its tables, its statements, and the methods that call them otherwise than today.

The migrations to schema 8 are left out.

A test has a process of that version by putting these in the place of the present ones (`version_before`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from steadyworker.ledger import retention
from steadyworker.ledger.base import Claimed, Ending, KeptMessage, Orders, Row, Token, Verdict
from steadyworker.ledger.facts import OwnerReport
from steadyworker.ledger.shared import Values, claim_values, counters_values, never_dead, seen_values
from steadyworker.ledger.sqlite import ledger as present
from steadyworker.ledger.sqlite import schema
from steadyworker.ledger.sqlite.facts import SqliteFacts
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.ledger.sqlite.rows import kept_values, new_row, row_of, row_values
from steadyworker.outcome import Counters

SCHEMA_VERSION = 8
"""The version of the tables, raised with every change; a worker process migrates an older ledger to this version."""

APPLICATION_ID = 0x53574C47
"""The number in the file's header (`SWLG`) that distinguishes a ledger from any other SQLite database."""


def _one_of(column: str, *values: str) -> str:
    """
    Return the condition that the column has one of these values.

    The condition has no `IN`, because for more than two values SQLite would make a temporary table at each write of a row.
    On SQLite 3.40 this table took a third of a claim's time.
    """
    return " OR ".join(f"{column} = '{value}'" for value in values)


_AHEAD = 60_000
"""
How far `meta.next_fence` is ahead of the last fence when it is written.

A process of schema 7 draws this number, or the wall clock in milliseconds, whichever is greater.
So the number must be above every fence; a claim writes it about once a minute, because fences follow the wall clock.
A fence that is equal to this number was drawn from it, and moves it by one only: otherwise each job of schema 7 would move it by a minute.
"""

_FENCE_TRIGGERS = (
    f"""
    CREATE TRIGGER fence_is_drawn_first AFTER INSERT ON jobs WHEN new.rowid >= (SELECT next_fence FROM meta) BEGIN
        UPDATE meta SET next_fence = new.rowid + iif(new.rowid = next_fence, 1, {_AHEAD});
    END
    """,
    """
    CREATE TRIGGER fence_is_drawn_again AFTER UPDATE OF fence ON jobs BEGIN
        UPDATE meta SET least_fence = max(least_fence, new.fence + 1), next_fence = max(next_fence, new.fence + 1);
    END
    """,
    """
    CREATE TRIGGER fence_outlives_its_row AFTER DELETE ON jobs
    WHEN NOT EXISTS (SELECT 1 FROM jobs WHERE rowid > old.rowid) BEGIN
        UPDATE meta SET least_fence = max(least_fence, old.rowid + 1);
    END
    """,
)
UNFINISHED = "(owner IS NOT NULL OR wake_at IS NOT NULL OR fence = 0)"
"""
The condition that a job is neither done nor dead: it has an owner, or waits for a message, or only holds a cancel mark.

The index of these rows begins with the owner, so it finds the rows of one owner, of any owner, and of none.
The index has the name of an index of schema 7, because statements of schema 7 name the index that they use.
"""
_JOBS_HELD = f"CREATE INDEX jobs_held ON jobs (owner, namespace, queue, wake_at) WHERE {UNFINISHED}"
_MESSAGES = (
    # The number is the number of the job's row.
    "CREATE TABLE messages (number INTEGER PRIMARY KEY, body BLOB NOT NULL, facts BLOB NOT NULL) STRICT",
    """
    CREATE TRIGGER message_goes_with_its_job AFTER DELETE ON jobs BEGIN
        DELETE FROM messages WHERE number = old.rowid;
    END
    """,
    """
    CREATE TRIGGER message_goes_when_its_job_is_done AFTER UPDATE OF state ON jobs WHEN new.state = 'done' BEGIN
        DELETE FROM messages WHERE number = old.rowid;
    END
    """,
    # This table has one row for each queue, with the name by which owners register the queue.
    """
    CREATE TABLE attended (
        name TEXT PRIMARY KEY,
        seen_at REAL NOT NULL,
        trusted_from INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
)
CREATE = (
    """
    CREATE TABLE meta (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        ledger_id TEXT NOT NULL,
        schema INTEGER NOT NULL,
        next_fence INTEGER NOT NULL,
        made_by TEXT NOT NULL DEFAULT '',
        incarnation INTEGER,
        registrations INTEGER NOT NULL DEFAULT 0,
        least_fence INTEGER NOT NULL DEFAULT 1
    ) STRICT
    """,
    f"""
    CREATE TABLE jobs (
        namespace TEXT NOT NULL,
        queue TEXT NOT NULL,
        key TEXT NOT NULL,
        round INTEGER NOT NULL,
        uid TEXT NOT NULL,
        body_sha256 BLOB,
        state TEXT NOT NULL CHECK ({_one_of("state", "running", "interrupted", "moving", "moved", "done", "dead")}),
        hop INTEGER NOT NULL DEFAULT 0,
        fence INTEGER NOT NULL DEFAULT 0,
        owner TEXT,
        lease_boot TEXT,
        lease_until REAL,
        attempts INTEGER NOT NULL DEFAULT 0,
        crashes INTEGER NOT NULL DEFAULT 0,
        losses INTEGER NOT NULL DEFAULT 0,
        interruptions INTEGER NOT NULL DEFAULT 0,
        target TEXT CHECK ({_one_of("target", "retry", "dead")}),
        due_boot TEXT,
        due REAL,
        not_before REAL,
        delay REAL NOT NULL DEFAULT 0,
        reason TEXT NOT NULL DEFAULT '',
        error_class TEXT NOT NULL DEFAULT '',
        error_text TEXT NOT NULL DEFAULT '',
        checkpoint BLOB,
        checkpoint_fence INTEGER,
        export_state BLOB,
        cancel_reason TEXT,
        settled TEXT NOT NULL DEFAULT 'unknown' CHECK ({_one_of("settled", "unknown", "sent", "confirmed")}),
        conflicts INTEGER NOT NULL DEFAULT 0,
        keep_until REAL,
        created_at REAL NOT NULL,
        started_at REAL,
        first_failed_at REAL,
        ended_at REAL,
        worker TEXT NOT NULL DEFAULT '',
        wake_at REAL,
        PRIMARY KEY (namespace, queue, key, round)
    ) STRICT
    """,
    _JOBS_HELD,
    "CREATE INDEX jobs_to_purge ON jobs (keep_until) WHERE keep_until IS NOT NULL",
    """
    CREATE TABLE progress (
        namespace TEXT NOT NULL,
        queue TEXT NOT NULL,
        key TEXT NOT NULL,
        round INTEGER NOT NULL,
        fence INTEGER NOT NULL,
        done REAL,
        total REAL,
        note TEXT NOT NULL,
        at REAL NOT NULL,
        PRIMARY KEY (namespace, queue, key, round)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TRIGGER progress_goes_with_its_job AFTER DELETE ON jobs BEGIN
        DELETE FROM progress
        WHERE namespace = old.namespace AND queue = old.queue AND key = old.key AND round = old.round;
    END
    """,
    *_FENCE_TRIGGERS,
    """
    CREATE TABLE owners (
        owner TEXT PRIMARY KEY,
        host TEXT NOT NULL,
        boot_id TEXT NOT NULL,
        lock_path TEXT NOT NULL,
        queues TEXT NOT NULL,
        seen_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE bindings (
        namespace TEXT NOT NULL,
        queue TEXT NOT NULL,
        broker_identity TEXT NOT NULL,
        PRIMARY KEY (namespace, queue)
    ) STRICT, WITHOUT ROWID
    """,
    *_MESSAGES,
)

_JOB = "namespace = :namespace AND queue = :queue AND key = :key AND round = :round"
_SEEN = f"{_JOB} AND uid = :uid AND fence = :fence AND state = :state"
_MINE = f"{_JOB} AND uid = :uid AND fence = :fence AND owner = :owner"
# The columns are in the order in which `rows.row_of` unpacks them.
_COLUMNS = """
    namespace, queue, key, round, uid, state, body_sha256, hop, fence, owner, lease_boot, lease_until,
    attempts, crashes, losses, interruptions, first_failed_at, target, due_boot, due, not_before, delay,
    reason, error_class, error_text, checkpoint, checkpoint_fence, export_state, cancel_reason, settled,
    conflicts, created_at, started_at, ended_at, worker
"""
_CHECKPOINT_OF_ROUND_BEFORE = """(
    SELECT earlier.checkpoint FROM jobs AS earlier
    WHERE earlier.namespace = :namespace AND earlier.queue = :queue AND earlier.key = :key
        AND earlier.round = :round - 1
)"""
_ABOVE_ALL = "max(least_fence, (SELECT coalesce(max(rowid), 0) + 1 FROM jobs))"
"""
The smallest number that is greater than every fence, and than every row's number.

A row's number (rowid) is the row's first fence, so the newest row shows the last fence without a write of another table.
The triggers write `meta.least_fence` for the fences that no row's number shows: those of later claims, and of deleted rows.
"""

FENCE = f"SELECT max(?, {_ABOVE_ALL}) FROM meta"
"""The next fence; the parameter is the wall clock in milliseconds, so that the fence is greater than every fence of a lost ledger."""

_OWN = "fence = :drawn, owner = :owner, lease_boot = :boot, lease_until = :lease_until, wake_at = NULL"
_NOBODY = "owner = NULL, lease_boot = NULL, lease_until = NULL"
_COUNTERS = """
    attempts = :attempts, crashes = :crashes, losses = :losses, interruptions = :interruptions,
    first_failed_at = :first_failed_at
"""
_MOVING = f"""
    state = 'moving', target = :target, due_boot = :boot, due = :due, not_before = :not_before, delay = :delay,
    reason = :reason, error_class = :error_class, error_text = :error_text, {_COUNTERS},
    checkpoint = iif(:keep_checkpoint, checkpoint, NULL),
    checkpoint_fence = iif(:keep_checkpoint, checkpoint_fence, NULL),
    export_state = iif(:keep_checkpoint, export_state, NULL)
"""

# This expression has the same value as `late_by` in `rows.row_of`.
_LATE_BY = """CASE
    WHEN owner IS NOT NULL THEN :boottime - iif(lease_boot = :boot, lease_until, 0.0) WHEN state = 'moved' THEN :now - not_before
END"""

NUMBER = "SELECT rowid FROM jobs WHERE namespace = ? AND queue = ? AND key = ? AND round = ?"
READ = f"SELECT {_COLUMNS} FROM jobs WHERE {_JOB}"
# The statements of a job that ends well have positional parameters, because SQLite looks up each named parameter.
CLAIM_NEW = """
    INSERT INTO jobs (
        rowid, namespace, queue, key, round, uid, body_sha256, state, hop, fence, owner, lease_boot, lease_until,
        attempts, crashes, losses, interruptions, first_failed_at, checkpoint, created_at, started_at, worker
    ) VALUES (?, ?, ?, ?, ?, ?, ?, 'running', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
KEEP = "INSERT INTO messages (number, body, facts) VALUES (:number, :body, :facts)"
KEEP_FIRST = f"""
    INSERT INTO messages (number, body, facts) SELECT rowid, :body, :facts FROM jobs WHERE {_JOB} ON CONFLICT DO NOTHING
"""
MESSAGE = f"SELECT body, facts FROM messages WHERE number = (SELECT rowid FROM jobs WHERE {_JOB})"
REPLAY = f"""
    INSERT INTO jobs (
        rowid, namespace, queue, key, round, uid, body_sha256, state, hop, fence, target, not_before, wake_at, reason,
        checkpoint, keep_until, created_at
    ) VALUES (
        :drawn, :namespace, :queue, :key, :round, :uid, :body_sha256, 'moved', -1, :drawn, 'retry', :now, :now, :reason,
        {_CHECKPOINT_OF_ROUND_BEFORE}, :now + :keep_moved, :now
    ) ON CONFLICT DO NOTHING
"""
DEFERRED = f"""
    UPDATE jobs SET wake_at = max(coalesce(wake_at, 0), :wake_at) WHERE {_JOB} AND state NOT IN ('done', 'dead') AND fence > 0
"""
_LAST_OF_ITS_KEY = """NOT EXISTS (
    SELECT 1 FROM jobs AS later
    WHERE later.namespace = jobs.namespace AND later.queue = jobs.queue AND later.key = jobs.key AND later.round > jobs.round
)"""
# Such a job becomes `dead` without a message, and its handler does not run again.
_DIES = "(state = 'moving' AND target = 'dead')"
_HINDRANCE = f"""CASE
    WHEN NOT {_LAST_OF_ITS_KEY} THEN NULL
    WHEN fence < :trusted_from THEN 'old record'
    WHEN NOT {_DIES} AND NOT EXISTS (SELECT 1 FROM messages WHERE number = jobs.rowid) THEN 'no message'
END"""


def _unseen(for_: str, which: str) -> str:
    return f"""
        SELECT {_COLUMNS}, {for_} AS unseen_for, {_HINDRANCE} AS hindrance FROM jobs INDEXED BY jobs_held
        WHERE {UNFINISHED} AND {which} AND namespace = :namespace AND queue = :queue AND fence > 0
            AND (hindrance IS NOT NULL) = :stranded
    """


# `min` of two ages is the age of the later moment.
_HELD_FOR = "min(:boottime - :margin - iif(lease_boot = :boot, lease_until, 0.0), :now - coalesce(wake_at, 0))"
# The second part reads its index in order and stops after `:rows`, even if a hundred thousand rows are late.
ORPHANS = f"""
    SELECT * FROM ({_unseen(_HELD_FOR, f"owner IS NOT NULL AND {_HELD_FOR} > :after")})
    UNION ALL SELECT * FROM (
        {_unseen(":now - wake_at", "owner IS NULL AND wake_at IS NOT NULL AND wake_at < :now - :after")}
        ORDER BY wake_at LIMIT :rows
    ) ORDER BY unseen_for DESC LIMIT :rows
"""
TRUSTED_FROM = "SELECT trusted_from FROM attended WHERE name = :name"
CHECKPOINT_OF = "SELECT checkpoint FROM jobs WHERE namespace = ? AND queue = ? AND key = ? AND round = ?"
CLAIM_SEEN = f"""
    UPDATE jobs SET
        state = 'running', hop = max(hop, :hop), {_OWN}, {_COUNTERS},
        body_sha256 = coalesce(body_sha256, :body_sha256),
        checkpoint = iif(fence = 0, {_CHECKPOINT_OF_ROUND_BEFORE}, checkpoint),
        target = NULL, due_boot = NULL, due = NULL, not_before = NULL, delay = 0,
        settled = 'unknown', keep_until = NULL, started_at = :now, worker = :worker
    WHERE {_SEEN} AND state NOT IN ('done', 'dead') RETURNING {_COLUMNS}
"""
TAKE_OVER = f"UPDATE jobs SET {_OWN} WHERE {_SEEN} AND state = 'moving' RETURNING {_COLUMNS}"
LOSE = f"UPDATE jobs SET {_OWN}, {_MOVING} WHERE {_SEEN} AND state = 'running' RETURNING {_COLUMNS}"
RENEW = f"""
    UPDATE jobs SET lease_boot = :boot, lease_until = :lease_until, started_at = started_at + :step
    WHERE {_MINE} AND state IN ('running', 'moving') RETURNING cancel_reason
"""
MAY_COMMIT = f"""
    UPDATE jobs SET lease_boot = :boot, lease_until = :lease_until
    WHERE {_MINE} AND state = 'running' RETURNING cancel_reason
"""
CHECKPOINT = f"""
    UPDATE jobs SET checkpoint = :value, checkpoint_fence = iif(:value IS NULL, NULL, fence)
    WHERE {_MINE} AND state = 'running'
"""
EXPORT_STATE = f"UPDATE jobs SET export_state = :value WHERE {_MINE} AND state = 'running'"
_THE_RUN = "rowid = ? AND uid = ? AND fence = ?"
DONE = f"""
    UPDATE jobs SET
        state = 'done', {_NOBODY}, wake_at = NULL, reason = '', error_class = '', error_text = '',
        ended_at = ?, started_at = started_at + ?, keep_until = ?
    WHERE {_THE_RUN} AND owner = ? AND state = 'running'
"""
INTERRUPTED = f"""
    UPDATE jobs SET state = 'interrupted', {_NOBODY}, {_COUNTERS}, wake_at = max(coalesce(wake_at, 0), :now)
    WHERE {_MINE} AND state = 'running'
"""
MOVING = f"UPDATE jobs SET {_MOVING} WHERE {_MINE} AND state IN ('running', 'moving')"
MOVED = f"""
    UPDATE jobs SET
        state = iif(target = 'dead', 'dead', 'moved'), {_NOBODY},
        wake_at = iif(target = 'dead', NULL, :now + :wake_in),
        ended_at = iif(target = 'dead', :now, NULL), started_at = started_at + :step,
        keep_until = iif(target = 'dead', :now + :keep_dead, max(:now, not_before) + :keep_moved)
    WHERE {_MINE} AND state = 'moving'
"""
SETTLED_CONFIRMED = f"""
    UPDATE jobs SET settled = 'confirmed', keep_until = iif(state = 'done', ?, keep_until)
    WHERE {_THE_RUN} AND state NOT IN ('running', 'moving')
"""
SETTLED_SENT = f"""
    UPDATE jobs SET settled = 'sent'
    WHERE {_THE_RUN} AND state NOT IN ('running', 'moving') AND settled = 'unknown'
"""
STATE_OF = f"SELECT state FROM jobs WHERE {_JOB}"
# A row without a fence was never claimed; it only holds a cancel mark, and the ledger keeps it for 14 days.
CANCEL = f"""
    UPDATE jobs SET cancel_reason = :reason, keep_until = iif(fence = 0, :now + :keep_mark, keep_until)
    WHERE {_JOB} AND state NOT IN ('done', 'dead')
"""
CANCEL_UNSEEN = """
    INSERT INTO jobs (rowid, namespace, queue, key, round, uid, state, cancel_reason, keep_until, created_at)
    VALUES (:drawn, :namespace, :queue, :key, :round, :uid, 'interrupted', :reason, :now + :keep_mark, :now)
"""
CONFLICT = f"UPDATE jobs SET conflicts = conflicts + 1 WHERE {_JOB}"
CLEAR_CHECKPOINT = f"""
    UPDATE jobs SET checkpoint = NULL, checkpoint_fence = NULL WHERE {_JOB} AND state NOT IN ('running', 'moving')
"""
PROGRESS = f"""
    INSERT INTO progress (namespace, queue, key, round, fence, done, total, note, at)
    SELECT namespace, queue, key, round, fence, :done, :total, :note, :at FROM jobs
    WHERE {_JOB} AND uid = :uid AND fence = :fence
    ON CONFLICT DO UPDATE
    SET fence = excluded.fence, done = excluded.done, total = excluded.total, note = excluded.note, at = excluded.at
"""
CANCEL_MARKS = "SELECT uid, cancel_reason FROM jobs WHERE owner = :owner AND cancel_reason IS NOT NULL"
_ENDED = "SELECT uid FROM jobs WHERE uid IN (SELECT value FROM json_each(:uids)) AND (state = 'done' OR state = 'dead')"
ENDED = f"{_ENDED} AND rowid IN (SELECT value FROM json_each(:numbers))"
ENDED_UNNUMBERED = _ENDED
"""The statement for uids of schema 7, which do not begin with the number of their row; it reads every row."""
LAST_PROGRESS = f"SELECT done, total, note, at FROM progress WHERE {_JOB}"
LAST_ROUND = "SELECT max(round) FROM jobs WHERE namespace = :namespace AND queue = :queue AND key = :key"
_LISTED = f"""
    SELECT {_COLUMNS}, jobs.rowid, done, total, note, at FROM jobs
    LEFT JOIN (SELECT namespace, queue, key, round, done, total, note, at FROM progress) USING (namespace, queue, key, round)
    WHERE (:namespace IS NULL OR namespace = :namespace) AND (:queue IS NULL OR queue = :queue)
        AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
        AND (NOT :kept OR EXISTS (SELECT 1 FROM messages WHERE number = jobs.rowid) AND {_LAST_OF_ITS_KEY})
"""
PAGE = f"{_LISTED} AND jobs.rowid < :below ORDER BY jobs.rowid DESC LIMIT :rows"
# For jobs that are not done, a listing first reads the numbers of their rows, and then pages of these rows.
# So it reads no row of the hundreds of thousands that are done.
UNFINISHED_NUMBERS = f"SELECT rowid FROM jobs INDEXED BY jobs_held WHERE {UNFINISHED} ORDER BY rowid DESC"
HELD_NUMBERS = "SELECT rowid FROM jobs INDEXED BY jobs_held WHERE owner IS NOT NULL ORDER BY rowid DESC"
PAGE_OF_NUMBERS = f"""
    {_LISTED} AND jobs.rowid IN (SELECT value FROM json_each(:numbers))
        AND (:late_by IS NULL OR {_LATE_BY} > :late_by AND {_LAST_OF_ITS_KEY})
    ORDER BY jobs.rowid DESC
"""
FORGET = f"""
    DELETE FROM jobs WHERE {_JOB} AND state = 'dead' AND (checkpoint IS NULL OR EXISTS (
        SELECT 1 FROM jobs AS later
        WHERE later.namespace = :namespace AND later.queue = :queue AND later.key = :key AND later.round = :round + 1
    ))
"""
PURGE = "DELETE FROM jobs WHERE rowid IN (SELECT rowid FROM jobs WHERE keep_until <= :now LIMIT :rows)"
PURGE_OWNERS = "DELETE FROM owners WHERE seen_at <= :now - :keep_owners"
HOLDING = """
    SELECT asked.value FROM json_each(:owners) AS asked
    WHERE EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_held WHERE owner = asked.value)
"""
REGISTER = """
    INSERT INTO owners (owner, host, boot_id, lock_path, queues, seen_at)
    VALUES (:owner, :host, :boot, :lock_path, :queues, :now)
    ON CONFLICT DO UPDATE SET host = excluded.host, queues = excluded.queues, seen_at = excluded.seen_at
"""
COUNTED = "SELECT registrations, incarnation FROM meta"
SET_COUNTED = "UPDATE meta SET registrations = :count, incarnation = :incarnation"
COUNT_END = "UPDATE meta SET registrations = registrations + 1 WHERE registrations >= :known RETURNING registrations"
_NEXT = f"(SELECT {_ABOVE_ALL} FROM meta)"
DISTRUST = f"UPDATE attended SET trusted_from = {_NEXT}"
ATTEND = f"""
    INSERT INTO attended (name, seen_at, trusted_from) VALUES (:name, :now, {_NEXT})
    ON CONFLICT DO UPDATE SET
        trusted_from = iif(:now - seen_at > :absence, excluded.trusted_from, trusted_from), seen_at = excluded.seen_at
"""
UNREGISTER = "DELETE FROM owners WHERE owner = :owner"
OWNERS = "SELECT owner, host, queues, seen_at FROM owners WHERE seen_at > :now - :keep_owners"
BIND = """
    INSERT INTO bindings (namespace, queue, broker_identity) VALUES (:namespace, :queue, :identity) ON CONFLICT DO NOTHING
"""
BOUND = "SELECT broker_identity FROM bindings WHERE namespace = :namespace AND queue = :queue"
QUEUES = "SELECT queue FROM bindings WHERE namespace = :namespace"
FILL = "INSERT INTO meta (one, ledger_id, schema, next_fence, made_by) VALUES (1, :ledger_id, :schema, 1, :made_by)"
BINDINGS = "SELECT namespace, queue FROM bindings ORDER BY namespace, queue"
SCHEMA = "SELECT schema FROM meta"
MADE_BY = "SELECT made_by FROM meta"
MADE = "UPDATE meta SET schema = :schema, made_by = :made_by"
LEDGER_ID = "SELECT ledger_id FROM meta"


def _claim(self: SqliteLedger, claim: Claimed) -> Row | None:
    if claim.seen is not None:
        values = seen_values(claim.seen) | claim_values(claim, self._worker) | {"now": self._started_now()}
        return _own(self, schema.CLAIM_SEEN, values, claim.owner, claim.message)
    with self._file.claim() as db:
        return _insert(self, db, claim)


def _record(
    self: SqliteLedger, claims: Sequence[Claimed], ended: Sequence[tuple[Token, Ending | None]]
) -> tuple[Sequence[Row | None], Sequence[bool]]:
    ends = [_end(self, token) for token, _ in ended]
    with self._file.claim() as db:
        rows = [_insert(self, db, claim) for claim in claims]
        return rows, [db.execute(schema.DONE, end).rowcount == 1 for end in ends]


def _insert(self: SqliteLedger, db: sqlite3.Connection, claim: Claimed) -> Row | None:
    number, message = self._draw(db), claim.message
    checkpoint = present._checkpoint_of_round_before(db, claim.id)
    row = new_row(claim, present._new_uid(number), number, checkpoint, self._started_now(), self._worker)
    lease_until = self._clock.boottime() + self._times.lease
    if db.execute(schema.CLAIM_NEW, row_values(row, self._boot, lease_until)).rowcount != 1:
        return None
    if message is not None:
        db.execute(schema.KEEP, (number, message.body, message.facts))
    return row


def _end(self: SqliteLedger, token: Token) -> tuple[Any, ...]:
    now = self._clock.wall()
    return (now, self._step(), now + retention.DONE, *self._run(token), token.owner)


def _lose(self: SqliteLedger, seen: Row, owner: str, verdict: Verdict) -> Row | None:
    return _own(self, schema.LOSE, seen_values(seen) | self._verdict(verdict), owner)


def _done(self: SqliteLedger, token: Token, _end_of_run: Ending | None = None) -> bool:
    return self._change(schema.DONE, _end(self, token)) == 1


def _interrupted(self: SqliteLedger, token: Token, counters: Counters, _end_of_run: Ending | None = None) -> bool:
    return self._write(schema.INTERRUPTED, token, counters_values(counters) | {"now": self._clock.wall()})


def _moving(self: SqliteLedger, token: Token, verdict: Verdict, _end_of_run: Ending | None = None) -> bool:
    return self._write(schema.MOVING, token, self._verdict(verdict))


def _own(
    self: SqliteLedger, statement: str, values: Values, owner: str, message: KeptMessage | None = None
) -> Row | None:
    with self._file.claim() as db:
        drawn = {"owner": owner, "drawn": self._draw(db)}
        found = db.execute(statement, values | self._lease() | drawn).fetchall()
        if found and message is not None:
            db.execute(schema.KEEP_FIRST, values | kept_values(message))
    return row_of(found[0], self._clock, self._times, self._boot, never_dead) if found else None


def _register(
    self: SqliteLedger, owner: str, host: str, queues: Sequence[str], _report: OwnerReport | None = None
) -> bool:
    return self._trust.register(owner, host, queues, None)


def _orders(self: SqliteLedger, owner: str) -> Orders:
    return Orders(dict(self._fetch(CANCEL_MARKS, {"owner": owner})))


_METHODS: Mapping[str, Callable[..., Any]] = {
    "register": _register,
    "orders": _orders,
    "claim": _claim,
    "record": _record,
    "_own": _own,
    "lose": _lose,
    "done": _done,
    "interrupted": _interrupted,
    "moving": _moving,
}
_GONE = {"CANCEL_MARKS", "ENDED_UNNUMBERED", "NUMBER"}
"""The statements that only this version has."""


@contextmanager
def version_before() -> Iterator[None]:
    """Let the ledgers that are used in this context have schema 8."""
    with ExitStack() as stack:
        for name, value in globals().items():
            if name.isupper() and not name.startswith("_"):
                stack.enter_context(patch.object(schema, name, value, create=name in _GONE))
        for name, method in _METHODS.items():
            stack.enter_context(patch.object(SqliteLedger, name, method))
        for name in ("add_link_events", "add_minutes", "purge"):  # that version had no facts
            stack.enter_context(patch.object(SqliteFacts, name, lambda *_: None))
        yield
