"""
One sorted CSV file by `SparkExport`, beside what others do with the same rows: `python -m tests.benchmarks.bench_spark [ROWS]`.

Ours (sorted Parquet parts, then one file: rendered, hashed, counted, summed, published) over Spark's sorted CSV part files, which makes no single
file, and over its `coalesce(1)`, which does; all sides are warm, have the same settings, and take turns.
DuckDB, Polars and pandas sort and write one file in a process of their own: they neither hash, sum nor publish it.
A table has the medians of the rounds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any, Self
from urllib.parse import urlsplit

import psycopg
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from steadyworker.clock import SystemClock
from steadyworker.exports.spark import Jdbc
from steadyworker.exports.spark.export import SparkExport
from steadyworker.exports.spark.service import SparkService
from steadyworker.exports.spark.settings import PROPERTIES, SparkSettings
from steadyworker.system.procfs import rss, tree_rss
from tests.benchmarks.others import ENGINES
from tests.brokers.install import MissingError, jdbc_drivers
from tests.brokers.postgres import Cluster
from tests.drills.contestants import peers_python

HERE = Path(__file__).parent
ROUNDS = {3_000_000: 3, 20_000_000: 1}
"""How often each is measured, by rows."""

SMALL, SMALL_ROUNDS, TABLE_ROWS = 10, 21, 1_000_000
WIDE = 2_000
SMALL_WARM_UP = 15
"""So many on each side are not measured: it takes that many until Java has compiled what they run."""

PASSWORD = "BENCH_PASSWORD"
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
    queue: str = "bench"
    namespace: str = "bench"
    _said: SimpleQueue[Mapping[str, Any]] = field(default_factory=SimpleQueue)

    def progress(self, done: float | None, total: float | None, note: str = "") -> None:
        """Nobody looks."""

    def check(self) -> None:
        """Nothing ends it."""

    def export_state(self) -> bytes | None:
        return None

    def save_export_state(self, value: bytes | None) -> None:
        """Nobody takes over."""

    def may_commit(self) -> None:
        """Granted."""

    def staged(self, folder: Path) -> None:
        """Nothing is left."""

    def ended(self, uids: Sequence[str]) -> frozenset[str]:
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
        (home / PROPERTIES).write_text(settings.properties(home))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.bench_spark", "--bare"],
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


class Peak:
    """The most memory that this process has, and with the export's own ones, looked at ten times a second."""

    def __init__(self, service: SparkService) -> None:
        self.bytes = self.python = 0
        self._service, self._over = service, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.1):
            hosts, own = [tree_rss(host.process.pid) for host in list(self._service._hosts)], rss(os.getpid())
            self.bytes, self.python = max(self.bytes, own + sum(hosts)), max(self.python, own)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


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


def export(service: SparkService, root: Path, name: str, made: SparkExport) -> float:
    """The seconds of one export; its file does not stay."""
    began = CLOCK.monotonic()
    made.write(Alone(service, name), root / f"{name}.csv", totals={"amount": "sum"})
    seconds = CLOCK.monotonic() - began
    (root / f"{name}.csv").unlink()
    shutil.rmtree(root / ".sw-stage")
    return seconds


def large(rows: int, rounds: int) -> None:
    """Measure and print what becomes of many rows."""
    with tempfile.TemporaryDirectory() as folder, both(Path(folder)) as (service, other):
        root, source = Path(folder), Path(folder, "lake")
        other.do("make", rows, source)
        everything = SparkExport("SELECT * FROM lake", tables={"lake": source}, order_by=ORDER)
        export(service, root, "warm-up", everything)
        other.do("parts", source, root / "warm-up")
        found: dict[str, list[float]] = {"ours": [], "parts": [], "coalesce": []}
        with Peak(service) as peak:
            for number in range(rounds):
                found["ours"].append(export(service, root, f"all-{number}", everything))
                for how in ("parts", "coalesce"):
                    found[how].append(other.do(how, source, root / how))
        ours, parts, coalesced = (median(found[how]) for how in ("ours", "parts", "coalesce"))
        table = Table(
            "rows", "seconds", "ours is", "aim", "memory", title=f"{rows:,} rows to one file", box=SIMPLE_HEAD
        )
        memory = f"{peak.bytes / 2**30:.1f} GiB with host and JVM, {peak.python / 2**20:.0f} MiB without (aim: 450)"
        table.add_row("SparkExport", f"{ours:.1f}", "", "", memory)
        table.add_row("Spark's sorted part files", f"{parts:.1f}", f"{ours / parts:.2f} ×", "≤ 1.35 × on two cores", "")
        table.add_row("Spark's coalesce(1)", f"{coalesced:.1f}", f"{ours / coalesced:.2f} ×", "≤ 1.1 ×", "")
        for engine in ENGINES:
            command = [str(peers_python(HERE / "others.txt")), str(HERE / "others.py"), engine, str(source)]
            done = subprocess.run([*command, str(root / "other.csv")], capture_output=True, text=True, check=False)
            if done.returncode:
                said = (done.stderr.splitlines() or [f"ended with {done.returncode}"])[-1]
                table.add_row(engine, "failed", "", "", said[:60])
                continue
            seconds, most = map(float, done.stdout.split())
            table.add_row(engine, f"{seconds:.1f}", f"{ours / seconds:.2f} ×", "", f"{most / 2**30:.1f} GiB")
            (root / "other.csv").unlink()
        Console(width=110).print(table)


