"""
The PostgreSQL ledger's statements.

The server's clock (`clock_timestamp()`) sets and judges all times; no worker's clock decides anything.

Most writes are one statement, and therefore one transaction.
A claim's transaction can have more statements: it also records which earlier settlements are confirmed (`SETTLE`),
and the claims of one turn also record the jobs that are done (`DONE_MANY`).
A claim draws its fence in an earlier statement, so no statement locks both the row of `steadyworker_meta` and a job's row.
Therefore claims never deadlock, and a claim that waits for its job's row, or for the disk, delays no other claim.
If the ledger refuses a claim, the claim's fence stays unused.
"""
# ruff: noqa: S608 - this package makes its statements from its own constants, once, at import

from __future__ import annotations

from typing import LiteralString

from steadyworker.ledger.postgres.schema import UNFINISHED

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


def committing(level: LiteralString) -> LiteralString:
    """
    Return the first part of a statement, which sets `synchronous_commit` for the statement's own commit.

    The rest of the statement must contain `FROM committed`; otherwise PostgreSQL does not apply the setting.
    """
    return f"WITH committed AS MATERIALIZED (SELECT set_config('synchronous_commit', {level}, true))"


# In the text of a statement, base64 makes a body a third longer; PostgreSQL's own form makes the body twice as long.
_BODY = "decode(%(body)s, 'base64')"


_ATTEMPT = "number, fence, owner, pid, slot, version, because, epoch, checkpoint_before"


def _keeping(claim: LiteralString) -> LiteralString:
    """Return this statement of a claim, extended to keep the claim's message if the row has no message yet, and to record its attempt."""
    return f"""
        WITH claimed AS ({claim}), kept AS (
            INSERT INTO steadyworker_messages (number, body, facts)
            SELECT number, {_BODY}, %(facts)s FROM claimed WHERE %(facts)s::bytea IS NOT NULL ON CONFLICT (number) DO NOTHING
        ), began AS (
            INSERT INTO steadyworker_attempts ({_ATTEMPT})
            SELECT number, fence, owner, %(pid)s, %(slot)s, %(version)s, %(because)s, %(epoch)s::bigint, %(before)s::bytea
            FROM claimed WHERE %(because)s::text IS NOT NULL
        )
        SELECT * FROM claimed
    """


# This part of a statement sees the attempts as they were before the statement, so it leaves the new attempt as it is.
_LOST = f"""
    UPDATE steadyworker_attempts AS run SET outcome = 'lost', ended_at = {NOW}
    FROM claimed WHERE run.number = claimed.number AND run.outcome = ''
"""


def _again(claim: LiteralString) -> LiteralString:
    """Return this statement of a later claim of a job, extended to end the lost attempt, and to keep the last 20 attempts."""
    return claim.replace(
        "), kept AS",
        f"""), lost AS ({_LOST}), forgotten AS (
            DELETE FROM steadyworker_attempts AS run USING claimed WHERE run.number = claimed.number AND run.fence <= (
                SELECT first.fence FROM steadyworker_attempts AS first WHERE first.number = claimed.number
                ORDER BY first.fence DESC LIMIT 1 OFFSET 19
            )
        ), kept AS""",
    )


def _ending(update: LiteralString, more: LiteralString = "") -> LiteralString:
    """Return this statement of a run's end, extended to record the end of the run's attempt; `more` is another part of it."""
    return f"""
        WITH ended AS ({update} RETURNING number), attempt AS (
            UPDATE steadyworker_attempts AS run SET
                outcome = %(outcome)s, ended_at = {NOW}, reason = %(why)s, error_class = %(raised)s,
                error_text = %(raised_text)s, traceback = %(traceback)s, peak_memory = %(peak_memory)s::bigint,
                checkpoint_after = %(left)s::bytea
            FROM ended WHERE run.number = ended.number AND run.fence = %(fence)s AND %(outcome)s::text IS NOT NULL
        ){more}
        SELECT FROM ended
    """


