"""
The SQLite ledger of schema 6, word for word: its tables, and its statements that write.

A test has a process of the version before by putting these statements in the place of the present ones (`version_before`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from steadyworker.ledger.sqlite.trust import SqliteTrust
from tests.support import schema_7

SCHEMA_VERSION = 6
MIGRATIONS: dict[int, tuple[str, ...]] = {}


def _one_of(column: str, *values: str) -> str:
    """
    Return the condition that the column has one of these values.

    It uses no `IN`: for more than two values, SQLite would make a temporary table at each write of a row.
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
1 for a row that can be late, else NULL.

An index on this expression, which leaves out NULL, finds such rows in the order of their numbers.
"""
CREATE = (
    """
    CREATE TABLE meta (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        ledger_id TEXT NOT NULL,
        schema INTEGER NOT NULL,
        next_fence INTEGER NOT NULL
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
# A fence that is new, and above every fence of a ledger that was lost; the triggers `fence_is_drawn_…` store the next fence.
_FENCE = "(SELECT max(next_fence, :wall_ms) FROM meta)"
_OWN = f"fence = {_FENCE}, owner = :owner, lease_boot = :boot, lease_until = :lease_until"
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
        state = 'done', {_NOBODY}, reason = '', error_class = '', error_text = '',
        ended_at = :now, started_at = started_at + :step, keep_until = :now + :keep_done
    WHERE {_MINE} AND state = 'running'
"""
INTERRUPTED = f"UPDATE jobs SET state = 'interrupted', {_NOBODY}, {_COUNTERS} WHERE {_MINE} AND state = 'running'"
MOVING = f"UPDATE jobs SET {_MOVING} WHERE {_MINE} AND state IN ('running', 'moving')"
MOVED = f"""
    UPDATE jobs SET
        state = iif(target = 'dead', 'dead', 'moved'), {_NOBODY},
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
CANCEL = f"""
    UPDATE jobs SET cancel_reason = :reason, keep_until = iif(fence = 0, :now + :keep_mark, keep_until)
    WHERE {_JOB} AND state NOT IN ('done', 'dead')
"""
CANCEL_UNSEEN = f"""
    INSERT INTO jobs (rowid, namespace, queue, key, round, uid, state, cancel_reason, keep_until, created_at)
    VALUES ({_FENCE}, :namespace, :queue, :key, :round, :uid, 'interrupted', :reason, :now + :keep_mark, :now)
"""
SKIP_FENCE = f"UPDATE meta SET next_fence = {_FENCE} + 1"
"""Run it after `CANCEL_UNSEEN`: it skips the number of the inserted row, so that no other row gets that number."""
CONFLICT = f"UPDATE jobs SET conflicts = conflicts + 1 WHERE {_JOB}"
CLEAR_CHECKPOINT = f"""
    UPDATE jobs SET checkpoint = NULL, checkpoint_fence = NULL WHERE {_JOB} AND state NOT IN ('running', 'moving')
"""
PROGRESS = f"""
    INSERT INTO progress
    SELECT namespace, queue, key, round, fence, :done, :total, :note, :at FROM jobs
    WHERE {_JOB} AND uid = :uid AND fence = :fence
    ON CONFLICT DO UPDATE
    SET fence = excluded.fence, done = excluded.done, total = excluded.total, note = excluded.note, at = excluded.at
"""
FORGET = f"""
    DELETE FROM jobs WHERE {_JOB} AND state = 'dead' AND (checkpoint IS NULL OR EXISTS (
        SELECT 1 FROM jobs AS later
        WHERE later.namespace = :namespace AND later.queue = :queue AND later.key = :key AND later.round = :round + 1
    ))
"""
PURGE = "DELETE FROM jobs WHERE rowid IN (SELECT rowid FROM jobs WHERE keep_until <= :now LIMIT :rows)"
PURGE_OWNERS = "DELETE FROM owners WHERE seen_at <= :now - :keep_owners"
REGISTER = """
    INSERT INTO owners VALUES (:owner, :host, :boot, :lock_path, :queues, :now)
    ON CONFLICT DO UPDATE SET host = excluded.host, queues = excluded.queues, seen_at = excluded.seen_at
"""
UNREGISTER = "DELETE FROM owners WHERE owner = :owner"
BIND = "INSERT INTO bindings VALUES (:namespace, :queue, :identity) ON CONFLICT DO NOTHING"

FILL = "INSERT INTO meta VALUES (1, :ledger_id, :schema, 1)"
_NOTHING = "SELECT 1 WHERE 0"
# That version had no such statements.
KEEP = KEEP_FIRST = MESSAGE = DEFERRED = REPLAY = ORPHANS = TRUSTED_FROM = _NOTHING
SET_COUNTED = COUNT_END = DISTRUST = ATTEND = _NOTHING
COUNTED = "SELECT 0, NULL"


@contextmanager
def version_before() -> Iterator[None]:
    """Let the ledgers that are used in this context have schema 6."""
    with schema_7.version_before(globals()), patch.object(SqliteTrust, "_wrote"):
        yield
