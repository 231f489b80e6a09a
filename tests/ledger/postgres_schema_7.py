"""
The PostgreSQL ledger's tables and statements of schema 7, as they were: a copy, never changed.

The server's clock (`clock_timestamp()`) sets and judges all times; no worker's clock decides anything.
"""

from __future__ import annotations

from typing import LiteralString

SCHEMA_VERSION = 7
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
DURABILITY = "SELECT current_setting('synchronous_commit'), current_setting('fsync')"

_JOB = "namespace = %(namespace)s AND queue = %(queue)s AND key = %(key)s AND round = %(round)s"
_RUN = f"{_JOB} AND uid = %(uid)s AND fence = %(fence)s"
_SEEN = f"{_RUN} AND state = %(state)s"
_MINE = f"{_RUN} AND owner = %(owner)s"
NOW = "clock_timestamp()"


def after(seconds: LiteralString) -> LiteralString:
    """Return the SQL expression of the time after this number of seconds."""
    return f"{NOW} + make_interval(secs => {seconds})"


_LEASE = f"lease_until = {after('%(lease)s')}"
# This is the time from which a row is late, or NULL if there is no such time.
_DUE = "CASE WHEN owner IS NOT NULL THEN lease_until WHEN state = 'moved' THEN not_before END"
LAST_OF_ITS_KEY = """NOT EXISTS (
    SELECT FROM steadyworker_jobs AS later
    WHERE later.namespace = steadyworker_jobs.namespace AND later.queue = steadyworker_jobs.queue
        AND later.key = steadyworker_jobs.key AND later.round > steadyworker_jobs.round
)"""
# The columns are in the order in which `rows.row_of` unpacks them.
COLUMNS = f"""
    namespace, queue, key, round, uid, state, body_sha256, hop, fence, owner,
    owner IS NULL OR {NOW} > lease_until + make_interval(secs => %(margin)s),
    attempts, crashes, losses, interruptions, first_failed_at, target,
    greatest(0, extract(epoch FROM not_before - {NOW}))::float8,
    greatest(0, extract(epoch FROM {NOW} - {_DUE}))::float8,
    delay, reason, error_class, error_text, checkpoint, checkpoint_fence, export_state, cancel_reason, settled,
    conflicts, extract(epoch FROM created_at)::float8, extract(epoch FROM started_at)::float8,
    extract(epoch FROM ended_at)::float8, worker
"""
_CHECKPOINT_OF_ROUND_BEFORE = """(
    SELECT earlier.checkpoint FROM steadyworker_jobs AS earlier
    WHERE earlier.namespace = %(namespace)s AND earlier.queue = %(queue)s AND earlier.key = %(key)s
        AND earlier.round = %(round)s - 1
)"""
_OWN = f"fence = %(drawn)s, owner = %(owner)s, wake_at = NULL, {_LEASE}"
_NOBODY = "owner = NULL, lease_until = NULL"
_COUNTERS = """
    attempts = %(attempts)s, crashes = %(crashes)s, losses = %(losses)s, interruptions = %(interruptions)s,
    first_failed_at = %(first_failed_at)s
"""
_MOVING = f"""
    state = 'moving', target = %(target)s, not_before = {after("%(due_in)s")}, delay = %(delay)s,
    reason = %(reason)s, error_class = %(error_class)s, error_text = %(error_text)s, {_COUNTERS},
    checkpoint = CASE WHEN %(keep_checkpoint)s THEN checkpoint END,
    checkpoint_fence = CASE WHEN %(keep_checkpoint)s THEN checkpoint_fence END,
    export_state = CASE WHEN %(keep_checkpoint)s THEN export_state END
"""


def _committing(level: LiteralString) -> LiteralString:
    """
    Return the first part of a statement, which sets `synchronous_commit` for the statement's own commit.

    The rest of the statement must contain `FROM committed`; otherwise PostgreSQL does not apply the setting.
    """
    return f"WITH committed AS MATERIALIZED (SELECT set_config('synchronous_commit', {level}, true))"


# In the text of a statement, base64 makes a body a third longer; PostgreSQL's own form makes the body twice as long.
_BODY = "decode(%(body)s, 'base64')"


def _keeping(claim: LiteralString) -> LiteralString:
    """Return this statement of a claim, extended to keep the claim's message if the row has no message yet."""
    return f"""
        WITH claimed AS ({claim}), kept AS (
            INSERT INTO steadyworker_messages (number, body, facts)
            SELECT number, {_BODY}, %(facts)s FROM claimed WHERE %(facts)s::bytea IS NOT NULL ON CONFLICT (number) DO NOTHING
        )
        SELECT * FROM claimed
    """