# The new fence is this ledger's last fence + 1, or the wall clock in milliseconds, whichever is greater.
# This statement does not wait for the disk, because the later commit of the claim also makes the draw durable.
NEXT_FENCE = f"next_fence = greatest(next_fence, floor(extract(epoch FROM {NOW}) * 1000)::bigint) + 1"
DRAW = f"""
    {committing("'off'")} UPDATE steadyworker_meta SET {NEXT_FENCE} FROM committed RETURNING next_fence - 1
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
CLAIM_SEEN = _again(
    _keeping(f"""
    UPDATE steadyworker_jobs SET
        state = 'running', hop = greatest(hop, %(hop)s), {_OWN}, {_COUNTERS},
        body_sha256 = coalesce(body_sha256, %(body_sha256)s),
        checkpoint = CASE WHEN fence = 0 THEN {_CHECKPOINT_OF_ROUND_BEFORE} ELSE checkpoint END,
        target = NULL, not_before = NULL, delay = 0,
        settled = 'unknown', keep_until = NULL, started_at = {NOW}, worker = %(worker)s
    WHERE {_SEEN} AND state NOT IN ('done', 'dead') RETURNING {COLUMNS}, number
""")
)
# A new round begins with the checkpoint of the round before, which the process knows only after its claim.
BEGAN_WITH = f"""
    UPDATE steadyworker_attempts AS run SET checkpoint_before = %(before)s
    FROM (SELECT number FROM steadyworker_jobs WHERE {_JOB}) AS job WHERE run.number = job.number AND run.fence = %(fence)s
"""
MESSAGE = f"SELECT body, facts FROM steadyworker_messages JOIN steadyworker_jobs USING (number) WHERE {_JOB}"
REPLAY = f"""
    WITH inserted AS (
        INSERT INTO steadyworker_jobs (
            namespace, queue, key, round, uid, body_sha256, state, hop, fence, target, not_before, delay, wake_at, reason,
            checkpoint, keep_until
        ) VALUES (
            %(namespace)s, %(queue)s, %(key)s, %(round)s, %(uid)s, %(body_sha256)s, 'moved', -1, %(drawn)s, 'retry',
            {after("%(delay)s")}, %(delay)s, {after("%(wake_in)s")}, %(reason)s, {_CHECKPOINT_OF_ROUND_BEFORE},
            {after("%(delay)s")} + make_interval(secs => %(keep_moved)s)
        ) ON CONFLICT (namespace, queue, key, round) DO NOTHING RETURNING number
    )
    INSERT INTO steadyworker_messages (number, body, facts) SELECT number, {_BODY}, %(facts)s FROM inserted
"""
# This write does not wait for the disk: if the write is lost, the job only counts as an orphan earlier.
RESCHEDULE = f"""
    UPDATE steadyworker_jobs SET
        hop = hop + 1, not_before = {after("%(delay)s")}, delay = %(delay)s, wake_at = {after("%(wake_in)s")},
        keep_until = {after("%(delay)s")} + make_interval(secs => %(keep_moved)s)
    WHERE {_SEEN} AND hop = %(hop)s AND state = 'moved'
"""
DEFERRED = f"""
    {committing("'off'")}
    UPDATE steadyworker_jobs SET wake_at = greatest(wake_at, {after("%(delay)s")})
    FROM committed WHERE {_JOB} AND state NOT IN ('done', 'dead') AND fence > 0
"""
TAKE_OVER = f"UPDATE steadyworker_jobs SET {_OWN} WHERE {_SEEN} AND state = 'moving' RETURNING {COLUMNS}"
LOSE = f"""
    WITH claimed AS (
        UPDATE steadyworker_jobs SET {_OWN}, {_MOVING} WHERE {_SEEN} AND state = 'running' RETURNING {COLUMNS}, number
    ), lost AS ({_LOST})
    SELECT * FROM claimed
