"""
The cost of the messages that a ledger keeps: `python -m tests.benchmarks.bench_messages [JOBS]`.

In both ledgers, jobs without a message, with one, and with a checkpoint of the message's size take turns; the table has medians.
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
from steadyworker.ledger.base import Claimed, JobId, KeptMessage, Ledger, Moving, Verdict
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from tests.brokers.postgres import Cluster

JOBS = 200
SIZES = {200: 1.0, 1_000: 1.0, 64_000: 0.5, 1_000_000: 0.2}
"""Bytes of a body, and the part of the jobs that is measured with it."""
WAITING, WAITING_SIZE = 100_000, 1_000
FACTS = b'{"headers":{"steadyworker-key":"m-17","customer":"4711"},"message_id":"4f1c","sent_at":1700000000.0}'
TABLES = """
    SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'steadyworker%' AND relkind = 'r'
"""
CLOCK = SystemClock()
NUMBERS = count()


def main() -> None:
    """Measure and print."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    costs = Table("claim and done", "without", "with its message", "more", "with a checkpoint", box=SIMPLE_HEAD)
    for size, part in SIZES.items():
        with ledgers() as opened:
            for name, (ledger, _) in opened.items():
                bare, kept, saved = medians(ledger, int(wanted * part), body(size))
                more = f"{kept - bare:.2f} ms ({kept / bare - 1:+.0%})"
                costs.add_row(
                    f"{name}, {size:,} bytes", *(f"{ms:.2f} ms" for ms in (bare, kept)), more, f"{saved:.2f} ms"
                )
    sizes = Table(f"{WAITING:,} retries of {WAITING_SIZE:,} bytes", "without", "with messages", box=SIMPLE_HEAD)
    found: dict[str, list[str]] = {}
    for message in (None, KeptMessage(body(WAITING_SIZE), FACTS)):
        with ledgers("?options=-csynchronous_commit%3Doff") as opened:
            for name, (ledger, stored) in opened.items():
                wait(ledger, message)
                found.setdefault(name, []).append(f"{stored() / 1e6:.0f} MB")
    for name, pair in found.items():
        sizes.add_row(name, *pair)
    for table in (costs, sizes):
        Console(width=110).print(table)


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


def medians(ledger: Ledger, jobs: int, body: bytes) -> tuple[float, float, float]:
    """The milliseconds of a job without a message, with this one, and with a checkpoint of its size."""
    kinds = [(None, None), (KeptMessage(body, FACTS), None), (None, body)]
    taken: list[list[float]] = [[], [], []]
    for _ in range(jobs):
        for times, (message, checkpoint) in zip(taken, kinds, strict=True):
            began = time.perf_counter()
            row = ledger.claim(Claimed(job(), None, "me", 0, b"\x01" * 32, Counters(), message))
            assert row is not None
            if checkpoint is not None:
                assert ledger.checkpoint(row.token, checkpoint)
            assert ledger.done(row.token)
            times.append(1000 * (time.perf_counter() - began))
    bare, kept, saved = map(median, taken)
    return bare, kept, saved


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
