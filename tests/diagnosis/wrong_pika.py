"""Provocations of pika: what its users do wrong, and what the network does to it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pika
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel

from tests.brokers.process import free_ports
from tests.diagnosis.provocation import GONE, NEWEST, Scene, as_logged, case, queue
from tests.faults.proxy import Proxy

DAMAGED = (
    "pop from an empty deque",
    "_initate_abort() expected",
    "tx buffer size underflow",
    "_CallbackResult was not set",
)
"""What pika says when its own buffers are damaged; mostly, but not always, it does so before the broker closes the connection."""


def two_threads(scene: Scene) -> None:
    """Threads that publish on one connection, until it breaks; again, until pika notices it itself."""
    for _ in range(30):
        share(scene)
        if any(mark in text for text in scene.texts for mark in DAMAGED):
            return
    raise AssertionError(f"expected one of {DAMAGED}, got {scene.texts}")


def share(scene: Scene) -> None:
    """Let six threads use one connection until one of them fails."""
    with suppress(Exception), scene.connection() as connection:
        channel = connection.channel()
        name = queue(channel, "shared")
        told: list[str] = []
        ends = time.monotonic() + 20

        def publish() -> None:
            try:
                while time.monotonic() < ends and not told:
                    channel.basic_publish("", name, b"x" * 100)
                    connection.process_data_events(time_limit=0)
            except Exception as error:  # noqa: BLE001  # whatever comes of it is what is looked for
                told.append(as_logged(error))

        threads = [threading.Thread(target=publish) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        scene.keep(*told)


def closed_connection(scene: Scene) -> None:
    connection = pika.BlockingConnection(scene.parameters())
    connection.close()
    scene.fails(connection.channel)


def closed_channel(scene: Scene) -> None:
    with scene.channel() as channel:
        channel.close()
        scene.fails(lambda: channel.basic_ack(1))


@contextmanager
def listener(answer: bytes | None) -> Iterator[int]:
    """Yield a port whose peer answers so and closes, or says nothing at all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = server.accept()
                    taken.append(accepted)
                    if answer is not None:
                        accepted.recv(8)
                        accepted.sendall(answer)
                        accepted.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        for one in taken:
            one.close()


def at(scene: Scene, port: int, **changes: object) -> None:
    scene.fails(lambda: pika.BlockingConnection(scene.parameters(port=port, **changes)))


def no_broker(scene: Scene) -> None:
    (port,) = free_ports(1)
    at(scene, port)


def closing_peer(scene: Scene) -> None:
    """What accepts and closes: a proxy without a broker behind it."""
    with listener(b"") as port:
        at(scene, port)


def tls_port(scene: Scene) -> None:
    at(scene, scene.node.amqps)


def silent_peer(scene: Scene) -> None:
    with listener(None) as port:
        at(scene, port, stack_timeout=1)


def no_such_host(scene: Scene) -> None:
    scene.fails(lambda: pika.BlockingConnection(scene.parameters(host="rabbit.invalid")))


def unroutable(scene: Scene) -> None:
    with scene.channel() as channel:
        channel.confirm_delivery()
        scene.fails(lambda: channel.basic_publish("", "nosuch", b"", mandatory=True))


def nacked(scene: Scene) -> None:
    """A full queue that refuses."""
    with scene.channel() as channel:
        channel.confirm_delivery()
        queue(channel, "short", x_max_length=1, x_overflow="reject-publish")
        channel.basic_publish("", "short", b"")
        scene.fails(lambda: channel.basic_publish("", "short", b""))


def consumer_tag(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel)
        channel.basic_consume("work", lambda *_: None, consumer_tag="worker-1")
        scene.fails(lambda: channel.basic_consume("work", lambda *_: None, consumer_tag="worker-1"))


def reentrant(scene: Scene) -> None:
    with scene.channel() as channel:
        queue(channel, "again")
        channel.basic_publish("", "again", b"")

        def handle(inner: BlockingChannel, *_: object) -> None:
            scene.fails(inner.start_consuming)
            inner.stop_consuming()

        channel.basic_consume("again", handle, auto_ack=True)
        channel.start_consuming()


def no_channels(scene: Scene) -> None:
    with scene.connection(channel_max=2) as connection:
        connection.channel()
        connection.channel()
        scene.fails(connection.channel)


def long_name(scene: Scene) -> None:
    with scene.channel() as channel:
        scene.fails(lambda: channel.basic_publish("", "é" * 128, b""))


def odd_header(scene: Scene) -> None:
    with scene.channel() as channel:
        headers: dict[str, Any] = {"price": {1, 2}}
        properties = spec.BasicProperties(headers=headers)
        scene.fails(lambda: channel.basic_publish("", "work", b"", properties))


def frozen_broker(scene: Scene) -> None:
    """A broker that answers no more: pika looks every heartbeat + 5 s."""
    with scene.connection(heartbeat=1) as connection:
        scene.node.freeze()
        try:
            scene.fails(lambda: connection.process_data_events(time_limit=60))
        finally:
            scene.node.thaw()


def lost_peer(scene: Scene) -> None:
    """A peer that ends the connection without a word."""
    with Proxy(scene.vhost.url) as proxy, scene.connection(port=proxy.port) as connection:
        proxy.close()
        scene.fails(lambda: connection.process_data_events(time_limit=30))


def zombie(scene: Scene) -> None:
    """As of 4.3: the broker cancels the consumer of a delivery that took too long, and a late acknowledgement wakes it."""
    with scene.channel() as channel:
        queue(channel, "slow", x_queue_type="quorum")
        channel.basic_publish("", "slow", b"")
        taken: list[int] = []
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(
            "slow",
            lambda _, method, *__: taken.append(method.delivery_tag),
            arguments={"x-consumer-timeout": 300},
        )
        while channel.consumer_tags:
            channel.connection.process_data_events(time_limit=0.1)
        channel.basic_ack(taken[0])
        channel.basic_publish("", "slow", b"")
        while not any("Unexpected delivery" in text for text in scene.texts):
            channel.connection.process_data_events(time_limit=0.1)


CASES = [
    case(
        two_threads,
        "",
        "pika.shared-between-threads",
        "amqp.interleaved-frames amqp.invalid-frame-end amqp.unknown-frame-type amqp.frame-too-large amqp.dead-channel "
        f"amqp.bad-arguments amqp.bad-method amqp.connection-error {GONE} pika.channel-closed "
        "pika.connection-closed pika.stream-lost",
    ),
    case(closed_connection, "", "pika.connection-closed"),
    case(closed_channel, "", "pika.channel-closed"),
    case(no_broker, "", "network.connection-refused"),
    case(closing_peer, "", "pika.not-amqp"),
    case(tls_port, "amqp.plain-on-tls-port", "pika.not-amqp"),
    case(silent_peer, "", "pika.handshake-timeout"),
    case(no_such_host, "", "network.unknown-host"),
    case(unroutable, "", "pika.unroutable"),
    case(nacked, "", "pika.nacked"),
    case(consumer_tag, "", "pika.duplicate-consumer-tag"),
    case(reentrant, "", "pika.reentrant"),
    case(no_channels, "", "pika.no-free-channels"),
    case(long_name, "", "pika.name-too-long"),
    case(odd_header, "", "pika.unsupported-value"),
    case(frozen_broker, GONE, "pika.heartbeat-timeout"),
    case(lost_peer, GONE, "pika.stream-lost"),
    case(zombie, "", "pika.consumer-timeout-zombie", series=NEWEST),
]
