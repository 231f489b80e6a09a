"""A fleet for tests: worker processes on one virtual host of RabbitMQ and one ledger in PostgreSQL, and what the broker has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pika

from steadyworker import Client
from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import State, Wanted
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.outcome import Counters
from tests.brokers.rabbitmq import RabbitMQ, Vhost
from tests.support.stage import Processes, WorkerProcess, eventually

QUEUE = "fleet"
LIGHT, STEADY = "tests.fleet.jobs:Light", "tests.fleet.jobs:Steady"

SOON = {"times": {"defer_delay": 2.0}}
"""A copy that follows another's run comes back after 2 s instead of 30."""


class Fleet(Processes):
    """Worker processes that may be on several hosts, for all that broker and ledger know."""

    main = Path(__file__).with_name("main.py")

    def __init__(self, folder: Path, rabbitmq: RabbitMQ, vhost: Vhost, database: str) -> None:
        ledger = PostgresLedger(lambda: database, owners_dir=folder, clock=SystemClock(), times=Times())
        super().__init__(folder, ledger, broker_url=self.url(vhost.url), ledger_url=database)
        self.rabbitmq, self.vhost = rabbitmq, vhost

    @staticmethod
    def url(base: str, heartbeat: int = 60) -> str:
        """The URL of a broker, as a worker process is given it."""
        return f"{base}?heartbeat={heartbeat}&management=off"

    def send_all(self, jobs: Mapping[str, object]) -> None:
        """Send these payloads, by their keys, in this order."""
        with Client(**self.urls) as client:
            for key, payload in jobs.items():
                client.send(QUEUE, payload, key=key)

    # --- what the broker has ---

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """A channel of a foreign client's, straight to the broker; nobody turns its connection while a test waits."""
        parameters = pika.URLParameters(self.vhost.url)
        parameters.heartbeat = 0
        with closing(pika.BlockingConnection(parameters)) as connection:
            yield connection.channel()

    def declare(self, queue: str, **arguments: object) -> None:
        """Make a durable queue."""
        with self.channel() as channel:
            channel.queue_declare(queue, durable=True, arguments=arguments)

    def delete(self, queue: str) -> None:
        """Delete it, with all that is in it."""
        with self.channel() as channel:
            channel.queue_delete(queue)

    def permit(self, *, read: bool) -> None:
        """Whether the fleet may consume from now on."""
        path = f"permissions/{self.vhost.name}/{self.vhost.user}"
        self.rabbitmq.management("PUT", path, {"configure": ".*", "write": ".*", "read": ".*" if read else "^$"})

    def consumers(self) -> int:
        """How many the work queue has."""
        with self.channel() as channel:
            return int(channel.queue_declare(QUEUE, passive=True).method.consumer_count)

    def consumed_by(self, count: int) -> None:
        """Wait until the work queue has so many consumers."""
        eventually(lambda: self.consumers() == count, f"{count} consumers", report=self.logs)

    def unacked(self) -> int:
        """How many messages of the work queue somebody holds, as of some seconds ago."""
        answer = self.rabbitmq.management("GET", f"queues/{self.vhost.name}/{QUEUE}")
        return int(answer.get("messages_unacknowledged", -1))

    def messages(self) -> dict[str, int]:
        """Every queue that has any, held ones included, as of some seconds ago."""
        queues = self.rabbitmq.management("GET", f"queues/{self.vhost.name}")
        return {queue["name"]: count for queue in queues if (count := queue.get("messages", -1))}

    def left(self) -> dict[str, int]:
        """Every queue that has any which nobody holds, as of now."""
        names = [queue["name"] for queue in self.rabbitmq.management("GET", f"queues/{self.vhost.name}")]
        with self.channel() as channel:
            counts = {name: channel.queue_declare(name, passive=True).method.message_count for name in names}
        return {name: count for name, count in counts.items() if count}

    def empties(self) -> None:
        """Wait until no queue has any."""
        eventually(
            lambda: not self.messages() and not self.left(),
            "empty queues",
            report=lambda: f"{self.messages()} {self.left()}\n{self.logs()}",
        )

    # --- how it ends ---

    def ends_clean(self, *jobs: str, **counters: int) -> None:
        """
        Wait until every queue is empty, and stop: nothing is left anywhere.

        Each of these jobs has been done once, by the ledger and by the handlers, with these counters; and no other job.
        """
        eventually(lambda: len(self.lines("ends")) >= len(jobs), f"{len(jobs)} ends", report=self.logs)
        self.empties()
        running = [process for process in self.processes if process.poll() is None]
        for process in running:
            process.terminate()
        for process in running:
            process.ended(0)
        assert self.left() == {}
        assert Counter(self.lines("ends")) == Counter(jobs)
        rows = {row.id.key: (row.state, _numbers(row.counters)) for row, _ in self.ledger.jobs(Wanted(queue=QUEUE))}
        assert rows == dict.fromkeys(jobs, (State.DONE, _numbers(Counters(**counters))))

    def said(self, event: str, **values: object) -> list[dict[str, Any]]:
        """What all of them have logged of this event."""
        lines = [line for process in self.processes for line in process.lines(event)]
        return [line for line in lines if values.items() <= line.items()]


def _numbers(counters: Counters) -> tuple[int, int, int, int]:
    return counters.attempts, counters.crashes, counters.losses, counters.interruptions


def says_all(processes: list[WorkerProcess], event: str, times: int = 1) -> None:
    """Wait until each of them has logged this so often."""
    for process in processes:
        process.says(event, times)
