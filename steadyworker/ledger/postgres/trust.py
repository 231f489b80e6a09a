"""
The registration of owners, and the search for orphans, on a ledger that may have gone back in time.

A ledger goes back in time when an operator restores a dump or a backup, or when a stand-by without the last commits takes over.
Then the row of a job that is done can be unfinished again, and no worker process may run such a job by itself.
Two facts show that the ledger went back in time:

- An owner's *beat* counts its registrations, and the owner knows the last count that the ledger confirmed.
- The *incarnation* names the server, its timeline, the database and the table.
  A restored dump has other tables, and each fail-over and each recovery of a backup begins another timeline.
  Managed servers may hide a part of the incarnation; this code leaves out such a part.
"""

# ruff: noqa: S608 - this package makes its statements from its own constants, once, at import

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg

from steadyworker.clock import Clock
from steadyworker.ledger import retention
from steadyworker.ledger.lease import attended, registered_name
from steadyworker.ledger.postgres.session import LedgerConnection
from steadyworker.ledger.postgres.statements import COLUMNS, LAST_OF_ITS_KEY, NEXT_FENCE, NOW, PART, SAME, after
from steadyworker.ledger.shared import KEEP, Values

_PARTS: tuple[LiteralString, ...] = (
    "(SELECT system_identifier::text FROM pg_control_system())",
    "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)",
    "(SELECT oid::text FROM pg_database WHERE datname = current_database())",
    "'steadyworker_meta'::regclass::oid::text",
)
_KNOWN = f"ARRAY(SELECT coalesce(got, known) FROM {PART} ORDER BY place)"

_ABSENT = f"seen_at < {after('- %(absence)s')}"
# An owner renews `seen_at` once a minute, not at each registration.
# Otherwise the many owners of a queue would wait for each other.
_REGISTER = f"""
    WITH beaten AS (
        INSERT INTO steadyworker_owners (owner, host, boot_id, lock_path, queues, seen_at, beat, report)
        VALUES (%(owner)s, %(host)s, %(boot)s, %(lock_path)s, %(queues)s, {NOW}, 1, %(report)s)
        ON CONFLICT (owner) DO UPDATE SET
            host = excluded.host, queues = excluded.queues, seen_at = excluded.seen_at, report = excluded.report,
            beat = steadyworker_owners.beat + 1
        RETURNING beat
    ), renewed AS (
        UPDATE steadyworker_attended SET seen_at = {NOW} WHERE name IN (
            SELECT name FROM steadyworker_attended
            WHERE name = ANY(%(names)s::text[]) AND seen_at < {after("-60")} AND NOT {_ABSENT} ORDER BY name FOR UPDATE
        )
    )
    SELECT beat, {SAME}, incarnation = {_KNOWN} AND NOT EXISTS (
        SELECT FROM unnest(%(names)s::text[]) AS asked (name) LEFT JOIN steadyworker_attended USING (name)
        WHERE seen_at IS NULL OR {_ABSENT}
    ), extract(epoch FROM {NOW})::float8
    FROM beaten, steadyworker_meta
"""
_LAST_FENCE = "(SELECT next_fence - 1 FROM steadyworker_meta)"
# This locks the row of `steadyworker_meta` first, and then the rows of queues, in the same order as a registration.
_ATTEND = f"""
    UPDATE steadyworker_meta SET {NEXT_FENCE}, incarnation = {_KNOWN};
    SELECT FROM steadyworker_attended ORDER BY name FOR UPDATE;
    UPDATE steadyworker_attended SET trusted_from = {_LAST_FENCE} WHERE %(went_back)s;
    INSERT INTO steadyworker_attended AS known (name, seen_at, trusted_from)
    SELECT name, {NOW}, {_LAST_FENCE} FROM unnest(%(names)s::text[]) AS name ORDER BY name
    ON CONFLICT (name) DO UPDATE SET
        trusted_from = CASE WHEN known.{_ABSENT} THEN excluded.trusted_from ELSE known.trusted_from END,
        seen_at = excluded.seen_at
"""

_SINCE = "greatest(CASE WHEN owner IS NOT NULL THEN lease_until + make_interval(secs => %(margin)s) END, wake_at)"
# Such a job becomes `dead` without a message, and its handler does not run again.
_DIES = "(state = 'moving' AND target = 'dead')"
_HINDRANCE = f"""CASE
    WHEN NOT {LAST_OF_ITS_KEY} THEN NULL
    WHEN fence < (SELECT trusted_from FROM asked) THEN 'old record'
    WHEN NOT {_DIES} AND NOT EXISTS (SELECT FROM steadyworker_messages AS kept WHERE kept.number = steadyworker_jobs.number)
    THEN 'no message'
END"""


def _late(which: LiteralString, since: LiteralString, order: LiteralString) -> LiteralString:
    return f"""(
        SELECT number, {_SINCE} AS since, {_HINDRANCE} AS hindrance FROM steadyworker_jobs
        WHERE namespace = %(namespace)s AND queue = %(queue)s AND {which} AND fence > 0
            AND {since} < (SELECT latest FROM asked) AND ({_HINDRANCE} IS NOT NULL) = %(stranded)s
        ORDER BY {order} LIMIT %(rows)s
    )"""


