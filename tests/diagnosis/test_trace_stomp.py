"""What a trace in front of a real ActiveMQ sees and flags: each story on a connection of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.brokers.stomp_broker import StompBroker
from tests.brokers.stomp_client import StompClient, StompError
from tests.diagnosis.traced import Traced

CLASSIC = pytest.mark.parametrize("stomp_kind", ["classic"], indirect=True)


@pytest.fixture
def trace(stomp_broker: StompBroker) -> Iterator[Traced]:
    with Traced(stomp_broker.url) as traced:
        yield traced


def test_a_clean_connection_has_its_events_and_no_flag(trace: Traced, stomp_broker: StompBroker, queue: str) -> None:
    with StompClient(trace.through(), headers={"heart-beat": "20000,30000"}) as client:
        client.subscribe(queue)
        client.send(queue, b"the body of a message", {"token": "s3cret"})
        client.ack(client.message())
        client.disconnect()
    trace.wait_kind("close", who="client")
    trace.stop()

    assert trace.flags() == []
    frames = [(event["from"], event["name"]) for event in trace.of("frame")]
    assert frames[:2] == [("client", "CONNECT"), ("broker", "CONNECTED")]
    assert ("broker", "MESSAGE") in frames
    assert ("client", "ACK") in frames
    (tuned,) = trace.of("tuned")
    assert (tuned["heartbeat_client"], tuned["heartbeat_broker"]) == (20, 30)
    written = json.dumps(trace.events)
    for secret in ("s3cret", "body of a message", "passcode", stomp_broker.url.partition(":")[2].partition("@")[0][2:]):
        assert secret not in written


@CLASSIC
def test_a_client_id_that_is_taken(trace: Traced, queue: str) -> None:
    taken = {"client-id": f"worker-{queue}"}
    with StompClient(trace.through(), headers=taken), pytest.raises((StompError, EOFError)):
        StompClient(trace.through(), headers=taken)

    flag = trace.wait_flag("stomp.client-id-taken")
    assert flag["conn"] == 2
    assert flag["evidence"][0]["client id"] == f"worker-{queue}"
    assert flag["evidence"][0]["connection"] == 1
    assert "connection 1 of this trace" in flag["what"]
    trace.wait_kind("close", conn=2)
    assert trace.flags() == ["stomp.client-id-taken"]


@CLASSIC
def test_a_missed_heartbeat(trace: Traced) -> None:
    """The client agreed to 500 ms, and is silent; Classic has no grace."""
    with StompClient(trace.through(), headers={"heart-beat": "500,0"}) as client, pytest.raises(EOFError):
        client.receive()
    trace.wait_kind("close", who="broker")

    flag = trace.wait_flag("stomp.late-heartbeat", level="error")
    assert flag["what"].endswith("and the broker closed the connection.")
    gap = trace.wait_kind("gap", **{"from": "client"})
    assert gap["allowed"] == 0.5
    assert gap["seconds"] > 0.5


def test_a_second_ack(trace: Traced, queue: str) -> None:
    with StompClient(trace.through()) as client:
        client.subscribe(queue)
        client.send(queue, b"{}")
        message = client.message()
        client.ack(message)
        with suppress(StompError, EOFError):
            client.ack(message)
        trace.wait_flag("stomp.double-ack")
        assert trace.flags() == ["stomp.double-ack"]


def test_an_unsubscribe_of_nothing(trace: Traced) -> None:
    with StompClient(trace.through()) as client:
        with suppress(StompError, EOFError):
            client.unsubscribe("no-such")
        flag = trace.wait_flag("stomp.unknown-subscription")
    assert "no-such" in flag["what"]


def test_a_frame_that_a_close_cuts(trace: Traced, queue: str) -> None:
    with StompClient(trace.through()) as client:
        client.send_raw(f"SEND\ndestination:/queue/{queue}\ncontent-length:94\n\n{{}}".encode())
    flag = trace.wait_flag("stomp.frame-cut")
    assert flag["what"].startswith("The client closed its direction in the middle of a frame")


def test_a_content_length_of_characters_instead_of_bytes(trace: Traced, queue: str) -> None:
    body = "Zürich – São Paulo"
    with StompClient(trace.through()) as client:
        client.send_raw(f"SEND\ndestination:/queue/{queue}\ncontent-length:{len(body)}\n\n{body}\0".encode())
        flag = trace.wait_flag("stomp.content-length")
    assert "instead of NUL behind a body of 18 bytes" in flag["what"]
    assert flag["remedy"].startswith("Count the encoded bytes")