# The new fence is this ledger's last fence + 1, or the wall clock in milliseconds, whichever is greater.
# This statement does not wait for the disk, because the later commit of the claim also makes the draw durable.
NEXT_FENCE = f"next_fence = greatest(next_fence, floor(extract(epoch FROM {NOW}) * 1000)::bigint) + 1"
DRAW = f"""
    {_committing("'off'")} UPDATE steadyworker_meta SET {NEXT_FENCE} FROM committed RETURNING next_fence - 1
"""
READ = f"SELECT {COLUMNS} FROM steadyworker_jobs WHERE {_JOB}"
CLAIM_NEW = _keeping(f"""
    INSERT INTO steadyworker_jobs (
        namespace, queue, key, round, uid, body_sha256, state, hop, fence, owner, lease_until,
        attempts, crashes, losses, interruptions, first_failed_at, checkpoint, started_at, worker
    ) VALUES (
        %(namespace)s, %(queue)s, %(key)s, %(round)s, %(uid)s, %(body_sha256)s, 'running', %(hop)s, %(drawn)s, %(owner)s,
        {after("%(lease)s")}, %(attempts)s, %(crashes)s, %(losses)s, %(interruptions)s, %(first_failed_at)s,
        {_CHECKPOINT_OF_ROUND_BEFORE}, {NOW}, %(worker)s
    ) ON CONFLICT (namespace, queue, key, round) DO NOTHING RETURNING {COLUMNS}, number
""")
CLAIM_SEEN = _keeping(f"""
    UPDATE steadyworker_jobs SET
        state = 'running', hop = greatest(hop, %(hop)s), {_OWN}, {_COUNTERS},
        body_sha256 = coalesce(body_sha256, %(body_sha256)s),
        checkpoint = CASE WHEN fence = 0 THEN {_CHECKPOINT_OF_ROUND_BEFORE} ELSE checkpoint END,
        target = NULL, not_before = NULL, delay = 0,
        settled = 'unknown', keep_until = NULL, started_at = {NOW}, worker = %(worker)s
    WHERE {_SEEN} AND state NOT IN ('done', 'dead') RETURNING {COLUMNS}, number
""")
MESSAGE = f"SELECT body, facts FROM steadyworker_messages JOIN steadyworker_jobs USING (number) WHERE {_JOB}"
REPLAY = f"""
    WITH inserted AS (
        INSERT INTO steadyworker_jobs (
            namespace, queue, key, round, uid, body_sha256, state, hop, fence, target, not_before, wake_at, reason,
            checkpoint, keep_until
        ) VALUES (
            %(namespace)s, %(queue)s, %(key)s, %(round)s, %(uid)s, %(body_sha256)s, 'moved', -1, %(drawn)s, 'retry', {NOW},
            {NOW}, %(reason)s, {_CHECKPOINT_OF_ROUND_BEFORE}, {after("%(keep_moved)s")}
        ) ON CONFLICT (namespace, queue, key, round) DO NOTHING RETURNING number
    )
    INSERT INTO steadyworker_messages (number, body, facts) SELECT number, {_BODY}, %(facts)s FROM inserted
"""
# This write does not wait for the disk: if the write is lost, the job only counts as an orphan earlier.
DEFERRED = f"""
    {_committing("'off'")}
    UPDATE steadyworker_jobs SET wake_at = greatest(wake_at, {after("%(delay)s")})
    FROM committed WHERE {_JOB} AND state NOT IN ('done', 'dead') AND fence > 0
"""
TAKE_OVER = f"UPDATE steadyworker_jobs SET {_OWN} WHERE {_SEEN} AND state = 'moving' RETURNING {COLUMNS}"
LOSE = f"""
    UPDATE steadyworker_jobs SET {_OWN}, {_MOVING} WHERE {_SEEN} AND state = 'running' RETURNING {COLUMNS}
"""
RENEW = f"""
    UPDATE steadyworker_jobs AS job SET {_LEASE}
    FROM unnest(%(uids)s::text[], %(fences)s::bigint[], %(owners)s::text[])
        WITH ORDINALITY AS mine (uid, fence, owner, place)
    WHERE job.uid = mine.uid AND job.fence = mine.fence AND job.owner = mine.owner
        AND job.state IN ('running', 'moving')
    RETURNING mine.place, job.cancel_reason
"""
# Every level except `off` waits for this server's disk, so this statement replaces only `off`, by `on`.
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
    WITH ended AS (
        UPDATE steadyworker_jobs SET
            state = 'done', {_NOBODY}, wake_at = NULL, reason = '', error_class = '', error_text = '',
            ended_at = {NOW}, keep_until = {after("%(keep_done)s")}
        WHERE {_MINE} AND state = 'running' RETURNING number
    ), let_go AS (
        DELETE FROM steadyworker_messages USING ended WHERE steadyworker_messages.number = ended.number
    )
    SELECT FROM ended
