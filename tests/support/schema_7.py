"""
The SQLite ledger of schema 7, word for word: its tables and its statements.

A test has a process of that version by putting these statements in the place of the present ones (`version_before`).
The methods that call them otherwise than today are here too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from steadyworker.ledger import base
from steadyworker.ledger.base import Claimed, Ending, JobId, KeptMessage, Row, State, Token
from steadyworker.ledger.shared import KEEP as _PRESENT_TIMES
from steadyworker.ledger.shared import Values, claim_values, mine_values, pk_values, seen_values
from steadyworker.ledger.sqlite import schema
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.ledger.sqlite.rows import kept_values, new_row, storable
from tests.support import schema_8

SCHEMA_VERSION = 7

TIMES = _PRESENT_TIMES | {"keep_done": 14 * 86_400.0, "keep_confirmed": 86_400.0, "keep_dead": 30 * 86_400.0}
"""The times that this version keeps jobs, for all Workers alike."""

APPLICATION_ID = 0x53574C47
"""The number in the file's header (`SWLG`) that distinguishes a ledger from any other SQLite database."""


def _one_of(column: str, *values: str) -> str:
    """
    Return the condition that the column has one of these values.

    The condition has no `IN`, because for more than two values SQLite would make a temporary table at each write of a row.
    On SQLite 3.40 this table took a third of a claim's time.
    """
    return " OR ".join(f"{column} = '{value}'" for value in values)


_FENCE_TRIGGERS = tuple(
    f"""
    CREATE TRIGGER IF NOT EXISTS fence_is_drawn_{name} AFTER {event} ON jobs WHEN new.fence > 0 BEGIN
        UPDATE meta SET next_fence = new.fence + 1;
    END
    """
    for name, event in (("first", "INSERT"), ("again", "UPDATE OF fence"))
)
_CAN_BE_LATE = "iif(owner IS NOT NULL OR state = 'moved', 1, NULL)"
"""
1 for a row that can be late, otherwise NULL.

With an index on this expression, which leaves out NULL, SQLite finds these rows in the order of their numbers.
"""
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
    "CREATE INDEX jobs_to_wake ON jobs (namespace, queue, wake_at) WHERE owner IS NULL AND wake_at IS NOT NULL",
    # This table has one row for each queue, with the name by which owners register the queue.
    """
    CREATE TABLE attended (
        name TEXT PRIMARY KEY,
        seen_at REAL NOT NULL,
        trusted_from INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID
    """,
)
MIGRATIONS: Mapping[int, tuple[str, ...]] = {
    6: (
        "ALTER TABLE meta ADD COLUMN made_by TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE meta ADD COLUMN incarnation INTEGER",
        "ALTER TABLE meta ADD COLUMN registrations INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE jobs ADD COLUMN wake_at REAL",
        "UPDATE jobs SET wake_at = not_before WHERE state = 'moved'",
        "UPDATE jobs SET wake_at = :now WHERE state = 'interrupted' AND fence > 0",
        # A process of schema 6 that gives up a row does not write `wake_at`, so this trigger writes `wake_at`.
        """
        CREATE TRIGGER schema_6_gives_up_a_row AFTER UPDATE OF owner ON jobs
        WHEN new.owner IS NULL AND old.owner IS NOT NULL AND new.wake_at IS old.wake_at
            AND (new.wake_at IS NOT NULL OR new.state NOT IN ('done', 'dead'))
        BEGIN
            UPDATE jobs SET wake_at = CASE new.state
                WHEN 'moved' THEN new.not_before WHEN 'interrupted' THEN max(coalesce(new.wake_at, 0), CAST(strftime('%s', 'now') AS REAL))
            END WHERE rowid = new.rowid;
        END
        """,
        *_MESSAGES,
    ),
}
"""For each earlier version, the statements that migrate a ledger to the next version; `:now` is the wall clock."""

