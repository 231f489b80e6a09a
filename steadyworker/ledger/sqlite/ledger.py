"""
The ledger in one SQLite file, shared by the worker processes of one host.

A commit survives the death of every process.
A power cut can lose the last commits, if `synchronous` is not `full`.
A job then runs again from an earlier checkpoint, as after the death of a host, and no message is lost.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from typing_extensions import override

from steadyworker.clock import Clock, Times
from steadyworker.errors import ConfigError, Finding, NoLedger, OlderLedger
from steadyworker.ledger import owners as proof
from steadyworker.ledger import retention
from steadyworker.ledger.base import (
    EVERY_ROW,
    REPLAYED,
    Claimed,
    Ending,
    HeldJobs,
    JobFilter,
    JobId,
    JobsPage,
    KeptMessage,
    Ledger,
    NeedsOf,
    Orders,
    Orphan,
    OwedCall,
    OwnerSeen,
    Progress,
    Renewal,
    Row,
    State,
    Token,
    Verdict,
)
from steadyworker.ledger.facts import Facts, OwnerReport
from steadyworker.ledger.facts_rows import report_of, report_text
from steadyworker.ledger.lease import registered_name
from steadyworker.ledger.shared import (
    KEEP,
    PAGE_ROWS,
    SILENCE,
    Retentions,
    Values,
    began_values,
    claim_values,
    counters_values,
    dead_values,
    ending_values,
    filter_values,
    kept_checkpoint,
    mine_values,
    need_of,
    needs_values,
    never_dead,
    no_ledger_finding,
    orders_of,
    orphan,
    permit,
    pk_values,
    progress_of,
    progress_values,
    purged,
    seen_values,
    too_large_finding,
    unfinished,
    unusable_finding,
)
from steadyworker.ledger.sqlite import schema as sql
from steadyworker.ledger.sqlite.facts import SqliteFacts
from steadyworker.ledger.sqlite.file import LedgerFile
from steadyworker.ledger.sqlite.place import creation_findings, place_findings
from steadyworker.ledger.sqlite.rows import (
    due_values,
    kept_values,
    new_row,
    number_of,
    row_of,
    row_values,
    settlement_values,
    storable,
)
from steadyworker.ledger.sqlite.trust import SqliteTrust
from steadyworker.outcome import Counters
from steadyworker.system.private import access_findings
from steadyworker.text.versions import version

_DROPPED_ROWS = 50
"""The number of attempts, and of results, that one statement drops while the file is above its limit: 3 MiB of results at most."""

_LISTED = 7
"""The number of columns that a listing has after those of a row: the row's number, and the progress."""


