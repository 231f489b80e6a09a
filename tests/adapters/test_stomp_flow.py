"""
One frame at a time: what a slow consumer leaves in sockets, in the broker and in memory, and what a stop costs.

The failure that this adapter repairs: without a prefetch, the broker fills the sockets of both machines; then it no longer
reads acknowledgements, a write breaks in the middle of a frame, and messages of finished jobs come again.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from steadyworker.adapter import Lost, Settle, Settled
from steadyworker.delivery import KEY
from steadyworker.errors import MessageRefused, PublishFailed
from tests.adapters.stomp_kit import Worker, work
from tests.brokers.activemq import connector
from tests.brokers.stomp_broker import StompBroker
from tests.conftest import Eventually
from tests.faults.proxy import Proxy

OpenWorker = Callable[..., Worker]

HEARTBEATS = 8
"""Bytes of heart-beats that can be on their way at any moment."""


@pytest.fixture
def open_worker(stomp_broker: StompBroker, queue: str) -> Iterator[OpenWorker]:
    """Workers of this test's queue; stopped at its end."""
    workers: list[Worker] = []

    def another(url: str = stomp_broker.url, prefetch: int = 1) -> Worker:
        workers.append(Worker(url, queue, prefetch))
        return workers[-1]

    yield another
    for worker in workers:
        worker.adapter.stop(10)


def in_sockets(worker: Worker) -> int:
    """Return the bytes that wait in the sockets of both ends of the worker's consuming connection."""
    link: Any = worker.adapter._consumer.link
    sock = link.connection._transport._sock
    # Both ports, because a connection to another server can have ours, too.
    ours, theirs = sock.getsockname()[1], sock.getpeername()[1]
    ends = f"( sport = :{ours} and dport = :{theirs} ) or ( sport = :{theirs} and dport = :{ours} )"
    lines = subprocess.run(
        ["ss", "--tcp", "--numeric", "--no-header", "state", "established", ends],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(lines) == 2, "expected both ends of one connection"
    return sum(int(count) for line in lines for count in line.split()[:2])


def test_a_slow_consumer_has_one_message_and_all_else_waits_in_the_queue(
    stomp_broker: StompBroker, queue: str, open_worker: OpenWorker
) -> None:
    """1,500 messages of 100 kB, each job takes a second: sockets stay empty, acks are read at once, memory stays flat."""
    count, body = 1_500, bytes(100_000)
    with stomp_broker.client() as client:
        for number in range(count):
            # Not persistent, because the disk is no part of the question.
            client.send(queue, body, {KEY: f"k-{number}", "persistent": "false"}, receipt=number == count - 1)
    process = psutil.Process()
    worker = open_worker().start()
    worker.delivery()
    before = process.memory_info().rss
    for number in range(1, 6):
        held = worker.delivery(number)
        time.sleep(0.2)  # until the kernel has confirmed the last bytes of the message
        ends = time.monotonic() + 0.8
        while time.monotonic() < ends:
            assert in_sockets(worker) < HEARTBEATS
            time.sleep(0.1)
        assert len(worker.deliveries) == number
        counts = stomp_broker.counts(queue)
        assert (counts.delivering, counts.waiting) == (1, count - number)
        began = time.monotonic()
        assert worker.adapter.settle(held, Settle.ACK) is Settled.CONFIRMED
        assert time.monotonic() - began < 1.0
    assert process.memory_info().rss - before < 20 << 20
    assert worker.all(Lost) == []


@pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)
def test_twenty_stops_with_a_job_in_hand_are_no_failed_deliveries(
    stomp_broker: StompBroker, queue: str, open_worker: OpenWorker
) -> None:
    """Artemis counts a connection that ends with a message in hand; the tenth would move the message to its dead letters."""
    sender = open_worker()
    sender.adapter.publish(work())
    for _ in range(20):
        worker = open_worker().start()
        worker.delivery()
        worker.adapter.stop(10)
    assert stomp_broker.dead(queue) == 0
    last = open_worker().start()
    assert last.adapter.settle(last.delivery(), Settle.ACK) is Settled.CONFIRMED
    assert stomp_broker.depth(queue) == 0


def test_what_is_released_goes_to_another_consumer_and_the_others_stay(
    stomp_broker: StompBroker, queue: str, open_worker: OpenWorker
) -> None:
    """Fourteen times, one of four deliveries; the other three stay valid, and no delivery is counted."""
    one = open_worker(prefetch=4).start()
    one.connected()
    for number in range(4):
        one.adapter.publish(work(f"k-{number}"))
    one.delivery(4)
    held = {delivery.headers[KEY]: delivery for delivery in one.deliveries}
    one.adapter.prefetch(3)
    two = open_worker(prefetch=1).start()
    two.connected()
    given = held.pop("k-0")
    assert one.adapter.settle(given, Settle.RELEASE) is Settled.CONFIRMED
    for number in range(1, 14):
        theirs = two.delivery(number)
        assert theirs.headers[KEY] == "k-0"
        assert two.adapter.settle(theirs, Settle.RELEASE) is Settled.CONFIRMED
    last = two.delivery(14)
    assert two.adapter.settle(last, Settle.ACK) is Settled.CONFIRMED
    for delivery in held.values():
        assert one.adapter.settle(delivery, Settle.ACK) is Settled.CONFIRMED
    counts = stomp_broker.counts(queue)
    assert (counts.waiting, counts.delivering, stomp_broker.dead(queue)) == (0, 0, 0)
    assert len(one.deliveries) == 4


@pytest.mark.usefixtures("queue")
def test_a_smaller_prefetch_ends_what_is_free_and_keeps_what_is_held(
    stomp_broker: StompBroker, queue: str, open_worker: OpenWorker
) -> None:
    worker = open_worker(prefetch=3).start()
    worker.connected()
    worker.adapter.publish(work("k-1"))
    held = worker.delivery()
    worker.wait(lambda: stomp_broker.consumers(queue) == 3, "3 subscriptions")
    worker.adapter.prefetch(0)
    worker.wait(lambda: stomp_broker.consumers(queue) == 1, "only the subscription of the held delivery")
    worker.adapter.publish(work("k-2"))
    assert worker.adapter.settle(held, Settle.ACK) is Settled.CONFIRMED
    worker.wait(lambda: stomp_broker.consumers(queue) == 0, "no subscription")
    worker.wait(lambda: stomp_broker.counts(queue).waiting == 1, "one waiting message, which Classic counts late")
    worker.adapter.prefetch(2)
    assert worker.delivery(2).headers[KEY] == "k-2"


@pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)
def test_a_frame_above_the_brokers_limit_is_refused_for_good_and_any_other_error_is_not(
    stomp_broker: StompBroker, open_worker: OpenWorker, eventually: Eventually
) -> None:
    """Classic names no frame in its error, so a message is only judged if it was alone on the connection."""
    with connector(stomp_broker, "wireFormat.maxFrameSize=20000") as url, Proxy(url) as proxy:
        adapter = open_worker(proxy.url).adapter
        with pytest.raises(MessageRefused, match="maxFrameSize") as refused:
            adapter.publish(work(body=b"x" * 30_000))
        assert refused.value.id == "stomp.frame-too-large"
        adapter.publish(work())
        with ThreadPoolExecutor(2) as pool:
            proxy.hold("up")
            sent = [pool.submit(adapter.publish, work(f"k-{number}", b"x" * 30_000)) for number in range(2)]
            eventually(lambda: len(adapter._publisher._flights) == 2)
            proxy.resume()
            errors = [each.exception() for each in sent]
        assert [type(error) for error in errors] == [PublishFailed] * 2
        adapter.publish(work())