CREATE = (
    """
    CREATE TABLE meta (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        ledger_id TEXT NOT NULL,
        schema INTEGER NOT NULL,
        next_fence INTEGER NOT NULL,
        made_by TEXT NOT NULL DEFAULT '',
        incarnation INTEGER,
        registrations INTEGER NOT NULL DEFAULT 0
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
    "CREATE UNIQUE INDEX jobs_by_uid ON jobs (uid)",
    "CREATE INDEX jobs_held ON jobs (owner) WHERE owner IS NOT NULL",
    "CREATE INDEX jobs_to_purge ON jobs (keep_until) WHERE keep_until IS NOT NULL",
    f"CREATE INDEX jobs_waiting ON jobs ({_CAN_BE_LATE}) WHERE {_CAN_BE_LATE} IS NOT NULL",
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
# This is a new fence, greater than every fence of a lost ledger; the triggers `fence_is_drawn_…` store the next fence.
_FENCE = "(SELECT max(next_fence, :wall_ms) FROM meta)"
_OWN = f"fence = {_FENCE}, owner = :owner, lease_boot = :boot, lease_until = :lease_until, wake_at = NULL"
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

READ = f"SELECT {_COLUMNS} FROM jobs WHERE {_JOB}"
# A row's number (rowid) is the row's first fence.
# SQLite reports the rowid of an inserted row even without RETURNING; for RETURNING, SQLite would make a temporary table.
CLAIM_NEW = f"""
    INSERT INTO jobs (
        rowid, namespace, queue, key, round, uid, body_sha256, state, hop, fence, owner, lease_boot, lease_until,
        attempts, crashes, losses, interruptions, first_failed_at, checkpoint, created_at, started_at, worker
    ) VALUES (
        {_FENCE}, :namespace, :queue, :key, :round, :uid, :body_sha256, 'running', :hop, {_FENCE}, :owner, :boot,
        :lease_until, :attempts, :crashes, :losses, :interruptions, :first_failed_at, {_CHECKPOINT_OF_ROUND_BEFORE},
        :now, :now, :worker
    ) ON CONFLICT DO NOTHING
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
        {_FENCE}, :namespace, :queue, :key, :round, :uid, :body_sha256, 'moved', -1, {_FENCE}, 'retry', :now, :now, :reason,
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


def _unseen(for_: str, index: str, which: str) -> str:
    return f"""
        SELECT {_COLUMNS}, {for_} AS unseen_for, {_HINDRANCE} AS hindrance FROM jobs INDEXED BY {index}
        WHERE {which} AND namespace = :namespace AND queue = :queue AND fence > 0 AND (hindrance IS NOT NULL) = :stranded
    """


# `min` of two ages is the age of the later moment.
_HELD_FOR = "min(:boottime - :margin - iif(lease_boot = :boot, lease_until, 0.0), :now - coalesce(wake_at, 0))"
# The second part reads its index in order and stops after `:rows`, even if a hundred thousand rows are late.
ORPHANS = f"""
    SELECT * FROM ({_unseen(_HELD_FOR, "jobs_held", f"owner IS NOT NULL AND {_HELD_FOR} > :after")})
    UNION ALL SELECT * FROM (
        {_unseen(":now - wake_at", "jobs_to_wake", "owner IS NULL AND wake_at IS NOT NULL AND wake_at < :now - :after")}
        ORDER BY wake_at LIMIT :rows
    ) ORDER BY unseen_for DESC LIMIT :rows
"""
TRUSTED_FROM = "SELECT trusted_from FROM attended WHERE name = :name"
CHECKPOINT_OF = f"SELECT checkpoint FROM jobs WHERE {_JOB}"
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
DONE = f"""
    UPDATE jobs SET
        state = 'done', {_NOBODY}, wake_at = NULL, reason = '', error_class = '', error_text = '',
        ended_at = :now, started_at = started_at + :step, keep_until = :now + :keep_done
    WHERE {_MINE} AND state = 'running'
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
    UPDATE jobs SET settled = 'confirmed', keep_until = iif(state = 'done', :now + :keep_confirmed, keep_until)
    WHERE {_JOB} AND uid = :uid AND fence = :fence AND state NOT IN ('running', 'moving')
"""
SETTLED_SENT = f"""
    UPDATE jobs SET settled = 'sent'
    WHERE {_JOB} AND uid = :uid AND fence = :fence AND state NOT IN ('running', 'moving') AND settled = 'unknown'
"""
STATE_OF = f"SELECT state FROM jobs WHERE {_JOB}"
# A row without a fence was never claimed; it only holds a cancel mark, and the ledger keeps it for 14 days.
CANCEL = f"""
    UPDATE jobs SET cancel_reason = :reason, keep_until = iif(fence = 0, :now + :keep_mark, keep_until)
    WHERE {_JOB} AND state NOT IN ('done', 'dead')
"""
CANCEL_UNSEEN = f"""
    INSERT INTO jobs (rowid, namespace, queue, key, round, uid, state, cancel_reason, keep_until, created_at)
    VALUES ({_FENCE}, :namespace, :queue, :key, :round, :uid, 'interrupted', :reason, :now + :keep_mark, :now)
"""
SKIP_FENCE = f"UPDATE meta SET next_fence = {_FENCE} + 1"
"""The statement to run after `CANCEL_UNSEEN`: no other row gets the number of the row that `CANCEL_UNSEEN` inserted."""
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
LAST_PROGRESS = f"SELECT done, total, note, at FROM progress WHERE {_JOB}"
LAST_ROUND = "SELECT max(round) FROM jobs WHERE namespace = :namespace AND queue = :queue AND key = :key"
_PAGE = f"""
    SELECT {_COLUMNS}, jobs.rowid FROM jobs
    WHERE jobs.rowid < :below AND (:namespace IS NULL OR namespace = :namespace) AND (:queue IS NULL OR queue = :queue)
        AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
"""
_NEWEST_FIRST = "ORDER BY jobs.rowid DESC LIMIT :rows"
PAGE = f"""
    {_PAGE} AND (NOT :kept OR EXISTS (SELECT 1 FROM messages WHERE number = jobs.rowid) AND {_LAST_OF_ITS_KEY})
    {_NEWEST_FIRST}
"""
# This is a separate statement, because SQLite chooses a partial index without regard to the values.
LATE_PAGE = f"""
    {_PAGE} AND {_CAN_BE_LATE} = 1 AND {_LATE_BY} > :late_by AND {_LAST_OF_ITS_KEY} {_NEWEST_FIRST}
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
_NEXT = "(SELECT next_fence FROM meta)"
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
READERS = (
    """
    SELECT uid, cancel_reason FROM jobs
    WHERE uid IN (SELECT value FROM json_each(:uids)) AND cancel_reason IS NOT NULL
""",
    "SELECT uid FROM jobs WHERE uid IN (SELECT value FROM json_each(:uids)) AND state IN ('done', 'dead')",
)
"""The two statements that are called otherwise today: the marks of cancels, and the jobs that have ended."""


def _drawn(self: SqliteLedger) -> Values:
    return {"drawn": int(self._clock.wall() * 1000)}


def _claim(self: SqliteLedger, claim: Claimed) -> Row | None:
    now = self._started_now()
    values = claim_values(claim, self._worker) | {"now": now}
    if claim.seen is not None:
        return self._own(schema.CLAIM_SEEN, seen_values(claim.seen) | values, claim.owner, claim.message)
    uid = secrets.token_hex(16)
    values |= pk_values(claim.id) | self._lease() | _drawn(self) | {"uid": uid}
    with self._file.transaction() as db:
        inserted = db.execute(schema.CLAIM_NEW, values)
        if inserted.rowcount != 1:
            return None
        if claim.message is not None:
            db.execute(schema.KEEP, kept_values(claim.message) | {"number": inserted.lastrowid})
    return new_row(claim, uid, inserted.lastrowid or 0, None, now, self._worker)


def _replay(self: SqliteLedger, id: JobId, message: KeptMessage, body_sha256: bytes) -> bool:
    values = pk_values(id) | _drawn(self) | {"uid": secrets.token_hex(16), "body_sha256": body_sha256}
    values |= TIMES | {"now": self._clock.wall(), "reason": base.REPLAYED}
    with self._file.transaction() as db:
        inserted = db.execute(schema.REPLAY, values)
        if inserted.rowcount == 1:
            db.execute(schema.KEEP, kept_values(message) | {"number": inserted.lastrowid})
    return inserted.rowcount == 1


def _done(self: SqliteLedger, token: Token, _end_of_run: Ending | None = None) -> bool:
    return self._write(schema.DONE, token, TIMES | {"now": self._clock.wall(), "step": self._step()})


def _settled(self: SqliteLedger, token: Token, known: bool) -> None:
    values = mine_values(token) | TIMES | {"now": self._clock.wall()}
    self._file.later(token.id.key, schema.SETTLED_CONFIRMED if known else schema.SETTLED_SENT, values)


def _cancel(self: SqliteLedger, id: JobId, reason: str) -> State | None:
    values = pk_values(id) | TIMES | {"reason": storable(reason), "now": self._clock.wall()}
    with self._file.transaction() as db:
        found = db.execute(schema.STATE_OF, values).fetchone()
        if found is not None:
            db.execute(schema.CANCEL, values)
            return State(found[0])
        values |= _drawn(self) | {"uid": secrets.token_hex(16)}
        db.execute(schema.CANCEL_UNSEEN, values)
        db.execute(getattr(schema, "SKIP_FENCE"), values)  # noqa: B009 - only this version has it
        return None


_METHODS: Mapping[str, Callable[..., Any]] = {
    "claim": _claim,
    "replay": _replay,
    "done": _done,
    "settled": _settled,
    "cancel": _cancel,
}


@contextmanager
def version_before(statements: Mapping[str, object] | None = None) -> Iterator[None]:
    """Let the ledgers that are used in this context have schema 7, or an earlier schema with these statements."""
    with ExitStack() as stack:
        # Today the ledger draws the fence first, and binds it; these statements draw it, and bind the wall clock.
        stack.enter_context(patch.object(schema, "FENCE", "SELECT ?"))
        for name, value in (statements or globals()).items():
            if name.isupper() and not name.startswith("_") and name not in {"TIMES", "READERS"}:
                ours = value.replace(":wall_ms", ":drawn") if isinstance(value, str) else value
                stack.enter_context(patch.object(schema, name, ours, create=name in {"SKIP_FENCE", "LATE_PAGE"}))
        for name, method in {**schema_8.METHODS, **_METHODS}.items():
            stack.enter_context(patch.object(SqliteLedger, name, method))
        yield
