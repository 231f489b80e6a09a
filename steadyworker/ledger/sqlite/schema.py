"""
The SQLite ledger's tables and statements.

The tables have two kinds of times.
Times that decide when a job may run (`lease_until`, `due`) are readings of CLOCK_BOOTTIME, stored with the boot's id.
Times that people read, or that decide when a row is removed (`…_at`, `not_before`, `keep_until`) are readings of the wall clock.
The start of a run is such a wall time; the owner's renewals add each step of the clock to this time.
`wake_at`, which only serves to find jobs whose message may be lost, is also a wall time; `due` decides whether a retry may run.

While a newer process migrates the file, processes of the previous version go on until they open the file again.
So a migration only adds tables, columns with a default, and triggers that write values which the older version does not know.
It can also remove a column that the older version does not use.
It can also replace an index, but then a query of the older version can become slower until its processes end.
Each statement that inserts into a table names the columns, so that a later migration can add columns.
"""
# ruff: noqa: S608 - this file makes its statements from its own constants, once, at import

from __future__ import annotations

from collections.abc import Mapping

from steadyworker.ledger.base import RATE_OVER
from steadyworker.ledger.facts import LOST, MOST_ATTEMPTS

SCHEMA_VERSION = 9
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


_FENCE_IS_DRAWN_AGAIN = """
    CREATE TRIGGER fence_is_drawn_again AFTER UPDATE OF fence ON jobs BEGIN
        UPDATE meta SET least_fence = max(least_fence, new.fence + 1);
    END
"""
_FENCE_TRIGGERS = (
    _FENCE_IS_DRAWN_AGAIN,
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
Statements name this index, also those of schema 8, so its name stays.
"""
_JOBS_HELD = f"CREATE INDEX jobs_held ON jobs (owner, namespace, queue, wake_at) WHERE {UNFINISHED}"
_JOBS_DEAD = "CREATE INDEX jobs_dead ON jobs (state) WHERE state = 'dead'"
"""The index of the jobs that failed for good, in the order of their numbers; a job that ends well is never in it."""

_MESSAGES = (
    # The column `number` has the number of the job's row.
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
ATTEMPTS: tuple[str, ...] = (
    # The column `number` has the number of the job's row.
    # A new job's number is its first fence, so the rows of new jobs are appended to the table, and share its last page.
    """
    CREATE TABLE attempts (
        number INTEGER NOT NULL,
        fence INTEGER NOT NULL,
        owner TEXT NOT NULL,
        pid INTEGER NOT NULL,
        slot INTEGER NOT NULL,
        version TEXT NOT NULL,
        because TEXT NOT NULL,
        epoch INTEGER,
        started_at REAL NOT NULL,
        ended_at REAL,
        outcome TEXT NOT NULL DEFAULT '',
        reason TEXT NOT NULL DEFAULT '',
        error_class TEXT NOT NULL DEFAULT '',
        error_text TEXT NOT NULL DEFAULT '',
        traceback TEXT NOT NULL DEFAULT '',
        checkpoint_before BLOB,
        checkpoint_after BLOB,
        peak_memory INTEGER,
        PRIMARY KEY (number, fence)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TRIGGER attempts_go_with_their_job AFTER DELETE ON jobs BEGIN
        DELETE FROM attempts WHERE number = old.rowid;
    END
    """,
)
"""The statements that make the table of the runs of each job."""

FACTS: tuple[str, ...] = (
    # Facts about owners and progress have tables of their own, whose triggers also follow what a process of schema 8 writes.
    "CREATE TABLE reports (owner TEXT PRIMARY KEY, report TEXT NOT NULL) STRICT, WITHOUT ROWID",
    """
    CREATE TRIGGER report_goes_with_its_owner AFTER DELETE ON owners BEGIN
        DELETE FROM reports WHERE owner = old.owner;
    END
    """,
    # The mark is a sample that becomes the earlier sample once it is old enough; so the earlier sample is at most twice as old.
    """
    CREATE TABLE earlier_progress (
        namespace TEXT NOT NULL,
        queue TEXT NOT NULL,
        key TEXT NOT NULL,
        round INTEGER NOT NULL,
        fence INTEGER NOT NULL,
        before_at REAL,
        before_done REAL,
        mark_at REAL NOT NULL,
        mark_done REAL NOT NULL,
        PRIMARY KEY (namespace, queue, key, round)
    ) STRICT, WITHOUT ROWID
    """,
    *(
        f"""
        CREATE TRIGGER {name} AFTER {change} ON progress WHEN new.done IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM earlier_progress
            WHERE namespace = new.namespace AND queue = new.queue AND key = new.key AND round = new.round
                AND fence = new.fence AND new.at BETWEEN mark_at AND mark_at + {RATE_OVER:g} - 0.001
        ) BEGIN
            INSERT INTO earlier_progress (namespace, queue, key, round, fence, mark_at, mark_done)
            VALUES (new.namespace, new.queue, new.key, new.round, new.fence, new.at, new.done)
            ON CONFLICT DO UPDATE SET
                before_at = iif(fence = excluded.fence AND mark_at <= excluded.mark_at, mark_at, NULL),
                before_done = iif(fence = excluded.fence AND mark_at <= excluded.mark_at, mark_done, NULL),
                fence = excluded.fence, mark_at = excluded.mark_at, mark_done = excluded.mark_done;
        END
        """
        for name, change in (("progress_begins", "INSERT"), ("progress_moves_on", "UPDATE"))
    ),
    """
    CREATE TRIGGER earlier_progress_goes_with_the_last AFTER DELETE ON progress BEGIN
        DELETE FROM earlier_progress
        WHERE namespace = old.namespace AND queue = old.queue AND key = old.key AND round = old.round;
    END
    """,
    """
    CREATE TABLE link_events (
        number INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        owner TEXT NOT NULL,
        queue TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        event TEXT NOT NULL,
        why TEXT NOT NULL,
        fence INTEGER
    ) STRICT
    """,
    "CREATE INDEX link_events_by_time ON link_events (at)",
    """
    CREATE TABLE minutes (
        at INTEGER NOT NULL,
        namespace TEXT NOT NULL,
        queue TEXT NOT NULL,
        outcome TEXT NOT NULL,
        class INTEGER NOT NULL,
        runs INTEGER NOT NULL,
        PRIMARY KEY (at, namespace, queue, outcome, class)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE pauses (
        namespace TEXT NOT NULL,
        queue TEXT NOT NULL,
        who TEXT NOT NULL,
        reason TEXT NOT NULL,
        at REAL NOT NULL,
        PRIMARY KEY (namespace, queue)
    ) STRICT, WITHOUT ROWID
    """,
    "CREATE TABLE commands (number INTEGER PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL, who TEXT NOT NULL, at REAL NOT NULL) STRICT",
    """
    CREATE TABLE actions (
        number INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        who TEXT NOT NULL,
        what TEXT NOT NULL,
        namespace TEXT NOT NULL,
        queue TEXT NOT NULL,
        keys TEXT NOT NULL,
        count INTEGER NOT NULL,
        detail TEXT NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE depths (
        namespace TEXT NOT NULL,
        queue TEXT NOT NULL,
        asked_at REAL,
        depth TEXT,
        measured_at REAL,
        PRIMARY KEY (namespace, queue)
    ) STRICT, WITHOUT ROWID
    """,
)
"""The statements that make the other tables of `steadyworker.ledger.facts`, which no decision reads."""

RESULTS: tuple[str, ...] = (
    # The column `number` has the number of the job's row; a separate table keeps the rows of jobs short.
    "CREATE TABLE results (number INTEGER PRIMARY KEY, value BLOB NOT NULL) STRICT",
    """
    CREATE TRIGGER result_goes_with_its_job AFTER DELETE ON jobs BEGIN
        DELETE FROM results WHERE number = old.rowid;
    END
    """,
    # The due time is a reading of the wall clock: a step of this clock only moves the next try.
    """
    CREATE TABLE owed_calls (
        number INTEGER PRIMARY KEY,
        tries INTEGER NOT NULL DEFAULT 0,
        due_at REAL NOT NULL DEFAULT 0
    ) STRICT
    """,
    """
    CREATE TRIGGER owed_call_goes_with_its_job AFTER DELETE ON jobs BEGIN
        DELETE FROM owed_calls WHERE number = old.rowid;
    END
    """,
)
"""The statements that make the tables of the results of jobs, and of the calls of `on_dead` that are owed."""

MIGRATIONS: Mapping[int, tuple[str, ...]] = {
    8: (
        *ATTEMPTS,
        *FACTS,
        *RESULTS,
        _JOBS_DEAD,
        # A process of schema 8 uses this column only by these triggers, and when it makes a new file.
        "DROP TRIGGER fence_is_drawn_first",
        "DROP TRIGGER fence_is_drawn_again",
        "ALTER TABLE meta DROP COLUMN next_fence",
        _FENCE_IS_DRAWN_AGAIN,
    ),
}
"""For each earlier version, the statements that migrate a ledger to the next version."""

CREATE = (
    """
    CREATE TABLE meta (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        ledger_id TEXT NOT NULL,
        schema INTEGER NOT NULL,
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
    _JOBS_DEAD,
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
    *ATTEMPTS,
    *FACTS,
    *RESULTS,
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
        rowid, namespace, queue, key, round, uid, body_sha256, state, hop, fence, target, due_boot, due, not_before, delay,
        wake_at, reason, checkpoint, keep_until, created_at
    ) VALUES (
        :drawn, :namespace, :queue, :key, :round, :uid, :body_sha256, 'moved', -1, :drawn, 'retry', :boot, :due, :not_before,
        :delay, :now + :wake_in, :reason, {_CHECKPOINT_OF_ROUND_BEFORE}, :not_before + :keep_moved, :now
    ) ON CONFLICT DO NOTHING
"""
RESCHEDULE = f"""
    UPDATE jobs SET
        hop = hop + 1, due_boot = :boot, due = :due, not_before = :not_before, delay = :delay,
        wake_at = :now + :wake_in, keep_until = :not_before + :keep_moved
    WHERE {_SEEN} AND hop = :hop AND state = 'moved'
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
_CANCELLED = "coalesce(reason = 'cancelled: ' || cancel_reason, 0)"
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
        keep_until = iif(
            target = 'dead', :now + iif(reason = 'cancelled: ' || cancel_reason, :keep_cancelled, :keep_dead), max(:now, not_before) + :keep_moved
        )
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
UNCANCEL = f"""
    UPDATE jobs SET cancel_reason = NULL
    WHERE {_JOB} AND cancel_reason IS NOT NULL AND fence > 0 AND state IN ('interrupted', 'moved')
"""
UNCANCEL_UNSEEN = f"DELETE FROM jobs WHERE {_JOB} AND cancel_reason IS NOT NULL AND fence = 0"
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
ORDERS = """
    SELECT 'cancel', uid, cancel_reason, NULL, NULL, NULL FROM jobs WHERE owner = :owner AND cancel_reason IS NOT NULL
    UNION ALL SELECT 'pause', namespace, queue, who, reason, at FROM pauses
    UNION ALL SELECT DISTINCT 'command', NULL, NULL, NULL, NULL, NULL FROM commands WHERE owner = :owner
"""
ENDED = """
    SELECT uid FROM jobs WHERE rowid IN (SELECT value FROM json_each(:numbers))
        AND uid IN (SELECT value FROM json_each(:uids)) AND (state = 'done' OR state = 'dead')
"""
_NUMBER = f"(SELECT rowid FROM jobs WHERE {_JOB})"
BEGAN = """
    INSERT INTO attempts (number, fence, owner, pid, slot, version, because, epoch, started_at, checkpoint_before)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
BEGAN_AGAIN = f"""
    INSERT INTO attempts (number, fence, owner, pid, slot, version, because, epoch, started_at, checkpoint_before)
    SELECT rowid, fence, owner, :pid, :slot, :version, :because, :epoch, started_at, :before
    FROM jobs WHERE {_JOB}
"""
LOST_BEFORE = f"UPDATE attempts SET outcome = '{LOST}', ended_at = :now WHERE number = {_NUMBER} AND outcome = ''"
FORGET_FIRST = f"""
    DELETE FROM attempts WHERE number = {_NUMBER} AND fence <= (
        SELECT run.fence FROM attempts AS run WHERE run.number = {_NUMBER} ORDER BY run.fence DESC LIMIT 1 OFFSET {MOST_ATTEMPTS}
    )
"""
ENDED_WELL = """
    UPDATE attempts SET outcome = ?, ended_at = ?, peak_memory = ?, checkpoint_after = ? WHERE number = ? AND fence = ?
"""
ENDED_RUN = f"""
    UPDATE attempts SET
        outcome = :outcome, ended_at = :now, reason = :why, error_class = :raised, error_text = :raised_text,
        traceback = :traceback, peak_memory = :peak_memory, checkpoint_after = :left
    WHERE number = {_NUMBER} AND fence = :fence
"""
LAST_RUNS = """
    SELECT wanted.key, (SELECT count(*) FROM attempts WHERE number = job.rowid), (
        SELECT because FROM attempts WHERE number = job.rowid ORDER BY fence DESC LIMIT 1
    ) AS because
    FROM json_each(:ids) AS wanted CROSS JOIN jobs AS job
        ON job.namespace = json_extract(wanted.value, '$[0]') AND job.queue = json_extract(wanted.value, '$[1]')
        AND job.key = json_extract(wanted.value, '$[2]') AND job.round = json_extract(wanted.value, '$[3]')
    WHERE because IS NOT NULL
"""
OWE_CALL = f"INSERT INTO owed_calls (number) SELECT rowid FROM jobs WHERE {_JOB} ON CONFLICT DO NOTHING"
DUE_CALL = """
    SELECT number, tries, key, round FROM owed_calls JOIN jobs ON jobs.rowid = number
    WHERE namespace = :namespace AND queue = :queue AND state = 'dead' AND due_at <= :now ORDER BY number LIMIT 1
"""
RESERVE_CALL = "UPDATE owed_calls SET tries = tries + 1, due_at = ? WHERE number = ? AND tries = ?"
END_CALL = f"DELETE FROM owed_calls WHERE number = {_NUMBER} AND tries = :tries"
CALL_AGAIN = f"UPDATE owed_calls SET due_at = :due_at WHERE number = {_NUMBER} AND tries = :tries"
ADD_RESULT = "INSERT INTO results (number, value) VALUES (?, ?)"
RESULT = f"SELECT value FROM results WHERE number = {_NUMBER}"
ATTEMPTS_OF = f"""
    SELECT
        run.fence, run.owner, pid, slot, version, because, epoch, run.started_at, run.ended_at, outcome, run.reason,
        run.error_class, run.error_text, traceback, checkpoint_before, checkpoint_after, peak_memory,
        iif(job.fence > run.fence, job.started_at, NULL)
    FROM attempts AS run JOIN (SELECT rowid, fence, started_at FROM jobs WHERE {_JOB}) AS job ON run.number = job.rowid
    ORDER BY run.fence
"""
_PROGRESS = "done, total, note, at, before_at, before_done"
LAST_PROGRESS = f"""
    SELECT {_PROGRESS} FROM progress LEFT JOIN earlier_progress USING (namespace, queue, key, round, fence) WHERE {_JOB}
"""
LAST_ROUND = "SELECT max(round) FROM jobs WHERE namespace = :namespace AND queue = :queue AND key = :key"
# A line feed between two texts keeps a search from a match across both.
_LF = "|| char(10) ||"
_TEXTS = (
    f"key {_LF} reason {_LF} error_class {_LF} error_text {_LF} coalesce(cancel_reason, '') {_LF} coalesce(note, '')"
)


def _listed(jobs: str) -> str:
    return f"""
        SELECT {_COLUMNS}, jobs.rowid, {_PROGRESS} FROM {jobs}
        LEFT JOIN (
            SELECT namespace, queue, key, round, fence AS last_fence, done, total, note, at FROM progress
        ) USING (namespace, queue, key, round)
        LEFT JOIN (
            SELECT namespace, queue, key, round, fence AS last_fence, before_at, before_done FROM earlier_progress
        ) USING (namespace, queue, key, round, last_fence)
        WHERE (:namespace IS NULL OR namespace = :namespace) AND (:queue IS NULL OR queue = :queue)
            AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
            AND (:since IS NULL OR coalesce(ended_at, started_at, created_at) >= :since)
            AND (:snoozed IS NULL OR (substr(reason, 1, length(:snooze)) = :snooze AND error_class = '') = :snoozed)
            AND (:grep IS NULL OR instr(lower({_TEXTS}), lower(:grep)))
            AND (NOT :kept OR EXISTS (SELECT 1 FROM messages WHERE number = jobs.rowid))
            AND (NOT (:kept OR :last) OR {_LAST_OF_ITS_KEY})
    """


PAGE = f"{_listed('jobs')} AND jobs.rowid < :below ORDER BY jobs.rowid DESC LIMIT :rows"
PAGE_OF_DEAD = f"""
    {_listed("jobs INDEXED BY jobs_dead")} AND state = 'dead' AND jobs.rowid < :below ORDER BY jobs.rowid DESC LIMIT :rows
"""
# For jobs that are not done, a listing first reads the numbers of their rows, and then pages of these rows.
# So it reads no row of the hundreds of thousands that are done.
UNFINISHED_NUMBERS = f"SELECT rowid FROM jobs INDEXED BY jobs_held WHERE {UNFINISHED} ORDER BY rowid DESC"
HELD_NUMBERS = "SELECT rowid FROM jobs INDEXED BY jobs_held WHERE owner IS NOT NULL ORDER BY rowid DESC"
PAGE_OF_NUMBERS = f"""
    {_listed("jobs")} AND jobs.rowid IN (SELECT value FROM json_each(:numbers))
    ORDER BY jobs.rowid DESC
"""
_OF_QUEUE = "(:namespace IS NULL OR namespace = :namespace) AND (:queue IS NULL OR queue = :queue)"
# This is `hang.longest_silence`.
_WINDOW, _BEFORE = "(at - coalesce(before_at, started_at))", "coalesce(before_done, 0)"
_LONGEST_SILENCE = f"""CASE WHEN done > {_BEFORE} AND {_WINDOW} >= 0 THEN max(
    :samples_apart * {_WINDOW},
    CASE WHEN done >= :many_done AND before_done >= 0 AND (coalesce(total, 0) = 0 OR done < total) THEN min(
        :stalled, max(:usual_steps * {_WINDOW} / (done - before_done), :stalled / :soonest)
    ) ELSE :stalled END
) ELSE :stalled END"""
# No limit is shorter than this one, which saves most runs of a long list the search of their earlier sample.
_SOONEST = ":stalled / :soonest"
_IS_SILENT = f"""state = 'running' AND started_at < :now - {_SOONEST} AND EXISTS (
    SELECT 1 FROM progress LEFT JOIN earlier_progress USING (namespace, queue, key, round, fence)
    WHERE progress.namespace = jobs.namespace AND progress.queue = jobs.queue AND progress.key = jobs.key
        AND progress.round = jobs.round AND at >= started_at AND at < :now - {_SOONEST}
        AND :now - at > {_LONGEST_SILENCE}
)"""
HELD = f"""
    SELECT owner, namespace, queue, count(*), sum(state = 'running'), json_group_array(key) FILTER (WHERE {_IS_SILENT})
    FROM jobs INDEXED BY jobs_held WHERE owner IS NOT NULL GROUP BY owner, namespace, queue
"""
# A job that a worker process starts by itself, later, needs no person, and neither does a job of a paused queue.
_IS_STRANDED = """
    state = 'interrupted' AND fence > 0 AND wake_at < :now - :overdue AND NOT :untrusted AND (
        fence < coalesce((SELECT trusted_from FROM attended WHERE name = namespace || '/' || queue), :now * 1e6)
        OR NOT EXISTS (SELECT 1 FROM messages WHERE number = jobs.rowid)
    ) AND NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.namespace = jobs.namespace AND pauses.queue = jobs.queue)
"""
_LEASE_IS_OVER = """(
    lease_boot IS NOT :boot OR :boottime > lease_until + :margin OR owner IN (SELECT value FROM json_each(:dead_owners))
)"""
_NEED = f"""CASE
    WHEN {_IS_STRANDED} THEN 0
    WHEN {_LATE_BY} > :overdue THEN 1
    WHEN crashes + losses >= :lost AND NOT ({_DIES} AND {_CANCELLED}) THEN iif({_DIES}, 5, 2)
    WHEN state = 'running' AND {_LEASE_IS_OVER}
        AND owner || char(10) || namespace || char(10) || queue IN (SELECT value FROM json_each(:alone)) THEN 3
    WHEN {_IS_SILENT} AND NOT {_LEASE_IS_OVER} THEN 4
END"""
_HELD = f"SELECT rowid FROM jobs INDEXED BY jobs_held WHERE owner IS NOT NULL AND {_OF_QUEUE}"
_WAITS = f"FROM jobs INDEXED BY jobs_held WHERE owner IS NULL AND wake_at IS NOT NULL AND {_OF_QUEUE}"
# SQLite sorts the numbers first, so it reads the rows in their order in the file, which takes half the time.
NEEDING = f"""
    SELECT number, need, count(*) OVER () FROM (
        SELECT jobs.rowid AS number, {_NEED} AS need FROM jobs WHERE rowid IN ({_HELD} UNION ALL SELECT rowid {_WAITS})
            AND need IS NOT NULL AND (need IN (3, 4) OR {_LAST_OF_ITS_KEY})
        UNION ALL SELECT jobs.rowid, 5 FROM jobs INDEXED BY jobs_dead
        WHERE state = 'dead' AND ended_at >= :now - :dead AND {_OF_QUEUE}
            AND NOT {_CANCELLED} AND {_LAST_OF_ITS_KEY}
    ) ORDER BY need, number DESC LIMIT :rows OFFSET :offset
"""
# SQLite computes the need of each run once, because `runs` is materialized; otherwise the order would compute it twice more.
RUNNING = f"""
    WITH runs AS MATERIALIZED (
        SELECT jobs.rowid AS number, {_NEED} AS need FROM jobs WHERE rowid IN ({_HELD}) AND state = 'running'
    )
    SELECT number, need, (SELECT count(*) FROM runs) FROM runs
    ORDER BY need IS NOT 4, need IS NULL, number DESC LIMIT :rows OFFSET :offset
"""
_IN_SETTLEMENT = f"{_HELD} AND state = 'moving'"
WAITING = f"""
    SELECT rowid, NULL, (SELECT count(*) FROM ({_IN_SETTLEMENT})) + (SELECT count(*) {_WAITS}) FROM (
        SELECT rowid, -1 AS wake_at FROM ({_IN_SETTLEMENT})
        UNION ALL SELECT * FROM (SELECT rowid, wake_at {_WAITS} ORDER BY wake_at, rowid LIMIT :rows + :offset)
    ) ORDER BY wake_at, rowid LIMIT :rows OFFSET :offset
"""
FORGET = f"""
    DELETE FROM jobs WHERE {_JOB} AND state = 'dead' AND (checkpoint IS NULL OR EXISTS (
        SELECT 1 FROM jobs AS later
        WHERE later.namespace = :namespace AND later.queue = :queue AND later.key = :key AND later.round = :round + 1
    ))
"""
PURGE = "DELETE FROM jobs WHERE rowid IN (SELECT rowid FROM jobs WHERE keep_until <= :now LIMIT :rows)"
# A number is at least the wall clock in milliseconds at the first claim, so the first condition ends the search early.
PURGE_ATTEMPTS = """
    DELETE FROM attempts WHERE (number, fence) IN (
        SELECT number, attempts.fence FROM attempts JOIN jobs ON jobs.rowid = number
        WHERE number < (:now - :keep_attempts) * 1000 AND attempts.ended_at <= :now - :keep_attempts AND namespace = :namespace AND queue = :queue LIMIT :rows
    )
"""
# The numbers of rows follow the time, so the first rows are the oldest.
DROP_ATTEMPTS = """
    DELETE FROM attempts WHERE (number, fence) IN (
        SELECT number, fence FROM attempts WHERE outcome <> '' ORDER BY number, fence LIMIT :rows
    )
"""
DROP_RESULTS = "DELETE FROM results WHERE number IN (SELECT number FROM results ORDER BY number LIMIT :rows)"
PURGE_OWNERS = "DELETE FROM owners WHERE seen_at <= :now - :keep_owners"
HOLDING = """
    SELECT asked.value FROM json_each(:owners) AS asked
    WHERE EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_held WHERE owner = asked.value)
        OR EXISTS (SELECT 1 FROM owners WHERE owner = asked.value)
"""
REGISTER = """
    INSERT INTO owners (owner, host, boot_id, lock_path, queues, seen_at)
    VALUES (:owner, :host, :boot, :lock_path, :queues, :now)
    ON CONFLICT DO UPDATE SET host = excluded.host, queues = excluded.queues, seen_at = excluded.seen_at
"""
REPORT = "INSERT OR REPLACE INTO reports (owner, report) VALUES (:owner, :report)"
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
OWNERS = "SELECT owner, host, queues, seen_at, report FROM owners LEFT JOIN reports USING (owner) WHERE seen_at > :now - :keep_owners"
BIND = """
    INSERT INTO bindings (namespace, queue, broker_identity) VALUES (:namespace, :queue, :identity) ON CONFLICT DO NOTHING
"""
BOUND = "SELECT broker_identity FROM bindings WHERE namespace = :namespace AND queue = :queue"
QUEUES = "SELECT queue FROM bindings WHERE namespace = :namespace"
FILL = "INSERT INTO meta (one, ledger_id, schema, made_by) VALUES (1, :ledger_id, :schema, :made_by)"
BINDINGS = "SELECT namespace, queue FROM bindings ORDER BY namespace, queue"
SCHEMA = "SELECT schema FROM meta"
MADE_BY = "SELECT made_by FROM meta"
MADE = "UPDATE meta SET schema = :schema, made_by = :made_by"
LEDGER_ID = "SELECT ledger_id FROM meta"
