"""
The cost of a job in a SQLite ledger: `python -m tests.benchmarks.bench_ledger [KEPT]`, with a million kept rows by default.

The ledgers take turns, and the times are processor time, so that other work of the machine changes them little.
The exit code is 1 if a job costs more than 1.3 times as much beside the kept rows as in an empty ledger.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import Claimed, JobFilter, JobId, KeptMessage, NeedsOf, State
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters

KEPT, WAITING = 1_000_000, 100_000
ROUNDS, JOBS, SLOTS, MOST = 9, 800, 8, 1.3
MESSAGE = KeptMessage(b"x" * 200, b'{"headers":{"customer":"4711"},"message_id":"4f1c","sent_at":1700000000.0}')
COPIES = """
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :copies)
    INSERT INTO jobs (
        rowid, namespace, queue, key, round, uid, body_sha256, state, fence, target, not_before, wake_at, settled, keep_until,
        created_at, started_at, ended_at, worker
    )
    SELECT
        n, namespace, queue, lower(hex(randomblob(16))), 0, printf('%x-', n) || lower(hex(randomblob(10))), body_sha256, :state, n,
        iif(:state = 'moved', 'retry', NULL), iif(:state = 'moved', :now + 86400, NULL), iif(:state = 'moved', :now + 86400, NULL),
        settled, keep_until + n, created_at, started_at, ended_at, worker
    FROM numbers, (SELECT * FROM jobs LIMIT 1)
"""
NUMBERS = count()


NEEDS = NeedsOf(None, None, overdue=3600.0, lost=2, stalled=1800.0, dead=86_400.0)


def main() -> int:
    """Measure and print."""
    kept = int(sys.argv[1]) if len(sys.argv) > 1 else KEPT
    with ledger(0, "done") as empty, ledger(kept, "done") as full, ledger(WAITING, "moved") as waiting:
        kinds = {"empty": empty, f"{kept:,} done": full, f"{WAITING:,} moved": waiting}
        table = Table("µs of processor time", *kinds, box=SIMPLE_HEAD)
        works: dict[str, Callable[[SqliteLedger], float]] = {
            "a job, by itself": lambda each: jobs(each, 1),
            f"a job, {SLOTS} in a turn": lambda each: jobs(each, SLOTS),
            "the search for orphans": lambda each: taken(lambda: each.orphans("shop", "exports", 60.0, 100)),
            "`jobs --state running`": lambda each: taken(lambda: list(each.jobs(JobFilter(states=(State.RUNNING,))))),
            "`jobs --overdue`": lambda each: taken(lambda: each.needing(NEEDS, 0, 500)),
        }
        found: dict[str, list[float]] = {}
        for name, work in works.items():
            rounds = [[work(each) for each in kinds.values()] for _ in range(ROUNDS)]
            found[name] = [median(column) for column in zip(*rounds, strict=True)]
            table.add_row(name, *(f"{us:,.0f}" for us in found[name]))
        Console(width=110).print(table)
    alone, beside, _ = found["a job, by itself"]
    return int(beside > MOST * alone)


@contextmanager
def ledger(copies: int, state: str) -> Iterator[SqliteLedger]:
    """A ledger with so many rows of one state, as a worker process opens it."""
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()), "ledger.db")
        opened = stack.enter_context(closing(SqliteLedger(path, clock=SystemClock(), times=Times())))
        jobs(opened, 1, 1)
        opened.flush()
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(COPIES, {"copies": copies, "state": state, "now": time.time()})
        opened.register("me", "host", ["shop/exports"])
        yield opened


def jobs(each: SqliteLedger, together: int, number: int = JOBS) -> float:
    """Run jobs, so many in a turn; return the time of one, in microseconds."""
    began = time.thread_time()
    for _ in range(number // together):
        claims = [
            Claimed(
                JobId("shop", "exports", f"{next(NUMBERS):032}"[::-1]), None, "me", 0, b"\x01" * 32, Counters(), MESSAGE
            )
            for _ in range(together)
        ]
        rows = each.record(claims, [])[0] if together > 1 else [each.claim(claims[0])]
        tokens = [row.token for row in rows if row is not None]
        assert all(each.record([], [(token, None) for token in tokens])[1] if together > 1 else [each.done(tokens[0])])
        for token in tokens:
            each.settled(token, known=True)
    return (time.thread_time() - began) / number * 1e6


def taken(work: Callable[[], object]) -> float:
    """The time of this work, in microseconds."""
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1e6


if __name__ == "__main__":
    sys.exit(main())
