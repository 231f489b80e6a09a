"""
The ledger in a PostgreSQL database, shared by a fleet.

The server's clock judges leases and delays, in the statement that reads them.
A worker process opens two connections.
The first serves only renewals, so that a renewal waits for no other call; the second serves all other calls.
The worker process connects to the server or to a pooler.
The pooler can be in transaction mode, because no session has state.

The ledger loses nothing if the server keeps every commit.
This requires `synchronous_commit`, and that each fail-over leads to a synchronous replica.
After a fail-over to a server without this ledger, every call fails until an operator starts the worker process again.
The tests run on PostgreSQL 15.
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, LiteralString

from psycopg.errors import LockNotAvailable
from typing_extensions import override

from steadyworker.clock import Clock, Times
from steadyworker.errors import ConfigError, Finding, LedgerUnavailable, NoLedger
from steadyworker.findings import FindingTexts
from steadyworker.ledger import owners as proof
from steadyworker.ledger.base import (
    EVERY_ROW,
    RATE_OVER,
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
from steadyworker.ledger.postgres import statements as sql
from steadyworker.ledger.postgres.clocks import clock_findings
from steadyworker.ledger.postgres.facts import PostgresFacts
from steadyworker.ledger.postgres.rows import (
    LONGEST_DELAY,
    claims_values,
    ends_values,
    message_values,
    row_of,
    settlement_values,
    storable,
    tokens_values,
)
from steadyworker.ledger.postgres.session import Identity, PostgresSession
from steadyworker.ledger.postgres.trust import PostgresTrust, incarnation
from steadyworker.ledger.postgres.url import ServerAddress, server_address
from steadyworker.ledger.retention import Retention
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
    unfinished,
    unusable_finding,
)
from steadyworker.outcome import Counters
from steadyworker.text.versions import version

_finding = FindingTexts("steadyworker.ledger")

_SHORT_WAIT = 0.1
"""
How long the renewal of all leases waits for a locked row, as a share of the call timeout.

