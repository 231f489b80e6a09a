"""
A client of the embedded broker in a process of its own, for tests that kill and freeze it; says what happens on stdout.

`python sqlite_client.py hold|ack|read|fill PATH SILENCE NUMBER`; NUMBER is credits, or bytes that a file may have.
"""

from __future__ import annotations

import queue
import resource
import sys
from itertools import count
from pathlib import Path

from steadyworker.adapter import Connected, Delivered, Lost, QueueSpec, Settings, Signal, Unreachable
from steadyworker.delivery import KEY, Delivery, OutgoingMessage, Settle, Target
from steadyworker.errors import PublishFailed, StaleDelivery, Unsettled
from steadyworker_sqlite import SqliteAdapter


def report(*words: object) -> None:
    # One write for each line: a kill leaves whole lines.
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Consumer:
    """Says every signal; acknowledges at once, or holds, and tries to settle what it held when its epoch is over."""

    def __init__(self, adapter: SqliteAdapter, *, acks: bool) -> None:
        self.adapter = adapter
        self.acks = acks
        self.held: list[Delivery] = []

    def receive(self, signal: Signal) -> None:
        match signal:
            case Connected(epoch):
                report("connected", epoch)
            case Lost(epoch):
                report("lost", epoch)
                for delivery in self.held:
                    self.settle(delivery)
            case Unreachable(cause):
                report("gone", cause)
            case Delivered(delivery):
                report("delivered", delivery.headers[KEY])
                if self.acks:
                    self.settle(delivery)
                else:
                    self.held.append(delivery)
            case _:
                report("unexpected", signal)

    def settle(self, delivery: Delivery) -> None:
        try:
            self.adapter.settle(delivery, Settle.ACK)
        except (StaleDelivery, Unsettled) as error:
            report(type(error).__name__, delivery.headers[KEY])
        else:
            report("acked", delivery.headers[KEY])


def consume(adapter: SqliteAdapter, window: int, *, acks: bool) -> None:
    signals: queue.Queue[Signal] = queue.Queue()
    adapter.prefetch(window)
    adapter.start(signals.put)
    consumer = Consumer(adapter, acks=acks)
    while True:
        consumer.receive(signals.get())


def read(adapter: SqliteAdapter) -> None:
    """Hold every dead letter until somebody kills us."""
    with adapter.dead_letters() as dead:
        for letter in dead:
            report("read", letter.headers[KEY])
        report("end")
        sys.stdin.read()


def fill(adapter: SqliteAdapter, limit: int) -> None:
    """Publish until there is no room."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        for n in count():
            adapter.publish(OutgoingMessage(Target.WORK, b"x" * 5000, {KEY: f"k-{n}"}))
            report("confirmed", f"k-{n}")
    except PublishFailed as error:
        report("refused", error)


def main() -> None:
    verb, path, silence, number = sys.argv[1:]
    adapter = SqliteAdapter(Path(path), QueueSpec("exports", "exports.dead"), Settings(), float(silence))
    if verb == "read":
        read(adapter)
    elif verb == "fill":
        fill(adapter, int(number))
    else:
        consume(adapter, int(number), acks=verb == "ack")


if __name__ == "__main__":
    main()