class SqliteLedger(Ledger):
    """
    A ledger in one file, opened at the first call.

    Args:
        path: The ledger file; owners keep their locks beside it, in `owners_dir`.
        synchronous: `normal`, or `full`, which syncs every commit to disk.
        clock: Its boot clock judges leases and delays; its wall clock gives fences their numbers and rows their age.
        times: The lease, the margin, and the limit for one call.
        worker: The name of the worker process that claims through this ledger, for people.
        is_dead: Returns whether an owner is proven dead; by default, whether the owner's lock in `owners_dir` is free.
        create: True if the first call creates a missing ledger, or migrates a ledger of an earlier version.
            Only a worker process does this.
        limit: The size of the file, in bytes, above which a purge drops attempts and results; None for no limit.

    Raises:
        ConfigError: `synchronous` is unknown.
            At the first call also: the file is not a ledger, has another schema, or cannot be written.
        NoLedger: At the first call: `create` is False, and there is no ledger, or a ledger of an earlier version.
    """

    def __init__(
        self,
        path: Path,
        *,
        synchronous: str = "normal",
        clock: Clock,
        times: Times,
        worker: str = "",
        is_dead: Callable[[str], bool] | None = None,
        create: bool = True,
        limit: int | None = None,
    ) -> None:
        if synchronous not in {"normal", "full"}:
            raise ConfigError(
                f"Expected synchronous=normal or synchronous=full, got {synchronous!r}: choose one of them.",
                id="config.ledger-url",
            )
        self._path = path.absolute()
        self._file = LedgerFile(self._path, synchronous, times.call_timeout, clock, self.owners_dir, create=create)
        self._limit = limit
        self._clock = clock
        self._times = times
        self._worker = storable(worker)
        self._version = ""
        self._boot = proof.boot_id()
        self._offset = clock.wall() - clock.boottime()
        self._is_dead = is_dead or self._lock_is_free
        self._trust = SqliteTrust(self._file, self.owners_dir, clock)
        self._facts = SqliteFacts(self._file, clock)
        self._retentions = Retentions()
        self._orders: tuple[object, Orders] | None = None

    @property
    @override
    def url(self) -> str:
        return f"sqlite:{self._path}"

    @property
    @override
    def facts(self) -> Facts:
        return self._facts

    @property
    def owners_dir(self) -> Path:
        """The directory in which the owners of this ledger hold their locks."""
        return self._path.with_name(self._path.name + ".owners")

    @override
    def ledger_id(self) -> str:
        ((ledger_id,),) = self._fetch(sql.LEDGER_ID)
        return str(ledger_id)

    @override
    def findings(self) -> Sequence[Finding]:
        found = []
        try:
            self.ledger_id()
        except OlderLedger as error:
            found += [no_ledger_finding(error), *access_findings("the ledger", self._path)]
        except NoLedger as error:
            found += [no_ledger_finding(error), *creation_findings(self._path)]
        except ConfigError as error:
            found.append(unusable_finding(error))
        else:
            found += [*self._too_large(), *access_findings("the ledger", self._path)]
        return [*found, *place_findings(self._path.resolve())]

    @override
    def bind(self, namespace: str, queue: str, identity: str) -> str:
        values = {"namespace": namespace, "queue": queue, "identity": identity}
        with self._file.transaction() as db:
            db.execute(sql.BIND, values)
            return str(db.execute(sql.BOUND, values).fetchone()[0])

    @override
    def queues(self, namespace: str) -> Sequence[str]:
        return [str(queue) for (queue,) in self._fetch(sql.QUEUES, {"namespace": namespace})]

    @override
    def bindings(self) -> Sequence[tuple[str, str]]:
        return self._fetch(sql.BINDINGS)

    @override
    def register(self, owner: str, host: str, queues: Sequence[str], report: OwnerReport | None = None) -> bool:
        return self._trust.register(owner, host, queues, report_text(report))

    @override
    def unregister(self, owner: str) -> None:
        self._trust.unregister(owner)
        if not self._holding([owner]):
            proof.remove_own(self.owners_dir, owner)

    @override
    def owners(self) -> Sequence[OwnerSeen]:
        now = self._clock.wall()
        return [
            OwnerSeen(
                owner, host, tuple(json.loads(queues)), max(0.0, now - at), self._is_dead(owner), report_of(report)
            )
            for owner, host, queues, at, report in self._fetch(sql.OWNERS, KEEP | {"now": now})
        ]

    @override
    def read(self, id: JobId) -> Row | None:
        if self._file.owes(id.key):
            self._file.catch_up()
        found = self._fetch(sql.READ, pk_values(id))
        return self._row(found[0]) if found else None

    @override
    def message(self, id: JobId) -> KeptMessage | None:
        found = self._fetch(sql.MESSAGE, pk_values(id))
        return KeptMessage(*found[0]) if found else None

    @override
    def orphans(
        self, namespace: str, queue: str, after: float, limit: int, *, stranded: bool = False
    ) -> Sequence[Orphan]:
        self._file.catch_up()
        values = {"namespace": namespace, "queue": queue, "after": after, "rows": limit, "stranded": stranded}
        values |= {"boot": self._boot, "boottime": self._clock.boottime(), "now": self._clock.wall()}
        with self._file.connection() as db:
            if self._trust.lost(db):
                return ()
            trusted = db.execute(sql.TRUSTED_FROM, {"name": registered_name(namespace, queue)}).fetchone()
            values |= {"margin": self._times.margin, "trusted_from": trusted[0] if trusted else sys.maxsize}
            found = db.execute(sql.ORPHANS, values).fetchall()
        return [orphan(self._row(row), unseen_for, hindrance) for *row, unseen_for, hindrance in found]

    @override
    def distrust(self) -> None:
        self._change(sql.DISTRUST, {})

    @override
    def deferred(self, id: JobId, delay: float) -> None:
        # The next transaction carries out this write; if the write is lost, the job only counts as an orphan earlier.
        self._file.later(id.key, sql.DEFERRED, pk_values(id) | {"wake_at": self._clock.wall() + delay})

    @override
    def replay(
        self, id: JobId, message: KeptMessage, body_sha256: bytes, *, delay: float = 0.0, wake_in: float = 0.0
    ) -> bool:
        values = pk_values(id) | self._waits(delay, wake_in) | {"body_sha256": body_sha256, "reason": REPLAYED}
        with self._file.transaction() as db:
            drawn = self._draw(db)
            inserted = db.execute(sql.REPLAY, values | {"drawn": drawn, "uid": _new_uid(drawn)}).rowcount == 1
            if inserted:
                db.execute(sql.KEEP, (drawn, message.body, message.facts))
        return inserted

    @override
    def reschedule(self, seen: Row, delay: float, wake_in: float) -> bool:
        values = seen_values(seen) | self._waits(delay, wake_in) | {"hop": seen.hop}
        return self._change(sql.RESCHEDULE, values) == 1

    @override
    def claim(self, claim: Claimed) -> Row | None:
        if claim.seen is not None:
            values = seen_values(claim.seen) | claim_values(claim, self._worker) | {"now": self._started_now()}
            values |= began_values(claim, os.getpid(), self._own_version())
            return self._own(sql.CLAIM_SEEN, values, claim.owner, claim.message)
        with self._file.claim() as db:
            return self._insert(db, claim)

    @override
    def record(
        self, claims: Sequence[Claimed], ended: Sequence[tuple[Token, Ending | None]]
    ) -> tuple[Sequence[Row | None], Sequence[bool]]:
        ends = [(self._end(token), end) for token, end in ended]
        with self._file.claim() as db:
            rows = [self._insert(db, claim) for claim in claims]
            return rows, [_done(db, values, end) for values, end in ends]

    def _insert(self, db: sqlite3.Connection, claim: Claimed) -> Row | None:
        """Insert the row of a new job, with its message; return None if the job has a row."""
        number, message = self._draw(db), claim.message
        checkpoint = _checkpoint_of_round_before(db, claim.id)
        row = new_row(claim, _new_uid(number), number, checkpoint, self._started_now(), self._worker)
        lease_until = self._clock.boottime() + self._times.lease
        if db.execute(sql.CLAIM_NEW, row_values(row, self._boot, lease_until)).rowcount != 1:
            return None
        if message is not None:
            db.execute(sql.KEEP, (number, message.body, message.facts))
        if (run := claim.run) is not None:
            process = (row.owner, os.getpid(), run.slot, self._own_version())
            before = kept_checkpoint(checkpoint)
            db.execute(sql.BEGAN, (number, number, *process, run.because, run.epoch, row.started_at, before))
        return row

    def _own_version(self) -> str:
        """Return the version of this worker process, read at the first claim, because this takes a millisecond."""
        self._version = self._version or version()
        return self._version

    def _end(self, token: Token) -> tuple[Any, ...]:
        """Return the parameters of `DONE`."""
        now = self._clock.wall()
        return (now, self._step(), now + self._retentions.unconfirmed(token.id), *self._run(token), token.owner)

    @override
    def take_over(self, seen: Row, owner: str) -> Row | None:
        return self._own(sql.TAKE_OVER, seen_values(seen) | {"now": self._clock.wall()}, owner)

    @override
    def lose(self, seen: Row, owner: str, verdict: Verdict) -> Row | None:
        return self._own(sql.LOSE, seen_values(seen) | self._verdict(verdict) | {"now": self._clock.wall()}, owner)

    @override
    def renew(self, tokens: Sequence[Token]) -> Sequence[Renewal]:
        step = self._step()
        lease = self._lease() | {"step": step}
        answers = []
        with self._file.transaction() as db:
            for token in tokens:
                found = db.execute(sql.RENEW, mine_values(token) | lease).fetchall()
                answers.append(Renewal(granted=bool(found), cancel_reason=found[0][0] if found else None))
        self._offset += step
        return answers

    @override
    def checkpoint(self, token: Token, value: bytes | None) -> bool:
        return self._write(sql.CHECKPOINT, token, {"value": value})

    @override
    def export_state(self, token: Token, value: bytes | None) -> bool:
        return self._write(sql.EXPORT_STATE, token, {"value": value})

    @override
    def may_commit(self, token: Token) -> Renewal:
        with self._file.connection("full") as db:
            found = db.execute(sql.MAY_COMMIT, mine_values(token) | self._lease()).fetchall()
        return permit(found)

    @override
    def done(self, token: Token, end: Ending | None = None) -> bool:
        values = self._end(token)
        with self._file.claim() as db:
            return _done(db, values, end)

    @override
    def interrupted(self, token: Token, counters: Counters, end: Ending | None = None) -> bool:
        return self._end_run(sql.INTERRUPTED, token, counters_values(counters), end)

    @override
    def moving(self, token: Token, verdict: Verdict, end: Ending | None = None) -> bool:
        return self._end_run(sql.MOVING, token, self._verdict(verdict), end)

    def _end_run(self, statement: str, token: Token, values: Values, end: Ending | None) -> bool:
        """Run one statement that ends a run, and record the end of its attempt in the same transaction."""
        values = mine_values(token) | values | ending_values(end, storable) | {"now": self._clock.wall()}
        with self._file.claim() as db:
            ended = db.execute(statement, values).rowcount == 1
            if ended and end is not None:
                db.execute(sql.ENDED_RUN, values)
            if ended and values.get("owes_call"):
                db.execute(sql.OWE_CALL, values)
        return ended

    @override
    def moved(self, token: Token, wake_in: float = 0.0) -> bool:
        values = {"wake_in": wake_in, "now": self._clock.wall(), "step": self._step()}
        return self._write(sql.MOVED, token, KEEP | dead_values(self._retentions.of(token.id)) | values)

    @override
    def next_call(self, namespace: str, queue: str, lease: float) -> OwedCall | None:
        now = self._clock.wall()
        with self._file.connection() as db:
            found = db.execute(sql.DUE_CALL, {"namespace": namespace, "queue": queue, "now": now}).fetchone()
            if found is None:
                return None
            number, tries, key, round_ = found
            reserved = db.execute(sql.RESERVE_CALL, (now + lease, number, tries)).rowcount == 1
        return OwedCall(JobId(namespace, queue, key, round_), tries + 1) if reserved else None

    @override
    def end_call(self, call: OwedCall, again_in: float | None = None) -> None:
        values = pk_values(call.id) | {"tries": call.tries}
        if again_in is None:
            self._change(sql.END_CALL, values)
        else:
            self._change(sql.CALL_AGAIN, values | {"due_at": self._clock.wall() + again_in})

    @override
    def settled(self, token: Token, known: bool) -> None:
        # One of the next transactions carries this write out, with many others; this saves one commit in three.
        if known:
            keep_until = self._clock.wall() + self._retentions.of(token.id).done
            self._file.later(token.id.key, sql.SETTLED_CONFIRMED, (keep_until, *self._run(token)))
        else:
            self._file.later(token.id.key, sql.SETTLED_SENT, self._run(token))

    @override
    def retain(self, namespace: str, queue: str, times: retention.Retention) -> None:
        self._retentions.set(namespace, queue, times)

    @override
    def flush(self) -> None:
        self._file.catch_up()

    @override
    def cancel(self, id: JobId, reason: str) -> State | None:
        values = pk_values(id) | KEEP | {"reason": storable(reason), "now": self._clock.wall()}
        with self._file.transaction() as db:
            self._file.orders_changed()
            found = db.execute(sql.STATE_OF, values).fetchone()
            if found is not None:
                db.execute(sql.CANCEL, values)
                return State(found[0])
            drawn = self._draw(db)
            db.execute(sql.CANCEL_UNSEEN, values | {"drawn": drawn, "uid": _new_uid(drawn)})
            return None

    @override
    def uncancel(self, id: JobId) -> bool:
        with self._file.transaction() as db:
            self._file.orders_changed()
            return any(db.execute(each, pk_values(id)).rowcount for each in (sql.UNCANCEL, sql.UNCANCEL_UNSEEN))

    @override
    def conflict(self, id: JobId) -> None:
        self._change(sql.CONFLICT, pk_values(id))

    @override
    def orders(self, owner: str) -> Orders:
        with self._file.connection() as db:
            version = owner, self._file.orders_version(db)
            if self._orders is None or self._orders[0] != version:
                self._orders = version, orders_of(db.execute(sql.ORDERS, {"owner": owner}).fetchall())
            return self._orders[1]

    @override
    def clear_checkpoint(self, id: JobId) -> None:
        self._change(sql.CLEAR_CHECKPOINT, pk_values(id))

    @override
    def progress(self, token: Token, progress: Progress) -> None:
        self._write(sql.PROGRESS, token, progress_values(progress, storable), synchronous="normal")

    @override
    def last_round(self, namespace: str, queue: str, key: str) -> int | None:
        ((found,),) = self._fetch(sql.LAST_ROUND, {"namespace": namespace, "queue": queue, "key": key})
        return None if found is None else int(found)

    @override
    def jobs(self, which: JobFilter = EVERY_ROW) -> Iterable[tuple[Row, Progress | None]]:
        return self._pages(which)

    @override
    def held(self, stalled: float) -> Sequence[HeldJobs]:
        found = self._fetch(sql.HELD, SILENCE | {"now": self._clock.wall(), "stalled": stalled})
        return [
            HeldJobs(owner, namespace, queue, jobs, running, tuple(json.loads(keys)))
            for owner, namespace, queue, jobs, running, keys in found
        ]

    @override
    def needing(self, which: NeedsOf, offset: int, limit: int) -> JobsPage:
        return self._jobs_page(sql.NEEDING, self._needs_values(which), offset, limit)

    @override
    def running(self, which: NeedsOf, offset: int, limit: int) -> JobsPage:
        return self._jobs_page(sql.RUNNING, self._needs_values(which), offset, limit)

    @override
    def waiting(self, namespace: str | None, queue: str | None, offset: int, limit: int) -> JobsPage:
        return self._jobs_page(sql.WAITING, {"namespace": namespace, "queue": queue}, offset, limit)

    def _needs_values(self, which: NeedsOf) -> Values:
        values = needs_values(which) | {"margin": self._times.margin, "dead_owners": json.dumps(which.dead_owners)}
        return values | {"alone": json.dumps(values["alone"])}

    def _jobs_page(self, statement: str, values: Values, offset: int, limit: int) -> JobsPage:
        """Return the jobs whose numbers this statement finds, in its order."""
        self._file.catch_up()
        now = {"now": self._clock.wall(), "boottime": self._clock.boottime(), "boot": self._boot}
        values = values | now | {"rows": limit, "offset": offset}
        with self._file.connection() as db:
            values["untrusted"] = self._trust.lost(db)
            chosen = db.execute(statement, values).fetchall()
            if not chosen and offset:
                offset = 0
                chosen = db.execute(statement, values | {"offset": 0}).fetchall()
            numbers = json.dumps([number for number, _, _ in chosen])
            every = filter_values(EVERY_ROW) | {"states": None, "numbers": numbers}
            found = {row[-_LISTED]: row for row in db.execute(sql.PAGE_OF_NUMBERS, every | now).fetchall()}
        listed = self._lister()
        jobs = [(*listed(found[number]), need_of(need)) for number, need, _ in chosen if number in found]
        return JobsPage(jobs, chosen[0][-1] if chosen else 0, offset)

    @override
    def ended(self, uids: Sequence[str]) -> frozenset[str]:
        values = {"uids": json.dumps(list(uids)), "numbers": json.dumps([number_of(uid) for uid in uids])}
        return frozenset(uid for (uid,) in self._fetch(sql.ENDED, values))

    @override
    def last_progress(self, id: JobId) -> Progress | None:
        found = self._fetch(sql.LAST_PROGRESS, pk_values(id))
        return progress_of(*found[0]) if found else None

    @override
    def forget(self, id: JobId) -> None:
        self._change(sql.FORGET, pk_values(id))

    @override
    def size(self) -> int | None:
        return self._file.size()

    @override
    def purge(self) -> int:
        self._file.catch_up()
        now = {"now": self._clock.wall()}
        removed = purged(lambda rows: self._change(sql.PURGE, now | {"rows": rows}))
        for old in self._retentions.attempts():
            purged(lambda rows, old=old: self._change(sql.PURGE_ATTEMPTS, old | now | {"rows": rows}))  # type: ignore[misc]
        self._change(sql.PURGE_OWNERS, KEEP | now)
        self._facts.purge()
        if self._limit is not None:
            self._drop_above(self._limit)
        self._file.shrink(self._limit)
        proof.sweep(self.owners_dir, self._holding)
        return removed

    def _drop_above(self, limit: int) -> None:
        """Drop ended attempts, with their tracebacks, then results, the oldest first, until the pages in use fit the limit."""
        rows = {"rows": _DROPPED_ROWS}
        for drop in (sql.DROP_ATTEMPTS, sql.DROP_RESULTS):
            while self._file.excess(limit) > 0 and self._change(drop, rows):
                pass

    def _too_large(self) -> Iterator[Finding]:
        """Yield a warning if the file has more pages than its limit allows."""
        size = self._file.pages_size()
        if self._limit is not None and size > self._limit:
            yield too_large_finding(self._path, self._limit, size)

    @override
    def close(self) -> None:
        self._file.close()

    def _holding(self, owners: Sequence[str]) -> frozenset[str]:
        """Return which of these owners are registered, or are named by a job's row."""
        return frozenset(owner for (owner,) in self._fetch(sql.HOLDING, {"owners": json.dumps(list(owners))}))

    def _fetch(self, statement: str, values: Values | tuple[Any, ...] = ()) -> list[Any]:
        """Run one statement, and return its rows."""
        with self._file.connection() as db:
            return db.execute(statement, values).fetchall()

    def _run(self, token: Token) -> tuple[int, str, int]:
        """Return the parameters that identify the row of a run, by position."""
        number, id = number_of(token.uid), token.id
        if not number:  # a file that was begun before 0.1 can have a row whose uid does not begin with its number
            found = self._fetch(sql.NUMBER, (id.namespace, id.queue, id.key, id.round))
            number = found[0][0] if found else 0
        return number, token.uid, token.fence

    def _change(self, statement: str, values: Values | tuple[Any, ...]) -> int:
        """Run one statement, and return the number of changed rows."""
        with self._file.connection() as db:
            return db.execute(statement, values).rowcount

    def _write(self, statement: str, token: Token, values: Values, synchronous: str | None = None) -> bool:
        """Run one statement on the row of this token; return True, or False if the ledger refused it."""
        with self._file.connection(synchronous) as db:
            return db.execute(statement, mine_values(token) | values).rowcount == 1

    def _own(self, statement: str, values: Values, owner: str, message: KeptMessage | None = None) -> Row | None:
        """Run one statement that gives a row a new fence and this owner; return the row, or None if the ledger refuses this."""
        with self._file.claim() as db:
            drawn = {"owner": owner, "drawn": self._draw(db)}
            found = db.execute(statement, values | self._lease() | drawn).fetchall()
            if found and message is not None:
                db.execute(sql.KEEP_FIRST, values | kept_values(message))
            row = row_of(found[0], self._clock, self._times, self._boot, never_dead) if found else None
            if row is not None:
                db.execute(sql.LOST_BEFORE, values)
                if values.get("owes_call"):
                    db.execute(sql.OWE_CALL, values)
                if values.get("because") is not None:
                    db.execute(sql.BEGAN_AGAIN, values | {"before": kept_checkpoint(row.checkpoint)})
                    db.execute(sql.FORGET_FIRST, values)
        return row

    def _step(self) -> float:
        """
        Return the step of the wall clock since the last renewal, in seconds; a step comes from a setting of the clock.

        A renewal adds the step to the start times of its runs, so that the step does not change how long they have run.
        """
        return self._clock.wall() - self._clock.boottime() - self._offset

    def _started_now(self) -> float:
        """Return the wall clock without its jump since the last renewal, because the next renewal adds this jump."""
        return self._clock.boottime() + self._offset

    def _draw(self, db: sqlite3.Connection) -> int:
        """Return a new fence; the transaction must write a row with this fence."""
        return int(db.execute(sql.FENCE, (int(self._clock.wall() * 1000),)).fetchone()[0])

    def _lease(self) -> Values:
        return {"boot": self._boot, "lease_until": self._clock.boottime() + self._times.lease}

    def _waits(self, delay: float, wake_in: float) -> Values:
        """Return the values of a job that waits for `delay` seconds, and whose message comes in `wake_in` seconds."""
        values = {"delay": delay, "wake_in": wake_in, "now": self._clock.wall()}
        return KEEP | due_values(delay, self._clock, self._boot) | values

    def _verdict(self, verdict: Verdict) -> Values:
        return settlement_values(verdict, self._clock, self._boot)

    def _row(self, found: Sequence[Any]) -> Row:
        return row_of(found, self._clock, self._times, self._boot, self._is_dead)

    def _lister(self) -> Callable[[Sequence[Any]], tuple[Row, Progress | None]]:
        """Return a function that makes the row and the progress of a listing; it searches the proof of an owner's death once."""
        is_dead = cache(self._is_dead)

        def listed(found: Sequence[Any]) -> tuple[Row, Progress | None]:
            row, progress = found[:-_LISTED], found[-_LISTED + 1 :]
            known = row_of(row, self._clock, self._times, self._boot, is_dead)
            return known, None if progress[3] is None else progress_of(*progress)

        return listed

    def _lock_is_free(self, owner: str) -> bool:
        return proof.is_dead(self.owners_dir, owner)

    def _pages(self, which: JobFilter) -> Iterator[tuple[Row, Progress | None]]:
        """Return the rows, newest first, page by page, so that a long listing delays no other call."""
        self._file.catch_up()
        values = filter_values(which) | {"boot": self._boot, "boottime": self._clock.boottime()}
        values["states"] = None if which.states is None else json.dumps(which.states)
        values["now"] = self._clock.wall()
        if not unfinished(which):
            yield from self._pages_of_all(sql.PAGE_OF_DEAD if which.states == (State.DEAD,) else sql.PAGE, values)
            return
        held = frozenset(which.states or ()) <= {State.RUNNING, State.MOVING}
        numbers = [number for (number,) in self._fetch(sql.HELD_NUMBERS if held else sql.UNFINISHED_NUMBERS)]
        listed = self._lister()
        for start in range(0, len(numbers), PAGE_ROWS):
            page = json.dumps(numbers[start : start + PAGE_ROWS])
            yield from map(listed, self._fetch(sql.PAGE_OF_NUMBERS, values | {"numbers": page}))

    def _pages_of_all(self, statement: str, values: Values) -> Iterator[tuple[Row, Progress | None]]:
        below, listed = sys.maxsize, self._lister()
        while True:
            page = self._fetch(statement, values | {"below": below, "rows": PAGE_ROWS})
            yield from map(listed, page)
            if len(page) < PAGE_ROWS:
                return
            below = page[-1][-_LISTED]


def _done(db: sqlite3.Connection, values: tuple[Any, ...], end: Ending | None) -> bool:
    """Change a job to `done`, and record the end of its attempt and its result; `values` are the parameters of `DONE`."""
    if db.execute(sql.DONE, values).rowcount != 1:
        return False
    if end is not None:
        now, _, _, number, _, fence, _ = values
        db.execute(sql.ENDED_WELL, (end.outcome, now, end.peak_memory, kept_checkpoint(end.checkpoint), number, fence))
        if end.result is not None:
            db.execute(sql.ADD_RESULT, (number, end.result))
    return True


def _new_uid(number: int) -> str:
    """Return the uid of a new row; the uid begins with the row's number, so that no index by uid is necessary."""
    return f"{number:x}-{secrets.token_hex(10)}"


def _checkpoint_of_round_before(db: sqlite3.Connection, id: JobId) -> bytes | None:
    """Return the checkpoint with which the first claim of a round begins."""
    if not id.round:
        return None
    found = db.execute(sql.CHECKPOINT_OF, (id.namespace, id.queue, id.key, id.round - 1)).fetchone()
    return found[0] if found else None