"""
# The next four statements serve several jobs in one transaction, so they lock rows in an order that ends in no deadlock.
# Claims come first, in the order of their keys; the ends wait for no row.
DRAW_MANY = f"""
    {_committing("'off'")} UPDATE steadyworker_meta
    SET next_fence = greatest(next_fence, floor(extract(epoch FROM {NOW}) * 1000)::bigint) + %(many)s
    FROM committed RETURNING next_fence - %(many)s
"""
CLAIM_MANY = f"""
    WITH asked AS MATERIALIZED (
        SELECT * FROM unnest(
            %(namespaces)s::text[], %(queues)s::text[], %(keys)s::text[], %(rounds)s::bigint[], %(uids)s::text[],
            %(bodies_sha256)s::bytea[], %(hops)s::bigint[], %(fences)s::bigint[], %(claimers)s::text[],
            %(attempts)s::bigint[], %(crashes)s::bigint[], %(losses)s::bigint[], %(interruptions)s::bigint[],
            %(first_failed_at)s::float8[], %(bodies)s::text[], %(facts)s::bytea[]
        ) AS asked (
            namespace, queue, key, round, uid, body_sha256, hop, fence, owner,
            attempts, crashes, losses, interruptions, first_failed_at, body, facts
        ) ORDER BY namespace, queue, key, round, fence
    ), claimed AS (
        INSERT INTO steadyworker_jobs (
            namespace, queue, key, round, uid, body_sha256, state, hop, fence, owner, lease_until,
            attempts, crashes, losses, interruptions, first_failed_at, checkpoint, started_at, worker
        )
        SELECT
            namespace, queue, key, round, uid, body_sha256, 'running', hop, fence, owner, {after("%(lease)s")},
            attempts, crashes, losses, interruptions, first_failed_at, (
                SELECT earlier.checkpoint FROM steadyworker_jobs AS earlier
                WHERE earlier.namespace = asked.namespace AND earlier.queue = asked.queue AND earlier.key = asked.key
                    AND earlier.round = asked.round - 1
            ), {NOW}, %(worker)s
        FROM asked ON CONFLICT (namespace, queue, key, round) DO NOTHING RETURNING {COLUMNS}, number
    ), kept AS (
        INSERT INTO steadyworker_messages (number, body, facts)
        SELECT number, decode(body, 'base64'), facts FROM claimed JOIN asked USING (fence) WHERE facts IS NOT NULL
    )
    SELECT * FROM claimed
"""
DONE_MANY = f"""
    WITH ended AS (
        UPDATE steadyworker_jobs AS job SET
            state = 'done', {_NOBODY}, wake_at = NULL, reason = '', error_class = '', error_text = '',
            ended_at = {NOW}, keep_until = {after("%(keep_done)s")}
        FROM (
            SELECT number FROM steadyworker_jobs
            JOIN unnest(%(ended_uids)s::text[], %(ended_fences)s::bigint[], %(ended_owners)s::text[])
                AS mine (uid, fence, owner) USING (uid, fence, owner)
            WHERE state = 'running' FOR UPDATE OF steadyworker_jobs SKIP LOCKED
        ) AS free WHERE job.number = free.number RETURNING job.number, job.uid
    ), let_go AS (
        DELETE FROM steadyworker_messages USING ended WHERE steadyworker_messages.number = ended.number
    )
    SELECT uid FROM ended
"""
INTERRUPTED = f"""
    UPDATE steadyworker_jobs SET state = 'interrupted', {_NOBODY}, wake_at = greatest(wake_at, {NOW}), {_COUNTERS}
    WHERE {_MINE} AND state = 'running'
