"""
One sorted CSV file by `SparkExport`, beside what others do with the same rows: `python -m tests.benchmarks.bench_spark [PART]`.

| part | measures |
|---|---|
| `small` | the first file of a host, ten rows warm, 1,000 rows of 2,000 columns |
| `tables` | a table of PostgreSQL, read by one connection and in ranges |
| `3M`, `5M`, `20M` or any number of rows | one file of so many rows, beside the contenders that follow, or `parts` and `coalesce` |

Without a part, all of them but `20M` are measured; each takes less than six minutes on two quiet cores, but `20M` takes ten.

| contender | is |
|---|---|
| `parts` | Spark's sorted CSV part files, which are not one file |
| `coalesce` | Spark's `coalesce(1)`, which is one file |
| `before` | `SparkExport` of the last revision whose parts were text |
| `S3` | `SparkExport` into a bucket, of a server that drops the bytes (`dropping_s3.py`) |
| `DuckDB`, `Polars`, `pandas` | one file by another engine, in an environment of its own |

Only ours hashes, counts, sums and publishes the file.
All Sparks are warm, have the same settings, and take turns, each in a process of its own; a table has the medians of the rounds.
Processor time is that of all processes of a contender, and a peak of memory is the one that Linux keeps for each process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from steadyworker.exports.spark.settings import PROPERTIES, SparkSettings
from steadyworker.system.procfs import tree_cpu
from tests.benchmarks.others import ENGINES
from tests.benchmarks.revisions import REPOSITORY, environment, unpack
from tests.brokers.guard import family
from tests.brokers.install import MissingError, jdbc_drivers
from tests.brokers.postgres import Cluster
from tests.drills.contestants import peers_python

HERE = Path(__file__).parent
BEFORE = "554730771807ccda97fa2a968957da21e8355b07"
"""The last revision in which Spark wrote parts of text, and the child joined them."""

WHOLE = (("small",), ("tables",), ("3M",), ("3M", "before"), ("5M",), ("3M", *ENGINES))
ROUNDS = {3_000_000: 3, 5_000_000: 2}
"""How often each contender is measured, by rows; once for others."""

AIMS: Mapping[str, Mapping[int, float]] = {
    "parts": {3_000_000: 1.35, 5_000_000: 1.2, 20_000_000: 1.15},
    "coalesce": {5_000_000: 1.0},
    "before": {0: 0.75},
}
"""The largest ratio of the seconds, from so many rows on."""

S3_AIM = 1.15
"""The largest ratio of the seconds into a bucket to those of a local file, from 5 million rows on."""

PYTHON_AIM = 450.0
WARM_UP = 1_000_000
"""So many rows are exported by each Spark before the first round."""

SMALL, SMALL_ROUNDS, TABLE_ROWS = 10, 21, 1_000_000
WIDE = 2_000
SMALL_WARM_UP = 15
"""So many on each side are not measured: it takes that many until Java has compiled what they run."""

PASSWORD = "BENCH_PASSWORD"


class Cost(NamedTuple):
    """What one file took: seconds, and seconds of processor time."""

    seconds: float
    cpu: float


class Program:
    """A process that runs `spark_contender.py`; its files are in a folder of its own, and none stays."""

    def __init__(self, kind: str, folder: Path, environ: Mapping[str, str]) -> None:
        folder.mkdir()
        self._folder, self._log = folder, folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "spark_contender.py"), kind, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
            )
        self._numbers = iter(range(1_000_000))

    def do(self, **command: object) -> Cost:
        """Run one command that makes a file; exit with the end of its log if it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        to = self._folder / f"run-{next(self._numbers)}"
        to.mkdir()
        target = str(command.pop("to", to / "out.csv")).format(run=to.name)
        before = tree_cpu(self._process.pid)
        self._process.stdin.write(json.dumps({"to": target} | command) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"{command} failed: {self._log.read_text(errors='replace')[-2000:]}")
        cost = Cost(float(answer), tree_cpu(self._process.pid) - before)
        shutil.rmtree(to)
        return cost

    def peaks(self) -> dict[str, float]:
        """Return the peak of the memory in MB of the process that exports, of the Python of its host, and of the JVM."""
        found: dict[str, float] = {}
        for process in family(self._process.pid):
            peak_kib = Path(f"/proc/{process.pid}/status").read_text().partition("VmHWM:")[2]
            if not peak_kib:
                continue  # the process has ended, and its parent has not collected it
            peak = int(peak_kib.split()[0]) * 1024 / 1e6
            name = "JVM" if process.name() == "java" else "host" if process.pid != self._process.pid else "export"
            found[name] = max(found.get(name, 0.0), peak)
        return found

    def close(self) -> None:
        """End it."""
        self._process.communicate()