"""
LOSE_AND_OWE = LOSE.replace(
    "SELECT * FROM claimed",
    """, owed AS (
        INSERT INTO steadyworker_owed_calls (number) SELECT number FROM claimed ON CONFLICT (number) DO NOTHING
    )
    SELECT * FROM claimed""",
)
"""The statements with `AND_OWE` are for Workers with `on_dead`, so that other Workers pay nothing."""
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
    {committing("coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on')")}
    UPDATE steadyworker_jobs SET {_LEASE} FROM committed WHERE {_MINE} AND state = 'running'
    RETURNING cancel_reason
"""
CHECKPOINT = f"""
    UPDATE steadyworker_jobs
    SET checkpoint = %(value)s, checkpoint_fence = CASE WHEN %(value)s::bytea IS NOT NULL THEN fence END
    WHERE {_MINE} AND state = 'running'
"""
EXPORT_STATE = f"UPDATE steadyworker_jobs SET export_state = %(value)s WHERE {_MINE} AND state = 'running'"
_LET_GO = """, let_go AS (
        DELETE FROM steadyworker_messages USING ended WHERE steadyworker_messages.number = ended.number
    )"""
_DONE = f"""
    UPDATE steadyworker_jobs SET
        state = 'done', {_NOBODY}, wake_at = NULL, reason = '', error_class = '', error_text = '',
        ended_at = {NOW}, keep_until = {after("%(keep_done)s")}
    WHERE {_MINE} AND state = 'running'
"""
DONE = _ending(_DONE, _LET_GO)
_RESULT = """, result AS (
        INSERT INTO steadyworker_results (number, value) SELECT number, %(result)s::bytea FROM ended
    )"""
