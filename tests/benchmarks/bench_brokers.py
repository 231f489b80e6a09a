"""
No-op jobs on RabbitMQ, ActiveMQ and RocketMQ, ours beside the peers: `make bench`, or `python -m tests.benchmarks.bench_brokers [NAME …]`.

Each round does one after the other on one broker, and a ratio is the median of the rounds'.
"Raw" is the client library in a loop: it takes a message, runs the job in its own thread, and acknowledges it.
The jobs are queued while each slot has a job that waits, and the time is that between two marked jobs among them.
RocketMQ has no order over its queues: there, every job is marked.
Prefetch 8 is eight slots for us; a peer keeps its one process or thread, which is its fastest way with jobs of no length.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.benchmarks.usage import Measured, added, per_job, usage
from tests.brokers.install import MissingError, newest_rabbitmq
from tests.brokers.place import Places
from tests.brokers.rabbitmq import Node
from tests.brokers.rabbitmq_place import RabbitmqPlaces
from tests.brokers.rocketmq import RocketMQNode
from tests.brokers.rocketmq_place import ROCKETMQ_KINDS, DirectPlace, GrpcPlace, RocketmqPlaces
from tests.brokers.shared import MAKERS, Broker
from tests.brokers.stomp_node import StompNode
from tests.brokers.stomp_place import StompPlaces
from tests.drills.contestants import (
    CELERY,
    DRAMATIQ,
    FASTSTREAM,
    PIKA,
    ROOT,
    STEADYWORKER,
    STOMP_PY,
    TASKIQ,
    Contestant,
)
from tests.drills.stage import Stage
from tests.drills.stories import job

JOBS = {1: 1_000, 8: 2_000}
"""How many are timed, by prefetch."""

ROUNDS = {1: 3, 8: 2}
"""How often each is measured, by prefetch."""

WARM_UP = 100
"""So many jobs come before the timed ones, because the slots do not begin at the same moment."""

SETTLED_WITHIN = 0.2
"""Seconds from the end of the last job, within which it is acknowledged."""

CUTS = 6

AIMS = {"process slots": "≥ 0.28, ≥ 0.34", "thread slots": "≥ 0.28"}
"""By prefetch, on RabbitMQ's classic queues and two cores."""

RAW = replace(PIKA, name="raw pika", worker=(*PIKA.worker, "raw"))
RAW_STOMP = replace(STOMP_PY, name="raw stomp.py", worker=(*STOMP_PY.worker, "raw"))
PROCESSES = replace(STEADYWORKER, name="process slots")
RAW_GRPC = replace(
    STEADYWORKER, name="raw rocketmq-python-client", worker=("tests.benchmarks.bare_rocketmq", "grpc"), slots=1
)
RAW_DIRECT = replace(STEADYWORKER, name="raw pull loop", worker=("tests.benchmarks.bare_rocketmq", "direct"), slots=1)
THREADS = replace(STEADYWORKER, name="thread slots", worker=("steadyworker", "run", "tests.drills.ours:Threads"))


CELERY_PREFORK = replace(CELERY, name="Celery, prefork")
CELERY_THREADS = replace(CELERY, name="Celery, threads", worker=(*CELERY.worker, "--pool", "threads"))


@dataclass(frozen=True)
class Field:
    """Who is measured on one kind of broker: by the kind of queue; the first of each list is the raw client."""

    rates: Mapping[str, tuple[Contestant, ...]]
    cuts: tuple[Contestant, ...]
    ordered: bool = True
    """Whether the broker delivers the jobs in the order in which they were sent."""


RABBITMQ = Field(
    {
        "classic": (RAW, PROCESSES, THREADS, CELERY_PREFORK, CELERY_THREADS, DRAMATIQ, TASKIQ, FASTSTREAM),
        "quorum": (RAW, PROCESSES, THREADS),
    },
    (PROCESSES, CELERY, DRAMATIQ, TASKIQ, FASTSTREAM),
)
ACTIVEMQ = Field({"": (RAW_STOMP, PROCESSES, THREADS)}, (PROCESSES, STOMP_PY))
ROCKETMQ = {
    DirectPlace: Field({"": (RAW_DIRECT, PROCESSES, THREADS)}, (PROCESSES,), ordered=False),
    GrpcPlace: Field({"": (RAW_GRPC, PROCESSES, THREADS)}, (PROCESSES,), ordered=False),
}

NEWEST = "rabbitmq"
"""The newest RabbitMQ that can be had; it is looked for, and perhaps installed, when its turn comes."""

USUAL = (NEWEST, "classic", "artemis", *ROCKETMQ_KINDS)


