"""
The pages of `steadyworker dashboard` at scale: `python -m tests.benchmarks.bench_page [--postgres] [--refreshes N]`.

The ledger has 10,000 running, 100,000 waiting, 10,000 dead and 1,000,000 done jobs, of 300 worker processes and 10 queues.
The times are processor time, so that other work of the machine changes them little: of the first request, and of refreshes each 2 s.
`reads` is the part for the reads of the ledger, and `server` is the time that PostgreSQL's processes took for them.
With `--refreshes`, each page is also refreshed so many times, and a table has the memory before and after.
The exit code is 1 if a page is slower than the aim: a p95 of 150 ms.
"""

from __future__ import annotations

import argparse
import fcntl
import gc
import os
import sqlite3
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import psycopg
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from steadyworker.adapter import Depth
from steadyworker.clock import SystemClock, Times
from steadyworker.dashboard import reader
from steadyworker.dashboard.access import checked_access
from steadyworker.dashboard.application import application
from steadyworker.ledger.base import Began, Claimed, JobId, KeptMessage, Ledger, Progress, Row
from steadyworker.ledger.facts import Action, LinkEvent, Minute, OwnerReport, QueueReport
from steadyworker.ledger.owners import boot_id, lock_path
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from tests.brokers.postgres import Cluster
from tests.dashboard.kit import request

RUNNING, WAITING, DEAD, DONE, WORKERS, QUEUES = 10_000, 100_000, 10_000, 1_000_000, 300, 10
MOST, EVERY, ROUNDS = 0.150, 2.0, 60
PATHS = (
    "/",
    "/?broker=shop&queue=queue-3",
    "/failures",
    "/failures?when=today&text=merchant",
    "/queues",
    "/workers",
    "/warnings",
    "/actions",
    "/job/shop/queue-1/job-1",
)
TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/lib/python3.12/site-packages/steadyworker/slots/child.py", line 201, in run
    result = handler(job)
  File "/srv/app/exports.py", line {line}, in handle
    rows = fetch(merchant)
  File "/srv/app/lib/python3.12/site-packages/bank/client.py", line 88, in fetch
    raise BankError(merchant)
BankError: no such merchant: m-{line}
"""
LEASE = 86_400.0
# SQLite and PostgreSQL number the new rows from the first free number on.
COPIES = """
    INSERT INTO {jobs} ({number} namespace, queue, key, round, uid, body_sha256, state, hop, fence, target, not_before,
        wake_at, delay, reason, error_class, error_text, settled, keep_until, attempts, created_at, started_at, ended_at, worker)
    SELECT {nth} 'shop', 'queue-' || (n % {queues}), {prefix} || n, 0, {prefix} || '-' || n, body_sha256, {state}, 0, {fence},
        {target}, {not_before}, {wake_at}, 600, {reason}, {error_class}, {error_text}, 'confirmed', {keep_until}, {attempts},
        {at} , {at}, {ended_at}, worker
    FROM {numbers}, (SELECT body_sha256, worker FROM {jobs} LIMIT 1) AS first