"""
MOVING = f"UPDATE steadyworker_jobs SET {_MOVING} WHERE {_MINE} AND state IN ('running', 'moving')"
MOVED = f"""
    UPDATE steadyworker_jobs SET
        state = CASE target WHEN 'dead' THEN 'dead' ELSE 'moved' END, {_NOBODY},
        wake_at = CASE target WHEN 'dead' THEN NULL ELSE {after("%(wake_in)s")} END,
        ended_at = CASE target WHEN 'dead' THEN {NOW} END,
        keep_until = CASE target
            WHEN 'dead' THEN {after("%(keep_dead)s")}
            ELSE greatest({NOW}, not_before) + make_interval(secs => %(keep_moved)s)
        END
    WHERE {_MINE} AND state = 'moving'
"""
# The statement waits for no row, because it follows the claim of another job in one transaction.
# If another session holds a row, the row only stays without its mark, and the ledger keeps the row longer.
SETTLE = f"""
    UPDATE steadyworker_jobs AS job SET
        settled = CASE WHEN known THEN 'confirmed' ELSE 'sent' END,
        keep_until = CASE WHEN known AND state = 'done' THEN {after("%(keep_confirmed)s")} ELSE keep_until END
    FROM (
        SELECT number, known FROM steadyworker_jobs
            JOIN unnest(%(settled_uids)s::text[], %(settled_fences)s::bigint[], %(settled_known)s::bool[])
                AS mark (uid, fence, known) USING (uid, fence)
        WHERE state NOT IN ('running', 'moving') AND (known OR settled = 'unknown')
        FOR UPDATE OF steadyworker_jobs SKIP LOCKED
    ) AS ended WHERE job.number = ended.number
"""
# If this write is lost, the ledger only keeps the rows longer, so it does not wait for the disk.
FLUSH = f"SET LOCAL synchronous_commit = off; {SETTLE}"
# A row without a fence was never claimed; it only holds a cancel mark, and the ledger keeps it for 14 days.
CANCEL = f"""
    INSERT INTO steadyworker_jobs AS job (namespace, queue, key, round, uid, state, cancel_reason, keep_until)
    VALUES (
        %(namespace)s, %(queue)s, %(key)s, %(round)s, %(uid)s, 'interrupted', %(reason)s, {after("%(keep_mark)s")}
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
    SELECT uid, cancel_reason FROM steadyworker_jobs WHERE owner = %(owner)s AND cancel_reason IS NOT NULL
"""
ENDED = "SELECT uid FROM steadyworker_jobs WHERE uid = ANY(%(uids)s::text[]) AND state IN ('done', 'dead')"
LAST_PROGRESS = (
    f"SELECT done, total, note, at FROM steadyworker_progress JOIN steadyworker_jobs USING (uid) WHERE {_JOB}"
)
LAST_ROUND = """
    SELECT max(round) FROM steadyworker_jobs WHERE namespace = %(namespace)s AND queue = %(queue)s AND key = %(key)s
"""
# `LAST_OF_ITS_KEY` is a column, not a condition, so that the server computes it only for the rows of a page.
# With a condition, the server would expect a long query, and would first compile the query for more than a second.
PAGE = f"""
    SELECT
        {COLUMNS}, (%(late_by)s::float8 IS NULL AND NOT %(kept)s::bool) OR {LAST_OF_ITS_KEY}, number,
        progress.done, progress.total, progress.note, progress.at
    FROM steadyworker_jobs LEFT JOIN (SELECT uid, done, total, note, at FROM steadyworker_progress) AS progress USING (uid)
    WHERE number < %(below)s AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)
        AND (%(queue)s::text IS NULL OR queue = %(queue)s)
        AND (%(states)s::text[] IS NULL OR state = ANY(%(states)s::text[]))
        AND (NOT %(unfinished)s::bool OR {UNFINISHED})
        AND (%(late_by)s::float8 IS NULL OR {_DUE} < {after("- %(late_by)s::float8")})
        AND (NOT %(kept)s::bool OR EXISTS (SELECT FROM steadyworker_messages AS kept WHERE kept.number = steadyworker_jobs.number))
    ORDER BY number DESC LIMIT %(rows)s
"""
FORGET = f"""
    DELETE FROM steadyworker_jobs WHERE {_JOB} AND state = 'dead' AND (checkpoint IS NULL OR EXISTS (
        SELECT 1 FROM steadyworker_jobs AS later
        WHERE later.namespace = %(namespace)s AND later.queue = %(queue)s AND later.key = %(key)s
            AND later.round = %(round)s + 1
    ))
