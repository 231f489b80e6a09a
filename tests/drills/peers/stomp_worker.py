"""
Plain stomp.py: `python -m tests.drills.peers.stomp_worker`; with `send` it sends, with `raw` it runs each job in stomp.py's own thread.

As stomp.py's documentation does it: a listener that acknowledges each message by itself, and connects again once disconnected.
The job is in a thread of its own, because a listener that works keeps stomp.py from reading heart-beats.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event
from urllib.parse import unquote, urlsplit

import stomp

from tests.drills.bodies import HEARTBEAT, perform

PREFETCH = int(os.environ["DRILL_PREFETCH"])

address = urlsplit(os.environ["DRILL_URL"])
connection = stomp.Connection12(
    [(address.hostname, address.port)],
    heartbeats=(HEARTBEAT * 1000, HEARTBEAT * 1000),
    reconnect_attempts_max=-1,
)


def connect() -> None:
    connection.connect(unquote(address.username or ""), unquote(address.password or ""), wait=True)


def queue_at(connected: stomp.utils.Frame) -> dict[str, str]:
    """The headers that name the queue; Artemis takes any name for a topic without the type."""
    name = os.environ["DRILL_QUEUE"]
    if "Artemis" in connected.headers["server"]:
        return {"destination": name, "destination-type": "ANYCAST", "subscription-type": "ANYCAST"}
    return {"destination": f"/queue/{name}"}


class Consumer(stomp.ConnectionListener):
    """Takes messages, and acknowledges each after its job."""

    def __init__(self) -> None:
        self.stopping = Event()
        self.pool = ThreadPoolExecutor(1)

    def on_connected(self, frame: stomp.utils.Frame) -> None:
        """Consume; at Artemis a window of 0 is one message at a time."""
        window = {"consumer-window-size": "0"} if PREFETCH == 1 else {}
        headers = {**queue_at(frame), **window, "activemq.prefetchSize": str(PREFETCH)}
        connection.subscribe(headers.pop("destination"), "1", ack="client-individual", headers=headers)

    def on_message(self, frame: stomp.utils.Frame) -> None:
        if "raw" in sys.argv:
            self.work(frame)
        else:
            self.pool.submit(self.work, frame)

    def work(self, frame: stomp.utils.Frame) -> None:
        perform(**json.loads(frame.body))
        connection.ack(frame.headers["ack"])

    def on_disconnected(self) -> None:
        if not self.stopping.is_set():
            connect()


class Sender(stomp.ConnectionListener):
    """Knows the queue's headers once it is connected."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[dict[str, str]] = SimpleQueue()

    def on_connected(self, frame: stomp.utils.Frame) -> None:
        self.queue.put(queue_at(frame))


def send() -> None:
    """Send one message for each line of standard input; a receipt for the goodbye is one for all before it."""
    sender = Sender()
    connection.set_listener("sender", sender)
    connect()
    headers = sender.queue.get()
    queue = headers.pop("destination")
    for line in sys.stdin:
        connection.send(queue, line, headers={**headers, "persistent": "true"})
    waiting = stomp.listener.WaitingListener("sent")
    connection.set_listener("receipt", waiting)
    connection.disconnect("sent")
    waiting.wait_on_receipt()


def work() -> None:
    """Work until SIGTERM, and finish what was taken."""
    consumer = Consumer()
    connection.set_listener("consumer", consumer)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stopping.set())
    connect()
    consumer.stopping.wait()
    consumer.pool.shutdown()
    connection.disconnect("stopped")


if __name__ == "__main__":
    send() if "send" in sys.argv else work()
