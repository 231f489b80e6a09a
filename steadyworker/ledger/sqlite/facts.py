"""
The facts that people read, in the SQLite ledger's file.

Facts that worker processes write every few seconds do not wait for the disk.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from typing_extensions import override

from steadyworker.adapter import Depth
from steadyworker.clock import Clock
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
from steadyworker.ledger.shared import attempt_of, pk_values
from steadyworker.ledger.sqlite import schema as sql
from steadyworker.ledger.sqlite.file import LedgerFile

_LOSSY = "normal"
"""The level of the writes that a power failure may lose, even if the ledger syncs every other commit."""

_TRACEBACKS = """
    SELECT wanted.key, (
        SELECT substr(traceback, -:most) FROM attempts WHERE number = job.rowid AND traceback <> '' ORDER BY fence DESC LIMIT 1
    ) AS last
    FROM json_each(:ids) AS wanted CROSS JOIN jobs AS job
        ON job.namespace = json_extract(wanted.value, '$[0]') AND job.queue = json_extract(wanted.value, '$[1]')
        AND job.key = json_extract(wanted.value, '$[2]') AND job.round = json_extract(wanted.value, '$[3]')
    WHERE last IS NOT NULL
"""
_ADD_LINK_EVENT = "INSERT INTO link_events (at, owner, queue, epoch, event, why, fence) VALUES (?, ?, ?, ?, ?, ?, ?)"
_LINK_EVENTS = """
    SELECT owner, queue, at, epoch, event, why, fence FROM link_events
    WHERE at >= :since AND (:owner IS NULL OR owner = :owner)
        AND (:fences IS NULL OR fence IN (SELECT value FROM json_each(:fences)))
    ORDER BY at, number
"""
_ADD_MINUTE = """
    INSERT INTO minutes (at, namespace, queue, outcome, class, runs) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET runs = runs + excluded.runs
"""
_MINUTES = """
    SELECT at, namespace, queue, outcome, class, runs FROM minutes
    WHERE at >= :since AND (:namespace IS NULL OR namespace = :namespace) AND (:queue IS NULL OR queue = :queue)
    ORDER BY at, namespace, queue, outcome, class
