"""
The facts that people read, in the PostgreSQL ledger's database.

The server's clock sets and judges the times of pauses, commands, actions and depths.
The writes that a worker process repeats every few seconds do not wait for the server's disk.
"""
# ruff: noqa: S608 - this package makes its statements from its own constants, once, at import

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, LiteralString

from typing_extensions import override

from steadyworker.adapter import Depth
from steadyworker.ledger import retention
from steadyworker.ledger.facts import (
    MOST_LISTED,
    TRACEBACK_END,
    Action,
    Attempt,
    CommandName,
    Facts,
    LinkEvent,
    MeasuredDepth,
    Minute,
    OwnerCommand,
    Pause,
)
from steadyworker.ledger.facts_rows import (
    counts_of,
    depth_of,
    depth_text,
    minutes_of,
    safe_action,
    safe_event,
    safe_key,
    safe_name,
    safe_text,
)
from steadyworker.ledger.job_id import JobId
from steadyworker.ledger.postgres import statements as sql
from steadyworker.ledger.postgres.session import PostgresSession
from steadyworker.ledger.postgres.statements import NOW, after, committing
from steadyworker.ledger.shared import attempt_of, pk_values

_TRACEBACKS = """
    SELECT wanted.place, run.last
    FROM unnest(%(namespace)s::text[], %(queue)s::text[], %(key)s::text[], %(round)s::bigint[])
            WITH ORDINALITY AS wanted (namespace, queue, key, round, place)
        JOIN steadyworker_jobs USING (namespace, queue, key, round)
        CROSS JOIN LATERAL (
            SELECT right(traceback, %(most)s) AS last FROM steadyworker_attempts AS kept
            WHERE kept.number = steadyworker_jobs.number AND traceback <> '' ORDER BY kept.fence DESC LIMIT 1
        ) AS run
"""
_ADD_LINK_EVENTS = f"""
    {committing("'off'")}
    INSERT INTO steadyworker_link_events (at, owner, queue, epoch, event, why, fence)
    SELECT * FROM unnest(
        %(at)s::float8[], %(owner)s::text[], %(queue)s::text[], %(epoch)s::bigint[], %(event)s::text[], %(why)s::text[],
        %(fence)s::bigint[]
    ) WHERE EXISTS (SELECT FROM committed)
"""
_LINK_EVENTS = """
    SELECT owner, queue, at, epoch, event, why, fence FROM steadyworker_link_events
    WHERE at >= %(since)s::float8 AND (%(owner)s::text IS NULL OR owner = %(owner)s)
        AND (%(fences)s::bigint[] IS NULL OR fence = ANY(%(fences)s::bigint[]))
    ORDER BY at, number
"""
# Each process adds in the same order, so that no two of them wait for each other.
_ADD_MINUTES = f"""
    {committing("'off'")}
    INSERT INTO steadyworker_minutes AS known (at, namespace, queue, outcome, class, runs)
    SELECT at, namespace, queue, outcome, class, sum(runs) FROM unnest(
        %(at)s::bigint[], %(namespace)s::text[], %(queue)s::text[], %(outcome)s::text[], %(class)s::bigint[], %(runs)s::bigint[]
    ) AS added (at, namespace, queue, outcome, class, runs) WHERE EXISTS (SELECT FROM committed)
    GROUP BY at, namespace, queue, outcome, class ORDER BY at, namespace, queue, outcome, class
    ON CONFLICT (at, namespace, queue, outcome, class) DO UPDATE SET runs = known.runs + excluded.runs
"""
# The order is that of the other ledgers, whatever the database's own order of texts is.
_MINUTES = """
    SELECT at, namespace, queue, outcome, class, runs FROM steadyworker_minutes
    WHERE at >= %(since)s::float8 AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)
        AND (%(queue)s::text IS NULL OR queue = %(queue)s)
    ORDER BY at, namespace COLLATE "C", queue COLLATE "C", outcome COLLATE "C", class
"""
_PAUSE = f"""
    INSERT INTO steadyworker_pauses (namespace, queue, who, reason, at)
    VALUES (%(namespace)s, %(queue)s, %(who)s, %(reason)s, {NOW})
    ON CONFLICT (namespace, queue) DO UPDATE SET who = excluded.who, reason = excluded.reason, at = excluded.at
"""
_RESUME = "DELETE FROM steadyworker_pauses WHERE namespace = %(namespace)s AND queue = %(queue)s"
_PAUSES = """
    SELECT namespace, queue, who, reason, extract(epoch FROM at)::float8 FROM steadyworker_pauses
    ORDER BY namespace COLLATE "C", queue COLLATE "C"
"""
_COMMAND = f"INSERT INTO steadyworker_commands (owner, name, who, at) VALUES (%(owner)s, %(name)s, %(who)s, {NOW})"
_COMMANDS = """
    WITH removed AS (DELETE FROM steadyworker_commands WHERE owner = %(owner)s RETURNING number, name, who, at)
    SELECT name, who, extract(epoch FROM at)::float8 FROM removed ORDER BY number
"""
_ACT = f"""
    INSERT INTO steadyworker_actions (at, who, what, namespace, queue, keys, count, detail)
    VALUES ({NOW}, %(who)s, %(what)s, %(namespace)s, %(queue)s, %(keys)s::text[], %(count)s, %(detail)s)
"""
_ACTIONS = """
    SELECT who, what, namespace, queue, keys, count, detail, extract(epoch FROM at)::float8 FROM steadyworker_actions
    WHERE (%(since)s::float8 IS NULL OR extract(epoch FROM at)::float8 >= %(since)s)
        AND (%(namespace)s::text IS NULL OR namespace = %(namespace)s)
        AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(key)s::text IS NULL OR %(key)s = ANY(keys))
    ORDER BY number DESC LIMIT %(rows)s
"""
_MAY_MEASURE = f"""
    INSERT INTO steadyworker_depths AS known (namespace, queue, asked_at) VALUES (%(namespace)s, %(queue)s, {NOW})
    ON CONFLICT (namespace, queue) DO UPDATE SET asked_at = {NOW}
    WHERE known.asked_at IS NULL OR known.asked_at <= {after("- %(every)s::float8")} OR known.asked_at > {after("%(every)s")}
"""
_RECORD_DEPTH = f"""
    {committing("'off'")}
    INSERT INTO steadyworker_depths (namespace, queue, depth, measured_at)
    SELECT %(namespace)s, %(queue)s, %(depth)s, {NOW} FROM committed
    ON CONFLICT (namespace, queue) DO UPDATE SET depth = excluded.depth, measured_at = excluded.measured_at
"""
_DEPTHS = f"""
    SELECT namespace, queue, depth, greatest(0, extract(epoch FROM {NOW} - measured_at))::float8
    FROM steadyworker_depths WHERE depth IS NOT NULL ORDER BY namespace COLLATE "C", queue COLLATE "C"
"""
_PURGE = f"""
    DELETE FROM steadyworker_link_events WHERE at <= extract(epoch FROM {NOW})::float8 - %(link_events)s;
    DELETE FROM steadyworker_minutes WHERE at <= extract(epoch FROM {NOW})::float8 - %(minutes)s;
    DELETE FROM steadyworker_depths WHERE coalesce(measured_at, asked_at) <= {after("- %(depths)s")};
    DELETE FROM steadyworker_actions WHERE at <= {after("- %(actions)s")}
"""
# A trigger makes each process read the orders again after any statement that deletes commands, even if it deletes no row.
_OLD_COMMANDS = f"SELECT FROM steadyworker_commands WHERE at <= {after('- %(commands)s')} LIMIT 1"
_PURGE_COMMANDS = f"DELETE FROM steadyworker_commands WHERE at <= {after('- %(commands)s')}"
_KEPT = {
    "link_events": retention.LINK_EVENTS,
    "minutes": retention.MINUTES,
    "commands": retention.COMMANDS,
    "depths": retention.DEPTHS,
    "actions": retention.ACTIONS,
}


