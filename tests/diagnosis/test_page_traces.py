"""The page of traces in front of real brokers: each of the five stories, from the bytes to the sentence at the top."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import pytest
from pamqp import commands, frame

from steadyworker.diagnosis import conversation
from tests.brokers.rabbitmq import Vhost
from tests.brokers.stomp_broker import StompBroker
from tests.brokers.stomp_client import StompClient, StompError
from tests.diagnosis.amqp_client import OPENING, AmqpClient, publish
from tests.diagnosis.page_kit import check, headline, page_of, page_text
from tests.diagnosis.traced import Traced

WAIT = r"(and the broker closed the connection at once|[\d.]+ m?s before the broker closed the connection)\."


@pytest.fixture
def trace(vhost: Vhost) -> Iterator[Traced]:
    with Traced(vhost.url) as traced:
        yield traced


def page_when_ended(trace: Traced) -> str:
    """The page of the trace, when a side has closed."""
    trace.wait_kind("close")
    trace.stop()
    page = page_of(trace.events)
    check(page)
    return page


def test_a_second_header(trace: Traced) -> None:
    with AmqpClient(trace.through()) as client:
        queue = client.queue(*[b"x"] * 20)
        client.consume(queue)
        for _ in range(20):
            client.method(commands.Basic.Ack(client.expect(commands.Basic.Deliver).delivery_tag))
        client.send(OPENING)
        client.refused()
        client.closed()

    page = page_when_ended(trace)

    said = r"The client sent a second protocol header, \d+ bytes behind the first, "
    assert re.fullmatch(said + WAIT, headline(page))
    text = page_text(page)
    assert "channel 19793 4D 51 MQ size 1342177289 50 00 00 09" in text
    assert "together AMQP protocol header" in text
    assert "{frame_too_large,1342177289,131064}” (code 501)" in text
    assert "20 deliveries 20 acks 20 messages sent" in text
    assert "RabbitMQ" in text


def test_a_missed_heartbeat(trace: Traced) -> None:
    with AmqpClient(trace.through(), heartbeat=1) as client:
        client.consume(client.queue(b"x"))
        client.expect(commands.Basic.Deliver)
        client.closed()

    page = page_when_ended(trace)

    assert re.fullmatch(r"The client sent nothing for [\d.]+ s, and had agreed to a heartbeat of 1 s\.", headline(page))
    text = page_text(page)
    assert re.search(r"No byte from the client for [\d.]+ s\. 1 s were allowed\.", text)
    assert "a heartbeat of 1 s (the broker proposed 60 s)" in text
    assert "1 delivery had no ack when the connection ended, so the broker delivers it again." in text


def test_two_threads_on_one_channel(trace: Traced) -> None:
    with AmqpClient(trace.through()) as client:
        queue = client.queue()
        client.send(frame.marshal(commands.Basic.Publish(routing_key=queue), 1) + publish(queue, b"x"))
        client.refused()
        client.closed()

    page = page_when_ended(trace)

    assert re.fullmatch(r"The client mixed the frames of two messages on channel 1, " + WAIT, headline(page))
    assert "UNEXPECTED_FRAME - expected content header for class 60" in page_text(page)
    assert "Two threads write to this connection." in page_text(page)


def test_a_client_that_reads_no_more(trace: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "STUCK", 1.0)
    with AmqpClient(trace.through()) as client, AmqpClient(trace.through(), rcvbuf=16_384) as frozen:
        queue = frozen.queue()
        frozen.consume(queue)
        for size in [100] * 300 + [60_000] * 200:
            client.publish(queue, bytes(size))
        trace.wait_flag("amqp.peer-not-reading")
    trace.wait_kind("close", conn=2)

    page = page_when_ended(trace)

    assert re.fullmatch(r"The client has read nothing for [\d.]+ s, and [\d.]+ [KM]iB wait for it\.", headline(page))
    text = page_text(page)
    assert "Waiting to be read by the client: peak" in text
    assert "Deliveries without an ack: peak" in text
    assert "its consumer has no prefetch" in text, list(trace.of("flag"))
    assert "All connections" in text


@pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)
def test_a_client_id_that_is_taken(stomp_broker: StompBroker, queue: str) -> None:
    taken = {"client-id": f"worker-{queue}"}
    with Traced(stomp_broker.url) as trace:
        with StompClient(trace.through(), headers=taken), suppress(StompError, EOFError):
            StompClient(trace.through(), headers=taken)
        trace.wait_kind("close", conn=2)

        page = page_when_ended(trace)

    assert headline(page).startswith(f"The broker refused the client id 'worker-{queue}'")
    text = page_text(page)
    assert "Connection 1 of this trace" in text
    assert "already connected" in text
    assert f"What to do {trace.of('flag')[0]['remedy']}" in text