@contextmanager
def exporting(folder: Path, tree: Path = REPOSITORY) -> Iterator[Program]:
    """`SparkExport` of this tree."""
    program = Program("export", folder, environment(tree))
    try:
        yield program
    finally:
        program.close()


@contextmanager
def bucket() -> Iterator[None]:
    """A bucket for this process and those that it starts, by the SDK's own variables."""
    with subprocess.Popen([sys.executable, HERE / "dropping_s3.py"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server.stdout.readline().strip()}",
        }
        try:
            yield
        finally:
            server.kill()


@contextmanager
def bare(folder: Path) -> Iterator[Program]:
    """Spark without us, with our settings."""
    settings = SparkSettings(folder=folder)
    java = settings.java(os.environ)
    home = folder.with_name(f"{folder.name}-home")
    (home / "tmp").mkdir(parents=True)
    (home / PROPERTIES).write_text(settings.properties(home, os.environ))
    program = Program("bare", folder, settings.environment(os.environ, home, java, sys.executable))
    try:
        yield program
    finally:
        program.close()


def large(rows: int, contenders: Sequence[str]) -> None:
    """Measure and print what becomes of many rows."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as opened:
        root = Path(place)
        if "S3" in contenders:
            opened.enter_context(bucket())
        spark = opened.enter_context(bare(root / "bare"))
        ours = opened.enter_context(exporting(root / "ours"))
        lakes = root / "warm-up", root / "lake"
        for lake, number in zip(lakes, (min(rows, WARM_UP), rows), strict=True):
            spark.do(action="make", rows=number, to=str(lake))
        known: dict[str, Callable[[Path], Cost]] = {
            "ours": partial(exported, ours),
            "S3": partial(exported, ours, to="s3://bench/{run}/out.csv"),
            **{name: partial(by_spark, spark, name) for name in ("parts", "coalesce")},
            **{name: partial(by_engine, name, root / "other.csv") for name in ENGINES},
        }
        if "before" in contenders:
            earlier = exporting(root / "before", unpack(BEFORE, root / "tree"))
            known["before"] = partial(exported, opened.enter_context(earlier))
        ways = {name: known[name] for name in ("ours", *contenders)}
        for way in ways.values():
            way(lakes[0])
        found: dict[str, list[Cost]] = {name: [] for name in ways}
        for _ in range(ROUNDS.get(rows, 1)):
            for name, way in ways.items():
                found[name].append(way(lakes[1]))
        peaks = ours.peaks()
    medians = {name: Cost(*map(median, zip(*costs, strict=True))) for name, costs in found.items()}
    table = Table("", "seconds", "CPU seconds", "ours is", "of CPU", "aim", title=f"{rows:,} rows", box=SIMPLE_HEAD)
    for name, cost in medians.items():
        seconds, cpu = (mine / its for mine, its in zip(medians["ours"], cost, strict=True))
        beside = ("", "", "") if name == "ours" else (f"{seconds:.2f} ×", f"{cpu:.2f} ×", aim(name, rows, seconds))
        table.add_row(name, f"{cost.seconds:.1f}", f"{cost.cpu:.1f}", *beside)
    Console(width=110).print(table)
    memory = ", ".join(f"{name} {peak:,.0f} MB" for name, peak in peaks.items())
    if "S3" in medians:
        ratio = medians["S3"].seconds / medians["ours"].seconds
        print(f"Into the bucket: {ratio:.2f} × the seconds of the file; {verdict(f'≤ {S3_AIM} ×', ratio <= S3_AIM)}")
    print(f"The peak of ours: {memory}; {verdict(f'export ≤ {PYTHON_AIM:.0f} MB', peaks['export'] <= PYTHON_AIM)}\n")


def aim(name: str, rows: int, ratio: float) -> str:
    """Return the aim beside this contender, and whether it is met."""
    aims = AIMS.get(name, {})
    size = max((size for size in aims if size <= rows), default=None)
    return "" if size is None else verdict(f"≤ {aims[size]:g} ×", ratio <= aims[size])


def verdict(text: str, met: bool) -> str:
    """Return an aim with the word that says whether it is met."""
    return f"{text}: {'met' if met else 'missed'}"


def exported(program: Program, lake: Path, **more: str) -> Cost:
    """Export all rows of a lake."""
    return program.do(query="SELECT * FROM lake", tables={"lake": str(lake)}, totals={"amount": "sum"}, **more)


def by_spark(program: Program, action: str, lake: Path) -> Cost:
    """Let Spark sort and write all rows of a lake."""
    return program.do(action=action, source=str(lake))


def by_engine(name: str, to: Path, lake: Path) -> Cost:
    """Let another engine sort and write the rows; no numbers if it fails, as for lack of memory."""
    command = [str(peers_python(HERE / "others.txt")), str(HERE / "others.py"), name, str(lake), str(to)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    to.unlink(missing_ok=True)
    if done.returncode:
        print(f"{name} failed: {(done.stderr.splitlines() or [f'ended with {done.returncode}'])[-1]}")
        return Cost(float("nan"), float("nan"))
    return Cost(*map(float, done.stdout.split()))


def small() -> None:
    """Measure and print what becomes of few rows."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        with exporting(root / "ours") as ours, bare(root / "bare") as spark:
            lake = str(root / "lake")
            spark.do(action="make", rows=100_000, to=lake)

            def few() -> Cost:
                return ours.do(query=f"SELECT * FROM lake WHERE id < {SMALL}", tables={"lake": lake})

            def few_bare() -> Cost:
                return spark.do(action="parts", source=lake, where=f"id < {SMALL}")

            cold = few()
            rounds = [(few(), few_bare()) for _ in range(SMALL_WARM_UP + SMALL_ROUNDS)]
            mine, theirs = zip(*rounds[SMALL_WARM_UP:], strict=True)
            columns = ", ".join(f"id + {number} AS c{number}" for number in range(WIDE - 1))
            query = f"SELECT id AS amount, {columns} FROM range(1000)"
            wide = ours.do(query=query, tables={}, order_by=["amount"])
    warm, beside = (Cost(*map(median, zip(*costs, strict=True))) for costs in (mine, theirs))
    table = Table(f"{SMALL} rows", "seconds", "CPU seconds", "aim", box=SIMPLE_HEAD)
    for name, cost, most in (
        ("the first file of a host", cold, None),
        ("warm (p50)", warm, 0.8),
        ("bare Spark, warm (p50)", beside, None),
        (f"1,000 rows of {WIDE:,} columns", wide, 15.0),
    ):
        met = "" if most is None else verdict(f"≤ {most:g} s", cost.seconds <= most)
        table.add_row(name, f"{cost.seconds:.2f}", f"{cost.cpu:.2f}", met)
    table.add_row(
        "ours over bare Spark", f"{warm.seconds / beside.seconds:.2f} ×", f"{warm.cpu / beside.cpu:.2f} ×", ""
    )
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
        source = {
            "url": f"postgresql://{url.username}@{url.hostname}:{url.port}{url.path}",
            "table": "payments",
            "password_env": PASSWORD,
        }
        ways = {"single": source, "ranges": source | {"partition_by": "id"}}
        found: dict[str, list[Cost]] = {name: [] for name in ways}
        with tempfile.TemporaryDirectory() as place, exporting(Path(place, "ours")) as ours:
            for number in range(4):
                for name, given in ways.items():
                    cost = ours.do(query="SELECT * FROM p", tables={"p": given}, order_by=["id"])
                    if number:
                        found[name].append(cost)
    finally:
        cluster.close()
    one, many = (Cost(*map(median, zip(*costs, strict=True))) for costs in found.values())
    table = Table(f"{TABLE_ROWS:,} rows out of PostgreSQL", "seconds", "CPU seconds", box=SIMPLE_HEAD)
    table.add_row("one connection", f"{one.seconds:.1f}", f"{one.cpu:.1f}")
    ratio = f"{many.seconds:.1f} ({many.seconds / one.seconds:.2f} ×)"
    table.add_row("in ranges, as many connections as cores", ratio, f"{many.cpu:.1f}")
    Console(width=110).print(table)


def main(part: str, *contenders: str) -> None:
    """Measure and print one part."""
    if part in {"small", "tables"}:
        (small if part == "small" else tables)()
        return
    known = {*AIMS, *ENGINES, "S3"}
    if not part.rstrip("M").isdecimal() or not known.issuperset(contenders):
        sys.exit(
            f"Expected small, tables or a number of rows such as 3M, with contenders out of {', '.join(sorted(known))}, "
            f"got {' '.join((part, *contenders))}."
        )
    large(int(part.replace("M", "000000")), contenders or ("parts", "coalesce"))


if __name__ == "__main__":
    for words in [sys.argv[1:]] if sys.argv[1:] else WHOLE:
        main(*words)