DONE_WITH_RESULT = _ending(_DONE, _LET_GO + _RESULT)
"""The statement for a job with a result, so that a job without one costs nothing more."""
# The next four statements serve several jobs in one transaction, so they lock rows in an order that ends in no deadlock.
# Claims come first, in the order of their keys; the ends wait for no row.
DRAW_MANY = f"""
    {committing("'off'")} UPDATE steadyworker_meta
    SET next_fence = greatest(next_fence, floor(extract(epoch FROM {NOW}) * 1000)::bigint) + %(many)s
    FROM committed RETURNING next_fence - %(many)s
"""
CLAIM_MANY = f"""
    WITH asked AS MATERIALIZED (
        SELECT * FROM unnest(
            %(namespaces)s::text[], %(queues)s::text[], %(keys)s::text[], %(rounds)s::bigint[], %(uids)s::text[],
            %(bodies_sha256)s::bytea[], %(hops)s::bigint[], %(fences)s::bigint[], %(claimers)s::text[],
            %(attempts)s::bigint[], %(crashes)s::bigint[], %(losses)s::bigint[], %(interruptions)s::bigint[],
            %(first_failed_at)s::float8[], %(bodies)s::text[], %(facts)s::bytea[],
            %(slots)s::bigint[], %(becauses)s::text[], %(epochs)s::bigint[]
        ) AS asked (
            namespace, queue, key, round, uid, body_sha256, hop, fence, owner,
            attempts, crashes, losses, interruptions, first_failed_at, body, facts, slot, because, epoch
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
    ), began AS (
        INSERT INTO steadyworker_attempts ({_ATTEMPT})
        SELECT number, fence, claimed.owner, %(pid)s, slot, %(version)s, because, epoch, NULL
        FROM claimed JOIN asked USING (fence) WHERE because IS NOT NULL
    )
    SELECT * FROM claimed
"""
DONE_MANY = f"""
    WITH ended AS (
        UPDATE steadyworker_jobs AS job SET
            state = 'done', {_NOBODY}, wake_at = NULL, reason = '', error_class = '', error_text = '',
            ended_at = {NOW}, keep_until = {after("free.keep")}
        FROM (
            SELECT number, outcome, peak_memory, left_checkpoint, keep FROM steadyworker_jobs
            JOIN unnest(
                %(ended_uids)s::text[], %(ended_fences)s::bigint[], %(ended_owners)s::text[],
                %(ended_outcomes)s::text[], %(ended_peaks)s::bigint[], %(ended_left)s::bytea[],
                %(ended_keeps)s::float8[]
            ) AS mine (uid, fence, owner, outcome, peak_memory, left_checkpoint, keep) USING (uid, fence, owner)
            WHERE state = 'running' FOR UPDATE OF steadyworker_jobs SKIP LOCKED
        ) AS free WHERE job.number = free.number
        RETURNING job.number, job.uid, job.fence, free.outcome, free.peak_memory, free.left_checkpoint
    ), attempt AS (
        UPDATE steadyworker_attempts AS run SET
            outcome = ended.outcome, ended_at = {NOW}, peak_memory = ended.peak_memory, checkpoint_after = ended.left_checkpoint
        FROM ended WHERE run.number = ended.number AND run.fence = ended.fence AND ended.outcome IS NOT NULL
    ){_LET_GO}
    SELECT uid FROM ended
"""
# This statement follows `DONE_MANY`, so it adds results only for jobs that are done under their run's fence.
ADD_RESULTS = """
    INSERT INTO steadyworker_results (number, value)
    SELECT number, value FROM steadyworker_jobs
    JOIN unnest(%(ended_uids)s::text[], %(ended_fences)s::bigint[], %(ended_results)s::bytea[]) AS mine (uid, fence, value)
        USING (uid, fence)
    WHERE state = 'done' AND value IS NOT NULL ON CONFLICT (number) DO NOTHING
"""
INTERRUPTED = _ending(f"""
    UPDATE steadyworker_jobs SET state = 'interrupted', {_NOBODY}, wake_at = greatest(wake_at, {NOW}), {_COUNTERS}
    WHERE {_MINE} AND state = 'running'
""")
_MOVE = f"UPDATE steadyworker_jobs SET {_MOVING} WHERE {_MINE} AND state IN ('running', 'moving')"
MOVING = _ending(_MOVE)
MOVING_AND_OWE = _ending(
    _MOVE,
    """, owed AS (
        INSERT INTO steadyworker_owed_calls (number) SELECT number FROM ended ON CONFLICT (number) DO NOTHING
    )""",
)
NEXT_CALL = f"""
    UPDATE steadyworker_owed_calls AS owed SET tries = tries + 1, due_at = {after("%(lease)s")}
    FROM (
        SELECT number, key, round FROM steadyworker_owed_calls AS due JOIN steadyworker_jobs USING (number)
        WHERE namespace = %(namespace)s AND queue = %(queue)s AND state = 'dead' AND due_at <= {NOW}
        ORDER BY number LIMIT 1 FOR UPDATE OF due SKIP LOCKED
    ) AS first WHERE owed.number = first.number RETURNING key, round, tries
"""
_CALLED = f"number = (SELECT number FROM steadyworker_jobs WHERE {_JOB}) AND tries = %(tries)s"
END_CALL = f"DELETE FROM steadyworker_owed_calls WHERE {_CALLED}"
CALL_AGAIN = f"UPDATE steadyworker_owed_calls SET due_at = {after('%(again_in)s')} WHERE {_CALLED}"
MOVED = f"""
    UPDATE steadyworker_jobs SET
        state = CASE target WHEN 'dead' THEN 'dead' ELSE 'moved' END, {_NOBODY},
        wake_at = CASE target WHEN 'dead' THEN NULL ELSE {after("%(wake_in)s")} END,
        ended_at = CASE target WHEN 'dead' THEN {NOW} END,
        keep_until = CASE target
            WHEN 'dead' THEN {NOW} + make_interval(secs => CASE WHEN reason = 'cancelled: ' || cancel_reason THEN %(keep_cancelled)s ELSE %(keep_dead)s END)
            ELSE greatest({NOW}, not_before) + make_interval(secs => %(keep_moved)s)
        END
    WHERE {_MINE} AND state = 'moving'
"""
# The statement waits for no row, because it follows the claim of another job in one transaction.
# If another session holds a row, the row only stays without its mark, and the ledger keeps the row longer.
SETTLE = f"""
    UPDATE steadyworker_jobs AS job SET
        settled = CASE WHEN known THEN 'confirmed' ELSE 'sent' END,
        keep_until = CASE WHEN known AND state = 'done' THEN {NOW} + make_interval(secs => keep) ELSE keep_until END
    FROM (
        SELECT number, known, keep FROM steadyworker_jobs
            JOIN unnest(
                %(settled_uids)s::text[], %(settled_fences)s::bigint[], %(settled_known)s::bool[], %(settled_keep)s::float8[]
            ) AS mark (uid, fence, known, keep) USING (uid, fence)
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
UNCANCEL = f"""
    UPDATE steadyworker_jobs SET cancel_reason = NULL
    WHERE {_JOB} AND cancel_reason IS NOT NULL AND fence > 0 AND state IN ('interrupted', 'moved')