"""
_PAUSE = """
    INSERT INTO pauses (namespace, queue, who, reason, at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET who = excluded.who, reason = excluded.reason, at = excluded.at
"""
_RESUME = "DELETE FROM pauses WHERE namespace = ? AND queue = ?"
_PAUSES = "SELECT namespace, queue, who, reason, at FROM pauses ORDER BY namespace, queue"
_COMMAND = "INSERT INTO commands (owner, name, who, at) VALUES (?, ?, ?, ?)"
_COMMANDS = "SELECT name, who, at FROM commands WHERE owner = ? ORDER BY number"
_REMOVE_COMMANDS = "DELETE FROM commands WHERE owner = ?"
_ACT = """
    INSERT INTO actions (at, who, what, namespace, queue, keys, count, detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_ACTIONS = """
    SELECT who, what, namespace, queue, keys, count, detail, at FROM actions
    WHERE (:since IS NULL OR at >= :since) AND (:namespace IS NULL OR namespace = :namespace)
        AND (:queue IS NULL OR queue = :queue)
        AND (:key IS NULL OR EXISTS (SELECT 1 FROM json_each(keys) WHERE value = :key))
    ORDER BY number DESC LIMIT :rows
"""
_MAY_MEASURE = """
    INSERT INTO depths (namespace, queue, asked_at) VALUES (:namespace, :queue, :now)
    ON CONFLICT DO UPDATE SET asked_at = :now WHERE asked_at IS NULL OR asked_at <= :now - :every OR asked_at > :now
"""
_RECORD_DEPTH = """
    INSERT INTO depths (namespace, queue, depth, measured_at) VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET depth = excluded.depth, measured_at = excluded.measured_at
"""
_DEPTHS = """
    SELECT namespace, queue, depth, measured_at FROM depths WHERE depth IS NOT NULL ORDER BY namespace, queue
"""
_PURGES = {
    "DELETE FROM link_events WHERE at <= ?": retention.LINK_EVENTS,
    "DELETE FROM minutes WHERE at <= ?": retention.MINUTES,
    "DELETE FROM commands WHERE at <= ?": retention.COMMANDS,
    "DELETE FROM actions WHERE at <= ?": retention.ACTIONS,
    "DELETE FROM depths WHERE coalesce(measured_at, asked_at) <= ?": retention.DEPTHS,
}


class SqliteFacts(Facts):
    """The facts in the tables of a ledger file; the wall clock sets and judges their times."""

    def __init__(self, file: LedgerFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock

    @override
    def attempts(self, id: JobId) -> Sequence[Attempt]:
        return [attempt_of(found) for found in self._fetch(sql.ATTEMPTS_OF, pk_values(id))]

    @override
    def last_runs(self, ids: Sequence[JobId]) -> Mapping[JobId, tuple[int, str]]:
        return {ids[index]: (runs, why) for index, runs, why in self._fetch(sql.LAST_RUNS, {"ids": _wanted(ids)})}

    @override
    def tracebacks(self, ids: Sequence[JobId]) -> Mapping[JobId, str]:
        values = {"ids": _wanted(ids), "most": TRACEBACK_END}
        return {ids[index]: end for index, end in self._fetch(_TRACEBACKS, values)}

    @override
    def result(self, id: JobId) -> bytes | None:
        with self._file.connection() as db:
            found = db.execute(sql.RESULT, pk_values(id)).fetchone()
        return None if found is None else bytes(found[0])

    @override
    def add_link_events(self, events: Sequence[LinkEvent]) -> None:
        rows = [
            (each.at, each.owner, each.queue, each.epoch, each.event, each.why, each.fence)
            for each in map(safe_event, events)
        ]
        self._change_many(_ADD_LINK_EVENT, rows)

    @override
    def link_events(
        self, since: float, *, owner: str | None = None, fences: Collection[int] = ()
    ) -> Sequence[LinkEvent]:
        values = {"since": since, "owner": owner, "fences": json.dumps(list(fences)) if fences else None}
        return [LinkEvent(*found) for found in self._fetch(_LINK_EVENTS, values)]

    @override
    def add_minutes(self, minutes: Sequence[Minute]) -> None:
        self._change_many(_ADD_MINUTE, list(counts_of(minutes)))

    @override
    def minutes(self, since: float, namespace: str | None = None, queue: str | None = None) -> Sequence[Minute]:
        return minutes_of(self._fetch(_MINUTES, {"since": since, "namespace": namespace, "queue": queue}))

    @override
    def pause(self, namespace: str, queue: str, who: str, reason: str) -> None:
        self._order(_PAUSE, (namespace, queue, safe_name(who), safe_text(reason), self._clock.wall()))

    @override
    def resume(self, namespace: str, queue: str) -> bool:
        return self._order(_RESUME, (namespace, queue)) == 1

    @override
    def pauses(self) -> Sequence[Pause]:
        return [Pause(*found) for found in self._fetch(_PAUSES)]

    @override
    def command(self, owner: str, name: CommandName, who: str) -> None:
        self._order(_COMMAND, (owner, name, safe_name(who), self._clock.wall()))

    @override
    def commands(self, owner: str) -> Sequence[OwnerCommand]:
        with self._file.transaction() as db:
            found = db.execute(_COMMANDS, (owner,)).fetchall()
            db.execute(_REMOVE_COMMANDS, (owner,))
        self._file.orders_changed()
        return [OwnerCommand(*command) for command in found]

    @override
    def act(self, action: Action) -> None:
        safe = safe_action(action)
        keys = json.dumps(safe.keys)
        values = (self._clock.wall(), safe.who, safe.what, safe.namespace, safe.queue, keys, safe.count, safe.detail)
        self._change(_ACT, values)

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
            Action(who, what, in_, on, tuple(json.loads(keys)), count, detail, at)
            for who, what, in_, on, keys, count, detail, at in self._fetch(_ACTIONS, values)
        ]

    @override
    def may_measure(self, namespace: str, queue: str, every: float) -> bool:
        values = {"namespace": namespace, "queue": queue, "every": every, "now": self._clock.wall()}
        return self._change(_MAY_MEASURE, values, _LOSSY) == 1

    @override
    def record_depth(self, namespace: str, queue: str, depth: Depth) -> None:
        self._change(_RECORD_DEPTH, (namespace, queue, depth_text(depth), self._clock.wall()), _LOSSY)

    @override
    def depths(self) -> Sequence[MeasuredDepth]:
        now = self._clock.wall()
        return [
            MeasuredDepth(namespace, queue, depth_of(depth), max(0.0, now - at))
            for namespace, queue, depth, at in self._fetch(_DEPTHS)
        ]

    def purge(self) -> None:
        """Delete the facts whose time is over."""
        now = self._clock.wall()
        with self._file.transaction() as db:
            for statement, kept in _PURGES.items():
                db.execute(statement, (now - kept,))
        self._file.orders_changed()

    def _fetch(self, statement: str, values: Any = ()) -> list[Any]:
        with self._file.connection() as db:
            return db.execute(statement, values).fetchall()

    def _change(self, statement: str, values: Any, level: str | None = None) -> int:
        """Run one statement, and return the number of changed rows."""
        with self._file.connection(level) as db:
            return db.execute(statement, values).rowcount

    def _change_many(self, statement: str, rows: Sequence[Any]) -> None:
        """Run a statement with each of these values, as one transaction that a power failure may undo."""
        if rows:
            with self._file.connection(_LOSSY) as db:
                db.execute("BEGIN IMMEDIATE")
                db.executemany(statement, rows)
                db.execute("COMMIT")

    def _order(self, statement: str, values: tuple[Any, ...]) -> int:
        """Run one statement that gives or ends an order, and return the number of changed rows."""
        changed = self._change(statement, values)
        self._file.orders_changed()
        return changed


def _wanted(ids: Sequence[JobId]) -> str:
    return json.dumps([(id.namespace, id.queue, id.key, id.round) for id in ids])
