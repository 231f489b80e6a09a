"""
What a file of each format costs `RowExport`: `python -m tests.benchmarks.bench_formats [ROWS]`.

The rows are those of `bench_rows.py`, as tuples or as Arrow batches, in a process of its own for each format.
The peak of the memory is shown for a quarter of the rows, too: it is flat if both are alike.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.benchmarks.bench_rows import BLOCK, COLUMNS, batches, row

KINDS = ("csv", "csv.gz", "csv.zst", "jsonl.zst", "parquet", "xlsx")
REPOSITORY = Path(__file__).parents[2]


def main(rows: int) -> None:
    """Measure and print."""
    names = [f"{kind} of {source}" for source in ("rows", "batches") for kind in KINDS]
    table = Table("", "rows a second", "rows a CPU second", "MB", "peak RSS, MB", "of a quarter", box=SIMPLE_HEAD)
    for name in names:
        few, many = once(name, rows // 4), once(name, rows)
        seconds, cpu, size, peak = many
        table.add_row(
            name, f"{rows / seconds:,.0f}", f"{rows / cpu:,.0f}", f"{size / 1e6:.1f}", f"{peak:.0f}", f"{few[3]:.0f}"
        )
    Console(width=110).print(table)


def once(name: str, rows: int) -> tuple[float, ...]:
    """Make one file in a process of its own; return seconds, CPU seconds, bytes and the peak of its memory in MB."""
    code = "import sys; from tests.benchmarks.bench_formats import make; make(*sys.argv[1:])"
    command = [sys.executable, "-c", code, *name.split(" of "), str(rows)]
    run = subprocess.run(command, cwd=REPOSITORY, env={**os.environ}, capture_output=True, text=True, check=True)
    return tuple(map(float, run.stdout.split()))


def make(kind: str, source: str, rows: str) -> None:
    """Make the file, and print what it cost, after all imports and a file of few rows."""
    block = list(map(row, range(BLOCK)))
    for number in (BLOCK, int(rows)):
        with tempfile.TemporaryDirectory() as folder:
            began, cpu = time.perf_counter(), time.process_time()
            file = Path(folder) / f"out.{kind}"
            items = batches(block) if source == "batches" else block
            export(file, chain.from_iterable(repeat(items, number // BLOCK)))
            size = file.stat().st_size
        if number > BLOCK:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(time.perf_counter() - began, time.process_time() - cpu, size, peak)


def export(file: Path, items: Iterator[Any]) -> None:
    """Export the rows with totals, as most exports are."""
    from steadyworker.exports.rows import RowExport
    from tests.exports.kit import FakeServices

    RowExport(items, columns=COLUMNS).write(
        FakeServices(file.parent / "ledger"), file, totals={"amount": "sum"}, by=("currency", "status")
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300_000)
