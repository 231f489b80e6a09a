"""
The cost of the messages and attempts that a ledger keeps: `python -m tests.benchmarks.bench_messages [JOBS]`.

In both ledgers, jobs without a message, with one, with a message and an attempt, and with a checkpoint of the message's size take turns.
The table has medians; a ledger without the attempt is only for this comparison.
The next table compares whole jobs of a worker process on the embedded queue, in pairs: processor time, with neither and with both.
The last table shows the size of a ledger with many jobs that wait for a retry.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from statistics import median

import psycopg
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import Began, Claimed, Ending, JobId, KeptMessage, Ledger, Moving, Verdict
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from tests.benchmarks import embedded
from tests.brokers.postgres import Cluster

JOBS = 200
SIZES = {200: 1.0, 1_000: 1.0, 64_000: 0.5, 1_000_000: 0.2}
"""Bytes of a body, and the part of the jobs that is measured with it."""
WAITING, WAITING_SIZE = 100_000, 1_000
PAIRS = 5
OWNER = "worker-7f9c/0f3e1c2a-9b7d-4d5e-8a52-6f1c2b3d4e5f/0123456789abcdef"
FACTS = b'{"headers":{"steadyworker-key":"m-17","customer":"4711"},"message_id":"4f1c","sent_at":1700000000.0}'
TABLES = """
    SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'steadyworker%' AND relkind = 'r'
"""
CLOCK = SystemClock()
NUMBERS = count()


def main() -> None:
    """Measure and print."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    columns = ("without", "with its message", "more", "with an attempt, too", "more", "with a checkpoint")
    costs = Table("claim and done", *columns, box=SIMPLE_HEAD)
    for size, part in SIZES.items():
        with ledgers() as opened:
            for name, (ledger, _) in opened.items():
                bare, kept, both, saved = medians(ledger, int(wanted * part), body(size))
                cells = [f"{bare:.3f} ms"]
                for ms in (kept, both):
                    cells += [f"{ms:.3f} ms", f"{ms - bare:.3f} ms ({ms / bare - 1:+.0%})"]
                costs.add_row(f"{name}, {size:,} bytes", *cells, f"{saved:.2f} ms")
    whole = Table("a whole job, CPU", "with neither", "with both", "pairs, medians", box=SIMPLE_HEAD)
    for kind in embedded.KINDS:
        for slots in (1, 8):
            pairs = [
                [embedded.measured(kind, slots, 5 * wanted, module).total.cpu for module in ("unkept", "noop")]
                for _ in range(PAIRS)
            ]
            cells = [f"{median(column):.0f} µs" for column in zip(*pairs, strict=True)]
            more = median(both / neither - 1 for neither, both in pairs)
            whole.add_row(f"{kind}, {slots} slots", *cells, f"{more:+.0%}")
    sizes = Table(f"{WAITING:,} retries of {WAITING_SIZE:,} bytes", "without", "with messages", box=SIMPLE_HEAD)
    found: dict[str, list[str]] = {}
    for message in (None, KeptMessage(body(WAITING_SIZE), FACTS)):
        with ledgers("?options=-csynchronous_commit%3Doff") as opened:
            for name, (ledger, stored) in opened.items():
                wait(ledger, message)
                found.setdefault(name, []).append(f"{stored() / 1e6:.0f} MB")
    for name, pair in found.items():
        sizes.add_row(name, *pair)
    for table in (costs, whole, sizes):
        Console(width=140).print(table)


@contextmanager
def ledgers(options: str = "") -> Iterator[Mapping[str, tuple[Ledger, Callable[[], int]]]]:
    """Both ledgers, empty, as a worker process opens them, each with what tells its size."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(closing(Cluster()))
        cluster.start()
        url = cluster.add_database()

        def of_file() -> int:
            return sum(file.stat().st_size for file in folder.glob("ledger.db*") if file.is_file())

        def of_tables() -> int:
            with psycopg.connect(url) as admin:
                ((size,),) = admin.execute(TABLES).fetchall()
            return int(size)

        sqlite = SqliteLedger(folder / "ledger.db", clock=CLOCK, times=Times())
        postgres = PostgresLedger(lambda: url + options, owners_dir=folder, clock=CLOCK, times=Times())
        yield {
            "SQLite": (stack.enter_context(closing(sqlite)), of_file),
            "PostgreSQL": (stack.enter_context(closing(postgres)), of_tables),
        }


def body(size: int) -> bytes:
    """A body as an application sends it: JSON with names that repeat and values that do not."""
    chosen = random.Random(size)
    records = [
        {"order": number, "customer": chosen.randrange(10**6), "amount": chosen.random()}
        for number in range(size // 50 + 1)
    ]
    return json.dumps(records).encode()[:size]


def medians(ledger: Ledger, jobs: int, body: bytes) -> list[float]:
    """The milliseconds of a job without a message, with this one, with an attempt, too, and with a checkpoint of its size."""
    kept = KeptMessage(body, FACTS)
    kinds = [(None, None, None), (kept, None, None), (kept, Began(0, "new", 1), None), (None, None, body)]
    taken: list[list[float]] = [[] for _ in kinds]
    for _ in range(jobs):
        for times, (message, run, checkpoint) in zip(taken, kinds, strict=True):
            began = time.perf_counter()
            row = ledger.claim(Claimed(job(), None, OWNER, 0, b"\x01" * 32, Counters(), message, run))
            assert row is not None
            if checkpoint is not None:
                assert ledger.checkpoint(row.token, checkpoint)
            assert ledger.done(row.token, None if run is None else Ending("done", peak_memory=40 << 20))
            times.append(1000 * (time.perf_counter() - began))
    return [median(times) for times in taken]


def wait(ledger: Ledger, message: KeptMessage | None) -> None:
    """Bring many jobs to where they wait for a retry."""
    verdict = Verdict(Moving.RETRY, "ConnectionError: refused", Counters(attempts=1), delay=86_400.0)
    for _ in range(WAITING):
        row = ledger.claim(Claimed(job(), None, "me", 0, b"\x01" * 32, Counters(), message))
        assert row is not None
        assert ledger.moving(row.token, verdict)
        assert ledger.moved(row.token, 86_400.0)


def job() -> JobId:
    """A job that no ledger knows."""
    return JobId("shop", "exports", f"order-{next(NUMBERS):012}")


if __name__ == "__main__":
    main()
