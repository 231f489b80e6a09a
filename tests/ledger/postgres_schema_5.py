"""
The PostgreSQL ledger's tables and statements of schema 5, as they were: a copy, never changed.

The server's clock (`clock_timestamp()`) sets and judges all times; no worker's clock decides anything.
The tables are in the first schema of the connection's search path; their names do not clash with another program's.

Each write is one statement, and therefore one transaction.
A claim draws its fence in an earlier statement, so no statement locks both the row of `steadyworker_meta` and a job's row.
Therefore claims never deadlock, and a claim that waits for its job's row, or for the disk, delays no other claim.
If such a claim is then refused, its fence stays unused.
"""

from __future__ import annotations

from typing import LiteralString

SCHEMA_VERSION = 5
"""The version of the tables, raised with every change; the code refuses a ledger of any other version."""

LIMITED = """
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET LOCAL lock_timeout = %(lock_timeout)s;
    SET LOCAL statement_timeout = %(statement_timeout)s;
"""
"""
The first part of every message to the server.

The isolation is READ COMMITTED, because the second of two compare-and-sets must change no row.
At a stricter isolation, the server would raise an error instead.
"""

# The condition of a partial index; the server uses the index only for a query that repeats this condition.
_CAN_BE_LATE: LiteralString = "(owner IS NOT NULL OR state = 'moved')"
_TABLES: tuple[LiteralString, ...] = (
    """
    CREATE TABLE steadyworker_meta (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        ledger_id text NOT NULL,
        schema integer NOT NULL,
        next_fence bigint NOT NULL DEFAULT 1
    )
    """,
    # With free space in each page, a renewal writes its new row version to the same page, without an update of any index.
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
        PRIMARY KEY (namespace, queue, key, round)
    ) WITH (fillfactor = 70)
    """,
    "CREATE INDEX steadyworker_jobs_held ON steadyworker_jobs (owner) WHERE owner IS NOT NULL",
    "CREATE INDEX steadyworker_jobs_to_purge ON steadyworker_jobs (keep_until) WHERE keep_until IS NOT NULL",
    # For the rows that can be late; a renewal changes none of the index's columns.
    f"CREATE INDEX steadyworker_jobs_waiting ON steadyworker_jobs (number) WHERE {_CAN_BE_LATE}",
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
        seen_at timestamptz NOT NULL
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
)
# The advisory lock lets one process at a time create the tables; the four bytes of its number spell `SWLG`.
CREATE: LiteralString = ";".join(
    [
        "SELECT pg_advisory_xact_lock(1398230087)",
        *_TABLES,
        "INSERT INTO steadyworker_meta (ledger_id, schema) VALUES (%(ledger_id)s, %(schema)s)",
    ]
)
# A setting from the URL's `options` has the source `client`, or `session` behind a pooler that passes it on.
PLACE = """
    SELECT
        current_setting('server_encoding'),
        current_schema(),
        (SELECT source IN ('client', 'session') FROM pg_settings WHERE name = 'search_path'),
        EXISTS (SELECT FROM pg_class WHERE relname = 'steadyworker_meta' AND pg_table_is_visible(oid))
"""
META = "SELECT ledger_id, schema FROM steadyworker_meta"
DURABILITY = "SELECT current_setting('synchronous_commit'), current_setting('fsync')"

_JOB = "namespace = %(namespace)s AND queue = %(queue)s AND key = %(key)s AND round = %(round)s"
_RUN = f"{_JOB} AND uid = %(uid)s AND fence = %(fence)s"
_SEEN = f"{_RUN} AND state = %(state)s"
_MINE = f"{_RUN} AND owner = %(owner)s"
_NOW = "clock_timestamp()"


def _after(seconds: LiteralString) -> LiteralString:
    return f"{_NOW} + make_interval(secs => {seconds})"


_LEASE = f"lease_until = {_after('%(lease)s')}"
# The time from which a row is late, or NULL.
_DUE = "CASE WHEN owner IS NOT NULL THEN lease_until WHEN state = 'moved' THEN not_before END"
_LAST_OF_ITS_KEY = """NOT EXISTS (
    SELECT FROM steadyworker_jobs AS later
    WHERE later.namespace = steadyworker_jobs.namespace AND later.queue = steadyworker_jobs.queue
        AND later.key = steadyworker_jobs.key AND later.round > steadyworker_jobs.round
)"""
# The columns are in the order in which `rows.row_of` unpacks them.
_COLUMNS = f"""
    namespace, queue, key, round, uid, state, body_sha256, hop, fence, owner,
    owner IS NULL OR {_NOW} > lease_until + make_interval(secs => %(margin)s),
    attempts, crashes, losses, interruptions, first_failed_at, target,
    greatest(0, extract(epoch FROM not_before - {_NOW}))::float8,
    greatest(0, extract(epoch FROM {_NOW} - {_DUE}))::float8,
    delay, reason, error_class, error_text, checkpoint, checkpoint_fence, export_state, cancel_reason, settled,
    conflicts, extract(epoch FROM created_at)::float8, extract(epoch FROM started_at)::float8,
    extract(epoch FROM ended_at)::float8, worker
