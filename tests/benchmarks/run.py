"""
The benchmarks, one table: `make bench`.

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
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from steadyworker import Client
from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import Claimed, JobId
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from steadyworker.system.procfs import rss

HERE = Path(__file__).parent
JOBS, ROUNDS, STARTS, IDLE, ROWS = 1_000, 3, 5, 10.0, 2_000
CLOCK = SystemClock()
Line = tuple[str, str, str]


def main() -> int:
    """Measure and print."""
    lines = [*throughput(), *starts(), *footprint(), ledger()]
    table = Table("what", "measured", "aim", title=f"{os.cpu_count()} cores", box=SIMPLE_HEAD)
    for line in lines:
        table.add_row(*line)
    Console(width=110).print(table)
    subprocess.run([sys.executable, "-m", "tests.benchmarks.bench_readers"], cwd=HERE.parents[1], check=True)
    if "--no-brokers" not in sys.argv:
        subprocess.run([sys.executable, "-m", "tests.benchmarks.bench_brokers"], cwd=HERE.parents[1], check=True)
    if "--no-spark" in sys.argv:
        return 0
    if not shutil.which("java"):
        print("Spark's tables were left out: no Java.")
        return 0
    return subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bench_spark"], cwd=HERE.parents[1], check=False
    ).returncode


def throughput() -> Iterator[Line]:
    """No-op jobs per second, and what part of the bare queue's speed that is."""
    rates: dict[str, list[float]] = {"bare": [], "thread": [], "process": [], "memory": []}
    for _ in range(ROUNDS):
        for how, found in rates.items():
            with folder() as environ:
                send(environ, JOBS)
                said = subprocess.run(
                    [sys.executable, "-c", "import noop; noop.main()", how, str(JOBS)],
                    env=environ,
                    cwd=HERE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    check=True,
                )
                found.append(JOBS / float(said.stdout))
    bare = median(rates["bare"])
    yield "bare loop of the embedded queue: receive, acknowledge", f"{bare:,.0f} jobs/s", ""
    for how in ("thread", "process"):
        ratio = median(one / other for one, other in zip(rates[how], rates["bare"], strict=True))
        yield f"two {how} slots", f"{median(rates[how]):,.0f} jobs/s, {ratio:.0%} of bare", ""
    alone = median(rates["memory"])
    yield (
        "two thread slots, queue and ledger in memory, no log",
        f"{alone:,.0f} jobs/s, {1e6 / alone:,.0f} µs a job",
        "",
    )


def starts() -> Iterator[Line]:
    """Start to first job, and the help text, with byte code as pip leaves it: the first start of each compiles, and does not count."""
    with tempfile.TemporaryDirectory() as byte_code:
        compiled = {"PYTHONPYCACHEPREFIX": byte_code, "PYTHONDONTWRITEBYTECODE": ""}
        first_jobs = [first_job(compiled) for _ in range(1 + STARTS)][1:]
        helps = [helped(compiled) for _ in range(1 + STARTS)][1:]
    yield "start to first job", f"{median(first_jobs):.2f} s", "< 1 s"
    yield "steadyworker --help", f"{median(helps):.2f} s", "< 0.3 s"


def first_job(compiled: dict[str, str]) -> float:
    """Seconds until a worker process has begun its first job."""
    with folder() as environ:
        send(environ, 1)
        began = CLOCK.monotonic()
        with worker({**environ, **compiled}) as (_, lines):
            wait_for(lines, "job_started")
            return CLOCK.monotonic() - began


def helped(compiled: dict[str, str]) -> float:
    """Seconds that the help text takes."""
    command = [sys.executable, "-m", "steadyworker", "--help"]
    return timed(lambda: subprocess.run(command, env={**os.environ, **compiled}, stdout=subprocess.DEVNULL, check=True))


def footprint() -> Iterator[Line]:
    """What the worker process itself takes, after some jobs."""
    with folder() as environ:
        send(environ, 50)
        with worker(environ) as (process, lines):
            for _ in range(50):
                wait_for(lines, "job_settled")
            before, began = cpu_seconds(process.pid), CLOCK.monotonic()
            time.sleep(IDLE)
            used = (cpu_seconds(process.pid) - before) * 1000 / (CLOCK.monotonic() - began)
            yield "memory of the worker process", f"{rss(process.pid) / 1e6:.0f} MB", "≤ 45 MB"
            yield "its CPU when idle", f"{used:.1f} ms per s", "≤ 2 ms"


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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


@contextmanager
def folder() -> Iterator[dict[str, str]]:
    """An environment with a state directory of its own."""
    with tempfile.TemporaryDirectory() as place:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("STEADYWORKER_")}
        yield {**kept, "STEADYWORKER_STATE_DIR": place}


def send(environ: dict[str, str], jobs: int) -> None:
    """Queue no-op jobs."""
    with Client(f"sqlite:{environ['STEADYWORKER_STATE_DIR']}/broker.db") as client:
        for number in range(jobs):
            client.send("noop", {"number": number})


@contextmanager
def worker(environ: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """A worker process, and the lines that it logs."""
    command = [sys.executable, "-m", "steadyworker", "run", "noop:Processes", "--log-format", "json"]
    with subprocess.Popen(command, env=environ, cwd=HERE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process, iter(process.stderr)
        finally:
            process.terminate()
            process.communicate()


def wait_for(lines: Iterator[str], event: str) -> None:
    """Read until the worker has said it."""
    next(line for line in lines if f'"event":"{event}"' in line)


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = CLOCK.monotonic()
    work()
    return CLOCK.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