"""


class Filled:
    """A ledger that is filled with SQL, in the dialect of its database; `run` runs a statement."""

    jobs = "jobs"
    attempts = "attempts"
    messages = "messages"
    key = "rowid"
    bytes = "x'7b7d'"

    def __init__(self, run: Callable[[str], object]) -> None:
        self.run = run

    def numbers(self, copies: int) -> str:
        return f"(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {copies}) SELECT n FROM s) AS s"

    def time(self, seconds: str) -> str:
        """The time that was so many seconds ago."""
        return f"({time.time()} - ({seconds}))"

    def number(self) -> tuple[str, str]:
        return "rowid,", "(SELECT max(rowid) FROM jobs) + n,"

    def copy(self, copies: int, prefix: str, state: str, **values: str) -> None:
        number, nth = self.number()
        late = self.time("-600 - n % 7200")
        defaults = {
            "number": number,
            "nth": nth,
            "jobs": self.jobs,
            "queues": str(QUEUES),
            "prefix": f"'{prefix}-'",
            "state": f"'{state}'",
            "fence": "n",
            "target": "NULL",
            "not_before": "NULL",
            "wake_at": "NULL",
            "reason": "''",
            "error_class": "''",
            "error_text": "''",
            "attempts": "0",
            "keep_until": self.time("-90000 - n"),
            "at": self.time("7200 + n % 80000"),
            "ended_at": "NULL",
            "numbers": self.numbers(copies),
        }
        if state == "moved":
            defaults |= {"target": "'retry'", "not_before": late, "wake_at": late}
        self.run(COPIES.format_map(defaults | values))

    def fill(self) -> None:
        """Add the jobs that wait, are dead or done; a third of the waiting jobs are snoozed."""
        self.run(f"UPDATE {self.jobs} SET started_at = {self.time('7200')}")
        error = {"error_class": "'BankError'", "error_text": "'no such merchant: m-' || n"}
        kind = {
            "reason": "CASE n % 3 WHEN 0 THEN 'snoozed: not yet' ELSE 'BankError: no such merchant: m-' || n END",
            "error_class": "CASE n % 3 WHEN 0 THEN '' ELSE 'BankError' END",
            "error_text": "CASE n % 3 WHEN 0 THEN '' ELSE 'no such merchant: m-' || n END",
        }
        self.copy(WAITING, "waits", "moved", **kind)
        self.copy(DONE, "done", "done", ended_at=self.time("50000"))
        dead = {"reason": "'BankError: no such merchant: m-' || n", "target": "'dead'", "attempts": "3"}
        self.copy(DEAD, "dead", "dead", **error, **dead, ended_at=self.time("n * 12"))
        self.run(
            f"INSERT INTO {self.messages} SELECT {self.key}, {self.bytes}, {self.bytes} FROM {self.jobs} WHERE state = 'moved'"
        )
        lines = " ".join(f"WHEN {line} THEN '{TRACEBACK.format(line=line)}'" for line in range(12))
        self.run(
            f"INSERT INTO {self.attempts} (number, fence, owner, pid, slot, version, because, started_at, ended_at, outcome,"
            f" reason, error_class, error_text, traceback) SELECT {self.key}, fence, 'gone', 1, 1, '1.4.0', 'retry', started_at,"
            f" started_at, 'failed', reason, error_class, error_text, CASE fence % 12 {lines} END FROM {self.jobs}"
            " WHERE state = 'dead' OR (state = 'moved' AND error_class <> '')"
        )


class FilledPostgres(Filled):
    jobs = "steadyworker_jobs"
    attempts = "steadyworker_attempts"
    messages = "steadyworker_messages"
    key = "number"
    bytes = "'{}'::bytea"

    def numbers(self, copies: int) -> str:
        return f"generate_series(1, {copies}) AS s (n)"

    def time(self, seconds: str) -> str:
        return f"(clock_timestamp() - make_interval(secs => {seconds}))"

    def number(self) -> tuple[str, str]:
        return "", ""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--refreshes", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="the folder of the SQLite ledger, which later calls use again")
    options = parser.parse_args()
    with postgres() if options.postgres else sqlite(options.keep) as (ledger, server):
        slowest = measured(ledger, server)
        if options.refreshes:
            refreshed(ledger, options.refreshes)
    return int(slowest > MOST)


@contextmanager
def sqlite(keep: Path | None) -> Iterator[tuple[Ledger, Callable[[], float]]]:
    """A SQLite ledger, whose worker processes all live on this host."""
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = folder / "ledger.db"
        made = path.exists()
        ledger = stack.enter_context(closing(SqliteLedger(path, clock=SystemClock(), times=Times())))
        if not made:
            seed(ledger)
            with closing(sqlite3.connect(path)) as db, db:
                Filled(db.execute).fill()
        with closing(sqlite3.connect(path)) as db, db:
            now, ahead = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME) + LEASE
            db.execute("UPDATE owners SET seen_at = ?", [now + LEASE])
            db.execute("UPDATE jobs SET lease_boot = ?, lease_until = ? WHERE owner IS NOT NULL", [boot_id(), ahead])
            db.execute("UPDATE depths SET measured_at = ?", [now + LEASE])
            db.execute("UPDATE progress SET at = ?", [now])
        for owner in owners():
            lock = stack.enter_context(lock_path(ledger.owners_dir, owner).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield ledger, lambda: 0.0


@contextmanager
def postgres() -> Iterator[tuple[Ledger, Callable[[], float]]]:
    """A ledger in a PostgreSQL server of its own."""
    with ExitStack() as stack:
        cluster = stack.enter_context(closing(Cluster()))
        cluster.start()
        admin = stack.enter_context(psycopg.connect(cluster.url, autocommit=True))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ledger = PostgresLedger(lambda: cluster.url, owners_dir=folder, clock=SystemClock(), times=Times())
        stack.enter_context(closing(ledger))
        seed(ledger)
        FilledPostgres(lambda text: admin.execute(text.encode())).fill()
        ahead = "clock_timestamp() + interval '1 day'"
        for table, column, where in (
            ("owners", "seen_at", "true"),
            ("depths", "measured_at", "true"),
            ("jobs", "lease_until", "owner IS NOT NULL"),
        ):
            admin.execute(f"UPDATE steadyworker_{table} SET {column} = {ahead} WHERE {where}".encode())
        admin.execute("VACUUM ANALYZE")
        found = admin.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL")
        pids = [pid for (pid,) in found]
        yield ledger, lambda: sum(map(cpu_of, pids))


def cpu_of(pid: int) -> float:
    """The processor time of a process of this machine, in seconds."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


def owners() -> list[str]:
    return [f"{os.uname().nodename}/{boot_id()}/{number:016x}" for number in range(WORKERS)]


