"""Two real threads publish on one pika BlockingConnection through a trace, until the wire breaks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.brokers.rabbitmq import Node, Vhost
from tests.diagnosis.explaining import Log, records
from tests.diagnosis.traced import Traced

ATTEMPTS = 20
RACES = {
    *("amqp.interleaved-frames", "amqp.unknown-frame-type", "amqp.frame-too-large", "amqp.invalid-frame-end"),
    *("amqp.frame-cut", "amqp.bad-method"),
}
"""What a trace may see when bytes of one thread are missing, or come twice."""

RACE = """
import sys, threading, traceback, pika
sys.setswitchinterval(1e-6)
url, count = sys.argv[1], int(sys.argv[2])
parameters = pika.URLParameters(url)
parameters.blocked_connection_timeout = 20
connection = pika.BlockingConnection(parameters)
channel = connection.channel()
stop = threading.Event()

def publish():
    for number in range(count):
        if stop.is_set():
            return
        try:
            channel.basic_publish("", "nobody", b"x" * 3000)
        except BaseException:
            stop.set()
            traceback.print_exc()
            return

threads = [threading.Thread(target=publish, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(20)
"""


@pytest.mark.timeout(300)
def test_two_threads_on_one_connection_are_named_by_trace_and_explain(rabbitmq_node: Node, vhost: Vhost) -> None:
    """
    No half frame is written by hand: the threads take each other's bytes out of pika's one buffer.

    Each attempt breaks something, and mostly the broker notices it first; then all three tell of it.
    """
    log = Log(rabbitmq_node.log)
    for _ in range(ATTEMPTS):
        with Traced(vhost.url) as trace:
            command = [sys.executable, "-c", RACE, trace.through(), "3000"]
            said = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=100).stderr
        closes = trace.of("method", name="Connection.Close", **{"from": "broker"})
        if [close["reply_code"] for close in closes] == [505]:
            break
    else:
        pytest.fail(f"{ATTEMPTS} races, and the broker has closed no connection for a frame in the wrong place")

    flag = next(event for event in trace.of("flag") if event["id"] == "amqp.interleaved-frames")
    assert "channel 1" in flag["what"] or "505 UNEXPECTED_FRAME" in flag["what"]
    assert "from one thread only" in flag["remedy"]
    assert set(trace.flags()) <= RACES
    assert records(said).keys() & {"amqp.interleaved-frames", "pika.shared-between-threads"}, said
    log.until({"amqp.interleaved-frames"})
