"""
What it costs that the ledger keeps the message of a job: a claim and its end, in turns with the message and without it.

    python -m tests.benchmarks.kept_messages [sqlite:PATH | postgresql://…]

Each number is the median of pairs; the two of a pair follow each other, in an order that changes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

from steadyworker.clock import SystemClock, Times
from steadyworker.delivery import Delivery
from steadyworker.ledger.base import Claimed, JobId, Ledger
from steadyworker.ledger.kept import kept
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters

SIZES = {"200 B": 200, "1 kB": 1_000, "64 kB": 64_000, "1 MB": 1_000_000}
PAIRS = {"200 B": 2_000, "1 kB": 2_000, "64 kB": 500, "1 MB": 100}
HEADERS = {"steadyworker-key": "m-17", "content-type": "application/json", "traceparent": "00-" + "0" * 50}


def opened(url: str) -> Ledger:
    """The ledger of this URL."""
    clock, times = SystemClock(), Times()
    if url.startswith("sqlite:"):
        return SqliteLedger(Path(url.removeprefix("sqlite:")), clock=clock, times=times)
    return PostgresLedger(lambda: url, owners_dir=Path(tempfile.mkdtemp()), clock=clock, times=times)


def one(ledger: Ledger, key: str, body: bytes, *, keeps: bool) -> float:
    """Claim and end one job, as the runner does; return the seconds that it took."""
    delivery = Delivery(epoch=1, id=key, queue="exports", body=body, headers=HEADERS, message_id=key)
    began = time.perf_counter()
    message = kept(delivery) if keeps else None
    job = JobId("bench", "exports", key)
    row = ledger.claim(Claimed(job, ledger.read(job), "me", 0, b"\x01" * 32, Counters(), message))
    assert row is not None
    assert ledger.done(row.token)
    ledger.settled(row.token, known=True)
    return time.perf_counter() - began


def compare(ledger: Ledger, name: str) -> str:
    """Return a line of the table for messages of this size."""
    body, run = b"x" * SIZES[name], time.time_ns()
    pairs = []
    for number in range(PAIRS[name]):
        order = (True, False) if number % 2 else (False, True)
        took = {keeps: one(ledger, f"{run}-{number}-{keeps}", body, keeps=keeps) for keeps in order}
        pairs.append((took[False], took[True], took[True] - took[False]))
    without, with_it, more = (1e6 * median(column) for column in zip(*pairs, strict=True))
    return f"| {name} | {without:,.0f} µs | {with_it:,.0f} µs | {more:+,.0f} µs |"


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:{folder}/ledger.db"
        with closing(opened(url)) as ledger:
            print("| body | claim and done | with the message | more |")
            print("|---|---|---|---|")
            for name in SIZES:
                print(compare(ledger, name))


if __name__ == "__main__":
    main()