"""
UNCANCEL_UNSEEN = f"DELETE FROM steadyworker_jobs WHERE {_JOB} AND cancel_reason IS NOT NULL AND fence = 0"
CONFLICT = f"UPDATE steadyworker_jobs SET conflicts = conflicts + 1 WHERE {_JOB}"
CLEAR_CHECKPOINT = f"""
    UPDATE steadyworker_jobs SET checkpoint = NULL, checkpoint_fence = NULL
    WHERE {_JOB} AND state NOT IN ('running', 'moving')
"""
# The mark is a sample that becomes the earlier sample, as soon as it is old enough; so the earlier sample is at most twice as old.
_OTHER_RUN = "known.fence <> excluded.fence OR known.mark_at IS NULL OR excluded.at < known.mark_at"
_MARK_IS_OLD = "excluded.done IS NOT NULL AND excluded.at - known.mark_at >= %(rate_over)s"
PROGRESS = f"""
    {committing("'off'")}
    INSERT INTO steadyworker_progress AS known (uid, fence, done, total, note, at, mark_at, mark_done)
    SELECT
        uid, fence, %(done)s::float8, %(total)s::float8, %(note)s, %(at)s::float8,
        CASE WHEN %(done)s::float8 IS NOT NULL THEN %(at)s::float8 END, %(done)s::float8
    FROM steadyworker_jobs, committed WHERE {_RUN}
    ON CONFLICT (uid) DO UPDATE SET
        before_at = CASE WHEN {_OTHER_RUN} THEN NULL WHEN {_MARK_IS_OLD} THEN known.mark_at ELSE known.before_at END,
        before_done = CASE WHEN {_OTHER_RUN} THEN NULL WHEN {_MARK_IS_OLD} THEN known.mark_done ELSE known.before_done END,
        mark_at = CASE WHEN {_OTHER_RUN} OR {_MARK_IS_OLD} THEN excluded.mark_at ELSE known.mark_at END,
        mark_done = CASE WHEN {_OTHER_RUN} OR {_MARK_IS_OLD} THEN excluded.mark_done ELSE known.mark_done END,
        fence = excluded.fence, done = excluded.done, total = excluded.total, note = excluded.note, at = excluded.at
"""
ORDERS_VERSION = "SELECT version FROM steadyworker_orders"
"""This is the most frequent statement of a fleet; a change of its result shows that a person has given an order."""

ORDERS = """
    SELECT 'cancel', uid, cancel_reason, NULL::text, NULL::text, NULL::float8
    FROM steadyworker_jobs WHERE owner = %(owner)s AND cancel_reason IS NOT NULL
    UNION ALL
    SELECT 'pause', namespace, queue, who, reason, extract(epoch FROM at)::float8 FROM steadyworker_pauses
    UNION ALL
    SELECT DISTINCT 'command', NULL::text, NULL::text, NULL::text, NULL::text, NULL::float8
    FROM steadyworker_commands WHERE owner = %(owner)s
"""
ENDED = "SELECT uid FROM steadyworker_jobs WHERE uid = ANY(%(uids)s::text[]) AND state IN ('done', 'dead')"
RESULT = f"SELECT value FROM steadyworker_results JOIN steadyworker_jobs USING (number) WHERE {_JOB}"
ATTEMPTS_OF = f"""
    SELECT
        run.fence, run.owner, pid, slot, version, because, epoch,
        extract(epoch FROM run.started_at)::float8, extract(epoch FROM run.ended_at)::float8,
        outcome, run.reason, run.error_class, run.error_text, traceback, checkpoint_before, checkpoint_after, peak_memory,
        CASE WHEN job.fence > run.fence THEN extract(epoch FROM job.started_at)::float8 END
    FROM steadyworker_attempts AS run
        JOIN (SELECT number, fence, started_at FROM steadyworker_jobs WHERE {_JOB}) AS job USING (number)
    ORDER BY run.fence
