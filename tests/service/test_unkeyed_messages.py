"""Messages without a key on a real broker: a full queue drains, a cut costs no second run where it need not, and none is lost."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, NackError

from steadyworker.clock import SystemClock, Times
from steadyworker.ledger.base import JobFilter, Row, State
from steadyworker.ledger.sqlite.ledger import SqliteLedger
from tests.brokers.rabbitmq import RabbitMQ, Vhost
from tests.faults.proxy import Proxy
from tests.support.stage import Processes, eventually

STEPS, QUEUE, LATER = "tests.support.jobs:Steps", "steps", "steps.later.1000ms"
BODY = b'{"steps": 1}'
SOON = {"times": {"defer_delay": 1.0}}
"""A copy for a later time comes back after 1 s instead of 30."""


class Place(Processes):
    """Worker processes on one virtual host and one SQLite ledger, and senders that give no key."""

    def __init__(self, folder: Path, vhost: Vhost) -> None:
        path = folder / "ledger.db"
        ledger = SqliteLedger(path, clock=SystemClock(), times=Times())
        super().__init__(folder, ledger, broker_url=self.url(vhost.url), ledger_url=f"sqlite:{path}")
        self.vhost = vhost

    @staticmethod
    def url(base: str) -> str:
        return f"{base}?heartbeat=60&management=off"

    def environment(self, **settings: Any) -> dict[str, str]:
        return super().environment(**{"delays": "1", "ledger_reach": "host"} | settings)

    @contextmanager
    def channel(self) -> Iterator[Any]:
        parameters = pika.URLParameters(self.vhost.url)
        parameters.heartbeat = 0
        with closing(pika.BlockingConnection(parameters)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel

    def consumed(self) -> tuple[int, int]:
        """How many messages of the work queue wait, and how many consumers it has; (-1, 0) without a queue."""
        with self.channel() as channel, suppress(ChannelClosedByBroker):
            found = channel.queue_declare(QUEUE, passive=True).method
            return found.message_count, found.consumer_count
        return -1, 0

    def left(self) -> int:
        """How many messages wait in any queue, and how many jobs have not ended."""
        with self.channel() as channel:
            waiting: list[int] = [
                channel.queue_declare(name, passive=True).method.message_count for name in (QUEUE, LATER)
            ]
        return sum(waiting) + sum(row.state is not State.DONE for row in self.rows())

    def rows(self) -> list[Row]:
        return [row for row, _ in self.ledger.jobs(JobFilter(queue=QUEUE))]

    def done(self) -> int:
        return sum(row.state is State.DONE for row in self.rows())

    def all_done(self, count: int, within: float = 60) -> None:
        """Wait until so many jobs are done; then no other has a row, and each has started once."""
        eventually(lambda: self.done() >= count, f"{count} done", within, lambda: f"{self.done()}\n{self.logs()}")
        assert {row.state for row in self.rows()} == {State.DONE}
        assert len(self.rows()) == count
        starts = [line.split()[0] for line in self.lines("starts")]
        assert len(starts) == len(set(starts)) == count


@pytest.fixture
def place(tmp_path: Path, vhost: Vhost) -> Iterator[Place]:
    made = Place(tmp_path, vhost)
    yield made
    made.close()


def send(channel: Any) -> bool:
    """Send a message without a key; answers whether the queue had room."""
    try:
        channel.basic_publish("", QUEUE, BODY, pika.BasicProperties(delivery_mode=2), mandatory=True)
    except NackError:
        return False
    return True


class Sender(threading.Thread):
    """A sender that keeps the queue full: whatever place is free, it takes."""

    def __init__(self, place: Place) -> None:
        super().__init__(name="sender")
        self.accepted = self.refused = 0
        self._place = place
        self._enough = threading.Event()

    def run(self) -> None:
        with self._place.channel() as channel:
            while not self._enough.is_set():
                if send(channel):
                    self.accepted += 1
                else:
                    self.refused += 1

    def ends(self) -> None:
        self._enough.set()
        self.join()


@contextmanager
def kept_full(place: Place, limit: int) -> Iterator[Sender]:
    """A classic queue with `reject-publish`, and a sender that keeps it full for as long as the context lasts."""
    with place.channel() as channel:
        channel.queue_declare(QUEUE, durable=True, arguments={"x-max-length": limit, "x-overflow": "reject-publish"})
    sender = Sender(place)
    sender.start()
    try:
        eventually(lambda: sender.refused, "a full queue")
        yield sender
    finally:
        sender.ends()


def test_a_full_queue_drains_while_its_senders_keep_it_full(place: Place) -> None:
    """A copy with a key is refused, since a sender takes each place that is free."""
    with kept_full(place, limit=3) as sender:
        worker = place.worker(STEPS, script=SOON)
        place.notes("starts", 8)
    place.all_done(sender.accepted)
    assert not [line for line in worker.lines("check_warning") if "without a key" in line["what"]]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_full_queue_loses_nothing_when_its_worker_processes_are_killed(place: Place) -> None:
    """A job that began before its copy came back waits for it: the broker offers a refused one again after three minutes."""
    killed = 0
    with kept_full(place, limit=40) as sender:
        for _ in range(3):
            started = len(place.lines("starts"))
            worker = place.worker(STEPS, script=SOON)
            place.notes("starts", started + 3)
            worker.signal_all(signal.SIGKILL)
            worker.wait()
            killed += 1
        place.worker(STEPS, script=SOON)
    eventually(lambda: place.done() >= sender.accepted and place.left() == 0, "all done", 420, place.logs)
    assert {row.state for row in place.rows()} == {State.DONE}
    assert sender.accepted <= place.done() <= sender.accepted + killed


def test_our_own_full_queue_drains_after_its_senders_have_left(place: Place, rabbitmq: RabbitMQ, vhost: Vhost) -> None:
    """A quorum queue refuses all until it is below 80 % of its limit, so that one place is not enough for a copy."""
    first = place.worker(STEPS, script=SOON).started()
    eventually(lambda: place.consumed() == (0, 1), "its queues", report=place.logs)
    first.terminate()
    first.ended(0)
    policy = {"pattern": "^steps$", "definition": {"max-length": 10}, "apply-to": "queues"}
    rabbitmq.management("PUT", f"policies/{vhost.name}/small", policy)
    with place.channel() as channel:
        accepted = 0
        for _ in range(500):
            if not send(channel):
                break
            accepted += 1
        assert 10 <= accepted < 500
        place.worker(STEPS, script=SOON)
        place.all_done(accepted)


def test_a_cut_between_the_confirm_of_the_copy_and_the_ack_of_the_original_costs_no_second_run(place: Place) -> None:
    with Proxy(place.vhost.url) as proxy:
        script = SOON | {"pause": "adapter.publish:after:1"}
        place.worker(STEPS, script=script, broker=place.url(proxy.url))
        eventually(lambda: place.consumed() == (0, 1), "a consumer", report=place.logs)
        with place.channel() as channel:
            assert send(channel)
        place.notes("paused", 1)
        before = proxy.connections
        proxy.cut()
        proxy.wait_connections(before + 1)
        eventually(lambda: place.consumed() == (1, 1), "a second delivery, beside the copy", report=place.logs)
        place.open("go")
        eventually(lambda: place.done() and place.consumed() == (0, 1), "an end", report=place.logs)
        place.all_done(1)


def test_equal_messages_all_complete_whatever_is_cut_and_killed(place: Place) -> None:
    """Loss outranks repetition: 24 of them end as 24 jobs at least, and no row is left without an end."""
    chance, count = random.Random(15), 24
    with Proxy(place.vhost.url) as proxy:
        url = place.url(proxy.url)
        worker = place.worker(STEPS, script=SOON, broker=url, concurrency=4).started()
        eventually(lambda: place.consumed() == (0, 1), "a consumer", report=place.logs)
        for number in range(6):
            started = len(place.lines("starts"))
            with place.channel() as channel:
                assert all(send(channel) for _ in range(count // 6))
            place.notes("starts", started + 1)
            time.sleep(chance.uniform(0.0, 0.1))  # a fault at any moment is what this is about
            if number == 3:
                worker.signal_all(signal.SIGKILL)
                worker.wait()
                worker = place.worker(STEPS, script=SOON, broker=url, concurrency=4).started()
            else:
                proxy.cut()
        eventually(lambda: place.done() >= count and place.left() == 0, "all done", report=place.logs)
    assert {row.state for row in place.rows()} == {State.DONE}