def main() -> int:
    """Measure and print."""
    for name in sys.argv[1:] or USUAL:
        try:
            broker = Node(newest_rabbitmq()) if name == NEWEST else MAKERS[name]()
        except MissingError as missing:
            print(f"The tables of {name} were left out: {missing}")
            continue
        with closing(broker), tempfile.TemporaryDirectory(prefix="bench-") as folder:
            broker.start()
            for table in tables(*_places(name, broker), Path(folder)):
                Console(width=110).print(table)
    return 0


def _places(name: str, broker: Broker) -> tuple[Places, Field]:
    """Return the places at a broker that runs, and who is measured there."""
    if isinstance(broker, RocketMQNode):
        kind = ROCKETMQ_KINDS[name]
        return RocketmqPlaces(broker, kind), ROCKETMQ[kind]
    if isinstance(broker, Node):
        return RabbitmqPlaces(broker), RABBITMQ
    assert isinstance(broker, StompNode)
    return StompPlaces(broker), ACTIVEMQ


def tables(places: Places, field: Field, folder: Path) -> Iterator[Table]:
    """Measure on one broker."""
    heads = ["no-op jobs per second", "queue", *(f"prefetch {prefetch}" for prefetch in JOBS), "aim"]
    table = Table(*heads, title=places.title, box=SIMPLE_HEAD)
    for kind, contestants in field.rates.items():
        found = [rates(places, kind, prefetch, contestants, folder, ordered=field.ordered) for prefetch in JOBS]
        for one in contestants:
            cells = [_cell(per_round[one.name], per_round[contestants[0].name]) for per_round in found]
            table.add_row(one.name, kind, *cells, AIMS.get(one.name, "") if kind == "classic" else "")
    yield table
    cuts = Table("from a cut to the next job", "median", "aim", box=SIMPLE_HEAD)
    for one in field.cuts:
        seconds = median(reconnections(places, one, folder))
        cuts.add_row(one.name, f"{seconds:.2f} s", "≤ 1 s" if one is PROCESSES else "")
    yield cuts


def _cell(rates: list[float], raw: list[float]) -> str:
    ratio = median(one / other for one, other in zip(rates, raw, strict=True))
    return f"{median(rates):,.0f} ({ratio:.2f} of raw)"


def rates(
    places: Places, kind: str, prefetch: int, contestants: tuple[Contestant, ...], folder: Path, *, ordered: bool
) -> dict[str, list[float]]:
    """Jobs per second, in each round."""
    found: dict[str, list[float]] = {one.name: [] for one in contestants}
    for number in range(ROUNDS[prefetch]):
        for one in contestants:
            place = folder / f"{kind}-{prefetch}-{number}-{one.name}"
            found[one.name].append(measured(places, one, kind, prefetch, place, ordered=ordered).rate)
    return found


def measured(
    places: Places,
    contestant: Contestant,
    kind: str,
    prefetch: int,
    folder: Path,
    *,
    ordered: bool = True,
    broker: int = 0,
) -> Measured:
    """Measure one worker process, whose slots wait until the jobs are queued, and the broker with this process id."""
    contestant = replace(contestant, environ={**contestant.environ, "DRILL_QUEUE_TYPE": kind})
    slots = contestant.slots or (1 if contestant.peer else prefetch)
    mark, noop = job("mark", id="timed"), job("noop")
    jobs = [*[noop] * WARM_UP, mark, *[noop] * JOBS[prefetch], mark] if ordered else [mark] * (JOBS[prefetch] + 1)
    marks = jobs.count(mark)
    with closing(Stage(places, contestant, folder, prefetch=prefetch, proxied=False)) as stage:
        if not contestant.peer and kind == "classic":
            stage.place.make_queue(stage.queue, kind)  # it takes what is there, and would make a quorum queue
        stage.send(*(job("wait", id=f"lead-{number}") for number in range(slots)))
        worker = stage.start_worker()
        stage.expect("a job in each slot", lambda: len(stage.notes("start")) == slots)
        stage.send(*jobs)
        before, before_broker = usage(worker.pid), usage(broker)
        stage.open("go")
        stage.expect("the last job", lambda: len(stage.notes("end", "timed")) == marks)
        stage.until(lambda: False, SETTLED_WITHIN)
        done = slots + len(jobs)
        used = per_job(before, usage(worker.pid), done)
        used_by_broker = added(per_job(before_broker, usage(broker), done).values())
        times = [note.at for note in stage.notes("start", "timed")]
        return Measured(JOBS[prefetch] / (max(times) - min(times)), used, used_by_broker)


def reconnections(places: Places, contestant: Contestant, folder: Path) -> Iterator[float]:
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
    environ = stage.environment()
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