"""
_PROGRESS = "done, total, note, at, before_at, before_done"
LAST_PROGRESS = f"SELECT {_PROGRESS} FROM steadyworker_progress JOIN steadyworker_jobs USING (uid) WHERE {_JOB}"
LAST_ROUND = """
    SELECT max(round) FROM steadyworker_jobs WHERE namespace = %(namespace)s AND queue = %(queue)s AND key = %(key)s
"""
# A line feed between two texts keeps a search from a match across both.
_TEXTS: LiteralString = "concat_ws(chr(10), key, reason, error_class, error_text, cancel_reason, progress.note)"
# `LAST_OF_ITS_KEY` is a column, not a condition, so that the server computes it only for the rows of a page.
# With a condition, the server would expect a long query, and would first compile the query for more than a second.
PAGE = f"""
    SELECT
        {COLUMNS}, (NOT %(kept)s::bool AND NOT %(last)s::bool) OR {LAST_OF_ITS_KEY}, number,
        {_PROGRESS}
    FROM steadyworker_jobs LEFT JOIN (SELECT uid, {_PROGRESS} FROM steadyworker_progress) AS progress USING (uid)
    WHERE number < %(below)s AND number >= %(start)s AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)
        AND (%(queue)s::text IS NULL OR queue = %(queue)s)
        AND (%(states)s::text[] IS NULL OR state = ANY(%(states)s::text[]))
        AND (NOT %(unfinished)s::bool OR {UNFINISHED})
        AND (%(since)s::float8 IS NULL OR coalesce(ended_at, started_at, created_at) >= to_timestamp(%(since)s::float8))
        AND (%(snoozed)s::bool IS NULL OR (starts_with(reason, %(snooze)s) AND error_class = '') = %(snoozed)s::bool)
        AND (%(grep)s::text IS NULL OR strpos(lower({_TEXTS}), lower(%(grep)s::text)) > 0)
        AND (NOT %(kept)s::bool OR EXISTS (SELECT FROM steadyworker_messages AS kept WHERE kept.number = steadyworker_jobs.number))
    ORDER BY number DESC LIMIT %(rows)s
"""
_OF_QUEUE = """(%(namespace)s::text IS NULL OR namespace = %(namespace)s)
    AND (%(queue)s::text IS NULL OR queue = %(queue)s)"""
# This is `hang.longest_silence`. `date_part` returns the same number as `extract`, in a third of the time.
_STARTED = "date_part('epoch', started_at)"
_WINDOW: LiteralString = f"(at - coalesce(before_at, {_STARTED}))"
_BEFORE = "coalesce(before_done, 0)"
_STALLED = "%(stalled)s::float8"
_LONGEST_SILENCE: LiteralString = f"""CASE WHEN done > {_BEFORE} AND {_WINDOW} >= 0 THEN greatest(
    %(samples_apart)s::float8 * {_WINDOW},
    CASE WHEN done >= %(many_done)s::float8 AND before_done >= 0 AND (coalesce(total, 0) = 0 OR done < total) THEN least(
        {_STALLED},
        greatest(%(usual_steps)s::float8 * {_WINDOW} / (done - before_done), {_STALLED} / %(soonest)s::float8)
    ) ELSE {_STALLED} END
) ELSE {_STALLED} END"""
_IS_SILENT = f"""state = 'running' AND EXISTS (
    SELECT FROM steadyworker_progress AS last WHERE last.uid = steadyworker_jobs.uid AND at >= {_STARTED}
        AND date_part('epoch', {NOW}) - at > {_LONGEST_SILENCE}
)"""
HELD = f"""
    SET LOCAL jit = off;
    SELECT
        owner, namespace, queue, count(*), count(*) FILTER (WHERE state = 'running'),
        array_agg(key) FILTER (WHERE {_IS_SILENT})
    FROM steadyworker_jobs WHERE owner IS NOT NULL GROUP BY owner, namespace, queue
