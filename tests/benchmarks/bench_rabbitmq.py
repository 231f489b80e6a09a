"""
No-op jobs on RabbitMQ, ours beside the peers: `make bench`, or `python -m tests.benchmarks.bench_rabbitmq`.

Each round does one after the other on one broker, and a ratio is the median of the rounds'.
The jobs are queued before the worker starts, and the time is that between two marked jobs among them.
Prefetch 20 is twenty slots for us; a peer keeps its one process or thread, which is its fastest way with jobs of no length.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.brokers.install import MissingError, newest_rabbitmq
from tests.brokers.rabbitmq import Node
from tests.brokers.rabbitmq_place import RabbitmqPlaces
from tests.drills.contestants import CELERY, DRAMATIQ, FASTSTREAM, PIKA, ROOT, STEADYWORKER, TASKIQ, Contestant
from tests.drills.stage import Stage
from tests.drills.stories import job

JOBS = {1: 1_000, 20: 2_000}
"""How many are timed, by prefetch."""

ROUNDS = {1: 3, 20: 2}
"""How often each is measured, by prefetch."""

CUTS = 6
WARMED_UP = {1: 1.0, 20: 8.0}
"""Seconds for which each slot has a job first, so that all of them are started when the timed jobs come."""

AIMS = {"process slots": "≥ 0.45", "thread slots": "≥ 0.55"}

RAW = replace(PIKA, name="raw pika", worker=(*PIKA.worker, "raw"))
PROCESSES = replace(STEADYWORKER, name="process slots")
THREADS = replace(STEADYWORKER, name="thread slots", worker=("steadyworker", "run", "tests.drills.ours:Threads"))

FIELDS: dict[str, tuple[Contestant, ...]] = {
    "classic": (RAW, PROCESSES, THREADS, CELERY, DRAMATIQ, TASKIQ, FASTSTREAM),
    "quorum": (RAW, PROCESSES, THREADS),
}


def main() -> int:
    """Measure and print."""
    try:
        node = Node(newest_rabbitmq())
    except MissingError as missing:
        print(f"RabbitMQ's table was left out: {missing}")
        return 0
    with closing(node), tempfile.TemporaryDirectory(prefix="bench-") as folder:
        node.start()
        places = RabbitmqPlaces(node)
        heads = ["no-op jobs per second", "queue", *(f"prefetch {prefetch}" for prefetch in JOBS), "aim"]
        table = Table(*heads, title=places.title, box=SIMPLE_HEAD)
        for queue_type, contestants in FIELDS.items():
            found = [rates(places, queue_type, prefetch, contestants, Path(folder)) for prefetch in JOBS]
            for one in contestants:
                cells = [_cell(per_round[one.name], per_round[RAW.name]) for per_round in found]
                table.add_row(one.name, queue_type, *cells, AIMS.get(one.name, ""))
        cuts = Table("from a cut to the next job", "median", "aim", box=SIMPLE_HEAD)
        for one in (PROCESSES, CELERY, DRAMATIQ, TASKIQ, FASTSTREAM):
            seconds = median(reconnections(places, one, Path(folder)))
            cuts.add_row(one.name, f"{seconds:.2f} s", "≤ 1 s" if one is PROCESSES else "")
    console = Console(width=110)
    console.print(table)
    console.print(cuts)
    return 0


def _cell(rates: list[float], raw: list[float]) -> str:
    ratio = median(one / other for one, other in zip(rates, raw, strict=True))
    return f"{median(rates):,.0f} ({ratio:.2f} of raw)"


def rates(
    places: RabbitmqPlaces, queue_type: str, prefetch: int, contestants: tuple[Contestant, ...], folder: Path
) -> dict[str, list[float]]:
    """Jobs per second, in each round."""
    found: dict[str, list[float]] = {one.name: [] for one in contestants}
    for number in range(ROUNDS[prefetch]):
        for one in contestants:
            place = folder / f"{queue_type}-{prefetch}-{number}-{one.name}"
            found[one.name].append(
                rate(places, replace(one, environ={"DRILL_QUEUE_TYPE": queue_type}), prefetch, place)
            )
    return found


def rate(places: RabbitmqPlaces, contestant: Contestant, prefetch: int, folder: Path) -> float:
    """Jobs per second of one worker process."""
    slots = 1 if contestant.peer else prefetch
    lead = [job("sleep", WARMED_UP[slots], f"lead-{number}") for number in range(slots)]
    timed = [job("mark", id="first"), *[job("noop")] * JOBS[prefetch], job("mark", id="last")]
    with closing(Stage(places, contestant, folder, prefetch=prefetch, proxied=False)) as stage:
        if not contestant.peer and contestant.environ["DRILL_QUEUE_TYPE"] == "classic":
            stage.place.make_queue(stage.queue, "classic")  # it takes what is there, and would make a quorum queue
        stage.send(*lead, *timed)
        stage.start_worker()
        stage.expect("the last job", lambda: stage.notes("start", "last"))
        return JOBS[prefetch] / (stage.notes("start", "last")[0].at - stage.notes("start", "first")[0].at)


def reconnections(places: RabbitmqPlaces, contestant: Contestant, folder: Path) -> Iterator[float]:
    """Seconds from a reset connection of an idle worker process to the start of a job that was sent at that moment."""
    with closing(Stage(places, contestant, folder / f"cuts-{contestant.name}")) as stage, _sender(stage) as sender:
        stage.start_worker()
        for number in range(CUTS + 1):
            name = f"cut-{number}"
            began = time.monotonic()
            if number:  # the first one only warms up
                stage.proxy.cut()
            assert sender.stdin
            sender.stdin.write(f'{{"id": "{name}", "do": "mark"}}\n')
            sender.stdin.flush()
            stage.expect(f"{name} to run", lambda name=name: stage.notes("start", name))  # type: ignore[misc]
            if number:
                yield stage.notes("start", name)[0].at - began
            stage.until(lambda: False, 1.5)  # it is acknowledged, and its connection counts as useful


@contextmanager
def _sender(stage: Stage) -> Iterator[subprocess.Popen[str]]:
    """A sender that is connected already."""
    command = stage.contestant.command(stage.contestant.sender)
    environ = stage.contestant.environment(stage.place, stage.folder)
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process


if __name__ == "__main__":
    sys.exit(main())
