"""
Messages whose content STOMP does not show: the broker keeps the only copy, and no step of ours may destroy it.

A JMS map is sent by Classic's own transformation, and on Artemis by its management, in the encoding of its clients.
The witnesses are JMX, which shows the content, and a client with the transformation.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steadyworker.actions.deadletters import DeadLetterQueue
from steadyworker.adapter import Delivery, QueueSpec, Settings, Settle, Settled
from steadyworker.clock import SystemClock, Times
from steadyworker.delivery import KEY
from steadyworker.errors import SteadyWorkerError, Unsettled
from steadyworker.testing.memory_ledger import MemoryLedger
from steadyworker_stomp import StompAdapter
from tests.adapters.stomp_kit import Worker, work
from tests.brokers import stomp_client
from tests.brokers.activemq import classic_program
from tests.brokers.jms import MAP, OBJECT, STREAM, content, kinds, managed, map_of, send_map, transformed
from tests.brokers.maven import java
from tests.brokers.process import free_ports
from tests.brokers.stomp_broker import StompBroker
from tests.brokers.stomp_node import StompNode

Eventually = Callable[..., Any]
CLASSIC_ONLY = pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)
ARTEMIS_ONLY = pytest.mark.parametrize("stomp_kind", ["artemis"], indirect=True)


@pytest.fixture
def worker(stomp_broker: StompBroker, queue: str) -> Iterator[Worker]:
    made = Worker(stomp_broker.url, queue)
    yield made
    made.adapter.stop(10)


def unshown(worker: Worker, number: int = 1) -> Delivery:
    """The next delivery, which must report that its content did not arrive."""
    found = worker.delivery(number)
    assert found.unshown is not None
    assert "expected text or bytes, got a JMS map, object or stream message" in found.unshown
    assert found.unreadable is None
    return found


@CLASSIC_ONLY
@pytest.mark.parametrize("kind", ["map", "object"])
def test_a_rejected_message_goes_unchanged_to_the_brokers_own_dead_letters(
    stomp_broker: StompBroker, queue: str, worker: Worker, kind: str
) -> None:
    """Even if it is to be acknowledged; the next job comes, and the connection stays."""
    transformed(stomp_broker, queue, kind)
    transformed(stomp_broker, queue, kind)
    worker.start()
    worker.adapter.publish(work("k-2"))
    for number, how in ((1, Settle.REJECT), (2, Settle.ACK)):
        assert worker.adapter.settle(unshown(worker, number), how) is Settled.CONFIRMED
        assert stomp_broker.dead(queue) == number
    assert worker.delivery(3).headers[KEY] == "k-2"
    assert worker.adapter.settle(worker.delivery(3), Settle.ACK) is Settled.CONFIRMED
    letters = [text for text in content(stomp_broker, "ActiveMQ.DLQ") if f"queue://{queue}" in text]
    assert len(letters) == 2
    assert kind == "object" or all("harbour" in text for text in letters)
    assert stomp_broker.counts(queue).waiting == 0
    assert len(worker.deliveries) == 3


@pytest.mark.slow
@CLASSIC_ONLY
def test_each_kind_of_message_of_a_jms_client(stomp_node: StompNode, queue: str) -> None:
    """Map, stream, object and a message without a body are not shown; text and bytes are, also if the bytes are none."""
    (port,) = free_ports(1)
    (broker,) = stomp_node.jolokia.search("org.apache.activemq:type=Broker,brokerName=*")
    url = f"tcp://127.0.0.1:{port}"
    name = stomp_node.jolokia.execute(broker, "addConnector(java.lang.String)", url)
    sender = Path(stomp_client.__file__).with_name("JmsSender.java")
    program = [
        java(),
        "-cp",
        f"{classic_program('6.3')}/lib/*",
        sender,
        url,
        stomp_node.user,
        stomp_node.password,
        queue,
    ]
    worker = Worker(stomp_node.url, queue)
    try:
        subprocess.run([*map(str, program)], check=True)
        worker.start()
        found = []
        for number in range(1, 8):
            found.append(worker.delivery(number))
            worker.adapter.settle(found[-1], Settle.ACK)
    finally:
        worker.adapter.stop(10)
        stomp_node.jolokia.execute(broker, "removeConnector(java.lang.String)", name)
    assert [each.unshown is None for each in found] == [False] * 4 + [True] * 3
    assert [each.body for each in found[4:]] == [b"harbour", b"harbour", b""]
    assert stomp_node.dead(queue) == 4


@ARTEMIS_ONLY
def test_a_rejected_message_stays_in_the_queue_and_the_others_pass_it(
    stomp_broker: StompBroker, queue: str, worker: Worker, eventually: Eventually
) -> None:
    """No consumer gets it while this one lives; at a prefetch of 0 and at a stop it goes back, and no delivery is counted."""
    for number in (1, 2, 8):
        managed(stomp_broker, queue, MAP, map_of(number))
    worker.start()
    for number in (1, 2, 3):
        assert worker.adapter.settle(unshown(worker, number), (Settle.REJECT, Settle.ACK)[number % 2]) is Settled.SENT
    with stomp_broker.client() as other:
        other.subscribe(queue)
        for key in ("k-1", "k-2"):
            worker.adapter.publish(work(key))
        theirs = other.message()
        other.ack(theirs)
    ours = worker.delivery(4)
    assert {theirs.headers[KEY], ours.headers[KEY]} == {"k-1", "k-2"}
    worker.adapter.publish(work("k-3"))
    assert worker.adapter.settle(ours, Settle.ACK) is Settled.CONFIRMED
    assert worker.delivery(5).headers[KEY] == "k-3"
    assert worker.adapter.settle(worker.delivery(5), Settle.ACK) is Settled.CONFIRMED
    counts = stomp_broker.counts(queue)
    assert (counts.waiting, counts.delivering) == (0, 3)
    worker.adapter.prefetch(0)
    eventually(lambda: stomp_broker.consumers(queue) == 0)
    assert kinds(stomp_broker, queue) == [MAP] * 3
    worker.adapter.prefetch(1)
    assert unshown(worker, 6).message_id in {each.message_id for each in worker.deliveries[:3]}
    worker.adapter.stop(10)
    assert kinds(stomp_broker, queue) == [MAP] * 3


@ARTEMIS_ONLY
def test_16_rejected_messages_are_kept_and_no_more_until_the_prefetch_is_0(
    stomp_broker: StompBroker, queue: str, worker: Worker, eventually: Eventually
) -> None:
    """The others stay for other consumers; the broker counts one consumer until the prefetch has been 0 for a while."""
    for _ in range(18):
        managed(stomp_broker, queue, MAP, map_of(1))
    worker.start()
    for number in range(1, 17):
        assert worker.adapter.settle(unshown(worker, number), Settle.REJECT) is Settled.SENT
    assert "got 16 messages whose content Artemis does not send over STOMP" in worker.unreachable().cause
    eventually(lambda: stomp_broker.counts(queue).delivering == 16)
    assert kinds(stomp_broker, queue) == [MAP] * 2
    assert worker.adapter.consumers() == 1
    worker.adapter.prefetch(0)
    worker.connected(2)
    eventually(lambda: worker.adapter.consumers() == 0)
    assert kinds(stomp_broker, queue) == [MAP] * 18
    assert len(worker.deliveries) == 16


@ARTEMIS_ONLY
def test_what_is_text_or_bytes_is_shown_and_what_is_neither_is_not(
    stomp_broker: StompBroker, queue: str, worker: Worker
) -> None:
    """As far as Artemis lets a client see it: bytes may be empty, and may begin with NUL."""
    with stomp_broker.client() as client:
        for body in (b"", b"\0\1bytes"):
            client.send(queue, body)
        to = {"destination": queue, "destination-type": "ANYCAST", "persistent": "true"}
        client.send_frame("SEND", to, b"a text", receipt=True)
        client.send_frame("SEND", to, b"", receipt=True)
    managed(stomp_broker, queue, OBJECT, struct.pack(">i", 3) + b"abc")
    managed(stomp_broker, queue, STREAM, b"\x06" + struct.pack(">q", 5))
    worker.start()
    found = []
    for number in range(1, 7):
        found.append(worker.delivery(number))
        worker.adapter.settle(found[-1], Settle.ACK)
    assert [each.body for each in found[:3]] == [b"", b"\0\1bytes", b"a text"]
    assert [each.unshown is None for each in found] == [True] * 3 + [False] * 3


@CLASSIC_ONLY
def test_a_message_that_classic_would_drop_is_named(stomp_broker: StompBroker, queue: str, worker: Worker) -> None:
    """Its dead-letter strategy ignores messages that are not persistent, as it is shipped."""
    transformed(stomp_broker, queue, persistent="false")
    worker.start()
    assert "as it is not persistent, the broker drops it by default" in (unshown(worker).unshown or "")


@pytest.mark.parametrize("stomp_kind", ["classic", "artemis"], indirect=True)
def test_a_letter_whose_content_did_not_arrive_is_neither_replayed_nor_dropped(
    stomp_broker: StompBroker, queue: str
) -> None:
    """It is listed with the reason; with --all, the other letters are replayed; a reader that is killed makes no copy of it."""
    dead = f"{queue}.dead"
    adapter = StompAdapter(f"{stomp_broker.url}?dlq={queue}.moved", QueueSpec(queue, dead), Settings())
    try:
        with stomp_broker.client() as client:
            client.send(dead, b"{}", {KEY: "k-1", "sw-uid": "1"})
        send_map(stomp_broker, dead)
        with stomp_broker.client() as killed:
            for number in ("0", "1"):
                killed.subscribe(dead, number)
            assert {killed.message().command for _ in range(2)} == {"MESSAGE"}
        letters = DeadLetterQueue(adapter.dead_letters, MemoryLedger(SystemClock(), Times()), adapter.identity(), queue)
        (theirs,) = [letter for letter in letters.letters() if letter.unshown]
        assert "got a JMS map, object or stream message" in theirs.unshown
        for act in (letters.replay, letters.drop):
            with pytest.raises(SteadyWorkerError, match=f"got 1 without it \\({theirs.key}\\): expected text or bytes"):
                act([theirs.key])
        assert [each.key for each in letters.replay()] == ["k-1"]
        assert letters.drop() == []
        assert [letter.key for letter in letters.unshown] == [theirs.key]
        with adapter.dead_letters() as opened:
            (letter,) = opened
            with pytest.raises(Unsettled, match="whose content arrived"):
                opened.drop(letter)
    finally:
        adapter.stop(5)
    if stomp_broker.is_artemis:
        assert kinds(stomp_broker, dead) == [MAP]
    else:
        assert ["harbour" in text for text in content(stomp_broker, dead)] == [True]
