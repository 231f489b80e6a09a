"""How fast `steadyworker explain` reads a log: `python -m tests.benchmarks.bench_explain`."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from steadyworker.diagnosis.catalogue import load
from steadyworker.diagnosis.scan import Scanner, Search

ORDINARY = Path(__file__).parents[1] / "diagnosis" / "ordinary" / "rabbitmq-4.3.log"
FAILURE = (
    "2026-03-02 09:14:31.402117+00:00 [error] <0.{n}.0> closing AMQP connection <0.{n}.0> (10.0.3.17:{n} -> 10.0.3.5:5672):\n"
    "2026-03-02 09:14:31.402117+00:00 [error] <0.{n}.0> missed heartbeats from client, timeout: 60s\n"
)
SIZE = 64 << 20
BLOCK = 256 << 10


def main() -> None:
    """Measure and print."""
    table = Table("a log of 64 MiB", "findings", "MB/s of processor time", box=SIMPLE_HEAD)
    for name, log in (
        ("an ordinary log of RabbitMQ, with other numbers in each line", ordinary),
        ("the same, with a lost connection in every 100 lines", failing),
        ("lines of random words", words),
    ):
        found, speed = measured(log)
        table.add_row(name, f"{found:,}", f"{speed:.0f}")
    Console(width=110).print(table)


def measured(log: Callable[[], Iterator[str]]) -> tuple[int, float]:
    """The number of findings in a log, and the bytes that were read in a second."""
    text = "".join(_first(log(), SIZE)).encode()
    scanner = Scanner("log", Search(load().values()))
    began = time.process_time()
    found = sum(1 for _ in scanner.whole(text[at : at + BLOCK] for at in range(0, len(text), BLOCK)))
    return found, len(text) / 1e6 / (time.process_time() - began)


def ordinary() -> Iterator[str]:
    """What a broker writes between its start and its stop, again and again."""
    text = ORDINARY.read_text(encoding="utf-8")
    begin, end = text.index("Server startup complete"), text.index("SIGTERM received")
    lines = text[text.index("\n", begin) + 1 : text.rindex("\n", 0, end) + 1].splitlines(keepends=True)
    chosen = random.Random(1)
    while True:
        for line in lines:
            yield re.sub(r"\d+", lambda number: str(chosen.randrange(10 ** len(number[0]))), line)


def failing() -> Iterator[str]:
    """The same lines, and failures among them."""
    for number, line in enumerate(ordinary()):
        yield line
        if number % 100 == 0:
            yield FAILURE.format(n=number)


def words() -> Iterator[str]:
    """Lines that no other line is like, which is the worst case."""
    chosen = random.Random(1)
    known = ["".join(chosen.choices("abcdefghijklmnopqrstuvwxyz", k=chosen.randint(3, 10))) for _ in range(5000)]
    while True:
        yield f"2026-03-02 09:14:31,402 INFO  [worker] {' '.join(chosen.choices(known, k=12))}\n"


def _first(lines: Iterator[str], size: int) -> Iterator[str]:
    for line in lines:
        yield line
        size -= len(line)
        if size < 0:
            return


if __name__ == "__main__":
    main()