"""
_CHECKPOINT_OF_ROUND_BEFORE = """(
    SELECT earlier.checkpoint FROM steadyworker_jobs AS earlier
    WHERE earlier.namespace = %(namespace)s AND earlier.queue = %(queue)s AND earlier.key = %(key)s
        AND earlier.round = %(round)s - 1
)"""
_OWN = f"fence = %(drawn)s, owner = %(owner)s, {_LEASE}"
_NOBODY = "owner = NULL, lease_until = NULL"
_COUNTERS = """
    attempts = %(attempts)s, crashes = %(crashes)s, losses = %(losses)s, interruptions = %(interruptions)s,
    first_failed_at = %(first_failed_at)s
"""
_MOVING = f"""
    state = 'moving', target = %(target)s, not_before = {_after("%(due_in)s")}, delay = %(delay)s,
    reason = %(reason)s, error_class = %(error_class)s, error_text = %(error_text)s, {_COUNTERS},
    checkpoint = CASE WHEN %(keep_checkpoint)s THEN checkpoint END,
    checkpoint_fence = CASE WHEN %(keep_checkpoint)s THEN checkpoint_fence END,
    export_state = CASE WHEN %(keep_checkpoint)s THEN export_state END
"""


def _committing(level: LiteralString) -> LiteralString:
    """
    Return the first part of a statement, which sets `synchronous_commit` for the statement's own commit.

    The rest of the statement must contain `FROM committed`; without it PostgreSQL does not apply the setting.
    """
    return f"WITH committed AS MATERIALIZED (SELECT set_config('synchronous_commit', {level}, true))"


# The new fence is the last fence of this ledger + 1, or the wall clock in milliseconds if that is greater.
# This statement does not wait for the disk, because the later commit of the claim also makes the draw durable.
DRAW = f"""
    {_committing("'off'")}
    UPDATE steadyworker_meta
    SET next_fence = greatest(next_fence, floor(extract(epoch FROM {_NOW}) * 1000)::bigint) + 1
    FROM committed RETURNING next_fence - 1
"""
READ = f"SELECT {_COLUMNS} FROM steadyworker_jobs WHERE {_JOB}"
CLAIM_NEW = f"""
    INSERT INTO steadyworker_jobs (
        namespace, queue, key, round, uid, body_sha256, state, hop, fence, owner, lease_until,
        attempts, crashes, losses, interruptions, first_failed_at, checkpoint, started_at, worker
    ) VALUES (
        %(namespace)s, %(queue)s, %(key)s, %(round)s, %(uid)s, %(body_sha256)s, 'running', %(hop)s, %(drawn)s, %(owner)s,
        {_after("%(lease)s")}, %(attempts)s, %(crashes)s, %(losses)s, %(interruptions)s, %(first_failed_at)s,
        {_CHECKPOINT_OF_ROUND_BEFORE}, {_NOW}, %(worker)s
    ) ON CONFLICT (namespace, queue, key, round) DO NOTHING RETURNING {_COLUMNS}
"""
CLAIM_SEEN = f"""
    UPDATE steadyworker_jobs SET
        state = 'running', hop = greatest(hop, %(hop)s), {_OWN}, {_COUNTERS},
        body_sha256 = coalesce(body_sha256, %(body_sha256)s),
        checkpoint = CASE WHEN fence = 0 THEN {_CHECKPOINT_OF_ROUND_BEFORE} ELSE checkpoint END,
        target = NULL, not_before = NULL, delay = 0,
        settled = 'unknown', keep_until = NULL, started_at = {_NOW}, worker = %(worker)s
    WHERE {_SEEN} AND state NOT IN ('done', 'dead') RETURNING {_COLUMNS}
