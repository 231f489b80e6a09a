"""
One sorted CSV file by `SparkExport`, beside what Spark itself does with the same query: `python bench_spark.py [ROWS]`.

Ours (sorted parts, joined, hashed, counted, summed, published) over Spark's sorted part-file write, which makes no single
file, and over its `coalesce(1)`, which does.
Both sides are warm, have the same settings, and take turns; the table has the medians of the rounds.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from steadyworker.clock import SystemClock
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import PROPERTIES, SparkSettings

ROWS, ROUNDS, SMALL = 5_000_000, 3, 10
ORDER = ("paid_at", "id")
CLOCK = SystemClock()
_COLUMNS = (
    "id",
    "concat('m-', pmod(hash(id), 997)) AS merchant",
    "timestamp_micros(1700000000000000 + pmod(xxhash64(id), 31536000000000)) AS paid_at",
    "CAST(pmod(hash(id, 2), 10000000) / 100 AS DECIMAL(12,2)) AS amount",
    "element_at(array('EUR', 'USD', 'GBP', 'JPY'), 1 + pmod(hash(id, 3), 4)) AS currency",
    "element_at(array('paid', 'paid', 'paid', 'refunded'), 1 + pmod(hash(id, 4), 4)) AS status",
    "concat('reference ', hex(xxhash64(id))) AS reference",
)


@dataclass
class Alone:
    """What an export asks of its job, where there is no other."""

    service: SparkService
    uid: str
    fence: int = 1
    key: str = "bench"
    _said: queue.SimpleQueue[Mapping[str, Any]] = field(default_factory=queue.SimpleQueue)

    def progress(self, done: float | None, total: float | None, note: str = "") -> None:
        """Nobody looks."""

    def check(self) -> None:
        """Nothing ends it."""

    def handle(self) -> bytes | None:
        return None

    def save_handle(self, value: bytes | None) -> None:
        """Nobody takes over."""

    def leave(self) -> None:
        """Granted."""

    def settled(self, uids: Sequence[str]) -> frozenset[str]:
        return frozenset()

    def call(self, service: str, request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        self.service.open(request, self.uid, self.fence, self._said.put)
        while True:
            event = self._said.get()
            yield event
            if event["end"]:
                return


class Bare:
    """Spark without us, in a process of its own with our settings."""

    def __init__(self, settings: SparkSettings, home: Path) -> None:
        home.mkdir(parents=True)
        (home / "tmp").mkdir()
        java = settings.java(os.environ)
        (home / PROPERTIES).write_text(settings.properties(home, ""))
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--bare"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=settings.environment(os.environ, home, java, sys.executable),
        )

    def do(self, *words: object) -> float:
        """One command; its seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def bare() -> None:
    """What `Bare` talks to."""
    from pyspark.sql import DataFrame, SparkSession

    spark = SparkSession.builder.getOrCreate()
    cured: dict[str, str | bool] = {
        "escape": '"',
        "emptyValue": "",
        "ignoreLeadingWhiteSpace": False,
        "ignoreTrailingWhiteSpace": False,
    }

    def ordered(source: str) -> DataFrame:
        return spark.read.parquet(source).orderBy(*ORDER)

    actions: dict[str, Callable[[str, str], None]] = {
        "make": lambda rows, to: spark.range(0, int(rows), 1, 8).selectExpr(*_COLUMNS).write.parquet(f"file://{to}"),
        "parts": lambda source, to: ordered(source).write.options(**cured).csv(f"file://{to}"),
        "coalesce": lambda source, to: ordered(source).coalesce(1).write.options(**cured).csv(f"file://{to}"),
        "small": lambda source, to: ordered(source).where(f"id < {SMALL}").write.options(**cured).csv(f"file://{to}"),
    }
    for line in sys.stdin:
        action, argument, to = line.split()
        began = CLOCK.monotonic()
        actions[action](argument, to)
        print(CLOCK.monotonic() - began, flush=True)
        if action != "make":
            shutil.rmtree(to)


@contextmanager
def both(root: Path) -> Iterator[tuple[SparkService, Bare]]:
    """Our service and bare Spark, with the same settings."""
    settings = SparkSettings(folder=root / "spark")
    service, other = SparkService(settings), Bare(settings, root / "bare")
    try:
        yield service, other
    finally:
        other.close()
        service.stop(10)


def main(rows: int = ROWS) -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder, both(Path(folder)) as (service, other):
        root, source = Path(folder), Path(folder, "lake")
        other.do("make", rows, source)

        def ours(name: str, query: str) -> float:
            export = SparkExport(query, tables={"lake": source}, order_by=ORDER)
            began = CLOCK.monotonic()
            export.write(Alone(service, name), root / f"{name}.csv", totals={"amount": "sum"})
            seconds = CLOCK.monotonic() - began
            (root / f"{name}.csv").unlink()
            shutil.rmtree(root / ".sw-stage")
            return seconds

        small = f"SELECT * FROM lake WHERE id < {SMALL}"
        cold = ours("cold", small)
        ours("warm-up", "SELECT * FROM lake")
        other.do("parts", source, root / "warm-up")
        found: dict[str, list[float]] = {"ours": [], "parts": [], "coalesce": [], "our small": [], "small": []}
        for number in range(ROUNDS):
            found["ours"].append(ours(f"all-{number}", "SELECT * FROM lake"))
            found["our small"].append(ours(f"small-{number}", small))
            for how in ("parts", "coalesce", "small"):
                found[how].append(other.do(how, source, root / how))
    middle = {how: median(seconds) for how, seconds in found.items()}
    table = Table("Spark export", "measured", "aim", title=f"{rows:,} rows, sorted, one CSV file", box=SIMPLE_HEAD)
    table.add_row("our one file", f"{middle['ours']:.2f} s", "")
    table.add_row(
        "over Spark's sorted part files", f"{middle['ours'] / middle['parts']:.2f} ×", "≤ 1.06 × on two cores"
    )
    table.add_row("over coalesce(1)", f"{middle['ours'] / middle['coalesce']:.2f} ×", "below 1 ×")
    table.add_row(f"{SMALL} rows, warm", f"{middle['our small']:.2f} s", f"bare Spark: {middle['small']:.2f} s")
    table.add_row(f"{SMALL} rows, cold, without the class-data archive", f"{cold:.1f} s", "")
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    if "--bare" in sys.argv:
        bare()
    else:
        sys.exit(main(*map(int, sys.argv[1:])))