"""
# A part of the incarnation that the server hides now, or hid at the time of the record, is NULL, and counts as equal.
# `{now}` stands for the present incarnation (`trust.incarnation`).
PART: LiteralString = "unnest(incarnation, {now}) WITH ORDINALITY AS part (known, got, place)"
SAME: LiteralString = f"NOT EXISTS (SELECT FROM {PART} WHERE known <> got)"
# A job that a worker process starts by itself, later, needs no person, and neither does a job of a paused queue.
_IS_STRANDED = f"""
    state = 'interrupted' AND fence > 0 AND wake_at < {after("- %(overdue)s::float8")} AND (
        fence < coalesce((
            SELECT trusted_from FROM steadyworker_attended, steadyworker_meta WHERE name = namespace || '/' || queue AND {SAME}
        ), 9223372036854775807)
        OR NOT EXISTS (SELECT FROM steadyworker_messages AS kept WHERE kept.number = steadyworker_jobs.number)
    ) AND NOT EXISTS (
        SELECT FROM steadyworker_pauses AS pause
        WHERE pause.namespace = steadyworker_jobs.namespace AND pause.queue = steadyworker_jobs.queue
    )
"""
_DIES = "(state = 'moving' AND target = 'dead')"
_IS_NO_CANCEL = "(reason IS DISTINCT FROM 'cancelled: ' || cancel_reason)"
_LEASE_IS_OVER = f"({NOW} > lease_until + make_interval(secs => %(margin)s) OR owner = ANY(%(dead_owners)s::text[]))"
_NEED = f"""CASE
    WHEN {_IS_STRANDED} THEN 0
    WHEN {_DUE} < {after("- %(overdue)s::float8")} THEN 1
    WHEN crashes + losses >= %(lost)s::bigint AND (NOT {_DIES} OR {_IS_NO_CANCEL}) THEN CASE WHEN {_DIES} THEN 5 ELSE 2 END
    WHEN state = 'running' AND {_LEASE_IS_OVER}
        AND owner || chr(10) || namespace || chr(10) || queue = ANY(%(alone)s::text[]) THEN 3
    WHEN {_IS_SILENT} AND NOT {_LEASE_IS_OVER} THEN 4
END"""
# With `OFFSET 0`, the server searches a later round only for the few rows that have a need.
_NEEDING = f"""
    SELECT number AS place, number, need, count(*) OVER () AS every FROM (
        SELECT number, need FROM (
            SELECT number, namespace, queue, key, round, {_NEED} AS need
            FROM steadyworker_jobs WHERE {UNFINISHED} AND {_OF_QUEUE} OFFSET 0
        ) AS steadyworker_jobs WHERE need IN (3, 4) OR (need IS NOT NULL AND {LAST_OF_ITS_KEY})
        UNION ALL SELECT number, 5 FROM steadyworker_jobs
        WHERE state = 'dead' AND ended_at >= {after("- %(dead)s::float8")} AND {_OF_QUEUE}
            AND {_IS_NO_CANCEL} AND {LAST_OF_ITS_KEY}
    ) AS needy ORDER BY need, number DESC LIMIT %(rows)s OFFSET %(offset)s
"""
_HANG_FIRST = "need IS DISTINCT FROM 4, need IS NULL"
_RUNNING = f"""
    SELECT number AS place, number, need, count(*) OVER () AS every FROM (
        SELECT number, {_NEED} AS need FROM steadyworker_jobs WHERE owner IS NOT NULL AND state = 'running' AND {_OF_QUEUE}
    ) AS runs ORDER BY {_HANG_FIRST}, number DESC LIMIT %(rows)s OFFSET %(offset)s
