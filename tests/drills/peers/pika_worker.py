"""
Plain pika: `python -m tests.drills.peers.pika_worker`; with `send` it sends, with `raw` it runs each job in pika's own thread.

As pika's examples do it: the job in a thread of its own, its acknowledgement handed back to the connection's thread
(basic_consumer_threaded.py), and a loop that connects again (blocking_consume_recover_multiple_hosts.py).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pika

from tests.drills.bodies import HEARTBEAT, QUEUE, perform

parameters = pika.URLParameters(f"{os.environ['DRILL_URL']}?heartbeat={HEARTBEAT}")


def consume(stopping: Event, *, raw: bool) -> None:
    """Until the connection or the channel is lost; after a SIGTERM, until all that was taken is done."""
    connection = pika.BlockingConnection(parameters)
    channel, pending = connection.channel(), set()

    def acknowledge(tag: int) -> None:
        channel.basic_ack(tag)
        pending.discard(tag)

    def work(tag: int, body: bytes) -> None:
        perform(**json.loads(body))
        if channel.is_open:
            connection.add_callback_threadsafe(partial(acknowledge, tag))

    def taken(_channel: object, method: pika.spec.Basic.Deliver, _properties: object, body: bytes) -> None:
        if raw:
            perform(**json.loads(body))
            return channel.basic_ack(method.delivery_tag)
        pending.add(method.delivery_tag)
        return pool.submit(work, method.delivery_tag, body)

    with ThreadPoolExecutor(1) as pool:
        channel.basic_qos(prefetch_count=int(os.environ["DRILL_PREFETCH"]))
        consumer = channel.basic_consume(QUEUE, taken)
        while channel.is_open and not stopping.is_set():
            connection.process_data_events(1)
        if channel.is_open:
            channel.basic_cancel(consumer)
        while channel.is_open and pending:
            connection.process_data_events(1)
    connection.close()


def main() -> None:
    """Work until SIGTERM, or send one message for each line of standard input."""
    connection = pika.BlockingConnection(parameters)
    channel, stopping = connection.channel(), Event()
    channel.queue_declare(
        QUEUE, durable=True, arguments={"x-queue-type": os.environ.get("DRILL_QUEUE_TYPE", "classic")}
    )
    for line in sys.stdin if "send" in sys.argv else ():
        channel.basic_publish("", QUEUE, line.encode(), pika.BasicProperties(delivery_mode=2))
    connection.close()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    while "send" not in sys.argv and not stopping.is_set():
        try:
            consume(stopping, raw="raw" in sys.argv)
        except pika.exceptions.AMQPError:
            time.sleep(1)


if __name__ == "__main__":
    main()
