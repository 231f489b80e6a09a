"""
The cost of a job that does nothing, by thread: `make bench ARGS=--cost`, in under two minutes.

On RabbitMQ, ours takes turns with raw pika; without a RabbitMQ, the embedded queue is measured instead.
Compare the CPU of two commits, or the ratios: the time on the wall is that of this machine at this moment.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.benchmarks import embedded
from tests.benchmarks.bench_brokers import JOBS, PROCESSES, RAW, THREADS, measured
from tests.benchmarks.usage import NAMED, NOTHING, Measured, Usage
from tests.brokers.install import MissingError, newest_rabbitmq
from tests.brokers.rabbitmq import Node
from tests.brokers.rabbitmq_place import RabbitmqPlaces
from tests.drills.contestants import Contestant

ROUNDS = 3
OWN_RAW = replace(RAW, peer=False, slots=1)
"""In our own environment, which has pika, so that no other one need be made."""
CONTESTANTS: Mapping[int, tuple[Contestant, ...]] = {1: (OWN_RAW, PROCESSES, THREADS), 8: (OWN_RAW, PROCESSES)}
"""By prefetch, the raw client first."""


def main() -> int:
    """Measure and print."""
    try:
        broker = Node(newest_rabbitmq())
    except MissingError as missing:
        print(f"The embedded queue was measured instead of RabbitMQ: {missing}")
        for slots in CONTESTANTS:
            found = {
                kind: [embedded.measured(kind, slots, JOBS[slots]) for _ in range(ROUNDS)] for kind in embedded.KINDS
            }
            Console(width=110).print(table(f"the embedded queue, prefetch {slots}", found))
        return 0
    with closing(broker), tempfile.TemporaryDirectory(prefix="bench-") as place:
        broker.start()
        places = RabbitmqPlaces(broker)
        for prefetch, contestants in CONTESTANTS.items():
            found = {one.name: [] for one in contestants}
            for number in range(ROUNDS):
                for one in contestants:
                    logs = Path(place, f"{prefetch}-{number}-{one.name}")
                    named = replace(one, environ=NAMED)
                    found[one.name].append(measured(places, named, "classic", prefetch, logs, broker=broker.pid))
            Console(width=110).print(table(f"{places.title}, prefetch {prefetch}", found))
    return 0


def table(title: str, found: Mapping[str, list[Measured]]) -> Table:
    """Return the medians of the rounds: for each contestant a line of sums, and one for each of its threads."""
    columns = ("a job", "CPU µs", "voluntary switches", "forced", "wall µs", "speed of raw's", "on one core")
    shown = Table(*columns, title=title, box=SIMPLE_HEAD)
    shown.columns[0].no_wrap = True
    raw = found.get(OWN_RAW.name, [])
    for name, rounds in found.items():
        wall = f"{1e6 / median(one.rate for one in rounds):,.0f}"
        pairs = list(zip(rounds, raw, strict=False))
        speeds = [one.rate / other.rate for one, other in pairs]
        on_one_core = [_with_broker(other) / _with_broker(one) for one, other in pairs]
        ratios = [f"{median(each):.2f}" for each in (speeds, on_one_core) if each]
        shown.add_row(name, *_cells([one.total for one in rounds]), wall, *ratios)
        names = {thread for one in rounds for thread in one.used}
        parts = {thread: [one.used.get(thread, NOTHING) for one in rounds] for thread in names}
        parts["the broker, not in the sum"] = [one.broker for one in rounds]
        for thread, used in sorted(parts.items(), key=lambda pair: -median(one.cpu for one in pair[1])):
            if any(one.cpu >= 1 for one in used):
                shown.add_row(f"  {thread}", *_cells(used))
    return shown


def _with_broker(one: Measured) -> float:
    """Return the microseconds that a job would take if the worker process and the broker had one core."""
    return one.total.cpu + one.broker.cpu


def _cells(used: list[Usage]) -> tuple[str, str, str]:
    cpu, waits, forced = (median(column) for column in zip(*used, strict=True))
    return f"{cpu:,.0f}", f"{waits:.2f}", f"{forced:.2f}"


if __name__ == "__main__":
    sys.exit(main())
