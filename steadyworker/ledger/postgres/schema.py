"""
The PostgreSQL ledger's tables, and their migration from earlier versions.

The tables are in the first schema of the connection's search path; no other program's tables have such names.

While a newer process migrates the tables, processes of an older version continue to work.
So a migration only adds tables, columns at the end, and triggers.
Such a column is NULL or has a default; a trigger writes what the older version does not write.
While a migration runs, the calls of all other processes wait.
After the migration, a process of an older version can no longer connect to the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import LiteralString

SCHEMA_VERSION = 8
"""The version of the tables, raised with every change; a worker process migrates an older ledger to this version."""

LIMITED = """
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET LOCAL lock_timeout = %(lock_timeout)s;
    SET LOCAL statement_timeout = %(statement_timeout)s;
"""
"""
The first part of every message to the server.

The isolation is READ COMMITTED, because the second of two concurrent compare-and-sets must change no row.
At a stricter isolation, the server would raise an error instead.
"""

UNFINISHED: LiteralString = "(owner IS NOT NULL OR wake_at IS NOT NULL OR fence = 0)"
"""
The condition that a job is neither done nor dead: it has an owner, or waits for a message, or only holds a cancel mark.

The server uses the index of these rows for a query that repeats this condition, or one of its three parts.
The index begins with the owner, so it finds the rows of one owner, of any owner, and of none.
A renewal changes none of the index's columns.
"""

_UNFINISHED: LiteralString = f"CREATE INDEX steadyworker_jobs_unfinished ON steadyworker_jobs (owner, namespace, queue, wake_at) WHERE {UNFINISHED}"
_DEAD: LiteralString = "CREATE INDEX steadyworker_jobs_dead ON steadyworker_jobs (number) WHERE state = 'dead'"
ATTEMPTS: tuple[LiteralString, ...] = (
    # With free space in each page, the end of a run writes its row to the same page, without an update of the index.
    """
    CREATE TABLE steadyworker_attempts (
        number bigint NOT NULL REFERENCES steadyworker_jobs (number) ON DELETE CASCADE,
        fence bigint NOT NULL,
        owner text NOT NULL,
        pid bigint NOT NULL,
        slot bigint NOT NULL,
        version text NOT NULL,
        because text NOT NULL,
        epoch bigint,
        started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        ended_at timestamptz,
        outcome text NOT NULL DEFAULT '',
        reason text NOT NULL DEFAULT '',
        error_class text NOT NULL DEFAULT '',
        error_text text NOT NULL DEFAULT '',
        traceback text NOT NULL DEFAULT '',
        checkpoint_before bytea,
        checkpoint_after bytea,
        peak_memory bigint,
        PRIMARY KEY (number, fence)
    ) WITH (fillfactor = 70)
    """,
)
"""The statements that make the table of the runs of each job; the number is the number of the job's row."""