def small() -> None:
    """Measure and print what becomes of few rows."""
    with tempfile.TemporaryDirectory() as folder, both(Path(folder)) as (service, other):
        root, source = Path(folder), Path(folder, "lake")
        other.do("make", 100_000, source)
        few = SparkExport(f"SELECT * FROM lake WHERE id < {SMALL}", tables={"lake": source}, order_by=ORDER)
        cold = export(service, root, "cold", few)
        for number in range(SMALL_WARM_UP):
            export(service, root, f"warm-{number}", few)
            other.do("small", source, root / "warm")
        found: dict[str, list[float]] = {"ours": [], "bare": []}
        for number in range(SMALL_ROUNDS):
            found["ours"].append(export(service, root, f"few-{number}", few))
            found["bare"].append(other.do("small", source, root / "few"))
        ours, bare_ = median(found["ours"]), median(found["bare"])
        table = Table(f"{SMALL} rows", "seconds", "aim", box=SIMPLE_HEAD)
        table.add_row("the first file of a host", f"{cold:.1f}", "")
        table.add_row("warm (p50)", f"{ours:.2f}", "≤ 0.8")
        table.add_row("bare Spark, warm (p50)", f"{bare_:.2f}", "")
        table.add_row("ours over bare Spark", f"{ours / bare_:.2f} ×", "")
        columns = ", ".join(f"id + {number} AS c{number}" for number in range(WIDE))
        wide = SparkExport(f"SELECT id AS amount, {columns} FROM range(1000)", tables={}, order_by=("amount",))
        table.add_row(f"1,000 rows of {WIDE:,} columns", f"{export(service, root, 'wide', wide):.1f}", "≤ 15")
        Console(width=110).print(table)


def tables() -> None:
    """Measure and print what ranges gain over a single connection."""
    try:
        jdbc_drivers()
        cluster = Cluster()
    except MissingError as missing:
        print(f"PostgreSQL's table was left out: {missing}")
        return
    try:
        cluster.start()
        url = urlsplit(cluster.add_database())
        with psycopg.connect(url.geturl(), autocommit=True) as db:
            db.execute(
                "CREATE TABLE payments (id bigint PRIMARY KEY, paid_at timestamp, amount numeric(12,2), text text)"
            )
            db.execute(
                "INSERT INTO payments SELECT n, timestamp '2025-01-01' + n * interval '1 s', n %% 9973 / 100.0, md5(n::text) "
                "FROM generate_series(1, %s) AS n",
                (TABLE_ROWS,),
            )
            db.execute("ANALYZE payments")
        os.environ[PASSWORD] = url.password or ""
        place = f"postgresql://{url.username}@{url.hostname}:{url.port}{url.path}"
        single = Jdbc(place, "payments", password_env=PASSWORD)
        ranges = Jdbc(place, "payments", password_env=PASSWORD, partition_by="id")
        with tempfile.TemporaryDirectory() as folder:
            service = SparkService(SparkSettings(folder=Path(folder, "spark")))
            try:
                found: dict[str, list[float]] = {"single": [], "ranges": []}
                for number in range(4):
                    for how, source in (("single", single), ("ranges", ranges)):
                        made = SparkExport("SELECT * FROM p", tables={"p": source}, order_by=("id",))
                        seconds = export(service, Path(folder), f"{how}-{number}", made)
                        if number:
                            found[how].append(seconds)
            finally:
                service.stop(10)
    finally:
        cluster.close()
    one, many = median(found["single"]), median(found["ranges"])
    table = Table(f"{TABLE_ROWS:,} rows out of PostgreSQL", "seconds", box=SIMPLE_HEAD)
    table.add_row("one connection", f"{one:.1f}")
    table.add_row("in ranges, as many connections as cores", f"{many:.1f} ({many / one:.2f} ×)")
    Console(width=110).print(table)


def main(*asked: int) -> int:
    """Measure and print."""
    small()
    tables()
    for rows in asked or ROUNDS:
        large(rows, ROUNDS.get(rows, 1))
    return 0


if __name__ == "__main__":
    if "--bare" in sys.argv:
        bare()
    else:
        sys.exit(main(*map(int, sys.argv[1:])))
