"""
One sorted CSV file by `DuckDBExport`, beside DuckDB's own COPY of the same query: `python -m tests.benchmarks.bench_duckdb [ROWS]`.

COPY only sorts and writes; ours also checks the text, hashes, sums by two columns and publishes.
Each run is a process of its own; the two take turns, and the table has the medians of the rounds.
The aims: at most 2.2 times the processor time of COPY, and a process of at most 1.5 times the memory limit.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from steadyworker.exports.duckdb.export import DuckDBExport
from tests.benchmarks.revisions import REPOSITORY
from tests.exports.kit import FakeServices

ROWS, ROUNDS, LIMITS = 3_000_000, 3, ("1GB", "500MB")
AIMS = (2.2, 1.5)
"""The largest ratio of the processor time, and of the memory."""

SOURCE = """
    SELECT i AS id, 'm-' || hash(i) % 997 AS merchant, ['EUR', 'USD', 'GBP', 'JPY'][1 + (hash(i * 3) % 4)::BIGINT] AS currency,
        ['paid', 'paid', 'paid', 'refunded'][1 + (hash(i * 5) % 4)::BIGINT] AS status,
        (hash(i * 7) % 10000000 / 100)::DECIMAL(12,2) AS amount, (hash(i * 11) % 100000)::DOUBLE * 0.37 AS fee,
        DATE '2024-01-01' + (hash(i * 13) % 366)::INTEGER AS day,
        make_timestamptz((1700000000000000 + hash(i) % 31536000000000)::BIGINT) AS paid_at, 'said "no, ' || i || '"' AS note
    FROM range({rows}) AS t(i)
"""
ORDER = ("paid_at", "id")


def main(rows: int) -> None:
    """Measure and print."""
    table = Table(
        "one CSV file", "rows", "seconds", "CPU seconds", "of COPY's", "peak memory", "of limit", box=SIMPLE_HEAD
    )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "payments.parquet"
        with duckdb.connect() as connection:
            connection.execute(f"COPY ({SOURCE.format(rows=rows)}) TO '{source}' (FORMAT parquet)")
        for limit in LIMITS:
            found: dict[str, list[list[float]]] = {name: [] for name in WAYS}
            for _ in range(ROUNDS):
                for name, runs in found.items():
                    runs.append(once(name, source, limit))
            base = median(cpu for _, cpu, _ in found["COPY"])
            for name, runs in found.items():
                seconds, cpu, memory = map(median, zip(*runs, strict=True))
                size = float(limit[:-2]) * {"GB": 1e9, "MB": 1e6}[limit[-2:]]
                ratios = [f"{cpu / base:.2f}", f"{memory / size:.2f}"]
                if name != "COPY":
                    ratios = [f"{ratio} ({beside(float(ratio), aim)})" for ratio, aim in zip(ratios, AIMS, strict=True)]
                table.add_row(
                    f"{name} in {limit}", f"{rows:,}", f"{seconds:.1f}", f"{cpu:.1f}", ratios[0],
                    f"{memory / 1e6:,.0f} MB", ratios[1],
                )  # fmt: skip
    Console(width=120).print(table)


def beside(ratio: float, aim: float) -> str:
    """Return an aim with the word that says whether it is met."""
    return f"≤ {aim:g}: {'met' if ratio <= aim else 'missed'}"


def once(name: str, source: Path, limit: str) -> list[float]:
    """Run one way in a process of its own; return its seconds, CPU seconds and peak of memory in bytes."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_duckdb", name, str(source), limit]
    run = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    return [*map(float, run.stdout.split())]


def copied(source: Path, limit: str) -> None:
    """COPY with the settings of ours."""
    config: dict[str, Any] = {"memory_limit": limit, "temp_directory": str(source.parent / "spill")}
    with duckdb.connect(config=config) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        query = f"SELECT * FROM '{source}' ORDER BY {', '.join(ORDER)}"
        connection.execute(f"COPY ({query}) TO '{source.parent / 'copied.csv'}' (HEADER)")


def exported(source: Path, limit: str) -> None:
    """Ours."""
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        DuckDBExport("SELECT * FROM p", tables={"p": source}, order_by=ORDER, memory_limit=limit).write(
            FakeServices(Path(folder) / "ledger"),
            Path(folder) / "out.csv",
            totals={"amount": "sum"},
            by=("currency", "status"),
        )


WAYS: dict[str, Callable[[Path, str], None]] = {"COPY": copied, "DuckDBExport": exported}


def measured(name: str, source: Path, limit: str) -> None:
    """Print what one way takes."""
    began = time.monotonic(), time.process_time()
    WAYS[name](source, limit)
    print(time.monotonic() - began[0], time.process_time() - began[1])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in WAYS:
        measured(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else ROWS)
