"""
Provokes py-amqp and kombu: prints "## NAME" and then what the library says.

Usage: AMQP_URL=amqp://… python wrong_amqp.py
"""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

import amqp
import kombu

URL = urlsplit(os.environ["AMQP_URL"])


def fails(name: str, act: Callable[[], object]) -> None:
    try:
        act()
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is printed
        print(f"## {name}", "".join(traceback.format_exception_only(error)).strip(), sep="\n", flush=True)


def connect(port: int = URL.port or 5672, **changes: object) -> amqp.Connection:
    settings = {"userid": URL.username, "password": URL.password, "connect_timeout": 5, **changes}
    connection = amqp.Connection(f"127.0.0.1:{port}", virtual_host=unquote(URL.path[1:]), **settings)
    connection.connect()
    return connection


class Forwarder:
    """A port that forwards to the broker; `near` is the newest client's socket, and `deaf` lets nothing come back."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.server.getsockname()[1])
        self.deaf = False
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self.near, _ = self.server.accept()
            far = socket.create_connection(("127.0.0.1", URL.port or 5672))
            for source, target in ((self.near, far), (far, self.near)):
                threading.Thread(target=self._pump, args=(source, target, source is far), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        try:
            while data := source.recv(65536):
                if not (back and self.deaf):
                    target.sendall(data)
        except OSError:
            pass

    def connect(self, **changes: object) -> amqp.Connection:
        return connect(self.port, **changes)


def opening() -> None:
    fails("password", lambda: connect(password="wrong"))
    fails("refused", lambda: connect(1))


def channels() -> None:
    connection = connect(confirm_publish=True)
    channel = connection.channel()
    fails("no-queue", lambda: channel.queue_declare("nosuch", passive=True))
    channel = connection.channel()
    channel.queue_declare("amqp-work", durable=True, auto_delete=False)
    fails(
        "odd-header", lambda: channel.basic_publish(amqp.Message("x", application_headers={"f": {1}}), "", "amqp-work")
    )
    channel = connection.channel()
    channel.queue_declare(
        "amqp-short", durable=True, auto_delete=False, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )

    def publish_too_many() -> None:
        for _ in range(2):
            channel.basic_publish_confirm(amqp.Message("x"), "", "amqp-short")

    fails("nacked", publish_too_many)
    connection.close()


def losing() -> None:
    way = Forwarder()
    connection = way.connect()
    way.near.shutdown(socket.SHUT_RDWR)
    fails("lost", lambda: connection.drain_events(timeout=5))
    connection = way.connect(heartbeat=1)
    way.deaf = True

    def tick() -> None:
        for _ in range(16):
            connection.heartbeat_tick()
            time.sleep(0.5)

    fails("heartbeat", tick)
    way.deaf = False
    connection = way.connect()
    way.near.sendall(b"\x08\0\0\0\0\0\0\0")
    fails("frame-end", lambda: connection.drain_events(timeout=5))


def with_kombu() -> None:
    with kombu.Connection(os.environ["AMQP_URL"]) as connection:
        queue = kombu.Queue("kombu-work", durable=True)(connection)
        queue.declare()
        connection.Producer().publish("x", routing_key="kombu-work")
        while (message := queue.get()) is None:
            time.sleep(0.05)
        message.ack()
        fails("double-ack", message.ack)
        pickled = {"content_type": "application/x-python-serialize", "content_encoding": "utf-8"}
        connection.Producer().publish("x", routing_key="kombu-work", serializer=None, **pickled)
        with connection.Consumer(queue, callbacks=[lambda _, message: message.ack()]):
            fails("refused-content", lambda: connection.drain_events(timeout=2))


if __name__ == "__main__":
    for part in (opening, channels, losing, with_kombu):
        part()
