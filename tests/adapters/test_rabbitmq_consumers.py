"""How often RabbitMQ counts one adapter, and what comes to it, while its prefetch changes and it holds deliveries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pika
import pytest

from steadyworker.adapter import Delivered, Delivery, Lost, QueueSpec, Redelivered, Settings, Signal
from steadyworker.delivery import KEY, OutgoingMessage, Settle, Target
from steadyworker_rabbitmq import RabbitmqAdapter
from steadyworker_rabbitmq.checks.limits import CONTINUED_CONSUMERS
from tests.brokers.rabbitmq import RabbitMQ, Vhost

SPEC = QueueSpec("exports", "exports.dead", concurrency=4)
SINGLE = {"x-queue-type": "quorum", "x-single-active-consumer": True}
Eventually = Callable[..., Any]


class Client:
    """An adapter that is started, and its deliveries."""

    def __init__(self, url: str, spec: QueueSpec = SPEC) -> None:
        self.deliveries: list[Delivery] = []
        self.lost: list[Lost] = []
        self.adapter = RabbitmqAdapter(url, spec, Settings(delays=(1.0,)))
        self.adapter.start(self._receive)

    def _receive(self, signal: Signal) -> None:
        if isinstance(signal, Delivered):
            self.deliveries.append(signal.delivery)
        elif isinstance(signal, Lost):
            self.lost.append(signal)

    def gets(self, eventually: Eventually, keys: str) -> None:
        """Wait until these messages came, each named by one letter, in this order."""
        eventually(lambda: len(self.deliveries) >= len(keys))
        assert "".join(delivery.headers[KEY] for delivery in self.deliveries) == keys

    def ack(self, number: int) -> None:
        """Acknowledge the n-th delivery."""
        self.adapter.settle(self.deliveries[number - 1], Settle.ACK)


@pytest.fixture
def client(rabbitmq: RabbitMQ, vhost: Vhost) -> Iterator[Callable[[], Client]]:
    """Clients of this test's virtual host; stopped at its end."""
    clients: list[Client] = []

    def another() -> Client:
        clients.append(Client(f"{vhost.url}?management={rabbitmq.management_url}"))
        return clients[-1]

    yield another
    for each in clients:
        each.adapter.stop(5)


@contextmanager
def channel(vhost: Vhost) -> Iterator[Any]:
    with closing(pika.BlockingConnection(pika.URLParameters(vhost.url))) as connection:
        yield connection.channel()


def send(client: Client, keys: str) -> None:
    for key in keys:
        client.adapter.publish(OutgoingMessage(Target.WORK, b"{}", {KEY: key}))


def still() -> None:
    """Let pass what the broker needs for a message that must not come."""
    threading.Event().wait(0.5)


def test_a_changed_prefetch_continues_the_consumer_if_the_broker_can(
    client: Callable[[], Client], rabbitmq: RabbitMQ, eventually: Eventually
) -> None:
    """A worker process counted as two consumers for as long as its longest job ran, and its whole fleet saw a surplus."""
    worker = client()
    send(worker, "abcd")
    worker.adapter.prefetch(1)
    worker.gets(eventually, "a")
    continues = rabbitmq.version >= CONTINUED_CONSUMERS
    assert worker.adapter.capabilities.most_consumers == (1 if continues else SPEC.concurrency)
    worker.adapter.prefetch(2)
    worker.gets(eventually, "ab")
    assert worker.adapter.consumers() == (1 if continues else 2)
    worker.adapter.prefetch(0)
    worker.adapter.prefetch(3)
    worker.gets(eventually, "abc")
    assert worker.adapter.consumers() == (1 if continues else 3)
    worker.ack(1)
    worker.gets(eventually, "abcd")
    still()
    assert worker.adapter.consumers() == (1 if continues else 3)
    for number in (2, 3, 4):
        worker.ack(number)
    eventually(lambda: worker.adapter.consumers() == 1)
    assert worker.lost == []


def test_a_prefetch_that_shrank_below_what_is_held_brings_no_message_that_goes_straight_back(
    client: Callable[[], Client], eventually: Eventually
) -> None:
    """A quorum queue answers each settlement with one more message, however many its continued consumer holds."""
    worker = client()
    send(worker, "abcde")
    worker.adapter.prefetch(3)
    worker.gets(eventually, "abc")
    worker.adapter.prefetch(1)
    for number in (1, 2):
        worker.ack(number)
        still()
        assert len(worker.deliveries) == 3
    worker.ack(3)
    worker.gets(eventually, "abcd")
    worker.ack(4)
    worker.gets(eventually, "abcde")
    assert [delivery.redelivered for delivery in worker.deliveries] == [Redelivered.NO] * 5


def test_what_the_broker_delivers_over_the_prefetch_is_released_once(
    client: Callable[[], Client], vhost: Vhost, eventually: Eventually
) -> None:
    """The consumer ends before the release; otherwise the message comes here again and again, up to its delivery limit."""
    worker = client()
    worker.adapter.prefetch(4)
    consumer = worker.adapter._consumer
    epoch = eventually(lambda: consumer._epoch)
    eventually(lambda: epoch._consuming and not epoch._changing)
    consumer._window = epoch._prefetch = 1  # the broker believes in 4
    send(worker, "ab")
    still()
    worker.gets(eventually, "a")
    with channel(vhost) as raw:
        _, properties, _ = raw.basic_get("exports")
    counts = [(properties.headers or {}).get(name, 0) for name in ("x-acquired-count", "x-delivery-count")]
    assert sorted(counts) == [0, 1], "released once, whatever this version calls it"
    worker.ack(1)
    worker.gets(eventually, "ab")


@pytest.mark.parametrize("kind", ["classic", "single active consumer"])
def test_another_queue_gets_a_consumer_with_a_new_tag(
    client: Callable[[], Client], vhost: Vhost, eventually: Eventually, kind: str
) -> None:
    """A classic queue counts no cancelled consumer; with a single active consumer, a continued one would never get a message."""
    with channel(vhost) as raw:
        raw.queue_declare(
            "exports", durable=True, arguments={"x-queue-type": "classic"} if kind == "classic" else SINGLE
        )
    first, second = client(), client()
    send(first, "abcdef")
    first.adapter.prefetch(1)
    first.gets(eventually, "a")
    assert first.adapter.capabilities.most_consumers == (1 if kind == "classic" else SPEC.concurrency)
    first.adapter.prefetch(0)
    eventually(lambda: first.adapter.consumers() == (0 if kind == "classic" else 1))
    second.adapter.prefetch(1)
    second.gets(eventually, "b")
    first.adapter.prefetch(2)
    if kind == "classic":
        first.gets(eventually, "ac")
    still()
    second.adapter.prefetch(0)
    first.gets(eventually, "ac")
    first.ack(1)
    first.gets(eventually, "acd")