FACTS: tuple[LiteralString, ...] = (
    "ALTER TABLE steadyworker_owners ADD COLUMN report text",
    """
    ALTER TABLE steadyworker_progress
        ADD COLUMN before_at double precision, ADD COLUMN before_done double precision,
        ADD COLUMN mark_at double precision, ADD COLUMN mark_done double precision
    """,
    """
    CREATE TABLE steadyworker_link_events (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at double precision NOT NULL,
        owner text NOT NULL,
        queue text NOT NULL,
        epoch bigint NOT NULL,
        event text NOT NULL,
        why text NOT NULL,
        fence bigint
    )
    """,
    "CREATE INDEX steadyworker_link_events_by_time ON steadyworker_link_events (at)",
    """
    CREATE TABLE steadyworker_minutes (
        at bigint NOT NULL,
        namespace text NOT NULL,
        queue text NOT NULL,
        outcome text NOT NULL,
        class bigint NOT NULL,
        runs bigint NOT NULL,
        PRIMARY KEY (at, namespace, queue, outcome, class)
    ) WITH (fillfactor = 70)
    """,
    """
    CREATE TABLE steadyworker_pauses (
        namespace text NOT NULL,
        queue text NOT NULL,
        who text NOT NULL,
        reason text NOT NULL,
        at timestamptz NOT NULL,
        PRIMARY KEY (namespace, queue)
    )
    """,
    """
    CREATE TABLE steadyworker_commands (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        owner text NOT NULL,
        name text NOT NULL,
        who text NOT NULL,
        at timestamptz NOT NULL
    )
    """,
    """
    CREATE TABLE steadyworker_actions (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        at timestamptz NOT NULL,
        who text NOT NULL,
        what text NOT NULL,
        namespace text NOT NULL,
        queue text NOT NULL,
        keys text[] NOT NULL,
        count bigint NOT NULL,
        detail text NOT NULL
    )
    """,
    """
    CREATE TABLE steadyworker_depths (
        namespace text NOT NULL,
        queue text NOT NULL,
        asked_at timestamptz,
        depth text,
        measured_at timestamptz,
        PRIMARY KEY (namespace, queue)
    ) WITH (fillfactor = 70)
    """,
    # Each order of a person raises the version, so a worker process that reads the version need not read the orders again and again.
    "CREATE TABLE steadyworker_orders (version bigint NOT NULL) WITH (fillfactor = 10)",
    "INSERT INTO steadyworker_orders VALUES (1)",
    # The function names the schema, because a session that restores a copy can have another search path.
    """
    CREATE FUNCTION steadyworker_ordered() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        EXECUTE 'UPDATE ' || quote_ident(TG_TABLE_SCHEMA) || '.steadyworker_orders SET version = version + 1';
        RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER job_is_cancelled AFTER UPDATE OF cancel_reason ON steadyworker_jobs FOR EACH ROW
    WHEN (NEW.owner IS NOT NULL AND NEW.cancel_reason IS DISTINCT FROM OLD.cancel_reason)
    EXECUTE FUNCTION steadyworker_ordered()
    """,
    """
    CREATE TRIGGER pauses_change AFTER INSERT OR UPDATE OR DELETE ON steadyworker_pauses FOR EACH STATEMENT
    EXECUTE FUNCTION steadyworker_ordered()
    """,
    """
    CREATE TRIGGER commands_change AFTER INSERT OR DELETE ON steadyworker_commands FOR EACH STATEMENT
    EXECUTE FUNCTION steadyworker_ordered()
    """,
)
"""The statements that make the other tables of `steadyworker.ledger.facts`, which no decision reads."""

RESULTS: tuple[LiteralString, ...] = (
    # The column `number` has the number of the job's row.
    """
    CREATE TABLE steadyworker_results (
        number bigint PRIMARY KEY REFERENCES steadyworker_jobs (number) ON DELETE CASCADE,
        value bytea NOT NULL
    )
    """,
    """
    CREATE TABLE steadyworker_owed_calls (
        number bigint PRIMARY KEY REFERENCES steadyworker_jobs (number) ON DELETE CASCADE,
        tries bigint NOT NULL DEFAULT 0,
        due_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
    """,
)
"""The statements that make the tables of the results of jobs, and of the calls of `on_dead` that are owed."""