class PostgresFacts(Facts):
    """
    The facts in the tables of a ledger.

    Args:
        record: The session for the calls of people.
        renewals: The session of the renewals, which also serves the regular calls of a worker process.
    """

    def __init__(self, record: PostgresSession, renewals: PostgresSession) -> None:
        self._record = record
        self._renewals = renewals

    @override
    def attempts(self, id: JobId) -> Sequence[Attempt]:
        return [attempt_of(found) for found in self._fetch(sql.ATTEMPTS_OF, pk_values(id))]

    @override
    def last_runs(self, ids: Sequence[JobId]) -> Mapping[JobId, tuple[int, str]]:
        return {ids[place - 1]: (runs, why) for place, runs, why in self._fetch(sql.LAST_RUNS, _wanted(ids))}

    @override
    def tracebacks(self, ids: Sequence[JobId]) -> Mapping[JobId, str]:
        found = self._fetch(_TRACEBACKS, {**_wanted(ids), "most": TRACEBACK_END})
        return {ids[number - 1]: end for number, end in found}

    @override
    def result(self, id: JobId) -> bytes | None:
        found = self._fetch(sql.RESULT, pk_values(id))
        return bytes(found[0][0]) if found else None

    @override
    def add_link_events(self, events: Sequence[LinkEvent]) -> None:
        safe = [safe_event(event) for event in events]
        names = ("at", "owner", "queue", "epoch", "event", "why", "fence")
        self._add(_ADD_LINK_EVENTS, {name: [getattr(event, name) for event in safe] for name in names})

    @override
    def link_events(
        self, since: float, *, owner: str | None = None, fences: Collection[int] = ()
    ) -> Sequence[LinkEvent]:
        values = {"since": since, "owner": owner, "fences": list(fences) or None}
        return [LinkEvent(*found) for found in self._fetch(_LINK_EVENTS, values)]

    @override
    def add_minutes(self, minutes: Sequence[Minute]) -> None:
        counts = list(counts_of(minutes))
        names = ("at", "namespace", "queue", "outcome", "class", "runs")
        self._add(_ADD_MINUTES, {name: [row[place] for row in counts] for place, name in enumerate(names)})

    @override
    def minutes(self, since: float, namespace: str | None = None, queue: str | None = None) -> Sequence[Minute]:
        return minutes_of(self._fetch(_MINUTES, {"since": since, "namespace": namespace, "queue": queue}))

    @override
    def pause(self, namespace: str, queue: str, who: str, reason: str) -> None:
        values = {"namespace": namespace, "queue": queue, "who": safe_name(who), "reason": safe_text(reason)}
        self._change(_PAUSE, values)

    @override
    def resume(self, namespace: str, queue: str) -> bool:
        return self._change(_RESUME, {"namespace": namespace, "queue": queue}) == 1

    @override
    def pauses(self) -> Sequence[Pause]:
        return [Pause(*found) for found in self._fetch(_PAUSES, {})]

    @override
    def command(self, owner: str, name: CommandName, who: str) -> None:
        self._change(_COMMAND, {"owner": owner, "name": name, "who": safe_name(who)})

    @override
    def commands(self, owner: str) -> Sequence[OwnerCommand]:
        with self._renewals.connection() as db:
            return [OwnerCommand(*found) for found in db.run(_COMMANDS, {"owner": owner}).fetchall()]

    @override
    def act(self, action: Action) -> None:
        safe = safe_action(action)
        names = ("who", "what", "namespace", "queue", "count", "detail")
        self._change(_ACT, {name: getattr(safe, name) for name in names} | {"keys": list(safe.keys)})

    @override
    def actions(
        self,
        since: float | None = None,
        namespace: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        limit: int = MOST_LISTED,
    ) -> Sequence[Action]:
        values: dict[str, Any] = {"since": since, "namespace": namespace, "queue": queue, "rows": limit}
        values["key"] = None if key is None else safe_key(key)
        return [
            Action(who, what, in_, on, tuple(keys), count, detail, at)
            for who, what, in_, on, keys, count, detail, at in self._fetch(_ACTIONS, values)
        ]

    @override
    def may_measure(self, namespace: str, queue: str, every: float) -> bool:
        return self._change(_MAY_MEASURE, {"namespace": namespace, "queue": queue, "every": every}) == 1

    @override
    def record_depth(self, namespace: str, queue: str, depth: Depth) -> None:
        self._change(_RECORD_DEPTH, {"namespace": namespace, "queue": queue, "depth": depth_text(depth)})

    @override
    def depths(self) -> Sequence[MeasuredDepth]:
        return [
            MeasuredDepth(namespace, queue, depth_of(depth), age)
            for namespace, queue, depth, age in self._fetch(_DEPTHS, {})
        ]

    def purge(self) -> None:
        """Delete the facts whose time is over."""
        self._change(_PURGE, _KEPT)
        if self._fetch(_OLD_COMMANDS, _KEPT):
            self._change(_PURGE_COMMANDS, _KEPT)

    def _fetch(self, statement: LiteralString, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self._record.connection() as db:
            return db.run(statement, values).fetchall()

    def _change(self, statement: LiteralString, values: Mapping[str, Any]) -> int:
        """Run one statement, and return the number of changed rows."""
        with self._record.connection() as db:
            return db.run(statement, values).rowcount

    def _add(self, statement: LiteralString, columns: Mapping[str, Sequence[Any]]) -> None:
        """Insert these rows, given by column; do nothing without rows."""
        if any(columns.values()):
            with self._renewals.connection() as db:
                db.run(statement, columns)


def _wanted(ids: Sequence[JobId]) -> dict[str, list[Any]]:
    """Return the names of these jobs, with one array for each column."""
    return {name: [getattr(id, name) for id in ids] for name in ("namespace", "queue", "key", "round")}
