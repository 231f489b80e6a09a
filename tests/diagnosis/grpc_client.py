"""
RocketMQ's Python client over gRPC, used wrongly in many ways.

Each is announced by a line `== NAME`, and followed by what the client raises; its log is below HOME.
The arguments are a proxy's address, an address where nothing listens, and a topic; topics with `-delay` behind it are there, too.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from rocketmq import (  # type: ignore[import-untyped]
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

PROXY, NOWHERE, TOPIC = sys.argv[1:]
RECEIVE = (1, 10)
"""One message, for the fewest seconds that a proxy takes."""


def configuration(address: str = PROXY) -> ClientConfiguration:
    return ClientConfiguration(address, Credentials(), "")


def message(topic: str = TOPIC, body: bytes = b"x") -> Message:
    made = Message()
    made.topic, made.body = topic, body
    return made


def consumer(address: str = PROXY) -> SimpleConsumer:
    made = SimpleConsumer(configuration(address), TOPIC, {TOPIC: FilterExpression()}, 10)
    made.startup()
    return made


def attempt(name: str, action: Callable[[], object]) -> None:
    print(f"== {name}")
    try:
        print(action())
    except Exception as error:  # noqa: BLE001 - the client raises plain exceptions, too
        print("".join(traceback.format_exception_only(error)))
    sys.stdout.flush()


def received(reader: Any) -> list[Message]:
    """Return a message, once the proxy knows the client."""
    for _ in range(20):
        try:
            found = reader.receive(*RECEIVE)
            assert isinstance(found, list)
            if found:
                return found
        except Exception:  # noqa: BLE001 - as above
            time.sleep(0.5)
    return []


producer = Producer(configuration(), (TOPIC, f"{TOPIC}-delay"))
producer.startup()
attempt("no-route", lambda: producer.send(message(f"{TOPIC}-nope")))
attempt("message-type", lambda: producer.send(message(f"{TOPIC}-delay")))
attempt("body-too-large", lambda: producer.send(message(body=b"x" * 5_000_000)))
attempt("not-started", lambda: SimpleConsumer(configuration(), TOPIC, {TOPIC: FilterExpression()}).receive(*RECEIVE))
producer.send(message())
reader = consumer()
(held,) = received(reader)
over = time.monotonic() + RECEIVE[1] + 1
attempt("invisible-time", lambda: reader.receive(1, 5))
attempt("no-route", lambda: consumer(NOWHERE).receive(*RECEIVE))
time.sleep(max(0.0, over - time.monotonic()))
attempt("receipt-handle", lambda: reader.ack(held))
os._exit(0)  # the client's threads would go on