_TABLES: tuple[LiteralString, ...] = (
    """
    CREATE TABLE steadyworker_meta (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        ledger_id text NOT NULL,
        schema integer NOT NULL,
        next_fence bigint NOT NULL DEFAULT 1,
        made_by text NOT NULL DEFAULT '',
        incarnation text[]
    )
    """,
    # With free space in each page, a renewal writes the new row version to the same page, without an update of any index.
    """
    CREATE TABLE steadyworker_jobs (
        number bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
        namespace text NOT NULL,
        queue text NOT NULL,
        key text NOT NULL,
        round bigint NOT NULL,
        uid text NOT NULL UNIQUE,
        body_sha256 bytea,
        state text NOT NULL CHECK (state IN ('running', 'interrupted', 'moving', 'moved', 'done', 'dead')),
        hop bigint NOT NULL DEFAULT 0,
        fence bigint NOT NULL DEFAULT 0,
        owner text,
        lease_until timestamptz,
        attempts bigint NOT NULL DEFAULT 0,
        crashes bigint NOT NULL DEFAULT 0,
        losses bigint NOT NULL DEFAULT 0,
        interruptions bigint NOT NULL DEFAULT 0,
        target text CHECK (target IN ('retry', 'dead')),
        not_before timestamptz,
        delay double precision NOT NULL DEFAULT 0,
        reason text NOT NULL DEFAULT '',
        error_class text NOT NULL DEFAULT '',
        error_text text NOT NULL DEFAULT '',
        checkpoint bytea,
        checkpoint_fence bigint,
        export_state bytea,
        cancel_reason text,
        settled text NOT NULL DEFAULT 'unknown' CHECK (settled IN ('unknown', 'sent', 'confirmed')),
        conflicts bigint NOT NULL DEFAULT 0,
        keep_until timestamptz,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        started_at timestamptz,
        first_failed_at double precision,
        ended_at timestamptz,
        worker text NOT NULL DEFAULT '',
        wake_at timestamptz,
        PRIMARY KEY (namespace, queue, key, round)
    ) WITH (fillfactor = 70)
    """,
    _UNFINISHED,
    _DEAD,
    "CREATE INDEX steadyworker_jobs_to_purge ON steadyworker_jobs (keep_until) WHERE keep_until IS NOT NULL",
    """
    CREATE TABLE steadyworker_progress (
        uid text PRIMARY KEY REFERENCES steadyworker_jobs (uid) ON DELETE CASCADE,
        fence bigint NOT NULL,
        done double precision,
        total double precision,
        note text NOT NULL,
        at double precision NOT NULL
    ) WITH (fillfactor = 70)
    """,
    """
    CREATE TABLE steadyworker_owners (
        owner text PRIMARY KEY,
        host text NOT NULL,
        boot_id text NOT NULL,
        lock_path text NOT NULL,
        queues text[] NOT NULL,
        seen_at timestamptz NOT NULL,
        beat bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 70)
    """,
    """
    CREATE TABLE steadyworker_bindings (
        namespace text NOT NULL,
        queue text NOT NULL,
        broker_identity text NOT NULL,
        PRIMARY KEY (namespace, queue)
    )
    """,
    # The number is the number of the job's row.
    """
    CREATE TABLE steadyworker_messages (
        number bigint PRIMARY KEY REFERENCES steadyworker_jobs (number) ON DELETE CASCADE,
        body bytea NOT NULL,
        facts bytea NOT NULL
    )
    """,
    # The server does not compress the body: compression takes longer than the write, and `done` soon deletes the message.
    "ALTER TABLE steadyworker_messages ALTER COLUMN body SET STORAGE EXTERNAL",
    # This table has one row for each queue, with the name by which owners register the queue.
    """
    CREATE TABLE steadyworker_attended (
        name text PRIMARY KEY,
        seen_at timestamptz NOT NULL,
        trusted_from bigint NOT NULL
    ) WITH (fillfactor = 70)
    """,
    *ATTEMPTS,
    *FACTS,
    *RESULTS,
)
# With the advisory lock, one process at a time makes or migrates the tables; the four bytes of the lock's number spell `SWLG`.
_ALONE: LiteralString = "SELECT pg_advisory_xact_lock(1398230087)"
CREATE: LiteralString = ";".join(
    [
        _ALONE,
        *_TABLES,
        "INSERT INTO steadyworker_meta (ledger_id, schema, made_by) VALUES (%(ledger_id)s, %(schema)s, %(made_by)s)",
    ]
)
MIGRATIONS: Mapping[int, tuple[LiteralString, ...]] = {
    7: (*ATTEMPTS, *FACTS, *RESULTS, _DEAD),
}
"""For each earlier version, the statements that migrate a ledger to the next version."""

OLDEST = min(MIGRATIONS)
"""The earliest version from which a ledger can be migrated."""


def migration(found: int) -> LiteralString | None:
    """
    Return one transaction that migrates a ledger of version `found` to `SCHEMA_VERSION`; None if no migration exists.

    If another process has migrated the ledger meanwhile, the transaction raises NotNullViolation, and changes nothing.
    """
    versions = range(found, SCHEMA_VERSION)
    if not all(version in MIGRATIONS for version in versions):
        return None
    statements: list[LiteralString] = [
        _ALONE,
        "UPDATE steadyworker_meta SET schema = CASE schema WHEN %(found)s THEN %(schema)s END",
    ]
    for version in versions:
        statements += MIGRATIONS[version]
    statements.append("UPDATE steadyworker_meta SET made_by = %(made_by)s")
    return ";".join(statements)


# A setting from the URL's `options` has the source `client`; behind a pooler that passes the setting on, the source is `session`.
PLACE = """
    SELECT
        current_setting('server_encoding'),
        current_schema(),
        (SELECT source IN ('client', 'session') FROM pg_settings WHERE name = 'search_path'),
        EXISTS (SELECT FROM pg_class WHERE relname = 'steadyworker_meta' AND pg_table_is_visible(oid))
"""
# This reads the row as JSON, because earlier versions have no column `made_by`.
META = "SELECT ledger_id, schema, to_jsonb(steadyworker_meta) ->> 'made_by' FROM steadyworker_meta"
