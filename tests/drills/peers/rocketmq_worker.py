"""
Plain rocketmq-client-python: `python -m tests.drills.peers.rocketmq_worker`; with `send` it sends.

As its documentation does it: a push consumer whose callback does the job, and returns that it was consumed.
The library has no way to take one message only: one thread, and a batch of one, is the least.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from threading import Event
from urllib.parse import urlsplit

from tests.drills.bodies import perform

FOLDER = Path(os.environ["DRILL_NOTES"]).parent
os.environ["HOME"] = str(FOLDER)  # the library writes its logs below it

from rocketmq.client import ConsumeStatus, Message, Producer, PushConsumer, RecvMessage  # noqa: E402

QUEUE = os.environ["DRILL_QUEUE"]
"""The topic, and the group."""

SERVERS = urlsplit(os.environ["DRILL_URL"]).netloc


def send() -> None:
    """Send one message for each line of standard input."""
    producer = Producer(f"{QUEUE}-senders")
    producer.set_namesrv_addr(SERVERS)
    producer.start()
    for line in sys.stdin:
        message = Message(QUEUE)
        message.set_body(line)
        producer.send_sync(message)
    producer.shutdown()


def take(message: RecvMessage) -> ConsumeStatus:
    """Do the job of a message."""
    perform(**json.loads(message.body))
    return ConsumeStatus.CONSUME_SUCCESS


def work() -> None:
    """Work until SIGTERM; `shutdown` waits for the callback that is under way."""
    consumer = PushConsumer(QUEUE)
    consumer.set_namesrv_addr(SERVERS)
    consumer.set_thread_count(1)
    consumer.set_message_batch_max_size(1)
    consumer.subscribe(QUEUE, take)
    stopping = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    consumer.start()
    stopping.wait()
    consumer.shutdown()


if __name__ == "__main__":
    send() if "send" in sys.argv else work()
    sys.stdout.flush()
    os._exit(0)  # the library's threads would keep the process
