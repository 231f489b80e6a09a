"""
A worker process that counts what it does for each job: `python -m tests.benchmarks.counted Processes|Threads`.

At the end of the turn in which a job is settled, it prints the counts as a line of JSON, and begins from zero.
It counts what one thread hands to another one, the frames, and the ledger's commits.
The runner's turns are not counted, because events that arrive together share one.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec

from steadyworker import run
from steadyworker.events import Event, JobSettled
from steadyworker.network.iothread import IoThread
from steadyworker.runner.runner import Runner, RunnerEvent
from steadyworker.slots.frames import Frame, Unpacker
from tests.benchmarks import noop

COUNTS: Counter[str] = Counter()
CONNECT = sqlite3.connect
WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|WITH)\b", re.IGNORECASE)


def count_frames() -> None:
    """Count the frames that are packed, and those that are unpacked."""
    encode, feed = msgspec.msgpack.encode, Unpacker.feed

    def counted_encode(value: object, **options: Any) -> bytes:
        COUNTS["frames to the child"] += isinstance(value, Frame)
        return encode(value, **options)

    def counted_feed(unpacker: Unpacker[Any], data: bytes) -> Any:
        for frame in feed(unpacker, data):
            COUNTS["frames from the child"] += 1
            yield frame

    patch.object(msgspec.msgpack, "encode", counted_encode).start()
    patch.object(Unpacker, "feed", counted_feed).start()


class Connection(sqlite3.Connection):
    """A connection to SQLite that counts the ledger's transactions; a write outside of a transaction is one."""

    counts = False

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if self.counts and (statement == "COMMIT" or (not self.in_transaction and WRITES.match(statement))):
            COUNTS["commits of the ledger"] += 1
        return super().execute(statement, *values)


def connect(database: str, **options: Any) -> sqlite3.Connection:
    """As `sqlite3.connect`."""
    connection = CONNECT(database, factory=Connection, **options)
    connection.counts = "/ledger.db" in str(database)
    return connection


def main() -> None:
    """Run until a signal ends it."""
    settled: list[Event] = []
    post, tick, call = Runner.post, Runner.tick, IoThread.call

    def listen(event: Event) -> None:
        if isinstance(event, JobSettled):
            settled.append(event)

    def counted_post(runner: Runner, event: RunnerEvent) -> None:
        COUNTS[f"posted to the runner: {type(event).__name__}"] += 1
        post(runner, event)

    def counted_call(thread: IoThread, action: Callable[[], None]) -> None:
        COUNTS["posted to the I/O thread"] += 1
        call(thread, action)

    def reporting_tick(runner: Runner) -> None:
        tick(runner)
        if settled:
            os.write(1, json.dumps(COUNTS).encode() + b"\n")  # a print would be a line of the log
            settled.clear()
            COUNTS.clear()

    patch.object(Runner, "post", counted_post).start()
    patch.object(Runner, "tick", reporting_tick).start()
    patch.object(IoThread, "call", counted_call).start()
    patch.object(sqlite3, "connect", connect).start()
    count_frames()
    run(getattr(noop, sys.argv[1]), concurrency=1, listeners=[listen])


if __name__ == "__main__":
    main()