"""
_WAITING = f"""
    SELECT row_number() OVER (ORDER BY wake_at, number) AS place, number, NULL::int AS need, every FROM (
        SELECT number, CASE WHEN owner IS NULL THEN wake_at ELSE '-infinity' END AS wake_at, count(*) OVER () AS every
        FROM steadyworker_jobs
        WHERE ((owner IS NULL AND wake_at IS NOT NULL) OR (owner IS NOT NULL AND state = 'moving')) AND {_OF_QUEUE}
        ORDER BY 2, 1 LIMIT %(rows)s OFFSET %(offset)s
    ) AS waits
"""


def _page(chosen: LiteralString, order: LiteralString) -> LiteralString:
    """Return the statement of the rows that the statement `chosen` finds, each with its need and the number of the whole list."""
    return f"""
        SET LOCAL jit = off;
        SELECT {COLUMNS}, need, every, {_PROGRESS}
        FROM ({chosen}) AS chosen JOIN steadyworker_jobs USING (number)
            LEFT JOIN (SELECT uid, {_PROGRESS} FROM steadyworker_progress) AS progress USING (uid)
        ORDER BY {order}
    """


NEEDING = _page(_NEEDING, "need, place DESC")
RUNNING = _page(_RUNNING, f"{_HANG_FIRST}, place DESC")
WAITING = _page(_WAITING, "place")
ABOVE_ALL = "SELECT coalesce(max(number), 0) + 1 FROM steadyworker_jobs"
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
PURGE_ATTEMPTS = f"""
    DELETE FROM steadyworker_attempts WHERE (number, fence) IN (
        SELECT number, run.fence FROM steadyworker_attempts AS run JOIN steadyworker_jobs USING (number)
        WHERE run.ended_at <= {after("- %(keep_attempts)s::float8")} AND namespace = %(namespace)s AND queue = %(queue)s
        LIMIT %(rows)s
    )
"""
PURGE_OWNERS = f"DELETE FROM steadyworker_owners WHERE seen_at <= {NOW} - make_interval(secs => %(keep_owners)s)"
HOLDING = """
    SELECT asked.owner FROM unnest(%(owners)s::text[]) AS asked (owner)
    WHERE EXISTS (SELECT FROM steadyworker_jobs AS job WHERE job.owner = asked.owner)
        OR EXISTS (SELECT FROM steadyworker_owners AS registered WHERE registered.owner = asked.owner)
"""
UNREGISTER = "DELETE FROM steadyworker_owners WHERE owner = %(owner)s"
LAST_RUNS = """
    SELECT wanted.place, run.runs, run.because
    FROM unnest(%(namespace)s::text[], %(queue)s::text[], %(key)s::text[], %(round)s::bigint[])
            WITH ORDINALITY AS wanted (namespace, queue, key, round, place)
        JOIN steadyworker_jobs USING (namespace, queue, key, round)
        CROSS JOIN LATERAL (
            SELECT count(*) AS runs, (array_agg(because ORDER BY kept.fence DESC))[1] AS because
            FROM steadyworker_attempts AS kept WHERE kept.number = steadyworker_jobs.number
        ) AS run WHERE run.runs > 0
"""
OWNERS = f"""
    SELECT owner, host, queues, extract(epoch FROM {NOW} - seen_at)::float8, report FROM steadyworker_owners
    WHERE seen_at > {NOW} - make_interval(secs => %(keep_owners)s)
"""
BIND = """
    INSERT INTO steadyworker_bindings AS bound VALUES (%(namespace)s, %(queue)s, %(identity)s)
    ON CONFLICT (namespace, queue) DO UPDATE SET broker_identity = bound.broker_identity RETURNING broker_identity
"""
# The server only reads the sizes of files for this.
SIZE = r"""
    SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
    WHERE relkind = 'r' AND relname LIKE 'steadyworker\_%%'
        AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'steadyworker_meta'::regclass)
"""
QUEUES = "SELECT queue FROM steadyworker_bindings WHERE namespace = %(namespace)s"
BINDINGS = "SELECT namespace, queue FROM steadyworker_bindings ORDER BY namespace, queue"
