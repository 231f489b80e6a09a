"""The processor time of a job's two log lines: `python -m tests.benchmarks.bench_lines`."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import TextIO, cast

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from steadyworker.events import Event, JobSettled, JobStarted
from steadyworker.telemetry.event_log import log_events
from steadyworker.telemetry.logs import configure

JOBS, ROUNDS = 10_000, 5


def main() -> None:
    """Measure and print; the ways take turns."""
    ways: dict[str, Callable[[], None]] = {
        "SteadyWorker's handler alone": lambda: None,
        "beside a handler of the program": lambda: logging.getLogger().addHandler(logging.NullHandler()),
        "at log level error": lambda: logging.getLogger().setLevel(logging.ERROR),
    }
    events = [event for number in range(JOBS) for event in job(number)]
    measured: dict[str, list[float]] = {way: [] for way in ways}
    reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    pipe = cast(TextIO, reader.stdin)
    try:
        for _ in range(ROUNDS):
            for way, arrange in ways.items():
                logging.getLogger().handlers.clear()
                configure("json", "info", pipe)
                arrange()
                measured[way].append(microseconds(events))
    finally:
        reader.kill()  # because the handlers keep the pipe open
    table = Table("the two lines of a job, into a pipe", "µs of the runner's thread", box=SIMPLE_HEAD)
    for way, values in measured.items():
        table.add_row(way, f"{median(values):.1f}")
    Console(width=110).print(table)


def job(number: int) -> Iterator[Event]:
    """The events of a job that does nothing, at the usual levels."""
    at, key = 1_767_225_600 + number / 1_000, f"orders-{number:06}"
    yield JobStarted(key=key, queue="orders", fence=number, at=at, attempt=1, why="new")
    yield JobSettled(
        key=key,
        queue="orders",
        fence=number,
        at=at,
        settlement="ack",
        outcome="done",
        reason="",
        attempts=1,
        crashes=0,
        losses=0,
        interruptions=0,
        settled="confirmed",
        seconds=0.000417,
    )


def microseconds(events: list[Event]) -> float:
    """The processor time of this thread for the lines of one job."""
    listen = log_events()
    began = time.thread_time()
    for event in events:
        listen(event)
    return (time.thread_time() - began) / JOBS * 1e6


if __name__ == "__main__":
    main()
