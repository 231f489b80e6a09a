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


def message(topic: str = TOPIC, body: bytes = b"x", **more: object) -> Message:
    made = Message()
    made.topic, made.body = topic, body
    for name, value in more.items():
        setattr(made, name, value)
    return made


def with_properties(count: int, size: int) -> Message:
    made = message()
    for number in range(count):
        made.add_property(f"k{number}", "v" * size)
    return made


def consumer(group: str = TOPIC, address: str = PROXY, patience: int = 10) -> SimpleConsumer:
    made = SimpleConsumer(configuration(address), group, {TOPIC: FilterExpression()}, patience)
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
attempt("message-type", lambda: producer.send(message(delivery_timestamp=int(time.time()) + 10)))
attempt("message-type", lambda: producer.send(message(f"{TOPIC}-delay")))
late = int(time.time()) + 200_000
attempt("delay-too-long", lambda: producer.send(message(f"{TOPIC}-delay", delivery_timestamp=late)))
attempt("body-too-large", lambda: producer.send(message(body=b"x" * 5_000_000)))
attempt("empty-body", lambda: producer.send(message(body=b"")))
attempt("properties-too-long", lambda: producer.send(with_properties(1, 20_000)))
attempt("properties-too-long", lambda: producer.send(with_properties(200, 1)))
attempt("illegal-name", lambda: producer.send(message("a b")))
attempt("tag", lambda: producer.send(message(tag="a|b")))
attempt("no-transaction-listener", lambda: producer.send(message(), transaction=producer.begin_transaction()))
attempt("not-started", lambda: SimpleConsumer(configuration(), TOPIC, {TOPIC: FilterExpression()}).receive(*RECEIVE))
producer.send(message())
reader = consumer()
(held,) = received(reader)
handle, over = held.receipt_handle, time.monotonic() + RECEIVE[1] + 1


def impatient() -> object:
    """Receive with a deadline that is too near, once the proxy knows the client; a busy proxy may not even say so."""
    hasty = consumer(patience=1)
    for _ in range(20):
        try:
            return hasty.receive(*RECEIVE)
        except Exception as error:
            if "polling" in str(error):
                raise
            time.sleep(0.5)
    return None


attempt("invisible-time", lambda: reader.change_invisible_duration(held, 50_000))
attempt("invisible-time", lambda: reader.receive(1, 5))
attempt("polling-time", impatient)
attempt("unknown-session", lambda: consumer("g" * 121).receive(*RECEIVE))
attempt("no-route", lambda: consumer(address=NOWHERE).receive(*RECEIVE))
time.sleep(max(0.0, over - time.monotonic()))
held.receipt_handle = handle  # a refused renewal has taken it away
attempt("receipt-handle", lambda: reader.ack(held))
os._exit(0)  # the client's threads would go on