"""
# This statement skips rows that another session is claiming, because the claim clears `keep_until`.
PURGE = f"""
    DELETE FROM steadyworker_jobs WHERE number IN (
        SELECT number FROM steadyworker_jobs WHERE keep_until <= {NOW} LIMIT %(rows)s FOR UPDATE SKIP LOCKED
    )
"""
PURGE_OWNERS = f"DELETE FROM steadyworker_owners WHERE seen_at <= {NOW} - make_interval(secs => %(keep_owners)s)"
HOLDING = """
    SELECT asked.owner FROM unnest(%(owners)s::text[]) AS asked (owner)
    WHERE EXISTS (SELECT FROM steadyworker_jobs AS job WHERE job.owner = asked.owner)
"""
UNREGISTER = "DELETE FROM steadyworker_owners WHERE owner = %(owner)s"
OWNERS = f"""
    SELECT owner, host, queues, extract(epoch FROM {NOW} - seen_at)::float8 FROM steadyworker_owners
    WHERE seen_at > {NOW} - make_interval(secs => %(keep_owners)s)
"""
BIND = """
    INSERT INTO steadyworker_bindings AS bound VALUES (%(namespace)s, %(queue)s, %(identity)s)
    ON CONFLICT (namespace, queue) DO UPDATE SET broker_identity = bound.broker_identity RETURNING broker_identity
"""
QUEUES = "SELECT queue FROM steadyworker_bindings WHERE namespace = %(namespace)s"
BINDINGS = "SELECT namespace, queue FROM steadyworker_bindings ORDER BY namespace, queue"

# A part that the server hides now, or hid at the time of the record, is NULL, and counts as equal.
_PART = "unnest(incarnation, {now}) WITH ORDINALITY AS part (known, got, place)"
_SAME = f"NOT EXISTS (SELECT FROM {_PART} WHERE known <> got)"
_KNOWN = f"ARRAY(SELECT coalesce(got, known) FROM {_PART} ORDER BY place)"

_ABSENT = f"seen_at < {after('- %(absence)s')}"
# An owner renews `seen_at` once a minute, not at each registration.
# Otherwise the many owners of a queue would wait for each other.
REGISTER = f"""
    WITH beaten AS (
        INSERT INTO steadyworker_owners (owner, host, boot_id, lock_path, queues, seen_at, beat)
        VALUES (%(owner)s, %(host)s, %(boot)s, %(lock_path)s, %(queues)s, {NOW}, 1)
        ON CONFLICT (owner) DO UPDATE SET
            host = excluded.host, queues = excluded.queues, seen_at = excluded.seen_at, beat = steadyworker_owners.beat + 1
        RETURNING beat
    ), renewed AS (
        UPDATE steadyworker_attended SET seen_at = {NOW} WHERE name IN (
            SELECT name FROM steadyworker_attended
            WHERE name = ANY(%(names)s::text[]) AND seen_at < {after("-60")} AND NOT {_ABSENT} ORDER BY name FOR UPDATE
        )
    )
    SELECT beat, {_SAME}, incarnation = {_KNOWN} AND NOT EXISTS (
        SELECT FROM unnest(%(names)s::text[]) AS asked (name) LEFT JOIN steadyworker_attended USING (name)
        WHERE seen_at IS NULL OR {_ABSENT}
    ), extract(epoch FROM {NOW})::float8
    FROM beaten, steadyworker_meta
"""
_LAST_FENCE = "(SELECT next_fence - 1 FROM steadyworker_meta)"
# This locks the row of `steadyworker_meta` first, and then the rows of queues, in the same order as a registration.
ATTEND = f"""
    UPDATE steadyworker_meta SET {NEXT_FENCE}, incarnation = {_KNOWN};
    SELECT FROM steadyworker_attended ORDER BY name FOR UPDATE;
    UPDATE steadyworker_attended SET trusted_from = {_LAST_FENCE} WHERE %(went_back)s;
    INSERT INTO steadyworker_attended AS known (name, seen_at, trusted_from)
    SELECT name, {NOW}, {_LAST_FENCE} FROM unnest(%(names)s::text[]) AS name ORDER BY name
    ON CONFLICT (name) DO UPDATE SET
        trusted_from = CASE WHEN known.{_ABSENT} THEN excluded.trusted_from ELSE known.trusted_from END,
        seen_at = excluded.seen_at
"""