"""
TAKE_OVER = f"UPDATE steadyworker_jobs SET {_OWN} WHERE {_SEEN} AND state = 'moving' RETURNING {_COLUMNS}"
LOSE = f"""
    UPDATE steadyworker_jobs SET {_OWN}, {_MOVING} WHERE {_SEEN} AND state = 'running' RETURNING {_COLUMNS}
"""
RENEW = f"""
    UPDATE steadyworker_jobs AS job SET {_LEASE}
    FROM unnest(%(uids)s::text[], %(fences)s::bigint[], %(owners)s::text[])
        WITH ORDINALITY AS mine (uid, fence, owner, place)
    WHERE job.uid = mine.uid AND job.fence = mine.fence AND job.owner = mine.owner
        AND job.state IN ('running', 'moving')
    RETURNING mine.place, job.cancel_reason
"""
# `off` is the only level that does not wait for this server's disk, so this statement replaces it by `on`.
MAY_COMMIT = f"""
    {_committing("coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on')")}
    UPDATE steadyworker_jobs SET {_LEASE} FROM committed WHERE {_MINE} AND state = 'running'
    RETURNING cancel_reason
"""
CHECKPOINT = f"""
    UPDATE steadyworker_jobs
    SET checkpoint = %(value)s, checkpoint_fence = CASE WHEN %(value)s::bytea IS NOT NULL THEN fence END
    WHERE {_MINE} AND state = 'running'
"""
EXPORT_STATE = f"UPDATE steadyworker_jobs SET export_state = %(value)s WHERE {_MINE} AND state = 'running'"
DONE = f"""
    UPDATE steadyworker_jobs SET
        state = 'done', {_NOBODY}, reason = '', error_class = '', error_text = '',
        ended_at = {_NOW}, keep_until = {_after("%(keep_done)s")}
    WHERE {_MINE} AND state = 'running'
"""
INTERRUPTED = f"""
    UPDATE steadyworker_jobs SET state = 'interrupted', {_NOBODY}, {_COUNTERS} WHERE {_MINE} AND state = 'running'
"""
MOVING = f"UPDATE steadyworker_jobs SET {_MOVING} WHERE {_MINE} AND state IN ('running', 'moving')"
MOVED = f"""
    UPDATE steadyworker_jobs SET
        state = CASE target WHEN 'dead' THEN 'dead' ELSE 'moved' END, {_NOBODY},
        ended_at = CASE target WHEN 'dead' THEN {_NOW} END,
        keep_until = CASE target
            WHEN 'dead' THEN {_after("%(keep_dead)s")}
            ELSE greatest({_NOW}, not_before) + make_interval(secs => %(keep_moved)s)
        END
    WHERE {_MINE} AND state = 'moving'
"""
# These two writes do not wait for the disk: if one of them is lost, the ledger only keeps the row longer.
SETTLED_CONFIRMED = f"""
    {_committing("'off'")}
    UPDATE steadyworker_jobs
    SET settled = 'confirmed', keep_until = CASE state WHEN 'done' THEN {_after("%(keep_confirmed)s")} ELSE keep_until END
    FROM committed WHERE {_RUN} AND state NOT IN ('running', 'moving')
"""
SETTLED_SENT = f"""
    {_committing("'off'")}
    UPDATE steadyworker_jobs SET settled = 'sent'
    FROM committed WHERE {_RUN} AND state NOT IN ('running', 'moving') AND settled = 'unknown'
"""
# A row without a fence was never claimed: it only holds a cancel mark, and is kept for 14 days.
CANCEL = f"""
    INSERT INTO steadyworker_jobs AS job (namespace, queue, key, round, uid, state, cancel_reason, keep_until)
    VALUES (
        %(namespace)s, %(queue)s, %(key)s, %(round)s, %(uid)s, 'interrupted', %(reason)s, {_after("%(keep_mark)s")}
    )
    ON CONFLICT (namespace, queue, key, round) DO UPDATE SET
        cancel_reason = CASE
            WHEN job.state IN ('done', 'dead') THEN job.cancel_reason ELSE excluded.cancel_reason
        END,
        keep_until = CASE job.fence WHEN 0 THEN excluded.keep_until ELSE job.keep_until END
    RETURNING job.state, job.uid
"""
CONFLICT = f"UPDATE steadyworker_jobs SET conflicts = conflicts + 1 WHERE {_JOB}"
CLEAR_CHECKPOINT = f"""
    UPDATE steadyworker_jobs SET checkpoint = NULL, checkpoint_fence = NULL
    WHERE {_JOB} AND state NOT IN ('running', 'moving')