This wait is short, because the rows that the renewal has already locked stay locked meanwhile.
"""

_MOST_ROWS = 2000
"""The largest number of rows in a page of a listing; the first page has `PAGE_ROWS`, and each later page twice as many."""

_EVERY = -7
"""The column of a part of a list that has the number of the whole list; after it come those of the progress."""

_SPAN = 50_000
"""The number of rows that one statement of a listing reads at most if only an index by number finds them."""


class PostgresLedger(Ledger):
    """
    A ledger in one database, connected at the first call.

    Args:
        url: A function that returns the `postgresql://` URL; each connect calls this function, and so uses a changed password.
        owners_dir: The directory in which the owners of this host hold their locks.
        clock: Limits the waits of this process; this clock judges no lease.
        times: The lease, the margin, and the limit for one call.
        worker: The name of the worker process that claims through this ledger, for people.
        is_dead: Returns whether an owner is proven dead; by default, whether the owner's lock in `owners_dir` is free.
        create: True if the first call creates missing tables; only a worker process does this.

    Raises:
        ConfigError: libpq cannot read the URL.
            At the first call also: the server refuses the login, the tables have another version, or rights are missing.
        NoLedger: At the first call: `create` is False, and the database has no ledger.
    """

    def __init__(
        self,
        url: Callable[[], str],
        *,
        owners_dir: Path,
        clock: Clock,
        times: Times,
        worker: str = "",
        is_dead: Callable[[str], bool] | None = None,
        create: bool = True,
    ) -> None:
        def address() -> ServerAddress:
            return server_address(url(), times.call_timeout)

        self._address = address()
        self._owners_dir = owners_dir
        self._worker = storable(worker)
        self._version = ""
        self._lease = {"lease": times.lease, "margin": times.margin}
        self._call = times.call_timeout
        self._clock = clock
        self._identity = Identity()
        self._settled: deque[tuple[Token, bool]] = deque()
        self._trust = PostgresTrust(clock, times.lease)
        self._record = PostgresSession(address, self._identity, times.call_timeout, clock, create=create)
        self._renewals = PostgresSession(address, self._identity, times.call_timeout, clock, create=create)
        self._facts = PostgresFacts(self._record, self._renewals)
        self._retentions = Retentions()
        self._orders: tuple[tuple[str, int], Orders] | None = None
        self._is_dead = is_dead or self._lock_is_free

    @property
    @override
    def url(self) -> str:
        return self._address.shown

    @property
    @override
    def facts(self) -> Facts:
        return self._facts

    @override
    def ledger_id(self) -> str:
        with self._record.connection():
            return self._identity.ledger_id or ""

    @override
    def findings(self) -> Sequence[Finding]:
        found = []
        if not self._address.verified:
            found.append(_finding("ledger.unverified-server", url=self.url))
        try:
            ((synchronous, fsync),) = self._fetch(sql.DURABILITY, {})
        except NoLedger as error:
            return [*found, no_ledger_finding(error)]
        except ConfigError as error:
            return [*found, unusable_finding(error)]
        if "off" in {synchronous, fsync}:
            found.append(_finding("ledger.not-durable", url=self.url, synchronous=synchronous, fsync=fsync))
        return [*found, *clock_findings(self._address, self._clock)]

    @override
    def bind(self, namespace: str, queue: str, identity: str) -> str:
        ((bound,),) = self._fetch(sql.BIND, {"namespace": namespace, "queue": queue, "identity": identity})
        return str(bound)

    @override
    def queues(self, namespace: str) -> Sequence[str]:
        return [str(queue) for (queue,) in self._fetch(sql.QUEUES, {"namespace": namespace})]

    @override
    def bindings(self) -> Sequence[tuple[str, str]]:
        return [(str(namespace), str(queue)) for namespace, queue in self._fetch(sql.BINDINGS, {})]

    @override
    def register(self, owner: str, host: str, queues: Sequence[str], report: OwnerReport | None = None) -> bool:
        lock = str(proof.lock_path(self._owners_dir, owner))
        values: Values = {"host": host, "lock_path": lock, "queues": list(queues), "boot": proof.boot_id()}
        values["report"] = report_text(report)
        with self._renewals.connection() as db:
            self._orders = None  # a restored copy of the ledger can have this version, and other orders
            return self._trust.register(db, owner, values)

    @override
    def unregister(self, owner: str) -> None:
        self._change(sql.UNREGISTER, {"owner": owner})
        self._trust.forget(owner)
        if not self._holding([owner]):
            proof.remove_own(self._owners_dir, owner)

    @override
    def owners(self) -> Sequence[OwnerSeen]:
        return [
            OwnerSeen(owner, host, tuple(queues), max(0.0, seen_ago), self._is_dead(owner), report_of(report))
            for owner, host, queues, seen_ago, report in self._fetch(sql.OWNERS, KEEP)
        ]

    @override
    def read(self, id: JobId) -> Row | None:
        if any(settled.id.key == id.key for settled, _ in tuple(self._settled)):
            self.flush()
        found = self._fetch(sql.READ, pk_values(id) | self._lease)
        return row_of(found[0], self._is_dead) if found else None

    @override
    def message(self, id: JobId) -> KeptMessage | None:
        found = self._fetch(sql.MESSAGE, pk_values(id))
        return KeptMessage(*found[0]) if found else None

    @override
    def orphans(
        self, namespace: str, queue: str, after: float, limit: int, *, stranded: bool = False
    ) -> Sequence[Orphan]:
        values = self._lease | {"after": after, "rows": limit, "stranded": stranded}
        with self._record.connection() as db:
            found = self._trust.orphans(db, namespace, queue, values)
        return [orphan(row_of(row, self._is_dead), unseen_for, hindrance) for *row, unseen_for, hindrance in found]

    @override
    def distrust(self) -> None:
        with self._record.connection() as db:
            self._trust.distrust(db)

    @override
    def deferred(self, id: JobId, delay: float) -> None:
        self._change(sql.DEFERRED, pk_values(id) | {"delay": min(delay, LONGEST_DELAY)})

    @override
    def replay(
        self, id: JobId, message: KeptMessage, body_sha256: bytes, *, delay: float = 0.0, wake_in: float = 0.0
    ) -> bool:
        values = pk_values(id) | message_values(message) | {"uid": secrets.token_hex(16), "body_sha256": body_sha256}
        values |= _waits(delay, wake_in) | {"reason": REPLAYED}
        with self._record.connection() as db:
            ((fence,),) = db.run(sql.DRAW).fetchall()
            return db.run(sql.REPLAY, values | {"drawn": fence}).rowcount == 1

    @override
    def reschedule(self, seen: Row, delay: float, wake_in: float) -> bool:
        return self._change(sql.RESCHEDULE, seen_values(seen) | _waits(delay, wake_in) | {"hop": seen.hop}) == 1

    @override
    def claim(self, claim: Claimed) -> Row | None:
        values = claim_values(claim, self._worker) | message_values(claim.message)
        values |= began_values(claim, os.getpid(), self._own_version())
        if claim.seen is None:
            row = self._own(sql.CLAIM_NEW, pk_values(claim.id) | values | {"uid": secrets.token_hex(16)})
        else:
            row = self._own(sql.CLAIM_SEEN, seen_values(claim.seen) | values)
        self._began_with(claim, row)
        return row

    def _began_with(self, claim: Claimed, row: Row | None) -> None:
        """Record the checkpoint with which a run began, if it is not that of the row from which the runner decided."""
        known = None if claim.seen is None else claim.seen.checkpoint
        if row is None or claim.run is None or row.checkpoint == known:
            return
        values = {"fence": row.fence, "before": kept_checkpoint(row.checkpoint)}
        with suppress(LedgerUnavailable):  # the claim is committed, and people can do without this
            self._change(sql.BEGAN_WITH, pk_values(row.id) | values)

    @override
    def record(
        self, claims: Sequence[Claimed], ended: Sequence[tuple[Token, Ending | None]]
    ) -> tuple[Sequence[Row | None], Sequence[bool | LedgerUnavailable]]:
        uids = [secrets.token_hex(16) for _ in claims]
        with self._record.connection() as db:
            ((drawn,),) = db.run(sql.DRAW_MANY, {"many": len(claims)}).fetchall()
            values = claims_values(claims, drawn, uids) | ends_values(ended) | self._lease | self._settled_values()
            values |= {"worker": self._worker, "pid": os.getpid(), "version": self._own_version()}
            values["ended_keeps"] = [self._retentions.unconfirmed(token.id) for token, _ in ended]
            results = (
                f"; {sql.ADD_RESULTS}" if any(end is not None and end.result is not None for _, end in ended) else ""
            )
            cursor = db.run(sql.CLAIM_MANY, values, then=f"; {sql.DONE_MANY}; {sql.SETTLE}{results}")
            rows = [row_of(found, never_dead) for found in cursor.fetchall()]
            cursor.nextset()
            done = {uid for (uid,) in cursor.fetchall()}
        claimed = {row.uid: row for row in rows}
        # The statement leaves out a row that another session holds, such as a renewal; the single write waits for it.
        for uid, claim in zip(uids, claims, strict=True):
            self._began_with(claim, claimed.get(uid))
        return [claimed.get(uid) for uid in uids], [
            token.uid in done or self._done_alone(token, end) for token, end in ended
        ]

    def _done_alone(self, token: Token, end: Ending | None) -> bool | LedgerUnavailable:
        """Return the result of `done`, or its error, because the other writes of the turn are already committed."""
        try:
            return self.done(token, end)
        except LedgerUnavailable as error:
            return error

    def _own_version(self) -> str:
        """Return the version of this worker process, read at the first claim, because this takes a millisecond."""
        self._version = self._version or version()
        return self._version

    @override
    def take_over(self, seen: Row, owner: str) -> Row | None:
        return self._own(sql.TAKE_OVER, seen_values(seen) | {"owner": owner})

    @override
    def lose(self, seen: Row, owner: str, verdict: Verdict) -> Row | None:
        statement = sql.LOSE_AND_OWE if verdict.owes_call else sql.LOSE
        return self._own(statement, seen_values(seen) | settlement_values(verdict) | {"owner": owner})

    @override
    def renew(self, tokens: Sequence[Token]) -> Sequence[Renewal]:
        try:
            return self._renewed(tokens, self._call * _SHORT_WAIT)
        except LedgerUnavailable as error:
            if not _locked(error):
                raise
        one_by_one = []
        for token in tokens:
            try:
                one_by_one += self._renewed([token], self._call / 2 / len(tokens))
            except LedgerUnavailable as error:
                if not _locked(error):
                    raise
                one_by_one.append(Renewal(granted=False, locked=True))
        return one_by_one

    def _renewed(self, tokens: Sequence[Token], lock_wait: float) -> list[Renewal]:
        with self._renewals.connection() as db:
            found = dict(db.run(sql.RENEW, tokens_values(tokens) | self._lease, lock_wait=lock_wait).fetchall())
        return [Renewal(place in found, found.get(place)) for place in range(1, len(tokens) + 1)]

    @override
    def checkpoint(self, token: Token, value: bytes | None) -> bool:
        return self._write(sql.CHECKPOINT, token, {"value": value})

    @override
    def export_state(self, token: Token, value: bytes | None) -> bool:
        return self._write(sql.EXPORT_STATE, token, {"value": value})

    @override
    def may_commit(self, token: Token) -> Renewal:
        return permit(self._fetch(sql.MAY_COMMIT, mine_values(token) | self._lease))

    @override
    def done(self, token: Token, end: Ending | None = None) -> bool:
        values = {"keep_done": self._retentions.unconfirmed(token.id)} | ending_values(end, storable)
        if end is None or end.result is None:
            return self._write(sql.DONE, token, values)
        return self._write(sql.DONE_WITH_RESULT, token, values | {"result": end.result})

    @override
    def interrupted(self, token: Token, counters: Counters, end: Ending | None = None) -> bool:
        return self._write(sql.INTERRUPTED, token, counters_values(counters) | ending_values(end, storable))

    @override
    def moving(self, token: Token, verdict: Verdict, end: Ending | None = None) -> bool:
        statement = sql.MOVING_AND_OWE if verdict.owes_call else sql.MOVING
        return self._write(statement, token, settlement_values(verdict) | ending_values(end, storable))

    @override
    def moved(self, token: Token, wake_in: float = 0.0) -> bool:
        values = KEEP | dead_values(self._retentions.of(token.id)) | {"wake_in": min(wake_in, LONGEST_DELAY)}
        return self._write(sql.MOVED, token, values)

    @override
    def next_call(self, namespace: str, queue: str, lease: float) -> OwedCall | None:
        found = self._fetch(sql.NEXT_CALL, {"namespace": namespace, "queue": queue, "lease": lease})
        return OwedCall(JobId(namespace, queue, found[0][0], found[0][1]), found[0][2]) if found else None

    @override
    def end_call(self, call: OwedCall, again_in: float | None = None) -> None:
        values = pk_values(call.id) | {"tries": call.tries, "again_in": again_in}
        self._change(sql.END_CALL if again_in is None else sql.CALL_AGAIN, values)

    @override
    def settled(self, token: Token, known: bool) -> None:
        # The transaction of the next claim, or `flush`, carries this write out; this saves one commit in three.
        self._settled.append((token, known))

    @override
    def retain(self, namespace: str, queue: str, times: Retention) -> None:
        self._retentions.set(namespace, queue, times)

    @override
    def flush(self) -> None:
        if self._settled:
            with self._record.connection() as db:
                db.run(sql.FLUSH, self._settled_values())

    def _settled_values(self) -> Values:
        """Return the parameters of `SETTLE` for all unsent settlements, which are lost if the statement fails."""
        settled: dict[Token, bool] = {}
        while self._settled:
            token, known = self._settled.popleft()
            settled[token] = known or settled.get(token, False)
        return {
            "settled_uids": [token.uid for token in settled],
            "settled_fences": [token.fence for token in settled],
            "settled_known": list(settled.values()),
            "settled_keep": [self._retentions.of(token.id).done for token in settled],
        }

    @override
    def cancel(self, id: JobId, reason: str) -> State | None:
        ours = secrets.token_hex(16)
        ((state, uid),) = self._fetch(sql.CANCEL, pk_values(id) | KEEP | {"reason": storable(reason), "uid": ours})
        return None if uid == ours else State(state)

    @override
    def uncancel(self, id: JobId) -> bool:
        return any(self._change(each, pk_values(id)) for each in (sql.UNCANCEL, sql.UNCANCEL_UNSEEN))

    @override
    def conflict(self, id: JobId) -> None:
        self._change(sql.CONFLICT, pk_values(id))

    @override
    def orders(self, owner: str) -> Orders:
        with self._renewals.connection() as db:  # the keeper reads the orders between its renewals
            # A read waits for no row, but for a locked table.
            lock_wait = self._call * _SHORT_WAIT
            ((version,),) = db.run(sql.ORDERS_VERSION, lock_wait=lock_wait).fetchall()
            if self._orders is None or self._orders[0] != (owner, version):
                found = db.run(sql.ORDERS, {"owner": owner}, lock_wait=lock_wait).fetchall()
                self._orders = (owner, version), orders_of(found)
            return self._orders[1]

    @override
    def clear_checkpoint(self, id: JobId) -> None:
        self._change(sql.CLEAR_CHECKPOINT, pk_values(id))

    @override
    def progress(self, token: Token, progress: Progress) -> None:
        self._write(sql.PROGRESS, token, progress_values(progress, storable) | {"rate_over": RATE_OVER})

    @override
    def last_round(self, namespace: str, queue: str, key: str) -> int | None:
        ((found,),) = self._fetch(sql.LAST_ROUND, {"namespace": namespace, "queue": queue, "key": key})
        return None if found is None else int(found)

    @override
    def jobs(self, which: JobFilter = EVERY_ROW) -> Iterable[tuple[Row, Progress | None]]:
        self.flush()
        values = filter_values(which) | {"unfinished": unfinished(which)}
        values["states"] = None if which.states is None else [state.value for state in which.states]
        return self._pages(values | self._lease)

    @override
    def held(self, stalled: float) -> Sequence[HeldJobs]:
        return [
            HeldJobs(owner, namespace, queue, jobs, running, tuple(keys or ()))
            for owner, namespace, queue, jobs, running, keys in self._fetch(sql.HELD, SILENCE | {"stalled": stalled})
        ]

    @override
    def needing(self, which: NeedsOf, offset: int, limit: int) -> JobsPage:
        return self._needs_page(sql.NEEDING, which, offset, limit)

    @override
    def running(self, which: NeedsOf, offset: int, limit: int) -> JobsPage:
        return self._needs_page(sql.RUNNING, which, offset, limit)

    @override
    def waiting(self, namespace: str | None, queue: str | None, offset: int, limit: int) -> JobsPage:
        return self._jobs_page(sql.WAITING, {"namespace": namespace, "queue": queue}, offset, limit)

    def _needs_page(self, statement: LiteralString, which: NeedsOf, offset: int, limit: int) -> JobsPage:
        values = needs_values(which) | {"dead_owners": list(which.dead_owners)}
        with self._record.connection() as db:
            statement = statement.replace("{now}", incarnation(db))
        return self._jobs_page(statement, values, offset, limit)

    def _jobs_page(self, statement: LiteralString, values: Values, offset: int, limit: int) -> JobsPage:
        self.flush()
        is_dead, jobs = cache(self._is_dead), []
        found = self._fetch(statement, values | self._lease | {"offset": offset, "rows": limit})
        for *row, need, _, done, total, note, at, before_at, before_done in found:
            progress = None if at is None else progress_of(done, total, note, at, before_at, before_done)
            jobs.append((row_of(row, is_dead), progress, need_of(need)))
        if not jobs and offset:
            return self._jobs_page(statement, values, 0, limit)
        return JobsPage(jobs, found[0][_EVERY] if found else 0, offset)

    @override
    def ended(self, uids: Sequence[str]) -> frozenset[str]:
        return frozenset(uid for (uid,) in self._fetch(sql.ENDED, {"uids": list(uids)}))

    @override
    def last_progress(self, id: JobId) -> Progress | None:
        found = self._fetch(sql.LAST_PROGRESS, pk_values(id))
        return progress_of(*found[0]) if found else None

    @override
    def forget(self, id: JobId) -> None:
        self._change(sql.FORGET, pk_values(id))

    @override
    def size(self) -> int | None:
        ((size,),) = self._fetch(sql.SIZE, {})
        return int(size)

    @override
    def purge(self) -> int:
        self.flush()
        removed = purged(lambda rows: self._change(sql.PURGE, {"rows": rows}))
        for old in self._retentions.attempts():
            purged(lambda rows, old=old: self._change(sql.PURGE_ATTEMPTS, old | {"rows": rows}))  # type: ignore[misc]
        self._change(sql.PURGE_OWNERS, KEEP)
        self._facts.purge()
        proof.sweep(self._owners_dir, self._holding)
        return removed

    @override
    def close(self) -> None:
        try:
            with suppress(ConfigError, LedgerUnavailable):
                self.flush()
        finally:
            self._record.close()
            self._renewals.close()

    def _holding(self, owners: Sequence[str]) -> frozenset[str]:
        """Return which of these owners are registered, or are named by a job's row."""
        return frozenset(owner for (owner,) in self._fetch(sql.HOLDING, {"owners": list(owners)}))

    def _fetch(self, statement: LiteralString, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run one statement, and return its rows."""
        with self._record.connection() as db:
            return db.run(statement, values).fetchall()

    def _change(self, statement: LiteralString, values: Mapping[str, Any]) -> int:
        """Run one statement, and return the number of changed rows."""
        with self._record.connection() as db:
            return db.run(statement, values).rowcount

    def _write(self, statement: LiteralString, token: Token, values: Values) -> bool:
        """Run one statement on the row of this token; return True, or False if the ledger refused it."""
        return self._change(statement, mine_values(token) | values) == 1

    def _own(self, statement: LiteralString, values: Values) -> Row | None:
        """Run one statement that gives a row a new fence and a new owner; return the row, or None if the ledger refuses this."""
        with self._record.connection() as db:
            ((fence,),) = db.run(sql.DRAW).fetchall()
            values = values | self._lease | {"drawn": fence}
            if self._settled:
                # The claim comes first: a claim that holds the row of another job, and waits for its own, could end in a deadlock.
                found = db.run(statement, values | self._settled_values(), then=f"; {sql.SETTLE}").fetchall()
            else:
                found = db.run(statement, values).fetchall()
        return row_of(found[0], never_dead) if found else None

    def _lock_is_free(self, owner: str) -> bool:
        return proof.is_dead(self._owners_dir, owner)

    def _pages(self, values: Values) -> Iterator[tuple[Row, Progress | None]]:
        """
        Return the rows, newest first, page by page, so that a long listing delays no other call.

        A page reads at most `_SPAN` rows, because a search for rare rows could otherwise take longer than a call may.
        Rows with an index of their own need no such limit.
        """
        indexed = values["unfinished"] or values["states"] == [State.DEAD.value]
        ((below,),) = self._fetch(sql.ABOVE_ALL, {})
        rows, is_dead = PAGE_ROWS, cache(self._is_dead)
        while below > 0:
            start = 0 if indexed else max(0, below - _SPAN)
            page = self._fetch(sql.PAGE, values | {"below": below, "start": start, "rows": rows})
            for *row, is_wanted, number, done, total, note, at, before_at, before_done in page:
                if is_wanted:
                    progress = None if at is None else progress_of(done, total, note, at, before_at, before_done)
                    yield row_of(row, is_dead), progress
                below = number
            if len(page) < rows:
                below = start
            rows = min(2 * rows, _MOST_ROWS)


def _waits(delay: float, wake_in: float) -> Values:
    """Return the values of a job that waits for `delay` seconds, and whose message comes in `wake_in` seconds."""
    return KEEP | {"delay": min(delay, LONGEST_DELAY), "wake_in": min(wake_in, LONGEST_DELAY)}


def _locked(error: LedgerUnavailable) -> bool:
    """Return whether the call failed only because another session kept a lock for too long."""
    return isinstance(error.__cause__, LockNotAvailable)