# The rows that wait are in the order of their index, which begins with the owner.
# `asked` reads the clock once; a condition that reads the clock for each row could not use an index.
# All jobs of a queue are old if no owner has registered the queue in this incarnation.
# Without `jit = off`, the server would expect to read a third of the rows, and would compile the query first.
# The compilation would take a hundred times as long as the query.
ORPHANS = f"""
    SET LOCAL jit = off;
    WITH asked AS MATERIALIZED (
        SELECT moment, moment - make_interval(secs => %(after)s) AS latest, coalesce(
            (SELECT trusted_from FROM steadyworker_attended WHERE name = %(name)s AND {SAME}), 9223372036854775807
        ) AS trusted_from
        FROM (SELECT {NOW} AS moment) AS clock, steadyworker_meta
        WHERE %(beat)s <= coalesce((SELECT beat FROM steadyworker_owners WHERE owner = %(owner)s), 0)
    ), late AS (
        {_late("owner IS NOT NULL", _SINCE, _SINCE)} UNION ALL
        {_late("owner IS NULL AND wake_at IS NOT NULL", "wake_at", "owner, wake_at")} ORDER BY since LIMIT %(rows)s
    )
    SELECT
        {COLUMNS}, extract(epoch FROM (SELECT moment FROM asked) - since)::float8, hindrance,
        extract(epoch FROM (SELECT moment FROM asked))::float8
    FROM late JOIN steadyworker_jobs USING (number) ORDER BY since
"""


_JUMP = 30.0
"""
The most seconds by which the server's clock may gain on this machine's clock without counting as a jump.

A call can take 10 s, so a smaller gain can be the time of a call.
An orphan appears only after a longer jump.
"""


class PostgresTrust:
    """
    The registrations of this process that the ledger has confirmed; a process without a registration trusts every ledger.

    If the server's clock jumps forward, all leases seem to have ended long ago, although their owners live.
    So after a jump there are no orphans for the time of a `lease`, in which each living owner renews.
    """

    def __init__(self, clock: Clock, lease: float) -> None:
        self._clock = clock
        self._lease = lease
        self._ahead: float | None = None
        self._unsure_until = clock.boottime()
        self._beats: dict[str, int] = {}
        self._at = clock.boottime()
        self._owner = ""

    def register(self, db: LedgerConnection, owner: str, values: Values) -> bool:
        """Register an owner; if the ledger went back in time, mark every older row as old, and return False."""
        values = values | KEEP | {"owner": owner, "names": attended(values["queues"])}
        now = incarnation(db)
        ((beat, same, settled, moment),) = db.run(_REGISTER.replace("{now}", now), values).fetchall()
        # After a day without a registration, other processes have removed the owner, and the count begins again.
        removed = beat == 1 and self._clock.boottime() - self._at > retention.OWNERS / 2
        went_back = not same or (beat <= self._beats.get(owner, 0) and not removed)
        if went_back or not settled:
            db.run(_ATTEND.replace("{now}", now), values | {"went_back": went_back})
        self._beats[owner], self._owner, self._at = beat, owner, self._clock.boottime()
        self._jumped(moment)
        self._ahead = moment - self._at
        return not went_back

    def distrust(self, db: LedgerConnection) -> None:
        """Mark every older row of every queue as old."""
        db.run(_ATTEND.replace("{now}", incarnation(db)), KEEP | {"names": [], "went_back": True})

    def forget(self, owner: str) -> None:
        """Forget an owner that unregistered."""
        self._beats.pop(owner, None)

    def orphans(self, db: LedgerConnection, namespace: str, queue: str, values: Values) -> Sequence[Sequence[Any]]:
        """Return the rows of orphans, each with the seconds since the job's message had to come, and with its hindrance."""
        name, beat = registered_name(namespace, queue), self._beats.get(self._owner, 0)
        values = values | {"namespace": namespace, "queue": queue, "name": name, "owner": self._owner, "beat": beat}
        found = db.run(ORPHANS.replace("{now}", incarnation(db)), values).fetchall()
        return () if found and self._jumped(found[0][-1]) else [row[:-1] for row in found]

    def _jumped(self, moment: float) -> bool:
        """Return whether the server's clock has jumped (to `moment`) since the last registration, or less than a lease ago."""
        now = self._clock.boottime()
        if self._ahead is not None and moment - now > self._ahead + _JUMP:
            self._unsure_until = now + self._lease
        return now < self._unsure_until


def incarnation(db: LedgerConnection) -> LiteralString:
    """Return the SQL expression of the incarnation, with only the parts that this server shows to this user."""
    if db.incarnation is None:
        db.incarnation = f"ARRAY[{', '.join(part if _is_shown(db, part) else 'NULL' for part in _PARTS)}]"
    return db.incarnation


def _is_shown(db: LedgerConnection, part: LiteralString) -> bool:
    try:
        db.run(f"SELECT {part}")
    except psycopg.OperationalError:
        raise
    except psycopg.Error:
        return False
    return True
