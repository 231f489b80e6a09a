"""What the trials share: a hundred jobs, of which ten run until a gate is open, so that faults find them in the middle."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

import pika

from steadyworker.ledger.base import State
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.fleet.kit import LIGHT, QUEUE, SOON, Fleet, all_report
from tests.support.stage import WorkerProcess, eventually

KEYS = [f"job-{number:02}" for number in range(100)]
HELD = 10
"""So many jobs, the first ones, run until the gate is open."""
JOBS = {key: {"gate": "gate"} if number < HELD else {} for number, key in enumerate(KEYS)}


def two_workers(fleet: Fleet, url: str) -> list[WorkerProcess]:
    """Start two worker processes, and wait until all their slots run jobs that are held."""
    workers = [fleet.worker(LIGHT, broker=url, concurrency=HELD // 2, script=SOON) for _ in range(2)]
    fleet.notes("starts", HELD)
    return workers


def lose_all(workers: Sequence[WorkerProcess]) -> None:
    """Wait until each run of these has lost its message."""
    all_report([*workers], "delivery_lost", HELD // 2)


def all_once(fleet: Fleet) -> None:
    """Wait for the end of all, and count."""
    fleet.notes("ends", len(JOBS), 120)
    fleet.ends_clean(*JOBS)
    assert sorted(fleet.lines("starts")) == [f"{key} 1" for key in KEYS]


def all_once_and_stopped(fleet: Fleet, workers: Sequence[WorkerProcess]) -> None:
    """
    Wait until the ledger has the end of all, stop the worker processes, and count.

    It asks no management API: long after a fault, RabbitMQ's shows the queue as it was before (4.3.6).
    """
    all_done(fleet)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.ended(0)
    assert sorted(fleet.lines("starts")) == [f"{key} 1" for key in KEYS]


def all_done(fleet: Fleet) -> None:
    """Wait until the ledger has the end of all."""

    def done() -> int:
        return sum(row.state is State.DONE for row, _ in fleet.ledger.jobs())

    eventually(lambda: done() == len(JOBS), "all done", 120, fleet.logs)


def set_policy(
    place: RabbitmqPlace, definition: Mapping[str, object], pattern: str = f"^{QUEUE}$", apply_to: str = "queues"
) -> None:
    """Set what a policy of an operator's says."""
    place.set_policy("theirs", definition, pattern, apply_to)


def publish_all(
    url: str, queue: str, *, exchange: str = "", keys: Iterable[str] = KEYS, priorities: Sequence[int | None] = (None,)
) -> None:
    """Send the jobs as a foreign client does: with message ids, and priorities in turn."""
    parameters = pika.URLParameters(url)
    with closing(pika.BlockingConnection(parameters)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number, key in enumerate(keys):
            priority = priorities[number % len(priorities)]
            given = pika.BasicProperties(message_id=key, delivery_mode=2, priority=priority)
            channel.basic_publish(exchange, queue, json.dumps(JOBS[key]).encode(), given, mandatory=True)
