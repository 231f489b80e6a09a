"""A fleet for tests: worker processes at one place of a broker, with one ledger in PostgreSQL, and what the broker has."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steadyworker import Client
from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import JobFilter, Ledger, State
from steadyworker.ledger.postgres.ledger import PostgresLedger
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from steadyworker.outcome import Counters
from tests.brokers.place import Ability, Place
from tests.support.stage import WITHIN, Processes, Setting, WorkerProcess, eventually

QUEUE = "fleet"
"""What the tests call the work queue; `Fleet.queue` is the broker's name of it, which on RabbitMQ is the same."""

LIGHT, APART, STEADY = "tests.fleet.jobs:Light", "tests.fleet.jobs:Apart", "tests.fleet.jobs:Steady"
ORDERED = "tests.fleet.jobs:Ordered"

SOON = {"times": {"defer_delay": 2.0}}
"""A copy that follows another's run comes back after 2 s instead of 30."""


class Fleet(Processes):
    """Worker processes at one broker; with a ledger in PostgreSQL, they may be on several hosts for all that both know."""

    main = Path(__file__).with_name("main.py")

    def __init__(self, folder: Path, place: Place, database: str) -> None:
        super().__init__(folder, ledger_at(database, folder), broker_url=place.url(), ledger_url=database)
        self.place = place
        self.queue = place.queue(QUEUE)
        """The work queue."""

    def environment(self, **settings: Setting) -> dict[str, str]:
        """As any worker process, and the work queue's name."""
        return {**super().environment(**settings), "FLEET_QUEUE": self.queue}

    def send_all(self, jobs: Mapping[str, object]) -> None:
        """Send these payloads, by their keys, in this order."""
        with Client(**self.urls) as client:
            for key, payload in jobs.items():
                client.send(self.queue, payload, key=key)

    # --- what the broker has ---

    def consumed_by(self, count: int) -> None:
        """Wait until the work queue has so many consumers."""
        eventually(lambda: self.place.consumers(self.queue) == count, f"{count} consumers", report=self.logs)

    def unacked(self) -> int:
        """How many messages of the work queue are held by a consumer, as of some seconds ago."""
        depth = self.place.depths().get(self.queue)
        return depth.unacked if depth else -1

    def messages(self) -> dict[str, int]:
        """Every queue that has any, held ones included, as of some seconds ago."""
        return {queue: depth.total for queue, depth in self.place.depths().items() if depth.total}

    def left(self) -> dict[str, int]:
        """Every queue that has any which no consumer holds, as of now."""
        return {queue: count for queue, count in self.place.ready().items() if count}

    def empties(self) -> None:
        """Wait until no queue has any, for as long as a message may be hidden."""
        since = time.monotonic()

        def empty() -> bool:
            nonlocal since
            if self.messages() or self.left():
                since = time.monotonic()
                return False
            return time.monotonic() >= since + self.place.hidden_for

        eventually(
            empty,
            "empty queues",
            WITHIN + self.place.redelivers_within + self.place.hidden_for,
            lambda: f"{self.messages()} {self.left()}\n{self.logs()}",
        )

    def loses(self, workers: list[WorkerProcess], deliveries: int, turn: int = 1) -> None:
        """Wait until each of these misses the broker for the n-th time, and where this costs deliveries, so many each time."""
        if self.redelivers_at_once:
            all_report(workers, "delivery_lost", deliveries * turn)
        else:
            all_report(workers, "not_ready", turn)

    @property
    def redelivers_at_once(self) -> bool:
        """Whether a delivery is lost with its connection."""
        return Ability.REDELIVERS_AT_ONCE in self.place.abilities

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
        rows = {
            row.id.key: (row.state, _numbers(row.counters)) for row, _ in self.ledger.jobs(JobFilter(queue=self.queue))
        }
        assert rows == dict.fromkeys(jobs, (State.DONE, _numbers(Counters(**counters))))

    def logged(self, event: str, **values: object) -> list[dict[str, Any]]:
        """What all of them have logged of this event."""
        lines = [line for process in self.processes for line in process.lines(event)]
        return [line for line in lines if values.items() <= line.items()]


def ledger_at(url: str, folder: Path) -> Ledger:
    """Return the ledger at this URL, of either kind."""
    if url.startswith("sqlite:"):
        return SqliteLedger(Path(url.removeprefix("sqlite:")), clock=SystemClock(), times=Times())
    return PostgresLedger(lambda: url, owners_dir=folder, clock=SystemClock(), times=Times())


def _numbers(counters: Counters) -> tuple[int, int, int, int]:
    return counters.attempts, counters.crashes, counters.losses, counters.interruptions


def all_report(processes: list[WorkerProcess], event: str, times: int = 1) -> None:
    """Wait until each of them has logged this so often."""
    for process in processes:
        process.reports(event, times)
