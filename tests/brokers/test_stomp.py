"""Classic and Artemis do what the tests of the STOMP adapter build on."""

from __future__ import annotations

from tests.brokers.stomp_broker import StompBroker
from tests.brokers.stomp_node import StompNode


def test_a_message_comes_back(stomp_broker: StompBroker, queue: str) -> None:
    with stomp_broker.client() as client:
        client.send(queue, b"m-17", {"a:b": "c\nd"})
        client.subscribe(queue)
        message = client.message()
        client.ack(message)

        assert (message.body, message.headers["a:b"]) == (b"m-17", "c\nd")
        assert stomp_broker.counts(queue).delivering == 0


def test_n(stomp_node: StompNode, queue: str) -> None:
    with stomp_node.client() as client:
        client.send(queue, b"m-17")
    stomp_node.kill()
    stomp_node.start()
    with stomp_node.client() as client:
        client.subscribe(queue)
        assert client.message().body == b"m-17"
