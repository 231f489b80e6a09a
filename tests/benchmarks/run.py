"""
The benchmarks: `make bench`; only the cost of a job with `--cost`, only starts and memory with `--start`.

The first word names a single benchmark, a file `bench_*.py`, and the others are its own: `make bench ARGS="spark 3M"`.

Ratios are measured side by side: each round does one after the other, and the table has the median of the rounds.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import Claimed, JobId
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from tests.benchmarks import bench_cost, bench_trace, embedded
from tests.benchmarks.embedded import ROOT, folder, send, wait_for, worker
from tests.benchmarks.usage import added, per_job, pss, usage

JOBS, ROUNDS, STARTS, IDLE, ROWS = 1_000, 3, 5, 20.0, 2_000
SETTLED = 5.0
"""Seconds after which a worker process has done what its start left for later."""

CLOCK = SystemClock()
Line = tuple[str, str, str]


def main() -> int:
    """Measure and print."""
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        return one(*sys.argv[1:])
    if "--cost" in sys.argv:
        return bench_cost.main()
    lines = [*starts(), *footprint()]
    if "--start" not in sys.argv:
        lines = [*throughput(), *lines, ledger(), *bench_trace.lines()]
    table = Table("what", "measured", "aim", title=f"{os.cpu_count()} cores", box=SIMPLE_HEAD)
    for line in lines:
        table.add_row(*line)
    Console(width=110).print(table)
    if "--start" in sys.argv:
        return 0
    wanted = ["readers", "page", "duckdb", *(["brokers"] if "--no-brokers" not in sys.argv else [])]
    if "--no-spark" not in sys.argv and not shutil.which("java"):
        print("Spark's tables were left out: no Java.")
    elif "--no-spark" not in sys.argv:
        wanted.append("spark")
    return max(map(one, wanted))


def one(name: str, *words: str) -> int:
    """Run one benchmark in a process of its own, and return its exit code."""
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    if name not in known:
        sys.exit(f"Expected one of {', '.join(known)}, got {name}.")
    command = [sys.executable, "-m", f"tests.benchmarks.bench_{name}", *words]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def throughput() -> Iterator[Line]:
    """No-op jobs per second on the embedded queue."""
    for kind in embedded.KINDS:
        rate = median(embedded.measured(kind, 2, JOBS).rate for _ in range(ROUNDS))
        yield f"embedded queue, {kind.lower()}, two slots", f"{rate:,.0f} jobs/s", ""


def starts() -> Iterator[Line]:
    """Start to first job, and the help text, with byte code as pip leaves it: the first start of each compiles, and does not count."""
    with tempfile.TemporaryDirectory() as byte_code:
        compiled = {"PYTHONPYCACHEPREFIX": byte_code, "PYTHONDONTWRITEBYTECODE": ""}
        for slots, aim in ((1, "≤ 0.6 s"), (8, "≤ 0.9 s")):
            first_jobs = [first_job({**compiled, "STEADYWORKER_CONCURRENCY": str(slots)}) for _ in range(1 + STARTS)]
            yield f"start to first job, process slots: {slots}", f"{median(first_jobs[1:]):.2f} s", aim
        helps = [helped(compiled) for _ in range(1 + STARTS)]
        yield "steadyworker --help", f"{median(helps[1:]):.2f} s", "≤ 0.10 s"


def first_job(settings: dict[str, str]) -> float:
    """Seconds until a worker process has begun its first job."""
    with folder() as environ:
        send(environ, 1)
        began = CLOCK.monotonic()
        with worker({**environ, **settings}) as (_, lines):
            wait_for(lines, "job_started")
            return CLOCK.monotonic() - began


def helped(compiled: dict[str, str]) -> float:
    """Seconds that the help text takes."""
    command = [sys.executable, "-m", "steadyworker", "--help"]
    return timed(lambda: subprocess.run(command, env={**os.environ, **compiled}, stdout=subprocess.DEVNULL, check=True))


def footprint() -> Iterator[Line]:
    """What a worker process takes that has eight process slots, with all its processes, after some jobs."""
    with folder() as environ:
        send(environ, 50)
        with worker({**environ, "STEADYWORKER_CONCURRENCY": "8"}) as (process, lines):
            for _ in range(50):
                wait_for(lines, "job_settled")
            time.sleep(SETTLED)  # no event reports that a start has left nothing for later
            before, began = usage(process.pid), CLOCK.monotonic()
            time.sleep(IDLE)
            after, seconds = usage(process.pid), CLOCK.monotonic() - began
            own = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
            used = added(per_job(before, after, 1).values()).cpu / 1e6 / seconds
            yield "eight process slots: threads of the worker process", f"{own}", ""
            yield "eight process slots: memory (PSS)", f"{pss(process.pid) / 1e6:.0f} MB", "≤ 160 MB"
            yield f"eight process slots: CPU when idle, over {IDLE:g} s", f"{used:.2%}", "≤ 0.05 %"


def ledger() -> Line:
    """Claim and done, each a commit."""
    with folder() as environ:
        book = SqliteLedger(Path(environ["STEADYWORKER_STATE_DIR"]) / "bench.db", clock=CLOCK, times=Times())
        body = hashlib.sha256(b"{}").digest()

        def jobs() -> None:
            for number in range(ROWS):
                row = book.claim(Claimed(JobId("bench", "noop", str(number)), None, "owner", 0, body, Counters()))
                assert row is not None
                assert book.done(row.token)

        micros = timed(jobs) / ROWS * 1e6
        book.close()
    return "ledger: claim and done", f"{micros:,.0f} µs", ""


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = CLOCK.monotonic()
    work()
    return CLOCK.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