"""
PROGRESS = f"""
    {_committing("'off'")}
    INSERT INTO steadyworker_progress (uid, fence, done, total, note, at)
    SELECT uid, fence, %(done)s::float8, %(total)s::float8, %(note)s, %(at)s::float8
    FROM steadyworker_jobs, committed WHERE {_RUN}
    ON CONFLICT (uid) DO UPDATE
    SET fence = excluded.fence, done = excluded.done, total = excluded.total, note = excluded.note, at = excluded.at
"""
CANCEL_MARKS = """
    SELECT uid, cancel_reason FROM steadyworker_jobs WHERE uid = ANY(%(uids)s::text[]) AND cancel_reason IS NOT NULL
"""
ENDED = "SELECT uid FROM steadyworker_jobs WHERE uid = ANY(%(uids)s::text[]) AND state IN ('done', 'dead')"
LAST_PROGRESS = (
    f"SELECT done, total, note, at FROM steadyworker_progress JOIN steadyworker_jobs USING (uid) WHERE {_JOB}"
)
LAST_ROUND = """
    SELECT max(round) FROM steadyworker_jobs WHERE namespace = %(namespace)s AND queue = %(queue)s AND key = %(key)s
"""
# `_LAST_OF_ITS_KEY` is a column, not a condition, so that the server computes it only for the rows of a page.
# As a condition, it made the server expect a long query, and compile this query first, for more than a second.
PAGE = f"""
    SELECT
        {_COLUMNS}, %(late_by)s::float8 IS NULL OR {_LAST_OF_ITS_KEY}, number,
        progress.done, progress.total, progress.note, progress.at
    FROM steadyworker_jobs LEFT JOIN (SELECT uid, done, total, note, at FROM steadyworker_progress) AS progress USING (uid)
    WHERE number < %(below)s AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)
        AND (%(queue)s::text IS NULL OR queue = %(queue)s)
        AND (%(states)s::text[] IS NULL OR state = ANY(%(states)s::text[]))
        AND (%(late_by)s::float8 IS NULL OR {_CAN_BE_LATE} AND {_DUE} < {_after("- %(late_by)s::float8")})
    ORDER BY number DESC LIMIT %(rows)s
"""
FORGET = f"""
    DELETE FROM steadyworker_jobs WHERE {_JOB} AND state = 'dead' AND (checkpoint IS NULL OR EXISTS (
        SELECT 1 FROM steadyworker_jobs AS later
        WHERE later.namespace = %(namespace)s AND later.queue = %(queue)s AND later.key = %(key)s
            AND later.round = %(round)s + 1
    ))
"""
# This skips rows that another session is claiming, because the claim clears `keep_until`.
PURGE = f"""
    DELETE FROM steadyworker_jobs WHERE number IN (
        SELECT number FROM steadyworker_jobs WHERE keep_until <= {_NOW} LIMIT %(rows)s FOR UPDATE SKIP LOCKED
    )
"""
PURGE_OWNERS = f"DELETE FROM steadyworker_owners WHERE seen_at <= {_NOW} - make_interval(secs => %(keep_owners)s)"
HOLDING = """
    SELECT asked.owner FROM unnest(%(owners)s::text[]) AS asked (owner)
    WHERE EXISTS (SELECT FROM steadyworker_jobs AS job WHERE job.owner = asked.owner)
"""
REGISTER = f"""
    INSERT INTO steadyworker_owners VALUES (%(owner)s, %(host)s, %(boot)s, %(lock_path)s, %(queues)s, {_NOW})
    ON CONFLICT (owner) DO UPDATE SET host = excluded.host, queues = excluded.queues, seen_at = excluded.seen_at
"""
UNREGISTER = "DELETE FROM steadyworker_owners WHERE owner = %(owner)s"
OWNERS = f"""
    SELECT owner, host, queues, extract(epoch FROM {_NOW} - seen_at)::float8 FROM steadyworker_owners
    WHERE seen_at > {_NOW} - make_interval(secs => %(keep_owners)s)
"""
BIND = """
    INSERT INTO steadyworker_bindings AS bound VALUES (%(namespace)s, %(queue)s, %(identity)s)
    ON CONFLICT (namespace, queue) DO UPDATE SET broker_identity = bound.broker_identity RETURNING broker_identity
"""
QUEUES = "SELECT queue FROM steadyworker_bindings WHERE namespace = %(namespace)s"