def seed(ledger: Ledger) -> None:
    """Register the worker processes, and let them claim the running jobs, with a day of facts."""
    now = time.time()
    for queue in range(QUEUES):
        ledger.bind("shop", f"queue-{queue}", "shop")
        ledger.facts.record_depth("shop", f"queue-{queue}", Depth(4000, 10, 60, 5, 2, 60, 1800.0))
    for minute in range(60):
        at = int(now // 60 - minute) * 60
        counts = (0, 0, 3, 5, 2, minute % 2, 0, 0, 0, 0, 0, 0)
        ledger.facts.add_minutes([Minute("shop", f"queue-{queue}", at, "done", counts) for queue in range(QUEUES)])
    for number, owner in enumerate(owners()):
        names = [f"shop/queue-{(number + step) % QUEUES}" for step in (0, 3)]
        queues = {name: QueueReport(20, 17, 7200.0, connected=True) for name in names}
        ledger.register(
            owner,
            f"host-{number % 30}",
            names,
            OwnerReport(1000 + number, "1.4.0", now - 9000, "running", True, queues=queues),
        )
        ledger.facts.add_link_events(
            [
                LinkEvent(
                    owner,
                    names[0].partition("/")[2],
                    now - 80_000 + i * 4000,
                    i,
                    "lost" if i % 2 else "connected",
                    "heartbeat missed",
                )
                for i in range(20)
            ]
        )
    for number in range(500):
        ledger.facts.act(
            Action("ann@desk", "dead replay", "shop", "queue-1", (f"job-{number}",), 1, "the bank is back")
        )
    everyone = owners()
    for start in range(0, RUNNING, 500):
        claims = [
            Claimed(
                JobId("shop", f"queue-{number % QUEUES}", f"job-{number}"),
                None,
                everyone[number % WORKERS],
                0,
                b"\1" * 32,
                Counters(),
                KeptMessage(b"{}", b"{}"),
                Began(1, "new", 1),
            )
            for number in range(start, start + 500)
        ]
        for number, row in enumerate(ledger.record(claims, [])[0]):
            assert row is not None
            progress(ledger, row, start + number, now)


def progress(ledger: Ledger, row: Row, number: int, now: float) -> None:
    ledger.progress(row.token, Progress(number % 100, 100, "pages", now))


class Refreshing(SystemClock):
    """A clock on which `EVERY` seconds pass between two refreshes."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


def measured(ledger: Ledger, server: Callable[[], float]) -> float:
    """Refresh each page often, print what a refresh takes, and return the largest p95."""
    names = ("page", "first ms", "p50 ms", "p95 ms", "reads, mean ms", "server, mean ms", "queries", "kB")
    table = Table(*names, box=SIMPLE_HEAD)
    slowest, spent = 0.0, [0.0]
    made: list[list[str]] = []
    page = reader.Reader.page

    def timed(self: reader.Reader, key: Any, read: Callable[[reader.ReadOnce, float], Any]) -> Any:
        def measured_read(once: reader.ReadOnce, now: float) -> Any:
            began = time.process_time()
            try:
                return read(once, now)
            finally:
                spent[0] = time.process_time() - began
                made.append(once.calls)

        return page(self, key, measured_read)

    reader.Reader.page = timed  # type: ignore[method-assign]
    try:
        for path in PATHS:
            clock, whole, reads = Refreshing(), [], []
            app = application(ledger, checked_access(), clock=clock)
            at_server, size = server(), 0
            for _ in range(ROUNDS):
                began = time.process_time()
                answered = request(app, path)
                whole.append(time.process_time() - began)
                reads.append(spent[0])
                clock.ahead += EVERY
                assert answered.status == 200, answered.words
                size = len(answered.text.encode())
            cuts = quantiles(whole, n=20)
            slowest = max(slowest, cuts[-1])
            per_refresh = [sum(reads) / ROUNDS, (server() - at_server) / ROUNDS]
            cells = [f"{seconds * 1e3:,.1f}" for seconds in (whole[0], cuts[9], cuts[-1], *per_refresh)]
            table.add_row(path, *cells, str(max(map(len, made))), f"{size / 1e3:.0f}")
            made.clear()
    finally:
        reader.Reader.page = page  # type: ignore[method-assign]
    Console(width=120).print(table)
    return slowest


def refreshed(ledger: Ledger, refreshes: int) -> None:
    """Refresh each page so many times, and print the memory after a tenth of them and at the end."""
    clock = Refreshing()
    app = application(ledger, checked_access(), clock=clock)
    table = Table("refreshes of each page", "RSS MB", "traced kB", box=SIMPLE_HEAD)
    for number in range(1, refreshes + 1):
        for path in PATHS:
            request(app, path)
        clock.ahead += EVERY
        if number in (refreshes // 10, refreshes):
            gc.collect()
            tracemalloc.start()  # a second call does nothing
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            traced = tracemalloc.get_traced_memory()[0] / 1e3
            table.add_row(f"{number:,}", f"{pages * os.sysconf('SC_PAGE_SIZE') / 1e6:.1f}", f"{traced:.0f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
