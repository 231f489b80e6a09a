"""
The processor time of `RowExport`, beside an earlier revision: `python -m tests.benchmarks.bench_rows [REVISION]`.

The default is the last revision whose Python made the bytes of each value; the aim is three times its rows a CPU second.
The source costs nearly nothing: it yields the same 5,000 rows again and again, as tuples or as Arrow batches.
Each run is a process of its own, and the revisions take turns, so that a busy machine disturbs both; the table shows the best of three rounds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.benchmarks.revisions import REPOSITORY, environment, unpack

ROWS, BLOCK, ROUNDS = 200_000, 5_000, 3
COLUMNS = ("id", "merchant", "currency", "status", "amount", "fee", "day", "at", "note")
BEFORE = "51f4345dfa3738d0f32c9f1cd4c9f6e25a472823"
AIM = 3.0
"""The smallest ratio of the rows a CPU second."""


def main(revision: str) -> None:
    """Measure and print."""
    names = [f"{kind} of {source}" for source in ("rows", "batches") for kind in ("csv", "jsonl", "parquet")]
    with tempfile.TemporaryDirectory() as folder:
        trees = unpack(revision, Path(folder)), REPOSITORY
        measured: dict[tuple[Path, str], list[float]] = {}
        hashes: dict[str, set[str]] = {}
        for _ in range(ROUNDS):
            for name in names:
                for tree in trees:
                    seconds, sha256 = once(tree, name)
                    measured.setdefault((tree, name), []).append(seconds)
                    hashes.setdefault(name, set()).add(sha256)
        table = Table("rows a CPU second", revision[:9], "now", "ratio", f"≥ {AIM:g}", "same bytes", box=SIMPLE_HEAD)
        for name in names:
            before, now = (min(measured[tree, name]) for tree in trees)
            met = "met" if before / now >= AIM else "missed"
            same = "yes" if len(hashes[name]) == 1 else "no"
            table.add_row(name, f"{ROWS / before:,.0f}", f"{ROWS / now:,.0f}", f"{before / now:.1f}", met, same)
    Console(width=110).print(table)


def once(tree: Path, name: str) -> tuple[float, str]:
    """Run one export in a process of its own; return its CPU seconds and the file's SHA-256."""
    code = "import sys; from bench_rows import export; export(*sys.argv[1:])"
    run = subprocess.run(
        [sys.executable, "-c", code, *name.split(" of ")],
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, sha256 = run.stdout.split()
    return float(seconds), sha256


def export(kind: str, source: str) -> None:
    """Export the rows; print the CPU seconds of the second export, after all imports, and the file's SHA-256."""
    from steadyworker.exports.rows import RowExport
    from tests.exports.kit import FakeServices

    block = list(map(row, range(BLOCK)))
    times = ROWS // BLOCK
    items = batches(block) * times if source == "batches" else block * times
    for number in range(2):
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            made = RowExport(lambda _: iter(items), columns=COLUMNS).write(
                FakeServices(Path(folder) / "ledger"),
                Path(folder) / f"out.{kind}",
                totals={"amount": "sum"},
                by=("currency", "status"),
            )
            if number:
                print(time.process_time() - began, made.sha256)


def row(number: int) -> tuple[Any, ...]:
    """A payment, with a text that needs quotes."""
    return (
        number,
        f"m-{number % 997}",
        ("EUR", "USD", "JPY")[number % 3],
        "refunded" if number % 7 == 0 else "paid",
        Decimal(number * 7919 % 10_000_019).scaleb(-2),
        number * 0.37,
        date(2024, 1, 1) + timedelta(number % 366),
        datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=number),
        f'said "no, {number}"',
    )


def batches(block: list[tuple[Any, ...]]) -> list[Any]:
    """Return the rows as Arrow batches."""
    import pyarrow as pa

    types = [
        *(pa.int64(), pa.string(), pa.string(), pa.string(), pa.decimal128(12, 2)),
        *(pa.float64(), pa.date32(), pa.timestamp("us", "UTC"), pa.string()),
    ]
    columns = [pa.array(values, kind) for values, kind in zip(zip(*block, strict=True), types, strict=True)]
    found: list[Any] = pa.table(columns, names=list(COLUMNS)).to_batches()
    return found


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else BEFORE)
